//! `meridian server`: one node of a cluster.

use crate::lock::{self, SERVER_LOCK, Tried};
use anyhow::{Context, bail};
use clap::Args;
use meridian_host::drain::keep;
use meridian_node::keys::{Durability, KeysOptions};
use meridian_terminal::note;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What a server needs to know.
#[derive(Debug, Args)]
#[command(after_help = "\
The demo makes the folders and starts one server in each. One that was killed can be started again
by hand, also while the demo runs: it catches up with the others.

The cluster file says where the configuration is kept; the server follows that while it runs, and
goes on with the last one it knows while too few of those that keep it answer.

Exit status 2 if the server cannot start as it is configured, 3 if its disk failed or is damaged,
4 if the node was removed from the cluster.

Example:
  meridian server --dir DATA/us-1

MERIDIAN_LOG sets how much is logged: error, warn, info (the default), debug, or by module as
in warn,meridian_node=debug.")]
pub struct ServerArgs {
    /// The node's folder; its name is the node's
    #[arg(long)]
    dir: PathBuf,
    /// The cluster [default: cluster.json beside the node's folder]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Listen on HOST:PORT for clients of keys, which speak as those of Redis do [default: the node
    /// has no part in the keys of its region]
    #[arg(long, value_name = "HOST:PORT")]
    keys: Option<String>,
    /// In so many shards the keys are, each on a thread of its own: the same number at all nodes of
    /// a region, and at each start. To be said at the first start of a node that was added
    /// [default: as at the first start, then the cores, at most 8]
    #[arg(long, value_name = "N", requires = "keys")]
    keys_shards: Option<usize>,
    /// Where this node keeps its keys [default: as at the last start, at first in memory]
    #[arg(long, value_name = "WHERE", requires = "keys")]
    keys_durability: Option<KeysDurability>,
    /// Keys that begin so are causal: all regions have them, each goes on by itself, and what one
    /// changes comes to the others. The same at all nodes of all regions, from their first start
    /// with it on [default: as at the last start, at first none]
    #[arg(long, value_name = "PREFIX", requires = "keys")]
    keys_causal: Option<String>,
    /// The keys of the region begin with these nodes, if they have not begun: the same at all
    /// nodes, which begin when all of these are there. To be said where none is left of the nodes
    /// that the cluster was made with [default: those that are left of these]
    #[arg(long, value_name = "NODES", requires = "keys", value_delimiter = ',')]
    keys_first: Option<Vec<String>>,
    /// In so many days the node reads all blocks that it should hold, and repairs those that are
    /// damaged
    #[arg(long, value_name = "DAYS", default_value_t = SCRUB_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=365))]
    scrub_days: u32,
    /// So many MiB of blocks it reads and fetches from other nodes within a second at most, to look
    /// after copies; a quarter of it while clients change files
    #[arg(long, value_name = "MIB", default_value_t = COPY_MIB,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    copy_rate: u32,
}

/// See [`meridian_host::drain::keep::PASS`].
const SCRUB_DAYS: u32 = (keep::PASS.as_secs() / DAY_S) as u32;
/// See [`meridian_host::drain::keep::BYTES_PER_S`].
const COPY_MIB: u32 = (keep::BYTES_PER_S >> 20) as u32;
/// A day, in seconds.
const DAY_S: u64 = 24 * 3600;

/// Where keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeysDurability {
    /// What is acknowledged is in the memory of all nodes of the region that are members. A node
    /// that starts again is sent all by another; when the last has ended, all keys have gone
    Memory,
    /// It is on their disks, too: when all lose power and come back, nothing acknowledged is lost.
    /// Each change waits for the disk, which needs room for three times the keys. Who goes from
    /// disk to memory gives up what the disk has
    Disk,
}

impl From<KeysDurability> for Durability {
    fn from(wanted: KeysDurability) -> Durability {
        match wanted {
            KeysDurability::Memory => Durability::Memory,
            KeysDurability::Disk => Durability::Disk,
        }
    }
}

/// Runs `meridian server` until it is told to stop.
///
/// # Errors
/// If the node cannot start, or must stop.
pub fn run(args: &ServerArgs) -> anyhow::Result<ExitCode> {
    crate::output::log_to_stderr("info");
    // What a node writes is for its owner alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let dir = args.dir.canonicalize().with_context(|| {
        format!("no node's folder at {}: the demo makes them", args.dir.display())
    })?;
    let _lock = match lock::try_lock(&dir.join(SERVER_LOCK))? {
        Tried::Locked(lock) => lock,
        Tried::Held(pid) => {
            bail!("{} runs already, as process {pid}", dir.display());
        }
    };
    let options = meridian_node::ServerOptions {
        dir,
        cluster: args.cluster.clone(),
        copies: keep::Options {
            pass: Duration::from_secs(u64::from(args.scrub_days) * DAY_S),
            bytes_per_s: u64::from(args.copy_rate) << 20,
        },
        keys: args.keys.clone().map(|address| KeysOptions {
            address,
            shards: args.keys_shards,
            durability: args.keys_durability.map(Durability::from),
            causal: args.keys_causal.clone(),
            first: args.keys_first.clone().map(|nodes| nodes.into_iter().collect()),
        }),
    };
    match meridian_node::run(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            note!("meridian: {error}");
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}
