//! Regions that come and go.

use super::{CHANGE, Cluster, LOOK_AGAIN, done};
use crate::cluster::{self, Of, node_name, region_name};
use crate::output;
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use meridian_client::{ClientError, Files};
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_core::{GroupId, NodeId, RegionId};
use meridian_fs::types::{Ino, Place};
use meridian_fs::{Attributes, FsError};
use meridian_node::{Keepers, KeepersError};
use meridian_terminal::note;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// So long at most the inodes of files that were removed stay, unless one has them open.
const FREED: Duration = Duration::from_secs(30);

/// What to add.
#[derive(Debug, Args)]
#[command(after_help = "\
The region begins with one node, as `add-node` adds one: it is written into the configuration, its
server is started (by the demo, if that runs; else by you, as you are told), and it gets the state
of `global` from the others. Then the region has a directory of its name in the root, in which files
are placed in it, and clients may be there. Programs go on meanwhile; it takes some seconds. Add two
more nodes to it before it holds anything that matters: with one, nothing in it survives the loss of
that node. A node that is not up yet may be taken back with `remove-node`, and the region with it.

The names of regions are never given again once they have been removed.

Examples:
  meridian cluster add-region sa
  meridian cluster add-region sa --name sa-first --address 127.0.0.1:7200
  meridian cluster add-node --region sa")]
pub struct AddRegionArgs {
    /// Its name, and that of its directory: lower-case letters and digits
    #[arg(value_name = "REGION", value_parser = region_name)]
    region: String,
    /// The name of its first node [default: the region's with a number]
    #[arg(long, value_parser = node_name)]
    name: Option<String>,
    /// Where that shall listen [default: a free port of this machine]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    #[command(flatten)]
    of: Of,
}

/// What to remove.
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing may be left in the region's directory, nor anything elsewhere that was made in it and moved
(`cp` it, and remove it). What all regions hold is in the others, too. The region's local keys go
with it; keys of all regions stay in the others. Then its directory goes, nodes of another region
take over what is left of its group, and its servers end by themselves. All other regions must be
reachable. If the command ends before, say it again, and it goes on.

Example:
  meridian cluster remove-region sa")]
pub struct RemoveRegionArgs {
    /// Its name
    #[arg(value_name = "REGION")]
    region: String,
    #[command(flatten)]
    of: Of,
}

pub(super) fn now_ms() -> u64 {
    let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(age.as_millis()).unwrap_or_default()
}

/// What is in the root under the name of a region.
async fn directory(files: &Files, region: &str) -> anyhow::Result<Option<Attributes>> {
    let name = Bytes::copy_from_slice(region.as_bytes());
    match files.lookup(Ino::ROOT, &name).await {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::Fs(FsError::NotFound)) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot look for /{region}")),
    }
}

/// Whether the top of a region's partition is in the root. What has the region's name may be
/// something else.
pub(super) async fn holds_directory(files: &Files, group: GroupId) -> Result<bool, ClientError> {
    let entries = files.entries(Ino::ROOT).await?;
    Ok(entries.iter().any(|(_, entry)| entry.place == Place::top(group)))
}

pub(super) async fn add(args: &AddRegionArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let files = Files::new(cluster.client.clone());
    let region = args.region.clone();
    let known = cluster.newest.topology.region_named(&region).is_some();
    if !known && directory(&files, &region).await?.is_some() {
        bail!("there is a /{region}, where the region's directory would be: rename it first");
    }
    let address = match &args.address {
        Some(address) => address.clone(),
        None => cluster::free_address()?,
    };
    let (name, up, now_ms) = (args.name.clone(), cluster.up(), now_ms());
    let mut keepers = cluster.keepers();
    let request = Request::AddRegion { region: region.clone(), name, address, up, now_ms };
    let name = cluster.bring(&mut keepers, &request).await?;
    let begin = Instant::now();
    let group = cluster.newest.topology.group_named(&region);
    while directory(&files, &region).await?.map(|found| found.place.partition) != group {
        if begin.elapsed() > CHANGE {
            bail!(
                "region {region} is there and has no directory after {} s: if /{region} is \
                 something else, rename that; else see `meridian status`",
                CHANGE.as_secs()
            );
        }
        sleep(LOOK_AGAIN).await;
    }
    if !args.of.json {
        note!("region {region} has its directory /{region}");
    }
    done(args.of.json, &cluster.newest.topology, &name, "added")
}

/// The nodes of a region, also of one that goes.
fn nodes_of(topology: &Topology, region: RegionId) -> Vec<NodeId> {
    topology.present().filter(|node| topology.node(*node).region == region).collect()
}

