//! `meridian region fence`: all goes on without a region that is lost for good.

mod plan;

use super::lost::{Names, client_elsewhere, names_into};
use super::regions::{holds_directory, now_ms};
use super::{CHANGE, Cluster, LOOK_AGAIN, TELL_AGAIN};
use crate::cluster::Of;
use crate::{output, status};
use anyhow::{Context, bail};
use clap::Args;
use meridian_client::Files;
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_cluster::lost::LostRegion;
use meridian_core::RegionId;
use meridian_node::Keepers;
use meridian_terminal::note;
use plan::Plan;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// So long a plan looks for names that lead to what is lost.
const LOOKS_FOR: Duration = Duration::from_secs(10);

/// Which.
#[derive(Debug, Args)]
#[command(after_help = "\
A region whose nodes do not answer holds the others up where they need its word, and comes back as
it was: nothing is lost. If it is known to be lost for good, as its machines burned, this declares
it lost. What was under way to it is decided without it, everywhere the same: nodes of another
region inherit its group, once all nodes that are left have told them what they know of it. Then its
nodes leave all groups, and its directory goes. What only its nodes had is lost to the others: all
that was placed in it, its local keys, and changes that nobody else had heard of.

Without --yes it is only told what would be done, and whether it can be: no node of the region may
answer, all others must, and more than half of all nodes have to be left. Where all nodes keep the
configuration, as three of three do, nobody can do so instead of one that is lost: the next node
that is added does (`meridian cluster add-node`).

Whether the region is lost only you can know. THERE IS NO WAY BACK: a node of the region that starts
again, or was only cut off, ends with status 4 as soon as it hears of it, and keeps its directory.
The machines come back as nodes of a new region (`meridian cluster add-region`). If the command ends
before all is done it goes on; say it again, and it waits for that.

Examples:
  meridian region fence ap
  meridian region fence ap --yes")]
pub struct FenceArgs {
    /// The region that is lost
    #[arg(value_name = "REGION")]
    region: String,
    /// Do it: there is no way back
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    of: Of,
}

