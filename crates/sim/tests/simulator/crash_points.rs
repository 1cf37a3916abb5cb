//! A process crashes at every point of a small run: before its first effect, after its first, after
//! its second, and so on. Whatever it was about, the others go on without it, and it comes back.

use crate::cluster::{Cluster, is_quiet, process, setup_of};
use meridian_core::ProcessId;
use meridian_multicast::{ClockSource, Dissemination, Mutation, Notice, Options, Order};
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::of::multicast::trial;
use meridian_sim::of::multicast::workload::{Profile, Senders, Workload};
use meridian_sim::{Unflushed, World};
use std::time::Duration;

/// When the run is over: elections, some messages, some repeats.
const END: Duration = Duration::from_secs(3);
/// How long the others may take to go on, and how long all may take at the end.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What becomes of the process.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It starts again at once; what was not durable is lost.
    Restarts,
    /// It is away until the others have delivered all.
    LateWith(Unflushed),
}

const FATES: [Fate; 3] =
    [Fate::Restarts, Fate::LateWith(Unflushed::Lost), Fate::LateWith(Unflushed::Kept)];

fn world(options: Options) -> Cluster {
    let profile = Profile {
        clients: 2,
        messages: 8,
        think: Duration::from_millis(250),
        timeout: Duration::from_millis(400),
        mortal: 0,
        senders: Senders::Mixed,
        keys: 3,
        all: 3,
        bounds: 4,
        ..Profile::default()
    };
    let sizes = &[3, 3];
    let mut workload = Workload::new(1, groups_of(sizes), profile);
    workload.order = options.order;
    let setup = setup_of(sizes, options, Mutation::Correct, None);
    let mut world = World::new(1, setup, workload);
    world.say_nothing();
    world
}

/// The run in which `victim` crashes after `effects`; false if it has not so many.
fn crash(options: Options, victim: ProcessId, effects: u32, fate: Fate) -> Result<bool, String> {
    let mut world = world(options);
    let is_up = |world: &Cluster| world.process(victim).is_some();
    world.run_until(is_up, END);
    world.keep_at_crashes(match fate {
        Fate::Restarts => Unflushed::Lost,
        Fate::LateWith(unflushed) => unflushed,
    });
    world.crash_after(victim, effects);
    if !world.run_until(|world| !is_up(world), END) {
        return Ok(false);
    }
    if let Fate::LateWith(_) = fate
        && !world.run_until(|world| world.owner.is_done(), TIMEOUT)
    {
        return Err(format!("the others wait for {:?}", world.owner.unanswered()));
    }
    world.restart(victim);
    if !world.run_until(is_quiet, TIMEOUT) {
        return Err(format!("all wait: {}", trial::describe(&world)));
    }
    trial::judge(&world).map(|()| true)
}

/// How many points there were. A process with hybrid clocks in linearizable order has several
/// effects for each moment without a message: there each fate has every third point.
fn sweep(options: Options, victim: ProcessId) -> u32 {
    let many = (options.order, options.clock) == (Order::Linearizable, ClockSource::Hybrid);
    for effects in 0.. {
        let fates = match many {
            true => std::slice::from_ref(&FATES[effects as usize % FATES.len()]),
            false => &FATES[..],
        };
        for fate in fates.iter().copied() {
            let run = || crash(options, victim, effects, fate);
            match std::panic::catch_unwind(run) {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return effects,
                Ok(Err(what)) => panic!("{victim} crashes after {effects}, {fate:?}: {what}"),
                Err(_) => panic!("{victim} crashes after {effects}, {fate:?}: see above"),
            }
        }
    }
    unreachable!("a run has an end")
}

/// The first of a group is its primary, if nothing happens.
fn sweep_primary(order: Order, clock: ClockSource) {
    let points = sweep(Options { order, clock, ..Options::default() }, process(0, 0));
    assert!(points > 100, "only {points} points");
}

#[test]
fn primary_in_sequential_order_with_logical_clocks() {
    sweep_primary(Order::Sequential, ClockSource::Logical);
}

#[test]
fn primary_in_sequential_order_with_hybrid_clocks() {
    sweep_primary(Order::Sequential, ClockSource::Hybrid);
}

#[test]
fn primary_in_linearizable_order_with_logical_clocks() {
    sweep_primary(Order::Linearizable, ClockSource::Logical);
}

#[test]
fn primary_in_linearizable_order_with_hybrid_clocks() {
    sweep_primary(Order::Linearizable, ClockSource::Hybrid);
}

/// Where followers hear with what is sent next, and note what they need not make durable at once
/// (decision 80).
fn sweep_with_next(victim: ProcessId) {
    let (dissemination, notice) = (Dissemination::ViaLeader, Notice::WithNext);
    let points = sweep(Options { dissemination, notice, ..Options::default() }, victim);
    assert!(points > 100, "only {points} points");
}

#[test]
fn primary_whose_followers_hear_with_the_next() {
    sweep_with_next(process(0, 0));
}

#[test]
fn first_follower_that_hears_with_the_next() {
    sweep_with_next(process(0, 1));
}

#[test]
fn second_follower_that_hears_with_the_next() {
    sweep_with_next(process(0, 2));
}

/// Where primaries speak for their groups.
fn sweep_near(order: Order, victim: ProcessId) {
    let dissemination = Dissemination::ViaLeader;
    let points = sweep(Options { order, dissemination, ..Options::default() }, victim);
    assert!(points > 100, "only {points} points");
}

#[test]
fn primary_that_speaks_for_its_group() {
    sweep_near(Order::Linearizable, process(0, 0));
}

#[test]
fn follower_of_a_primary_that_speaks_for_it() {
    sweep_near(Order::Sequential, process(0, 1));
}

#[test]
fn follower() {
    let options =
        Options { order: Order::Linearizable, clock: ClockSource::Hybrid, ..Options::default() };
    let points = sweep(options, process(0, 1));
    assert!(points > 100, "only {points} points");
}
