//! `meridian cluster`: the configuration of a cluster, shown and changed.

mod admission;
mod fence;
mod level;
mod lost;
mod regions;
mod report;

use crate::certificates::Shown;
use crate::cluster::{Of, node_name};
use crate::configuration::{self, Newest};
use crate::lock::{self, DEMO_LOCK, Tried};
use crate::status::{self, Answered};
use crate::{cluster, output};
use admission::{AllowArgs, GrantsArgs, RevokeArgs};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use fence::FenceArgs;
use level::LevelArgs;
use lost::LostArgs;
pub use lost::kind_name;
use meridian_client::Client;
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_core::NodeId;
use meridian_node::Keepers;
use meridian_paxos::Consistency;
use meridian_terminal::{log, note};
use regions::{AddRegionArgs, RemoveRegionArgs};
use report::{Report, left_to_drain, names_of_groups, state, without_keys};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a change may take to be agreed on: some elections of those who keep the configuration.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a node may take to come into its groups, or to leave them.
const CHANGE: Duration = Duration::from_secs(120);
/// How long a server that runs takes to say so at most.
const END: Duration = Duration::from_secs(5);
/// How often it is told how many blocks are left.
const TELL_AGAIN: Duration = Duration::from_secs(2);
/// How often it is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Show or change which nodes a cluster has
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Tell the nodes, the groups and their members, and who keeps the configuration
    Show(ShowArgs),
    /// Add a node to a cluster that runs
    AddNode(AddArgs),
    /// Remove a node from a cluster that runs
    RemoveNode(RemoveArgs),
    /// Take the removal of a node back, while it is drained
    KeepNode(KeepArgs),
    /// Add a region to a cluster that runs, with its first node
    AddRegion(AddRegionArgs),
    /// Remove a region, in whose directory nothing is left, and its nodes
    RemoveRegion(RemoveRegionArgs),
    /// Say what a client may do
    Allow(AllowArgs),
    /// Have a certificate count no more
    Revoke(RevokeArgs),
    /// Tell what clients may do, and whose certificates count no more
    Grants(GrantsArgs),
    /// Tell or hold back the level of features by which the cluster goes, while it is upgraded
    Level(LevelArgs),
}

/// Go on without a region that is lost for good
#[derive(Debug, Subcommand)]
pub enum RegionCommand {
    /// Declare a region lost: all goes on without it, for ever
    Fence(FenceArgs),
    /// Tell which names lead to what was lost with a region
    Lost(LostArgs),
}

/// What to show.
#[derive(Debug, Args)]
#[command(after_help = "\
The configuration is a small replicated service of its own: up to five nodes keep it, a majority of
them must be up to change it. Its version grows with each change. A group's number says how often
its members have changed; while they change, those before count, and the next stand behind the
arrow.

Exit status 0 if the newest configuration is shown, 1 if too few of those that keep it answer: then
it is that of the cluster file.

Examples:
  meridian cluster show
  meridian cluster show --cluster DATA/cluster.json --json")]
pub struct ShowArgs {
    #[command(flatten)]
    of: Of,
}

/// What to add.
#[derive(Debug, Args)]
#[command(after_help = "\
The node becomes a member of its region's group and of `global`, one step after the other: it is
written into the configuration, its server is started (by the demo, if that runs; else by you, as
you are told), gets the state of its groups from the others, and from then on counts. Programs go on
meanwhile. Names and identities are never given again.

Examples:
  meridian cluster add-node --region us
  meridian cluster add-node --region eu --name eu-extra --address 127.0.0.1:7200")]
pub struct AddArgs {
    /// In this region
    #[arg(long)]
    region: String,
    /// Its name [default: the region's with the next number]
    #[arg(long, value_parser = node_name)]
    name: Option<String>,
    /// Where it shall listen [default: a free port of this machine]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    #[command(flatten)]
    of: Of,
}

/// What to remove.
#[derive(Debug, Args)]
#[command(after_help = "\
The node is drained: it copies the blocks that it holds to other nodes of its region, leaves its
groups, and its server ends by itself. That is agreed on and goes on whether this command waits for
it or not, and after a restart of the nodes; said again, the command waits for it again. The node
may be down already: then the other nodes of its region copy what they hold of it, and they must be
a majority of each of its groups, those before and those after. A node that goes down for good while
it is drained is removed so if the command is said again. If it keeps the configuration another node
does so in its place. Its directory is of no more use.

A region needs two nodes, so that each block is on two. A removal after which it has fewer is
refused by those that keep the configuration, unless it is forced, with a reason that the
configuration keeps (`meridian cluster show`).

Examples:
  meridian cluster remove-node us-2
  meridian cluster remove-node us-2 --force --reason 'the region is given up'")]
