//! Sessions of clients where no seed leads: what the nodes remember of them has been forgotten.

use meridian_core::{ClientId, GroupId, MessageId, NodeId};
use meridian_fs::Vector;
use meridian_host::api::{Request, RequestBody};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, sessions};
use meridian_session::Mutation;
use meridian_sim::of::files::FilesWorkload;
use meridian_sim::of::files::regions::{setup, topology};
use meridian_sim::{Faults, Stimulus, World, each_seed};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

const US: GroupId = GroupId(1);
const US_1: NodeId = NodeId(0);
const MS: Duration = Duration::from_millis(1);
/// Sessions with one message each: more than a shard remembers.
const OTHERS: u64 = sessions::SHARD_MAX;

/// Another client sends a message in each of many sessions of the same shard.
fn crowd_out(world: &mut World<Node, FilesWorkload>, session: ClientId) {
    for number in 1..=OTHERS {
        let client = sessions::successor(number << 32, session);
        let id = MessageId { client, sequence: 1 };
        let payload = Payload { vector: Vector::default(), cancels: Vec::new(), change: None };
        let body = RequestBody::Update { group: US, start: payload.into_start(id, 1, &[US]) };
        let connection = ConnectionId(u64::MAX);
        let command = Command::Request { connection, request: Request { id: number, body } };
        let after = Duration::from_micros(100 * number);
        world.inject(Stimulus::Command { to: US_1, command, after });
    }
    world.run_for(MS * 2000);
}

/// Clients do something, are forgotten, and go on; how many updates were refused at first.
fn forgotten(seed: u64, mutation: Mutation) -> usize {
    let topology = topology(1);
    let of = topology.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me));
    setup.faults = Faults::none();
    let workload = FilesWorkload::with_mutation(seed, topology, 3, 30, mutation);
    let mut world = World::new(seed, setup, workload);
    world.say_nothing();
    assert!(world.run_until(|world| world.owner.is_done(), MS * 60_000));
    let before = world.owner.refused();
    let sessions = world.owner.sessions();
    let of_us = sessions.into_iter().filter(|session| sessions::goes_to(*session, &[US]));
    of_us.for_each(|session| crowd_out(&mut world, session));
    let stimuli = world.owner.go_on(30);
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
    assert!(world.run_until(|world| world.owner.is_done(), MS * 60_000));
    world.owner.refused() - before
}

#[test]
fn who_was_forgotten_learns_the_horizon_and_goes_on() {
    let mut refused = 0;
    each_seed(0..4, |seed| refused += forgotten(seed, Mutation::Correct));
    assert!(refused > 0, "nobody was forgotten");
}

#[test]
fn a_session_that_forgets_the_horizon_is_caught() {
    let run = |seed| forgotten(seed, Mutation::ForgetsHorizon);
    let fails = |seed: &u64| std::panic::catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    assert!((0..4).any(|seed| fails(&seed)));
}
