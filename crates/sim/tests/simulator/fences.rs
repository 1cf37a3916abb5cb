//! Groups are lost and go on as groups of heirs, while messages flow and everything goes wrong.

use meridian_multicast::{Mutation, Order};
use meridian_sim::of::first_failure;
use meridian_sim::of::multicast::fences::Fences;
use meridian_sim::trial::Counts;
use meridian_sim::{each_is_caught, each_seed, run};

/// The bugs that trials find. (`ForgetsReportedClock` and `TrustsUnsealed` need a process that
/// forgets at the wrong moment: see the tests of `meridian-multicast`.)
const PLANTED: [Mutation; 3] =
    [Mutation::HearsTheLost, Mutation::InheritsFromMajority, Mutation::ReportsUndelivered];

/// How many seeds it may take.
const SEEDS_MAX: u64 = 300;

fn holds(seed: u64, order: Order) -> Counts {
    match run(seed, &Fences { order: Some(order), mutation: Mutation::Correct }) {
        Ok(report) => report.counts,
        Err(failure) => panic!("{failure}"),
    }
}

/// Safety at each moment, and in the end all that was asked is delivered by all that are members
/// then.
fn groups_are_lost(order: Order, seeds: std::ops::Range<u64>) {
    let (mut all, mut runs) = (Counts::default(), 0);
    each_seed(seeds, |seed| {
        all.add_all(&holds(seed, order));
        runs += 1;
    });
    println!("{order:?}, {runs} runs: {:?}", all.0);
    assert!(all.of("losses") >= runs && all.of("held") >= runs, "nothing was lost");
}

#[test]
fn heirs_go_on_in_the_sequential_order() {
    groups_are_lost(Order::Sequential, 0..150);
}

#[test]
fn heirs_go_on_in_the_linearizable_order() {
    groups_are_lost(Order::Linearizable, 150..300);
}

#[test]
fn each_planted_bug_is_caught() {
    each_is_caught(&PLANTED, |mutation| {
        let trial = Fences { order: None, mutation };
        let failure = first_failure(0..SEEDS_MAX, &trial)?;
        Some((failure.seed, failure.violated.lines().next().unwrap_or_default().to_string()))
    });
}
