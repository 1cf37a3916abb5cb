//! Planted bugs, each of which some checker must catch within a few seeds.

use crate::cluster::{Cluster, is_quiet, judge, process, setup, setup_of};
use meridian_core::{ClientId, MessageId, Position, ProcessId};
use meridian_multicast::{Command, Dissemination, Mutation, Notice, Options, Role};
use meridian_sim::of::multicast::planted;
use meridian_sim::of::multicast::replica::{Replica, groups_of};
use meridian_sim::of::multicast::trial::Trial;
use meridian_sim::of::multicast::workload::{Profile, Workload};
use meridian_sim::{Setup, Stimulus, Unflushed, World, each_is_caught, of, run};
use std::time::Duration;

/// How many seeds it may take.
const SEEDS_MAX: u64 = 300;

/// How a bug is looked for.
enum Way {
    /// With [`planted::trial`].
    Trial,
    /// With [`a_promise_then_a_restart`].
    Promise,
    /// With [`an_acknowledgement_then_a_restart`].
    Acknowledgement,
}

fn way(mutation: Mutation) -> Way {
    match mutation {
        Mutation::ForgetsPromise | Mutation::PromisesFirst => Way::Promise,
        Mutation::AcknowledgesNoted => Way::Acknowledgement,
        _ => Way::Trial,
    }
}

/// The first seed that shows it, and what was seen.
fn caught(mutation: Mutation) -> Option<(u64, String)> {
    let trial = planted::trial(mutation);
    let violated = |seed| match way(mutation) {
        Way::Trial => run(seed, &trial).err().map(|failure| failure.violated),
        Way::Promise => said(|| a_promise_then_a_restart(mutation, seed)),
        Way::Acknowledgement => said(|| an_acknowledgement_then_a_restart(mutation, seed)),
    };
    let (seed, violated) = (0..SEEDS_MAX).find_map(|seed| Some((seed, violated(seed)?)))?;
    Some((seed, violated.lines().next().unwrap_or_default().to_string()))
}

/// What a scenario says that fails.
fn said(runs: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
    let panic = std::panic::catch_unwind(runs).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn each_planted_bug_is_caught() {
    each_is_caught(&planted::ALL, caught);
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    let correct =
        |bug| (format!("{bug:?}"), Trial { mutation: Mutation::Correct, ..planted::trial(bug) });
    of::trials_hold_without_a_bug(planted::ALL.map(correct), 0..4);
}

fn members() -> [ProcessId; 3] {
    [0, 1, 2].map(|node| process(0, node))
}

/// A group of three without clients, in which what was not flushed is lost at crashes; its primary,
/// and the others.
fn one_group(seed: u64, setup: Setup<Replica>) -> (Cluster, ProcessId, Vec<ProcessId>) {
    let profile = Profile { clients: 0, ..Profile::default() };
    let mut world = World::new(seed, setup, Workload::new(0, groups_of(&[3]), profile));
    world.say_nothing();
    world.keep_at_crashes(Unflushed::Lost);
    world.run_for(Duration::from_secs(8));
    let first = of_role(&world, Role::Primary).expect("the group has a primary");
    (world, first, members().into_iter().filter(|peer| *peer != first).collect())
}

/// The first member with that role.
fn of_role(world: &Cluster, wanted: Role) -> Option<ProcessId> {
    members().into_iter().find(|peer| role(world, *peer) == Some(wanted))
}

fn role(world: &Cluster, peer: ProcessId) -> Option<Role> {
    world.process(peer).map(|process| process.multicast.role())
}

#[test]
fn a_promise_binds_over_a_restart() {
    (0..60).for_each(|seed| a_promise_then_a_restart(Mutation::Correct, seed));
}

/// A process promises to a new epoch, restarts, and hears of the old primary only. What it then
/// acknowledges to that one is lost in the new epoch, unless the promise binds it still.
fn a_promise_then_a_restart(mutation: Mutation, seed: u64) {
    let ms = Duration::from_millis(1);
    let mut setup = setup(&[3], mutation, None);
    // So slow that a message may be far before a record that should come first.
    setup.flush = (10 * ms, 30 * ms);
    let (mut world, first, others) = one_group(seed, setup);
    let cuts: Vec<_> = others.iter().map(|peer| world.cut(&[first], &[*peer], true)).collect();
    let stands = |world: &Cluster| {
        of_role(world, Role::Candidate).is_some() && of_role(world, Role::Promised).is_some()
    };
    assert!(world.run_until(stands, Duration::from_secs(10)), "nobody stands");
    let candidate = of_role(&world, Role::Candidate).expect("it stands");
    let promised = of_role(&world, Role::Promised).expect("it has promised");
    world.run_for(Duration::from_micros(seed * 500));
    let apart = world.cut(&[candidate], &[promised], true);
    world.crash(promised);
    world.mend_cut(cuts[usize::from(others[0] != promised)]);
    world.restart(promised);
    multicast(&mut world, 1, &[first, promised]);
    world.run_for(700 * ms);
    world.mend_cut(apart);
    world.run_for(Duration::from_secs(3));
    multicast(&mut world, 2, &[candidate]);
    world.run_for(Duration::from_secs(3));
    world.heal();
    world.run_for(Duration::from_secs(5));
    assert!(is_quiet(&world), "not all is delivered");
    judge(&world);
}

#[test]
fn an_acknowledgement_holds_over_a_restart() {
    (0..60).for_each(|seed| an_acknowledgement_then_a_restart(Mutation::Correct, seed));
}

/// A follower that hears with the next acknowledges, the primary delivers, and the follower
/// restarts at once. What it acknowledged is lost in the epoch of the two others, unless that was
/// durable.
fn an_acknowledgement_then_a_restart(mutation: Mutation, seed: u64) {
    let (dissemination, notice) = (Dissemination::ViaLeader, Notice::WithNext);
    let options = Options { dissemination, notice, ..Options::default() };
    let (mut world, first, mut others) = one_group(seed, setup_of(&[3], options, mutation, None));
    if seed % 2 == 1 {
        others.reverse();
    }
    let (absent, follower) = (others[0], others[1]);
    // The first message raises the followers' clocks, whose ceilings are flushed.
    multicast(&mut world, 1, &[first]);
    world.run_for(Duration::from_secs(2));
    let apart = world.cut(&[absent], &[first, follower], true);
    multicast(&mut world, 2, &[first]);
    let led = |world: &Cluster| world.process(first).map(|p| p.multicast.delivered());
    let delivered = |world: &Cluster| led(world) == Some(Position(2));
    assert!(world.run_until(delivered, Duration::from_secs(3)), "the primary does not deliver");
    world.crash(follower);
    let alone = world.cut(&[first], &others, true);
    world.mend_cut(apart);
    world.restart(follower);
    let led = |world: &Cluster| others.iter().any(|peer| role(world, *peer) == Some(Role::Primary));
    assert!(world.run_until(led, Duration::from_secs(20)), "nobody leads");
    multicast(&mut world, 3, &others);
    world.run_for(Duration::from_secs(3));
    world.mend_cut(alone);
    world.heal();
    world.run_for(Duration::from_secs(8));
    assert!(is_quiet(&world), "not all is delivered");
    judge(&world);
}

fn multicast(world: &mut Cluster, sequence: u64, to: &[ProcessId]) {
    let id = MessageId { client: ClientId(77), sequence };
    let now = world.now();
    let start = world.owner.multicast(id, &[0], now);
    for to in to {
        let command = Command::Start(start.clone());
        world.inject(Stimulus::Command { to: *to, command, after: Duration::from_millis(10) });
    }
}