pub(super) async fn fence(args: &FenceArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let (begin, region) = (Instant::now(), args.region.as_str());
    let id = cluster.newest.topology.region_named(region);
    let id = id.with_context(|| format!("no region {region}"))?;
    let mut keepers = cluster.keepers();
    if cluster.newest.topology.lost_region(id).is_none() {
        let (up, keyless, now_ms) = (cluster.up(), keyless(&cluster), now_ms());
        let request = Request::FenceRegion { region: region.into(), up, keyless, now_ms };
        let plan = Plan::new(&cluster.newest.file, &request)?;
        cluster.client = client_elsewhere(&cluster.newest, id)?;
        if !args.yes {
            return tell(&cluster, id, plan, args.of.json).await;
        }
        note!("{}", plan.for_people());
        keepers.change(&request).await?;
        note!("region {region} is declared lost");
        cluster.follow(&mut keepers).await?;
    } else {
        cluster.client = client_elsewhere(&cluster.newest, id)?;
    }
    if args.yes {
        carry_out(&mut cluster, &mut keepers, id).await?;
    }
    let topology = &cluster.newest.topology;
    let lost =
        topology.lost_region(id).context("the configuration does not say that it is lost")?;
    output::print(&match args.of.json {
        true => serde_json::json!({
            "region": region,
            "since_ms": lost.since_ms,
            "stands": lost.stands,
            "heirs": names_of(topology, &lost.heirs),
            "version": topology.version,
            "seconds": begin.elapsed().as_secs_f64(),
        })
        .to_string(),
        false => format!(
            "region {region} was declared lost at {}, and {} {} its group; version {}, after {:.1} \
             s. What names lead to nothing now: meridian region lost {region}",
            lost.since(),
            names_of(topology, &lost.heirs).join(", "),
            if lost.stands { "hold" } else { "are to inherit" },
            topology.version,
            begin.elapsed().as_secs_f64()
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn names_of(topology: &Topology, nodes: &[meridian_core::NodeId]) -> Vec<String> {
    nodes.iter().map(|node| topology.node(*node).name.clone()).collect()
}

/// Whether no node that answers has keys of all regions.
fn keyless(cluster: &Cluster) -> bool {
    let mut told = cluster.answers.values().filter_map(|answer| answer.as_ref().ok());
    !told.any(|status| status.keys.iter().any(|shard| shard.causal))
}

/// What would be done.
async fn tell(
    cluster: &Cluster,
    region: RegionId,
    mut plan: Plan,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let topology = &cluster.newest.topology;
    let (files, group) = (Files::new(cluster.client.clone()), topology.group_of_region(region));
    let found = names_into(&files, topology, group, Some(LOOKS_FOR)).await;
    plan.found = Some(found);
    output::print(&match json {
        true => serde_json::to_string_pretty(&plan)?,
        false => plan.for_people(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until all is done. That goes on without this, too.
async fn carry_out(
    cluster: &mut Cluster,
    keepers: &mut Keepers,
    region: RegionId,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let Some(lost) = cluster.newest.topology.lost_region(region).cloned() else { return Ok(()) };
    let name = cluster.newest.topology.regions[usize::from(region.0)].name.clone();
    await_heirs(cluster, keepers, &lost, &name).await?;
    note!("its heirs go on, after {:.1} s", begin.elapsed().as_secs_f64());
    let have_left = |topology: &Topology| lost.nodes.iter().all(|node| topology.is_gone(*node));
    if !cluster.wait(keepers, have_left).await? {
        bail!(
            "the nodes of {name} are still members of groups after {} s: see `meridian cluster \
             show`. It goes on by itself",
            CHANGE.as_secs()
        );
    }
    let others_keep = |topology: &Topology| topology.keeping.joining.is_empty();
    if !cluster.wait(keepers, others_keep).await? {
        bail!(
            "not all that are to keep the configuration do after {} s: see `meridian cluster \
             show`. It goes on by itself",
            CHANGE.as_secs()
        );
    }
    note!("its nodes have left all groups, after {:.1} s", begin.elapsed().as_secs_f64());
    await_no_directory(cluster, &lost, &name).await?;
    note!("its directory is gone, after {:.1} s", begin.elapsed().as_secs_f64());
    if let Some(seats) = status::empty_seats(&cluster.newest.topology) {
        note!("the configuration {seats}");
    }
    Ok(())
}

/// Waits until the fence stands, and says whom it waits for.
async fn await_heirs(
    cluster: &mut Cluster,
    keepers: &mut Keepers,
    lost: &LostRegion,
    name: &str,
) -> anyhow::Result<()> {
    let (begin, mut told, mut said) = (Instant::now(), Instant::now(), String::new());
    let open = |topology: &Topology| topology.open_fence().is_some_and(|of| of.group == lost.group);
    while open(&cluster.newest.topology) {
        if told.elapsed() > TELL_AGAIN {
            let answers = status::answers(&cluster.client, &cluster.newest.topology).await;
            let waits = status::waits_for(&cluster.newest.topology, lost, &answers);
            if waits != said {
                note!("{waits}");
                said = waits;
            }
            told = Instant::now();
        }
        if begin.elapsed() > CHANGE {
            bail!(
                "the heirs of {name} do not go on after {} s: {said}. It goes on by itself; say \
                 this again to wait for it",
                CHANGE.as_secs()
            );
        }
        sleep(LOOK_AGAIN).await;
        cluster.follow(keepers).await?;
    }
    Ok(())
}

/// Waits until the region's directory is gone. Something else may have its name.
async fn await_no_directory(
    cluster: &Cluster,
    lost: &LostRegion,
    name: &str,
) -> anyhow::Result<()> {
    let (begin, files) = (Instant::now(), Files::new(cluster.client.clone()));
    loop {
        let why = match holds_directory(&files, lost.group).await {
            Ok(false) => return Ok(()),
            Ok(true) => "if something was made in it since, remove that".to_string(),
            Err(error) => error.to_string(),
        };
        if begin.elapsed() > CHANGE {
            bail!(
                "the directory of {name} is still there after {} s: {why}. It goes by itself then",
                CHANGE.as_secs()
            );
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// A part of what is found, for a plan.
fn some_names(found: &Names, most: usize) -> Vec<String> {
    found.names.iter().take(most).map(|name| name.path().to_string()).collect()
}
