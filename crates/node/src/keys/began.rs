//! How keys began in a node's directory, and where they have been kept since: `keys.json`.

use super::{KeysOptions, log_of, log_of_steward};
use crate::config::NodeDir;
use crate::error::ServerError;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_hermes::Durability;
use meridian_keys::slots::SHARDS_MAX;
use meridian_runtime::directory::write_durably;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// The version of `keys.json` and of the records in the logs of keys. Before it, keys were in
/// memory, and nothing said a version.
const FORMAT: u32 = 2;

/// More shards than this are only had by who asks for them: each is a thread.
const SHARDS_UNASKED: usize = 8;

/// What is written down when a node first has keys, and when it keeps them elsewhere than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Began {
    format: u32,
    /// The nodes that were in the region: by their number the registry of the members knows its
    /// majority, also after a restart with more nodes.
    pub replicas: BTreeSet<String>,
    /// The shards.
    pub shards: usize,
    /// Where the keys are kept.
    pub durability: Durability,
}

/// Which format something has.
#[derive(Deserialize)]
struct Version {
    format: Option<u32>,
}

/// What a directory has of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// In so many shards they are.
    pub shards: usize,
    /// Where they are kept.
    pub durability: Durability,
}

fn file(dir: &Path) -> PathBuf {
    dir.join("keys.json")
}

fn refused(dir: &Path, why: String) -> ServerError {
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
    Ok(began.map(|Began { shards, durability, .. }| Kept { shards, durability }))
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
    let mut began = before.clone().unwrap_or_else(|| {
        let home = topology.node(me).region;
        let near = topology.present().filter(|node| topology.node(*node).region == home);
        let replicas = near.map(|node| topology.node(node).name.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = wanted.shards.unwrap_or(cores.min(SHARDS_UNASKED));
        Began { format: FORMAT, replicas, shards, durability: Durability::Memory }
    });
    let shards = began.shards;
    if let Some(wanted) = wanted.shards.filter(|wanted| *wanted != shards) {
        return Err(refused(
            path,
            format!(
                "the keys are in {shards} shards, not {wanted}: start with --keys-shards {shards}, \
                 or give up the keys of the region: {GIVE_UP}"
            ),
        ));
    }
    began.durability = wanted.durability.unwrap_or(began.durability);
    if before.as_ref() != Some(&began) {
        write_durably(&file(path), &serde_json::to_vec(&began).expect("names"))?;
    }
    Ok(began)
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
    for log in shards.chain([log_of_steward(dir)]) {
        ended(&log, std::fs::remove_dir_all(&log))?;
    }
    Ok(())
}