/// Who keeps the configuration instead of the region's nodes.
fn keepers_elsewhere(
    cluster: &Cluster,
    region: RegionId,
) -> anyhow::Result<BTreeMap<String, String>> {
    let topology = &cluster.newest.topology;
    let mut found = BTreeMap::new();
    for node in nodes_of(topology, region) {
        let taken: BTreeSet<_> = found.values().cloned().collect();
        let keeper = cluster.keeper_instead(node, |other| {
            let other = topology.node(other);
            other.region != region && !taken.contains(&other.name)
        })?;
        found.extend(keeper.map(|keeper| (topology.node(node).name.clone(), keeper)));
    }
    Ok(found)
}

/// Nothing is asked for that could not end.
async fn check_empty(files: &Arc<Files>, region: &str, group: GroupId) -> anyhow::Result<()> {
    let top = directory(files, region).await?;
    let Some(top) = top.filter(|found| found.place == Place::top(group)) else { return Ok(()) };
    let page = files.list(top.place.ino, &Bytes::new(), false).await?;
    ensure!(
        page.entries.is_empty(),
        "/{region} is not empty: copy what is to stay to another region, and remove it"
    );
    let (begin, mut told) = (Instant::now(), false);
    loop {
        let left = files.totals(group).await?.inodes.saturating_sub(1);
        if left == 0 {
            return Ok(());
        }
        if begin.elapsed() > FREED {
            bail!(
                "{left} files and directories that were made in /{region} are elsewhere, or open \
                 without a name: copy and remove them (`meridian fs where PATH` tells where a file \
                 lies)"
            );
        }
        if !told {
            note!("{left} inodes are not in /{region}: those of files just removed go in a moment");
            told = true;
        }
        sleep(LOOK_AGAIN).await;
    }
}

pub(super) async fn remove(args: &RemoveRegionArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let region = args.region.as_str();
    let id = cluster.newest.topology.region_named(region);
    let id = id.with_context(|| format!("no region {region}"))?;
    let group = cluster.newest.topology.group_of_region(id);
    let mut keepers = cluster.keepers();
    let leaves = |topology: &Topology| topology.regions[usize::from(id.0)].leaves_ms.is_some();
    let files = Files::new(cluster.client.clone());
    if !leaves(&cluster.newest.topology) {
        check_empty(&files, region, group).await?;
        let instead = keepers_elsewhere(&cluster, id)?;
        for (node, keeper) in &instead {
            note!("{keeper} is to keep the configuration in the place of {node}");
        }
        let (region, up, now_ms) = (region.to_string(), cluster.up(), now_ms());
        let request = Request::RemoveRegion { region, up, keepers: instead, now_ms };
        keepers.change(&request).await?;
        cluster.follow(&mut keepers).await?;
    }
    await_nothing(&files, region, group).await?;
    close(&mut cluster, &mut keepers, region).await?;
    let gone = |topology: &Topology| nodes_of(topology, id).is_empty();
    if !cluster.wait(&mut keepers, gone).await? {
        let nodes = nodes_of(&cluster.newest.topology, id);
        let name = |node: &NodeId| cluster.newest.topology.node(*node).name.clone();
        let left: Vec<_> = nodes.iter().map(name).collect();
        bail!(
            "{} are still there after {} s: see `meridian cluster show`",
            left.join(", "),
            CHANGE.as_secs()
        );
    }
    let version = cluster.newest.topology.version;
    output::print(&match args.of.json {
        true => serde_json::json!({ "region": region, "version": version }).to_string(),
        false => format!("region {region} is removed; version {version}"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the directory is gone, and all that lies in the region's partition.
async fn await_nothing(files: &Arc<Files>, region: &str, group: GroupId) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let (is_there, left) =
            (holds_directory(files, group).await?, files.totals(group).await?.inodes);
        if !is_there && left == 0 {
            return Ok(());
        }
        if begin.elapsed() > CHANGE {
            bail!(
                "{left} inodes are still in {region} after {} s: remove what is in /{region}, what \
                 was made in it and moved elsewhere, and close files that lost their names. Then \
                 say this again",
                CHANGE.as_secs()
            );
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Has the nodes leave, as soon as others have taken over.
async fn close(cluster: &mut Cluster, keepers: &mut Keepers, region: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let request = Request::CloseRegion { region: region.into(), up: cluster.up() };
        match keepers.change(&request).await {
            Ok(_) => return cluster.follow(keepers).await,
            Err(KeepersError::Refused(why)) if begin.elapsed() > CHANGE => {
                bail!("the nodes of {region} cannot leave: {why}")
            }
            Err(KeepersError::Refused(_)) => sleep(LOOK_AGAIN).await,
            Err(error) => return Err(error.into()),
        }
        cluster.follow(keepers).await?;
    }
}