pub struct RemoveArgs {
    /// Its name
    name: String,
    /// Also if its region has fewer nodes then than it needs
    #[arg(long, requires = "reason")]
    force: bool,
    /// Why it must be
    #[arg(long, value_name = "WORDS", requires = "force")]
    reason: Option<String>,
    #[command(flatten)]
    of: Of,
}

/// Whose removal to take back.
#[derive(Debug, Args)]
#[command(after_help = "\
A node that is drained is still a member of its groups. It stays one, takes blocks again, and what
was copied meanwhile stays where it is. Once others have all that it held, it goes for good. If
another node keeps the configuration in its place, that one goes on with it.

Example:
  meridian cluster keep-node us-2")]
pub struct KeepArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    of: Of,
}

/// Runs `meridian cluster`.
///
/// # Errors
/// If there is no such cluster, or the change is not possible.
pub fn run(command: &ClusterCommand) -> anyhow::Result<ExitCode> {
    log::to_stderr("error");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            ClusterCommand::Show(args) => show(args).await,
            ClusterCommand::AddNode(args) => add(args).await,
            ClusterCommand::RemoveNode(args) => remove(args).await,
            ClusterCommand::KeepNode(args) => keep(args).await,
            ClusterCommand::AddRegion(args) => regions::add(args).await,
            ClusterCommand::RemoveRegion(args) => regions::remove(args).await,
            ClusterCommand::Allow(args) => admission::allow(args).await,
            ClusterCommand::Revoke(args) => admission::revoke(args).await,
            ClusterCommand::Grants(args) => admission::grants(args).await,
            ClusterCommand::Level(args) => level::level(args).await,
        }
    })
}

/// Runs `meridian region`.
///
/// # Errors
/// If there is no such region, or it cannot be fenced.
pub fn run_region(command: &RegionCommand) -> anyhow::Result<ExitCode> {
    log::to_stderr("error");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            RegionCommand::Fence(args) => fence::fence(args).await,
            RegionCommand::Lost(args) => lost::lost(args).await,
        }
    })
}

/// A cluster that runs.
struct Cluster {
    path: PathBuf,
    newest: Newest,
    client: Client,
    answers: BTreeMap<NodeId, Answered>,
    /// Since when nobody tells whether there is a newer configuration.
    unheard: Option<Instant>,
}

impl Cluster {
    async fn open(of: &Of) -> anyhow::Result<Cluster> {
        let path = cluster::named_or_last(of.cluster.as_deref())?;
        let newest = configuration::newest(&path, &of.tls, Shown::Admin).await?;
        let client = newest.client()?;
        let answers = status::answers(&client, &newest.topology).await;
        Ok(Cluster { path, newest, client, answers, unheard: None })
    }

    /// For changes: one that is not the newest will not do.
    async fn open_newest(of: &Of) -> anyhow::Result<Cluster> {
        let cluster = Cluster::open(of).await?;
        match &cluster.newest.error {
            None => Ok(cluster),
            Some(error) => Err(anyhow::Error::new(error.clone()).context("nothing is changed")),
        }
    }

    fn keepers(&self) -> Keepers {
        Keepers::new(&self.newest.file, self.newest.security.clone(), PATIENCE)
    }

    /// The names of the nodes that answer.
    fn up(&self) -> BTreeSet<String> {
        let up = self.answers.iter().filter(|(_, answer)| answer.is_ok());
        up.map(|(id, _)| self.newest.topology.node(*id).name.clone()).collect()
    }

    /// How the server of a node that is added takes part in the keys of its region, if it can.
    fn keys_options(&self, region: &str) -> String {
        const PREFIX: &str = " --keys-causal PREFIX";
        let region = self.newest.topology.region_named(region);
        let near = self.answers.iter().filter_map(|(id, answer)| Some((id, answer.as_ref().ok()?)));
        let near = near.filter(|(id, _)| Some(self.newest.topology.node(**id).region) == region);
        let with = near.map(|(_, status)| &status.keys).find(|keys| !keys.is_empty());
        match with {
            None => String::new(),
            Some(keys) => {
                let causal = keys.iter().filter(|shard| shard.causal).count();
                let prefix = if causal > 0 { PREFIX } else { "" };
                let disk = keys.iter().any(|shard| shard.on_disk);
                let disk = if disk { " --keys-durability disk" } else { "" };
                let shards = keys.len() - causal;
                format!(" --keys HOST:PORT --keys-shards {shards}{disk}{prefix}")
            }
        }
    }

    /// If `old` keeps the configuration: who shall do so in its place.
    fn keeper_after(&self, old: NodeId) -> anyhow::Result<Option<String>> {
        self.keeper_instead(old, |_| true)
    }

