//! `meridian demo`: a whole cluster on this machine, mounted.

mod ports;

use crate::certificates::{self, Shown, TlsArgs};
use crate::children::{Children, Ended, last_words};
use crate::cluster::{self, Shape};
use crate::data::Data;
use crate::last::{self, LastDemo};
use crate::log_options::LogOptions;
use crate::mount::{self, HowToMount, Mount, MountPoint};
use crate::output;
use crate::server::KeysDurability;
use crate::signals::Signals;
use crate::{configuration, status};
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use meridian_client::{Client, ClientOptions};
use meridian_cluster::Topology;
use meridian_cluster::topology::{ClusterFile, NodeEntry};
use meridian_core::NodeId;
use meridian_node::keys;
use meridian_terminal::{die_with_parent, note};
use meridian_transport::Security;
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long the groups may take to get a primary before the demo gives up.
const READY: Duration = Duration::from_secs(60);
/// How often the nodes are asked whether they are ready.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Keys that begin so are causal unless a demo is told otherwise.
const CAUSAL_PREFIX: &str = "causal:";

/// What the demo shall be.
#[derive(Debug, Args)]
#[command(after_help = "\
Every node is a process of its own (`meridian server`) that speaks TCP on 127.0.0.1. In the mount,
each region has a directory of its name that is placed there: /us, /eu, /ap; everything else is
global. Ctrl-C stops it all: unmounted, processes gone, a temporary data directory removed.

Each region has keys of its own, linearizable, for clients of Redis: the table says at which port
each node answers them. Keys that begin with causal: are those of all regions: each reads and writes
them at once, also while it is cut off, and has what others wrote as soon as it can be reached.

Examples:
  meridian demo
  meridian demo --rtt us-eu=80,us-ap=160,eu-ap=200     as far apart as the real ones
  meridian demo --order linearizable                   no update before one that had ended
  meridian demo --data ./data                          kept, and started from again
  meridian demo --data ./data --keys-durability disk   keys, too
  meridian demo --exec 'cp -a /usr/include us && du -sh us/include'
In another terminal:
  meridian status
  meridian mount --region eu ./eu                      a second client, in another region
  kill -9 PID                                          a node: programs go on; the demo tells how
                                                       to start it again")]
pub struct DemoArgs {
    /// Where to mount: an empty or new directory
    #[arg(long, value_name = "DIR", default_value = "./meridian")]
    mount: PathBuf,
    /// The region in which the mount's client is [default: the first]
    #[arg(long)]
    region: Option<String>,
    #[command(flatten)]
    how: HowToMount,
    /// Keep everything in DIR, and start from it again [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Run CMD by `sh -c` in the mount, then stop and exit with its status. In it,
    /// MERIDIAN_CLUSTER names the cluster file, for `meridian status` and the like
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Clients of keys call the nodes at PORT, PORT+1, ... in the order of the table; 0: no keys
    /// [default: 7400, which `meridian kv` asks, or the next that are free]
    #[arg(long, value_name = "PORT")]
    keys_port: Option<u16>,
    /// Browsers see the dashboard of each node at PORT, PORT+1, ...; 0: there is none [default:
    /// 7450, or the next that are free]
    #[arg(long, value_name = "PORT")]
    watch_port: Option<u16>,
    /// Do without keys
    #[arg(long, conflicts_with = "keys_port")]
    no_keys: bool,
    /// In so many shards the keys of each region are, each on a thread of its own at each node
    /// [default: as in DATA, at first 1]
    #[arg(long, value_name = "N")]
    keys_shards: Option<usize>,
    /// Where keys are kept [default: as in DATA, at first in memory]
    #[arg(long, value_name = "WHERE", conflicts_with = "no_keys")]
    keys_durability: Option<KeysDurability>,
    /// Keys that begin so are causal: all regions have them; '' for none [default: as in DATA, at
    /// first causal:]
    #[arg(long, value_name = "PREFIX", conflicts_with = "no_keys")]
    keys_causal: Option<String>,
    /// Have nodes and clients speak TLS, as they do outside of demos; at the first start of DATA.
    /// The dashboards stay in plain text, for browsers of this machine
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    shape: Shape,
}

