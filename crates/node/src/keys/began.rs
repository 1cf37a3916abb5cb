//! How keys began in a node's directory, and where they have been kept since: `keys.json`.

use super::{KeysOptions, log_of, log_of_causal, log_of_steward};
use crate::config::NodeDir;
use crate::error::ServerError;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_core::level::Level;
use meridian_eunomia::REGIONS_MAX;
use meridian_hermes::Durability;
use meridian_keys::causal::Regions;
use meridian_keys::slots::SHARDS_MAX;
use meridian_runtime::directory::write_durably;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// The version of `keys.json` and of the records in the logs of keys. Before versions, keys were in
/// memory; before 4, the registry of the members did not name its voters; before 5, sources of
/// causal keys had the places of their nodes in a list as their numbers; before 6, labels were
/// numbers of varying length.
const FORMAT: u32 = 6;

/// More shards than this are only had by who asks for them: each is a thread.
const SHARDS_UNASKED: usize = 8;

/// What is written down when a node first has keys, and when it keeps them elsewhere than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Began {
    format: u32,
    /// The nodes with which the keys of the region began; for a node that came later the others
    /// that there were then, which tell it what it must know. Who votes is in the steward's log.
    pub replicas: BTreeSet<String>,
    /// The shards.
    pub shards: usize,
    /// Where the keys are kept.
    pub durability: Durability,
    /// Keys of all regions, if there are such.
    #[serde(default)]
    pub causal: Option<CausalBegan>,
}

impl Began {
    /// How keys begin here: with the nodes of the region that the cluster was made with and that
    /// are left, with the one with which the region was added, or with those that are named. Any
    /// other node comes later: what these have begun it joins, and it never begins anything,
    /// however alone it is.
    fn new(
        path: &Path,
        topology: &Topology,
        me: NodeId,
        wanted: &KeysOptions,
    ) -> Result<Began, ServerError> {
        let is_first = |node: NodeId| {
            let of = topology.node(node);
            let region = &topology.regions[usize::from(of.region.0)];
            !of.added || region.first.as_ref() == Some(&of.name)
        };
        let names = |nodes: &mut dyn Iterator<Item = NodeId>| {
            nodes.map(|node| topology.node(node).name.clone()).collect::<BTreeSet<_>>()
        };
        let near = names(&mut in_region_of(topology, me));
        let mut replicas = match &wanted.first {
            Some(first) => first.clone(),
            None => names(&mut in_region_of(topology, me).filter(|node| is_first(*node))),
        };
        if let Some(strange) = replicas.difference(&near).next() {
            let why = format!("keys cannot begin with {strange}, which is no node of this region");
            return Err(refused(path, why));
        }
        let name = &topology.node(me).name;
        let shards = match wanted.shards {
            Some(shards) => shards,
            None if !replicas.contains(name) => {
                let why = "keys began without this node: say by --keys-shards in how many shards \
                           they are at the others, as `meridian status` tells";
                return Err(refused(path, why.into()));
            }
            None => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                cores.min(SHARDS_UNASKED)
            }
        };
        if !replicas.contains(name) {
            // Of the first nodes none may be left.
            replicas = near;
            replicas.remove(name);
        }
        let durability = Durability::Memory;
        Ok(Began { format: FORMAT, replicas, shards, durability, causal: None })
    }
}

/// How keys of all regions began: the same at all nodes, also of regions that join later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CausalBegan {
    /// Keys that begin so are causal.
    pub prefix: String,
    /// The regions that the cluster was made with.
    pub regions: Vec<String>,
}

impl CausalBegan {
    /// In the regions that the cluster was made with, whenever a node has keys first: so all nodes
    /// have the same in mind.
    fn of(prefix: &str, topology: &Topology) -> CausalBegan {
        let first = topology.first_regions().map(|(_, name)| name.to_string());
        CausalBegan { prefix: prefix.into(), regions: first.collect() }
    }

    /// Differs, most likely, if anything of it does, or what it is `of`.
    pub fn digest(&self, of: &str) -> u32 {
        let names = self.regions.iter().map(String::as_str);
        let text = [of, &self.prefix].into_iter().chain(names).collect::<Vec<_>>().join("\n");
        meridian_eunomia::place_of(text.as_bytes())
    }
}

/// All who take part in the keys of all regions now. The place of a region in the cluster is its
/// number.
pub(super) fn regions(topology: &Topology) -> Regions {
    let mut nodes = vec![Vec::new(); topology.regions.len().min(REGIONS_MAX)];
    for node in topology.present().filter(|node| Regions::may_have(*node)) {
        if let Some(near) = nodes.get_mut(usize::from(topology.node(node).region.0)) {
            near.push(node);
        }
    }
    let keeps = topology.levels.now >= Level::KEPT;
    Regions::new(nodes).with_standings(topology.key_regions()).keeping(keeps)
}

/// Which format something has.
#[derive(Deserialize)]
struct Version {
    format: Option<u32>,
}

/// What a directory has of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// In so many shards they are.
    pub shards: usize,
    /// Where they are kept.
    pub durability: Durability,
    /// Keys that begin so are causal.
    pub causal: Option<String>,
}

fn file(dir: &Path) -> PathBuf {
    dir.join("keys.json")
}

pub(super) fn refused(dir: &Path, why: String) -> ServerError {
    ServerError::Directory { path: file(dir), why }
}