    /// If `old` keeps the configuration: which of those `wanted` shall do so in its place.
    fn keeper_instead(
        &self,
        old: NodeId,
        wanted: impl Fn(NodeId) -> bool,
    ) -> anyhow::Result<Option<String>> {
        let topology = &self.newest.topology;
        let (name, region) = (&topology.node(old).name, topology.node(old).region);
        let replicas = &self.newest.file.configuration.replicas;
        if !replicas.contains(name) {
            return Ok(None);
        }
        let named = |id: &NodeId| replicas.contains(&topology.node(*id).name);
        let up = |id: &NodeId| self.answers.get(id).is_some_and(Result::is_ok);
        let fits =
            |id: &NodeId| up(id) && !named(id) && state(topology, *id) == "member" && wanted(*id);
        let mut others: Vec<_> = topology.present().filter(fits).collect();
        others.sort_by_key(|id| topology.node(*id).region != region);
        let new = others.first().with_context(|| {
            format!(
                "{name} keeps the configuration, and there is no other node to do that: \
                 add one first"
            )
        })?;
        Ok(Some(topology.node(*new).name.clone()))
    }

    /// Watches how a node is drained, until it is. That goes on without this, too.
    async fn watch_drain(&mut self, keepers: &mut Keepers, id: NodeId) -> anyhow::Result<()> {
        let (mut told, mut seen, mut changed) = (None, (None, Vec::new()), Instant::now());
        let name = self.newest.topology.node(id).name.clone();
        while let Some(draining) = self.newest.topology.node(id).draining.clone() {
            let region = self.newest.topology.node(id).region;
            let staying: Vec<_> = self.newest.topology.staying_in(region).collect();
            for node in if draining.down { staying } else { vec![id] } {
                let answer = self.client.status(node, END).await;
                self.answers.insert(node, answer.map_err(|error| error.to_string()));
            }
            let left = left_to_drain(&self.newest.topology, &self.answers, id);
            let without = without_keys(&self.newest.topology, &self.answers, id);
            if (left, &without) != (seen.0, &seen.1) {
                if left == Some(0) && !without.is_empty() {
                    note!("{name} has keys, which are to be at {}, too", without.join(", "));
                }
                (seen, changed) = ((left, without), Instant::now());
            }
            let waits = told.is_none_or(|(_, at): (_, Instant)| at.elapsed() > TELL_AGAIN);
            if waits && left.is_some_and(|left| left > 0 && told.is_none_or(|(n, _)| n != left)) {
                note!("{} blocks of {name} are to be copied to other nodes", left.unwrap_or(0));
                told = left.map(|left| (left, Instant::now()));
            }
            if changed.elapsed() > CHANGE {
                let left = left.map_or("an unknown number of".into(), |left| left.to_string());
                let keys = match &seen.1[..] {
                    [] => String::new(),
                    without => format!(", nor its keys at {}", without.join(", ")),
                };
                bail!(
                    "{name} is still drained, and {left} blocks are not on enough other \
                     nodes{keys}: are those of its region up, with keys where it has them? It goes \
                     on by itself; see `meridian cluster show` and `meridian status`"
                );
            }
            sleep(LOOK_AGAIN).await;
            self.follow(keepers).await?;
        }
        Ok(())
    }

    /// Asks for a node, has its server started and waits until it is in its groups; its name.
    async fn bring(&mut self, keepers: &mut Keepers, request: &Request) -> anyhow::Result<String> {
        let (Request::AddNode { region, .. } | Request::AddRegion { region, .. }) = request else {
            bail!("{request:?} brings no node");
        };
        let (_, added) = keepers.change(request).await?;
        let name = added.context("the configuration does not tell the node's name")?;
        let data = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        let dir = data.join(&name);
        if !demo_runs(&data)? {
            let newer = keepers.newer(0, Consistency::Linearizable).await?;
            let mut newer = newer.context("the configuration is gone")?;
            configuration::keep_pids(&mut newer, &self.newest.file);
            cluster::write(&self.path, &newer)?;
            meridian_node::prepare(&dir, newer.cluster, &name)?;
            if !newer.insecure_plain_text {
                note!(
                    "{name} needs a certificate: meridian certify {name} --role node --cluster {}",
                    self.path.display()
                );
            }
            note!(
                "{name} is added; start its server, it comes into its groups then: meridian server --dir {}{}",
                dir.display(),
                self.keys_options(region)
            );
        }
        let is_in = |topology: &Topology| {
            let id = topology.node_named(&name);
            id.is_some_and(|id| state(topology, id) == "member")
        };
        if !self.wait(keepers, is_in).await? {
            bail!(
                "{name} was added and is not in its groups after {} s: see {}/server.log, or take it \
                 back with `meridian cluster remove-node {name}`",
                CHANGE.as_secs(),
                dir.display()
            );
        }
        Ok(name)
    }

