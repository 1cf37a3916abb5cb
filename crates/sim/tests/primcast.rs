//! PrimCast in the simulator: the five properties under all faults, and planted bugs.

mod cluster;

use cluster::{Trial, faults};
use meridian_multicast::Mutation;
use meridian_sim::workload::Manner;
use meridian_sim::{Faults, each_seed};
use std::ops::Range;
use std::time::Duration;

fn all_faults(seeds: Range<u64>, sizes: &[u16]) {
    each_seed(seeds, |seed| drop(Trial::of(sizes).faults_then_peace(seed)));
}

#[test]
fn without_faults_all_is_delivered() {
    for sizes in [&[1][..], &[3], &[1, 1], &[3, 3], &[3, 1, 5], &[3, 3, 3, 3]] {
        each_seed(0..3, |seed| {
            Trial { faults: Faults::none(), ..Trial::of(sizes) }.faults_then_peace(seed);
        });
    }
}

#[test]
fn one_group_of_one() {
    all_faults(0..20, &[1]);
}

#[test]
fn one_group_of_three() {
    all_faults(100..180, &[3]);
}

#[test]
fn one_group_of_five() {
    all_faults(200..260, &[5]);
}

#[test]
fn two_groups_of_three() {
    all_faults(300..400, &[3, 3]);
}

#[test]
fn groups_of_different_sizes() {
    all_faults(400..460, &[3, 1, 5]);
}

#[test]
fn four_groups_of_three() {
    all_faults(500..560, &[3, 3, 3, 3]);
}

/// Messages take up to half a second, so that epochs overlap.
#[test]
fn over_slow_links() {
    each_seed(600..660, |seed| drop(slow(&[3, 3], Mutation::Correct).faults_then_peace(seed)));
}

/// NEW-STATE, ACCEPT and the first proposals of five members overtake each other on their ways.
#[test]
fn new_states_race_in_a_group_of_five() {
    each_seed(700..760, |seed| drop(slow(&[5], Mutation::Correct).faults_then_peace(seed)));
}

/// Logs are cut before a process that was away has seen them.
#[test]
fn big_messages_make_snapshots_necessary() {
    let mut installed = 0;
    each_seed(800..806, |seed| {
        let manner = Manner { big: 2, window: 8, ..Manner::default() };
        let crash = Some(Duration::from_secs(2));
        let outage = Duration::from_secs(3);
        let faults = Faults { crash, outage, down_max: 1, ..Faults::none() };
        let world = Trial { manner, faults, ..Trial::of(&[3, 1]) }.faults_then_peace(seed);
        installed += cluster::installs(&world);
    });
    assert!(installed > 0, "no snapshot was necessary");
}

fn slow(sizes: &[u16], mutation: Mutation) -> Trial {
    let crash = Some(Duration::from_millis(400));
    let outage = Duration::from_millis(100);
    Trial { mutation, slow: true, faults: Faults { crash, outage, ..faults() }, ..Trial::of(sizes) }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let hash = |seed| {
        let mut world = Trial { deep: true, ..Trial::of(&[3, 3]) }.world(seed);
        world.run_for(Duration::from_secs(4));
        world.trace_hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

/// How many seeds it takes to notice.
fn caught(trial: &Trial) -> Option<u64> {
    let runs_well = |seed| {
        let run = || drop(Trial { quiet: true, ..trial.clone() }.faults_then_peace(seed));
        std::panic::catch_unwind(run).is_ok()
    };
    (0..400).find(|seed| !runs_well(*seed))
}

fn assert_caught(mutation: Mutation) {
    let found = caught(&Trial { mutation, ..Trial::of(&[3, 3]) });
    let found = found.or_else(|| caught(&slow(&[3], mutation)));
    eprintln!("{mutation:?}: {found:?}");
    assert!(found.is_some(), "nobody noticed {mutation:?}");
}

#[test]
fn delivering_without_the_leaders_clock_is_caught() {
    assert_caught(Mutation::NoLeaderClock);
}

#[test]
fn delivering_without_a_quorum_of_clocks_is_caught() {
    assert_caught(Mutation::NoQuorumClock);
}

#[test]
fn delivering_out_of_order_is_caught() {
    assert_caught(Mutation::NoOrder);
}

#[test]
fn a_clock_that_a_restart_sets_back_is_caught() {
    assert_caught(Mutation::NoCeiling);
}

#[test]
fn going_on_in_an_epoch_after_a_restart_is_caught() {
    assert_caught(Mutation::ResumesEpoch);
}

#[test]
fn a_message_proposed_twice_is_caught() {
    assert_caught(Mutation::ForgetsDone);
}