/// Runs `meridian demo`.
///
/// # Errors
/// If something is missing on this machine, or the cluster does not get ready.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    args.log.begin(mount::WARNINGS)?;
    mount::check_fuse()?;
    mount::clear_last()?;
    let data = Data::open(args.data.as_deref())?;
    let result = run_in(args, &data);
    // Also after an error, whose children have ended by now.
    let closed = data.close();
    let code = result?;
    closed?;
    Ok(code)
}

fn run_in(args: &DemoArgs, data: &Data) -> anyhow::Result<ExitCode> {
    data.end_strays()?;
    let point = MountPoint::prepare(&args.mount)?.with(args.how);
    let file = data.cluster(&args.shape, args.tls)?;
    let own = TlsArgs::default().security(&data.cluster_path(), &file, Shown::Admin)?;
    let topology = Topology::new(&file)?;
    let regions = topology.region_names();
    let region = args.region.clone().unwrap_or_else(|| regions[0].to_string());
    ensure!(
        regions.contains(&region.as_str()),
        "no region {region}: there are {}",
        regions.join(", ")
    );
    let nodes = topology.nodes.len();
    let keys_port = match args.no_keys {
        true => None,
        false => ports::KEYS.choose(args.keys_port, nodes)?,
    };
    let watch_port = ports::WATCH.choose(args.watch_port, nodes)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    // Children die with the thread that starts them, so that must be the main one: `block_on` runs
    // what it is given here.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut demo = Demo {
            data,
            file,
            security: own,
            topology,
            region,
            program: program.clone(),
            children: Children::new(program),
            signals: Signals::listen()?,
            following: mpsc::channel(1).1, // Nobody sends yet.
            keys_port,
            watch_port,
            keys_nodes: BTreeSet::new(),
            keys_first: BTreeSet::new(),
            keys_shards: args.keys_shards,
            keys_durability: args.keys_durability,
            keys_causal: args.keys_causal.clone(),
            log: args.log,
        };
        let result = demo.run(args, point).await;
        demo.children.stop().await;
        data.end_strays()?;
        result
    })
}

/// A demo that runs.
struct Demo<'a> {
    data: &'a Data,
    file: ClusterFile,
    /// How the demo's own connections are secured.
    security: Security,
    topology: Topology,
    region: String,
    program: PathBuf,
    children: Children,
    signals: Signals,
    /// Newer configurations.
    following: mpsc::Receiver<ClusterFile>,
    /// Where clients of keys call the first node; none if there are no keys.
    keys_port: Option<u16>,
    /// Where the first node's dashboard is; none if there is none.
    watch_port: Option<u16>,
    /// These nodes have keys.
    keys_nodes: BTreeSet<NodeId>,
    /// Those of them whose regions' keys begin with this demo, and with all of them.
    keys_first: BTreeSet<NodeId>,
    /// In so many shards they are wanted to be, and there.
    keys_shards: Option<usize>,
    keys_durability: Option<KeysDurability>,
    /// Which keys are causal.
    keys_causal: Option<String>,
    /// How the servers log, too.
    log: LogOptions,
}