    /// Learns of a newer configuration. Those that keep it may change meanwhile, and do not answer
    /// for a while then.
    async fn follow(&mut self, keepers: &mut Keepers) -> anyhow::Result<()> {
        let version = self.newest.topology.version;
        let newer = keepers.newer(version, Consistency::Linearizable).await;
        let now = Instant::now();
        if newer.is_err() && self.unheard.get_or_insert(now).elapsed() < CHANGE {
            return Ok(());
        }
        self.unheard = None;
        if let Some(newer) = newer? {
            keepers.moved(&newer);
            let topology = Topology::new(&newer)?;
            self.client.configured(topology.clone());
            configuration::keep_file(&self.path, &newer);
            let security = self.newest.security.clone();
            self.newest = Newest { file: newer, topology, security, error: None };
        }
        Ok(())
    }

    /// Waits until the configuration is as wanted.
    async fn wait(
        &mut self,
        keepers: &mut Keepers,
        wanted: impl Fn(&Topology) -> bool,
    ) -> anyhow::Result<bool> {
        let begin = Instant::now();
        while !wanted(&self.newest.topology) {
            if begin.elapsed() > CHANGE {
                return Ok(false);
            }
            sleep(LOOK_AGAIN).await;
            self.follow(keepers).await?;
        }
        Ok(true)
    }
}

async fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::open(&args.of).await?;
    let report = Report::new(&cluster.newest, &cluster.answers);
    let text =
        if args.of.json { serde_json::to_string_pretty(&report)? } else { report.for_people() };
    output::print(&text)?;
    Ok(if report.from_file { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let address = match &args.address {
        Some(address) => address.clone(),
        None => cluster::free_address()?,
    };
    let (region, name, up) = (args.region.clone(), args.name.clone(), cluster.up());
    let mut keepers = cluster.keepers();
    let request = Request::AddNode { region, name, address, up };
    let name = cluster.bring(&mut keepers, &request).await?;
    done(args.of.json, &cluster.newest.topology, &name, "added")
}

async fn remove(args: &RemoveArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let mut keepers = cluster.keepers();
    let id = cluster.newest.topology.node_named(&args.name);
    let id = id.with_context(|| format!("no node {}", args.name))?;
    let name = args.name.as_str();
    if !cluster.newest.topology.node(id).leaves {
        let keeper = cluster.keeper_after(id)?;
        if let Some(keeper) = &keeper {
            note!("{keeper} is to keep the configuration in the place of {name}");
        }
        let (name, up, reason) = (args.name.clone(), cluster.up(), args.reason.clone());
        let request = Request::RemoveNode { name, up, keeper, reason };
        keepers.change(&request).await?;
        cluster.follow(&mut keepers).await?;
        if let Some(reason) = cluster.newest.file.configuration.forced.get(&args.name) {
            note!("{} is removed though its region needs it: {reason}", args.name);
        }
    }
    cluster.watch_drain(&mut keepers, id).await?;
    if !cluster.newest.topology.node(id).leaves {
        bail!("{name} stays: its removal was taken back");
    }
    if !cluster.wait(&mut keepers, |topology| topology.is_gone(id)).await? {
        bail!(
            "{name} is to leave and is still in {} after {} s: see `meridian cluster show`",
            names_of_groups(&cluster.newest.topology, id).join(", "),
            CHANGE.as_secs()
        );
    }
    done(args.of.json, &cluster.newest.topology, name, "removed")
}

async fn keep(args: &KeepArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let mut keepers = cluster.keepers();
    keepers.change(&Request::KeepNode { name: args.name.clone() }).await?;
    cluster.follow(&mut keepers).await?;
    done(args.of.json, &cluster.newest.topology, &args.name, "kept")
}

fn done(json: bool, topology: &Topology, name: &str, what: &str) -> anyhow::Result<ExitCode> {
    let id = topology.node_named(name).context("the node is not in the configuration")?;
    let groups = names_of_groups(topology, id);
    let text = if json {
        let region = &topology.regions[usize::from(topology.node(id).region.0)].name;
        let (version, address) = (topology.version, &topology.node(id).address);
        serde_json::to_string_pretty(&serde_json::json!({
            "node": name, "id": id.0, "region": region, "address": address, "groups": groups,
            "state": state(topology, id), "version": version,
        }))?
    } else {
        let member = if groups.is_empty() { "no group".into() } else { groups.join(", ") };
        format!("{name} is {what}: a member of {member}; version {}", topology.version)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a demo runs on that data: then it starts and ends servers.
fn demo_runs(data: &Path) -> anyhow::Result<bool> {
    let path = data.join(DEMO_LOCK);
    Ok(path.exists() && matches!(lock::try_lock(&path)?, Tried::Held(_)))
}
