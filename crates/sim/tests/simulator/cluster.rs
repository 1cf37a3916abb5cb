//! A cluster of PrimCast groups, for tests that say themselves what happens in it.

use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{Mutation, Options};
use meridian_sim::Setup;
use meridian_sim::of::multicast::history::Entry;
use meridian_sim::of::multicast::replica::Replica;
use meridian_sim::of::multicast::trial;
use std::time::Duration;

pub use meridian_sim::of::multicast::trial::{Cluster, is_quiet};

/// The process on the node-th node of a group.
pub fn process(group: u16, node: u16) -> ProcessId {
    ProcessId { group: GroupId(group), node: NodeId(group * 100 + node) }
}

pub fn setup(sizes: &[u16], mutation: Mutation, exact: Option<Duration>) -> Setup<Replica> {
    setup_of(sizes, Options::default(), mutation, exact)
}

/// If `exact`, a message travels exactly so long, and nothing else takes time.
pub fn setup_of(
    sizes: &[u16],
    options: Options,
    mutation: Mutation,
    exact: Option<Duration>,
) -> Setup<Replica> {
    let setup = trial::setup(sizes, options, mutation);
    match exact {
        Some(unit) => setup.exactly(unit),
        None => setup,
    }
}

/// All properties, at the end.
pub fn judge(world: &Cluster) {
    if let Err(what) = trial::judge(world) {
        world.fail(&what);
    }
}

/// How many snapshots were installed.
pub fn installs(world: &Cluster) -> usize {
    let installed = |entry: &&Entry| matches!(entry, Entry::Installed { .. });
    world.owner.history.entries.iter().filter(installed).count()
}
