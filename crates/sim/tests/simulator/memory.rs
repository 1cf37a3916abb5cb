//! Processes that keep nothing on disk crash, and come back knowing nothing.

use meridian_multicast::Mutation;
use meridian_sim::of::first_failure;
use meridian_sim::of::multicast::changes::Memory;
use meridian_sim::{each_seed, run};

fn all_hold(seeds: std::ops::Range<u64>, sizes: &[u16]) {
    let (mut crashes, mut installs, mut runs) = (0, 0, 0);
    let memory = Memory { sizes: sizes.to_vec(), mutation: Mutation::Correct };
    each_seed(seeds, |seed| match run(seed, &memory) {
        Ok(report) => {
            runs += 1;
            crashes += report.counts.of("crashes");
            installs += report.counts.of("snapshots");
        }
        Err(failure) => panic!("{failure}"),
    });
    println!("{runs} runs: {crashes} crashes, {installs} snapshots");
    assert!(crashes >= 3 * runs && installs >= runs, "nothing crashes");
}

#[test]
fn groups_of_three() {
    all_hold(0..60, &[3, 3]);
}

#[test]
fn a_group_of_five() {
    all_hold(100..140, &[5]);
}

#[test]
fn groups_of_different_sizes() {
    all_hold(200..230, &[3, 5]);
}

#[test]
fn who_rejoins_at_once_is_caught() {
    let memory = Memory { sizes: vec![3, 3], mutation: Mutation::RejoinsAtOnce };
    let failure = first_failure(0..60, &memory).expect("nobody noticed");
    println!("{failure}");
}
