//! A file that is open outlives its last name, where nothing goes wrong from the moment in which it
//! was opened; and in the end it goes.

use meridian_core::PLANTED_BUGS;
use meridian_host::Node;
use meridian_host::space::{self, Options, Space};
use meridian_session as session;
use meridian_sim::of::files::FilesWorkload;
use meridian_sim::of::files::regions::{setup, topology};
use meridian_sim::{Faults, World, each_seed, one_seed, share};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const CLIENTS: u64 = 4;
const THINGS: u64 = 150;

/// Clients open files, whose names go meanwhile; how often one without a name was read.
fn run(seed: u64, in_session: session::Mutation, in_space: space::Mutation) -> u64 {
    let topology = topology(1);
    let of = topology.clone();
    let options = Options { tick: SECOND / 5, linger: 3 * SECOND, ..Options::default() };
    let space = Space::new(options).with_mutation(in_space);
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me).with_space(space.clone()));
    setup.faults = Faults::none();
    let workload =
        FilesWorkload::with_mutation(seed, topology.clone(), CLIENTS, THINGS, in_session).calmly();
    let mut world = World::new(seed, setup, workload);
    world.say_nothing();
    assert!(world.run_until(|world| world.owner.is_done(), 120 * SECOND), "clients wait for ever");
    let is_left = |world: &World<Node, FilesWorkload>| {
        let replicas = world.processes().flat_map(|(_, node)| {
            topology.group_ids().filter_map(|group| node.replica(group)).collect::<Vec<_>>()
        });
        replicas.map(|replica| replica.partition().nameless().count()).sum::<usize>() > 0
    };
    assert!(world.run_until(|world| !is_left(world), 60 * SECOND), "nobody reaps a file");
    world.owner.tally.held
}

fn is_caught(in_session: session::Mutation, in_space: space::Mutation) -> bool {
    let run = |seed| run(seed, in_session, in_space);
    (0..20).any(|seed| std::panic::catch_unwind(AssertUnwindSafe(|| run(seed))).is_err())
}

#[test]
fn an_open_file_outlives_its_last_name() {
    let mut held = 0;
    each_seed(0..60, |seed| {
        held += run(seed, session::Mutation::Correct, space::Mutation::Correct);
    });
    assert!(held > 300 / share() || one_seed(), "{held} reads of files without a name");
}

#[test]
fn planted_bugs_are_noticed() {
    if !PLANTED_BUGS {
        return;
    }
    let correct = (session::Mutation::Correct, space::Mutation::Correct);
    assert!(is_caught(session::Mutation::NeverHolds, correct.1), "partitions never hear");
    assert!(is_caught(correct.0, space::Mutation::NeverLingers), "files go with their names");
    assert!(is_caught(correct.0, space::Mutation::NeverReaps), "files stay for ever");
}
