//! Members of groups change while messages flow and everything goes wrong.

use meridian_multicast::Mutation;
use meridian_sim::of::first_failure;
use meridian_sim::of::multicast::changes::Members;
use meridian_sim::trial::Counts;
use meridian_sim::{each_seed, run};

fn holds(seed: u64) -> Counts {
    match run(seed, &Members { mutation: Mutation::Correct }) {
        Ok(report) => report.counts,
        Err(failure) => panic!("{failure}"),
    }
}

/// Safety at each moment, and in the end all that was asked is delivered by all that are members
/// then.
#[test]
fn members_are_replaced_added_and_removed_and_a_group_is_added() {
    let (mut joined, mut left, mut installs, mut runs) = (0, 0, 0, 0);
    each_seed(0..100, |seed| {
        let counts = holds(seed);
        runs += 1;
        joined += counts.of("joined");
        left += counts.of("left");
        installs += counts.of("snapshots");
    });
    println!("{runs} runs: {joined} joined, {left} left, {installs} snapshots");
    assert!(joined >= 4 * runs && left >= runs, "nothing changes");
}

#[test]
fn promises_of_the_new_quorum_alone_are_not_enough() {
    let members = Members { mutation: Mutation::NewQuorumOnly };
    let failure = first_failure(0..60, &members).expect("nobody noticed");
    println!("{failure}");
}