/// What `keys.json` says; None if there is none, or if it is of the time before there were versions
/// and `old` keys do not matter.
fn read(dir: &Path, old: bool) -> Result<Option<Began>, ServerError> {
    let bytes = match std::fs::read(file(dir)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ServerError::File { action: "read", path: file(dir), source });
        }
    };
    let unclear = |error| refused(dir, format!("does not tell how keys began: {error}"));
    match serde_json::from_slice::<Version>(&bytes).map_err(unclear)?.format {
        Some(FORMAT) => serde_json::from_slice(&bytes).map(Some).map_err(unclear),
        None if old => Ok(None),
        found => {
            let found = found.map_or("no format".into(), |format| format!("format {format}"));
            Err(refused(
                dir,
                format!(
                    "is of {found}, this program reads {FORMAT}: go on with the version that wrote \
                     it, or give up the keys of the region: {GIVE_UP}"
                ),
            ))
        }
    }
}

/// How keys are given up.
const GIVE_UP: &str = "stop all its nodes, remove keys.json and all that is named keys or keys-* \
                       from the directory of each, and start them";

/// What a directory has of keys; nothing, if it is of the time when they were in memory only.
///
/// # Errors
/// If the disk refuses, or if they are of another version.
pub fn kept(dir: &Path) -> Result<Option<Kept>, ServerError> {
    let began = read(dir, true)?;
    Ok(began.map(|Began { shards, durability, causal, .. }| Kept {
        shards,
        durability,
        causal: causal.map(|causal| causal.prefix),
    }))
}

/// How keys began here; they do now if they have not before.
///
/// From disk to memory and back, no old key returns: a start in memory ends the logs, and this says
/// so first.
pub(super) fn begin(
    dir: &NodeDir,
    topology: &Topology,
    me: NodeId,
    wanted: &KeysOptions,
) -> Result<Began, ServerError> {
    let path = &dir.dir;
    if wanted.shards.is_some_and(|wanted| !(1..=SHARDS_MAX).contains(&wanted)) {
        return Err(refused(path, format!("there can be 1 to {SHARDS_MAX} shards of keys")));
    }
    let before = read(path, false)?;
    let mut began = match &before {
        Some(before) => before.clone(),
        None => Began::new(path, topology, me, wanted)?,
    };
    let shards = began.shards;
    let later = !began.replicas.contains(&topology.node(me).name);
    if let Some(wanted) = wanted.shards.filter(|wanted| *wanted != shards) {
        let or = match later {
            // It never spoke with any that differ, so it has promised nothing.
            true => format!(
                "if the others have {wanted}, this node never had part in them: remove keys.json \
                 and all that is named keys-* from its directory"
            ),
            false => format!("or give up the keys of the region: {GIVE_UP}"),
        };
        return Err(refused(
            path,
            format!(
                "the keys are in {shards} shards, not {wanted}: start with --keys-shards {shards}, \
                 {or}"
            ),
        ));
    }
    began.durability = wanted.durability.unwrap_or(began.durability);
    began.causal = causal(path, topology, began.causal.take(), wanted)?;
    if began.causal.is_some() && regions(topology).find(me).is_none() {
        let why = "names causal keys, which this node cannot have: too many nodes or regions were \
                   added before";
        return Err(refused(path, why.into()));
    }
    if before.as_ref() != Some(&began) {
        write_durably(&file(path), &serde_json::to_vec(&began).expect("names"))?;
    }
    Ok(began)
}

/// The nodes of a node's region, itself among them.
pub(super) fn in_region_of(topology: &Topology, me: NodeId) -> impl Iterator<Item = NodeId> + '_ {
    let home = topology.node(me).region;
    topology.present().filter(move |node| topology.node(*node).region == home)
}

/// How the keys of all regions are, as they began or now begin.
fn causal(
    path: &Path,
    topology: &Topology,
    before: Option<CausalBegan>,
    wanted: &KeysOptions,
) -> Result<Option<CausalBegan>, ServerError> {
    match (before, wanted.causal.as_deref()) {
        (before, None) => Ok(before),
        (Some(before), Some(wanted)) if before.prefix == wanted => Ok(Some(before)),
        (Some(before), Some(wanted)) => Err(refused(
            path,
            format!(
                "keys that begin with {:?} are causal, not those that begin with {wanted:?}: start \
                 without --keys-causal, or give up the keys of all regions: {GIVE_UP}",
                before.prefix
            ),
        )),
        (None, Some("")) => Ok(None),
        (None, Some(prefix)) => {
            let began = CausalBegan::of(prefix, topology);
            if began.regions.len() > REGIONS_MAX {
                let why = format!("keys can be causal in {REGIONS_MAX} regions at most");
                return Err(refused(path, why));
            }
            Ok(Some(began))
        }
    }
}

/// Forgets who had part in a region's keys, before any node of the region is started: they were in
/// memory, and have gone with the last of their servers.
///
/// # Errors
/// If the disk refuses.
pub fn forget(dir: &Path) -> Result<(), ServerError> {
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let ended = |path: &Path, ended: io::Result<()>| match ended {
        Err(source) if !missing(&source) => {
            Err(ServerError::File { action: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    };
    ended(&file(dir), std::fs::remove_file(file(dir)))?;
    let shards = (0..SHARDS_MAX).map(|shard| log_of(dir, shard));
    for log in shards.chain([log_of_steward(dir), log_of_causal(dir)]) {
        ended(&log, std::fs::remove_dir_all(&log))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "began_tests.rs"]
mod tests;