impl Demo<'_> {
    async fn run(&mut self, args: &DemoArgs, point: MountPoint) -> anyhow::Result<ExitCode> {
        let cluster_path = self.data.cluster_path();
        last::write(&LastDemo {
            cluster: cluster_path.clone(),
            mount: point.path().into(),
            temporary: self.data.temporary,
        });
        self.start_servers()?;
        cluster::write(&cluster_path, &self.file)?;
        if let Some(signal) = self.wait_ready().await? {
            return Ok(code_of_signal(signal));
        }
        self.publish();
        let point = point.of(&cluster_path);
        let with = (self.topology.clone(), self.security.clone());
        let mount = Mount::start(with, &self.region, point)?;
        self.following = configuration::follow(&self.file, self.security.clone());
        self.introduce(mount.path(), args.exec.is_none())?;
        let result = match &args.exec {
            Some(command) => self.execute(command, &mount).await,
            None => self.watch(&mount).await,
        };
        let stopped = mount.stop().await;
        let code = result?;
        stopped?;
        Ok(code)
    }

    /// Starts all nodes, but for those that ran before and whose directory is gone, and those of
    /// lost regions.
    fn start_servers(&mut self) -> anyhow::Result<()> {
        let is_lost = |id: &NodeId| self.topology.is_lost(*id);
        let present: Vec<_> = self.topology.present().filter(|id| !is_lost(id)).collect();
        let dir = |id: NodeId| self.data.node(&self.topology.node(id).name);
        let ran = present.iter().any(|id| meridian_node::has_run(&dir(*id)));
        let (lost, kept): (Vec<_>, Vec<_>) =
            present.into_iter().partition(|id| ran && !dir(*id).exists());
        let lost: Vec<_> = lost.into_iter().map(|id| (id, dir(id))).collect();
        self.prepare_keys(&kept)?;
        for (id, path) in lost {
            let name = &self.topology.node(id).name;
            note!(
                "{name} is not started: {} is gone, and {name} has forgotten what it promised. Put \
                 it back, or: meridian cluster remove-node {name}, then meridian cluster add-node",
                path.display()
            );
        }
        kept.into_iter().try_for_each(|node| self.start_server(node).map(drop))
    }

    /// Keys that were in memory have gone with the last of their servers, and begin anew; where
    /// some are on disk, all go on as they were.
    fn prepare_keys(&mut self, nodes: &[NodeId]) -> anyhow::Result<()> {
        let region = |id: NodeId| self.topology.node(id).region;
        let dir = |id: NodeId| self.data.node(&self.topology.node(id).name);
        let (mut on_disk, mut shards, mut causal) = (BTreeSet::new(), None, None);
        let mut have = BTreeSet::new();
        for id in nodes {
            let kept = keys::kept(&dir(*id))?;
            have.extend(kept.iter().map(|_| *id));
            if let Some(kept) = kept.filter(|kept| kept.durability == keys::Durability::Disk) {
                on_disk.insert(region(*id));
                (shards, causal) = (Some(kept.shards), Some(kept.causal.unwrap_or_default()));
            }
        }
        for id in nodes.iter().filter(|id| !on_disk.contains(&region(**id))) {
            keys::forget(&dir(*id))?;
        }
        self.keys_shards = self.keys_shards.or(shards).or(Some(1));
        let causal = self.keys_causal.take().or(causal);
        self.keys_causal = causal.or(Some(CAUSAL_PREFIX.into()));
        // Also those that are not started: they count.
        let begin = self.topology.present().filter(|id| !on_disk.contains(&region(*id)));
        self.keys_first = begin.collect();
        let joins = |id: &NodeId| on_disk.contains(&region(*id));
        let with = |id: &NodeId| self.keys_first.contains(id) || have.contains(id) || joins(id);
        self.keys_nodes = self.topology.present().filter(with).collect();
        Ok(())
    }

    fn start_server(&mut self, id: NodeId) -> anyhow::Result<u32> {
        let (cluster, mut further) = (self.file.cluster, self.keys_options(id));
        further.push(self.log.word());
        let watched = ports::address(self.watch_port, id);
        // Also with --tls: it is this machine's, and a browser shows it at one click.
        let words = |at: String| ["--metrics-address".into(), at, "--insecure-metrics".into()];
        further.extend(watched.into_iter().flat_map(words));
        let name = &self.topology.node(id).name;
        if !self.file.insecure_plain_text {
            certificates::make_for_node(&self.data.cluster_path(), &self.file, name)?;
        }
        let node = &mut self.file.nodes[usize::from(id.0)];
        let dir = self.data.node(&node.name);
        meridian_node::prepare(&dir, cluster, &node.name)?;
        let pid = self.children.start(&node.name, &dir, &further)?;
        node.pid = Some(pid);
        Ok(pid)
    }

    /// How a node's server takes part in the keys of its region.
    fn keys_options(&self, id: NodeId) -> Vec<String> {
        let Some(address) = self.keys_address(id) else { return Vec::new() };
        let mut keys = vec!["--keys".into(), address];
        if let Some(shards) = self.keys_shards {
            keys.extend(["--keys-shards".into(), shards.to_string()]);
        }
        if let Some(wanted) = self.keys_durability {
            let wanted = wanted.to_possible_value().expect("all can be named");
            keys.extend(["--keys-durability".into(), wanted.get_name().into()]);
        }
        if let Some(prefix) = &self.keys_causal {
            keys.extend(["--keys-causal".into(), prefix.clone()]);
        }
        if self.keys_first.contains(&id) {
            keys.extend(["--keys-first".into(), self.begin_with(id)]);
        }
        keys
    }

    /// Where clients of keys call a node, if it has keys.
    fn keys_address(&self, id: NodeId) -> Option<String> {
        ports::address(self.keys_port.filter(|_| self.keys_nodes.contains(&id)), id)
    }

    /// The nodes with which the keys of a node's region begin.
    fn begin_with(&self, id: NodeId) -> String {
        let node = |id: &NodeId| self.topology.node(*id);
        let near = self.keys_first.iter().map(node).filter(|of| of.region == node(&id).region);
        near.map(|node| node.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Tells those who keep the configuration what this start has changed; nobody has to wait for
    /// that.
    fn publish(&self) {
        let (file, security) = (self.file.clone(), self.security.clone());
        tokio::spawn(async move {
            if let Err(error) = configuration::publish(&file, security).await {
                note!("meridian: {error}");
            }
        });
    }

    /// The configuration is this now: a node that came gets a server.
    fn on_newer(&mut self, mut newer: ClusterFile, mount: &Mount) -> anyhow::Result<()> {
        configuration::keep_pids(&mut newer, &self.file);
        let topology = Topology::new(&newer)?;
        let known = self.topology.nodes.len();
        (self.file, self.topology) = (newer, topology.clone());
        let path = self.data.cluster_path();
        cluster::write(&path, &self.file)?; // The new server reads it.
        let fresh: Vec<_> = topology.present().filter(|id| usize::from(id.0) >= known).collect();
        for id in &fresh {
            self.keys_nodes.insert(*id);
            let pid = self.start_server(*id)?;
            note!("{} was added: process {pid}", topology.node(*id).name);
        }
        if !fresh.is_empty() {
            cluster::write(&path, &self.file)?;
        }
        mount.configured(topology);
        Ok(())
    }

    /// Waits until every group has a primary; a signal meanwhile is returned.
    async fn wait_ready(&mut self) -> anyhow::Result<Option<i32>> {
        let security = self.security.clone();
        let options = ClientOptions { security, ..ClientOptions::new(self.region.as_str()) };
        let client = Client::connect(self.topology.clone(), &options)?;
        let (begin, count) = (Instant::now(), self.topology.present().count());
        note!("starting {count} nodes in {} regions ...", self.topology.regions.len());
        loop {
            let ask = async {
                tokio::time::sleep(ASK_AGAIN).await;
                status::ask_all(&client, &self.topology).await
            };
            let report = tokio::select! {
                report = ask => report,
                signal = self.signals.next() => return Ok(Some(signal)),
                ended = self.children.next_end() => {
                    // The others can do without it, as without one that is gone.
                    if ended.code == Some(i32::from(meridian_node::FORGOT_CODE)) {
                        self.tell(&ended);
                        continue;
                    }
                    let why = last_words(&self.data.node(&ended.name));
                    bail!("{} {}: {why}", ended.name, ended.how);
                }
            };
            if report.all_led() {
                note!("ready after {:.1} s", begin.elapsed().as_secs_f64());
                return Ok(None);
            }
            if begin.elapsed() > READY {
                bail!(
                    "no primary in {} after {} s: see the logs, {}/*/server.log",
                    report.not_led(),
                    READY.as_secs(),
                    self.data.path.display()
                );
            }
        }
    }

    /// What runs where, and what to do with it. With `--exec`, standard output belongs to CMD.
    fn introduce(&self, mount: &Path, long: bool) -> anyhow::Result<()> {
        let nodes = self.topology.present().map(|id| &self.file.nodes[usize::from(id.0)]);
        let keys = |node: &NodeEntry| {
            let id = self.topology.node_named(&node.name).expect("it is of this topology");
            self.keys_address(id).unwrap_or("-".into())
        };
        let rows = nodes.map(|node| {
            vec![
                node.name.clone(),
                node.region.clone(),
                node.pid.map_or("-".into(), |pid| pid.to_string()),
                node.address.clone(),
                keys(node),
                node.groups.join(", "),
            ]
        });
        let table = output::table(&["node", "region", "pid", "address", "keys", "groups"], rows);
        if !long {
            note!("{table}");
            return Ok(());
        }
        let mount = shown(mount);
        let program = shown(&self.program);
        let kept = if self.data.temporary { "removed at the end" } else { "kept" };
        output::print(&format!(
            "{table}

mounted at {mount}, in region {region}; data in {data} ({kept})
try in another terminal:
  cp -a /usr/include {mount}/{region}
  {program} status
  {program} fs where {mount}/{region}
{keys}{watch}Ctrl-C stops everything.",
            region = self.region,
            keys = self.keys_port.map_or(String::new(), |first| {
                format!("  {program} kv --at 127.0.0.1:{first} set color blue\n")
            }),
            watch = self.watch_port.map_or(String::new(), |first| {
                format!("and in a browser: http://127.0.0.1:{first}/\n")
            }),
            data = shown(&self.data.path),
        ))
    }

    /// Waits for a signal, and tells of nodes that end.
    async fn watch(&mut self, mount: &Mount) -> anyhow::Result<ExitCode> {
        loop {
            tokio::select! {
                _ = self.signals.next() => {
                    note!("stopping ...");
                    return Ok(ExitCode::SUCCESS);
                }
                () = mount.unmounted() => {
                    note!("unmounted by somebody else; stopping ...");
                    return Ok(ExitCode::SUCCESS);
                }
                ended = self.children.next_end() => self.tell(&ended),
                newer = configuration::next(&mut self.following) => self.take(newer, mount),
            }
        }
    }

    /// A configuration that cannot be followed is told, and the demo goes on.
    fn take(&mut self, newer: ClusterFile, mount: &Mount) {
        if let Err(error) = self.on_newer(newer, mount) {
            note!("meridian: cannot follow the configuration: {error:#}");
        }
    }

    /// Runs CMD, and tells of nodes that end meanwhile.
    async fn execute(&mut self, command: &str, mount: &Mount) -> anyhow::Result<ExitCode> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(mount.path());
        shell.env(cluster::CLUSTER_VARIABLE, self.data.cluster_path());
        die_with_parent(shell.as_std_mut(), Signal::HUP);
        let mut running = shell.spawn().context("cannot run sh")?;
        let pid = running.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let mut asked_to_end = false;
        loop {
            tokio::select! {
                status = running.wait() => return Ok(code_of(status?)),
                ended = self.children.next_end() => self.tell(&ended),
                newer = configuration::next(&mut self.following) => self.take(newer, mount),
                signal = self.signals.next() => {
                    // CMD may know better than to end; the second time it has no choice.
                    let signal = if asked_to_end { Signal::KILL } else { signal_of(signal) };
                    asked_to_end = true;
                    let has_it = signal == Signal::INT && std::io::stdin().is_terminal();
                    if !has_it && let Some(pid) = pid {
                        // Not waited for yet, so the number is still its.
                        let _ = rustix::process::kill_process(pid, signal);
                    }
                }
            }
        }
    }

    fn tell(&self, ended: &Ended) {
        let dir = self.data.node(&ended.name);
        if ended.code == Some(i32::from(meridian_node::REMOVED_CODE)) {
            return note!(
                "{} (process {}) is in the cluster no more: {}",
                ended.name,
                ended.pid,
                last_words(&dir)
            );
        }
        if ended.code == Some(i32::from(meridian_node::FORGOT_CODE)) {
            return note!("goes on without {}: {}", ended.name, last_words(&dir));
        }
        let words = if ended.how.starts_with("ended") {
            format!(": {}", last_words(&dir))
        } else {
            String::new()
        };
        let node = self.topology.node_named(&ended.name);
        let keys = node.and_then(|id| self.keys_address(id));
        let keys = keys.map(|address| format!(" --keys {address}"));
        note!(
            "{} (process {}) {}{words}; start it again with: {} server --dir {}{}",
            ended.name,
            ended.pid,
            ended.how,
            shown(&self.program),
            shown(&dir),
            keys.unwrap_or_default()
        );
    }
}

/// A path as one would type it here.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let near = here.as_deref().and_then(|here| path.strip_prefix(here).ok());
    let near = near.filter(|near| *near != Path::new(""));
    match near {
        Some(near) if near.components().count() == 1 => format!("./{}", near.display()),
        Some(near) => near.display().to_string(),
        None => path.display().to_string(),
    }
}

/// The status that a shell would report for it.
fn code_of(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => ExitCode::FAILURE,
    }
}

fn code_of_signal(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

fn signal_of(number: i32) -> Signal {
    match number {
        libc::SIGINT => Signal::INT,
        libc::SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    }
}
