//! A cluster of PrimCast groups with clients, and how a trial of it goes.
#![allow(dead_code)] // Each test binary uses a part.

use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{Mutation, PrimCast};
use meridian_sim::checkers::{check_agreement, check_safety, check_validity};
use meridian_sim::replica::{Replica, groups_of};
use meridian_sim::workload::{Manner, Workload};
use meridian_sim::{Entry, Faults, Setup, World};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

pub type Cluster = World<Replica, Workload>;

/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(8);
/// How long it may take then until all is delivered: some elections, some repeats.
const PEACE: Duration = Duration::from_secs(60);

/// The process on the node-th node of a group.
pub fn process(group: u16, node: u16) -> ProcessId {
    ProcessId { group: GroupId(group), node: NodeId(group * 100 + node) }
}

/// All kinds of faults, about as often as elections can follow.
pub fn faults() -> Faults {
    let ms = Duration::from_millis(1);
    Faults { outage: 700 * ms, split: 1500 * ms, ..Faults::all(600 * ms) }
}

pub fn setup(sizes: &[u16], mutation: Mutation, exact: Option<Duration>) -> Setup<Replica> {
    let groups = Arc::new(groups_of(sizes));
    let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
        let group = *group;
        nodes.clone().into_iter().map(move |node| ProcessId { group, node })
    };
    let peers = groups.iter().flat_map(of).collect();
    let make = move |me| Replica::new(PrimCast::new(me, groups.clone()).with_mutation(mutation));
    match exact {
        Some(unit) => Setup::exact(peers, unit, make),
        None => Setup::lan(peers, make),
    }
}

#[derive(Clone)]
pub struct Trial {
    pub sizes: Vec<u16>,
    pub mutation: Mutation,
    pub faults: Faults,
    pub manner: Manner,
    /// Whether links are slow and uneven.
    pub slow: bool,
    pub deep: bool,
    pub quiet: bool,
}

impl Trial {
    pub fn of(sizes: &[u16]) -> Trial {
        Trial {
            sizes: sizes.to_vec(),
            mutation: Mutation::Correct,
            faults: faults(),
            manner: Manner::default(),
            slow: false,
            deep: false,
            quiet: false,
        }
    }

    pub fn world(&self, seed: u64) -> Cluster {
        let mut setup = setup(&self.sizes, self.mutation, None);
        setup.faults = self.faults.clone();
        setup.deep = self.deep;
        if self.slow {
            setup.delay = Box::new(|_, _, random| {
                let most = if random.random_bool(0.3) { 500 } else { 50 };
                Duration::from_millis(random.random_range(1..=most))
            });
        }
        let workload = Workload::new(seed, groups_of(&self.sizes), self.manner.clone());
        let mut world = World::new(seed, setup, workload);
        if self.quiet {
            world.say_nothing();
        }
        world.owner.begin().into_iter().for_each(|ask| world.ask(ask));
        world
    }

    /// Faults for a while; then all heals, and everything arrives.
    pub fn faults_then_peace(&self, seed: u64) -> Cluster {
        let mut world = self.world(seed);
        world.run_for(FAULTS);
        if let Err(what) = check_safety(&world.owner.history) {
            world.fail(&what);
        }
        world.heal();
        if !world.run_until(is_quiet, PEACE) {
            world.fail(&describe(&world));
        }
        judge(&world);
        world
    }
}

/// Whether all that was asked is delivered, everywhere.
pub fn is_quiet(world: &Cluster) -> bool {
    world.owner.is_done()
        && world.owner.is_level()
        && world.processes().all(|(_, process)| process.multicast.pending() == 0)
}

/// All properties, at the end.
pub fn judge(world: &Cluster) {
    let history = &world.owner.history;
    let judged = check_safety(history)
        .and_then(|()| check_agreement(history))
        .and_then(|()| check_validity(history, &world.owner.survivors()));
    if let Err(what) = judged {
        world.fail(&what);
    }
}

/// How many snapshots were installed.
pub fn installs(world: &Cluster) -> usize {
    let installed = |entry: &&Entry| matches!(entry, Entry::Installed { .. });
    world.owner.history.entries.iter().filter(installed).count()
}

fn describe(world: &Cluster) -> String {
    let mut text = format!("not quiet; clients wait for {:?}", world.owner.unanswered());
    for (peer, process) in world.processes() {
        let multicast = &process.multicast;
        text += &format!(
            "\n{peer}: {:?} {:?} clock {:?} delivered {:?} pending {}",
            multicast.role(),
            multicast.epoch(),
            multicast.clock(),
            multicast.delivered(),
            multicast.pending()
        );
    }
    text
}
