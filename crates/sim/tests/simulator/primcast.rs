//! PrimCast in the simulator: the properties of atomic multicast under all faults.

use meridian_multicast::{ClockSource, Dissemination, Order};
use meridian_sim::of::multicast::trial::{Disks, Drawn, Links, Trial, all_faults};
use meridian_sim::of::multicast::workload::{Profile, Senders};
use meridian_sim::{Detail, Faults, Report, Subject, each_seed, one_seed, run, run_with};
use std::ops::Range;
use std::time::Duration;

fn holds(seed: u64, trial: &Trial) -> Report<Drawn> {
    match run(seed, trial) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

fn all_hold(seeds: Range<u64>, trial: &Trial) {
    each_seed(seeds, |seed| drop(holds(seed, trial)));
}

/// Groups of these sizes with all kinds of faults.
fn faulty(sizes: &[u16]) -> Trial {
    let (faults, links) = (Some(all_faults()), Some(Links::Lan));
    Trial { faults, links, disks: Some(Disks::Quick), ..Trial::of(sizes) }
}

#[test]
fn without_faults_all_is_delivered() {
    for sizes in [&[1][..], &[3], &[1, 1], &[3, 3], &[3, 1, 5], &[3, 3, 3, 3]] {
        all_hold(0..4, &Trial { faults: Some(Faults::none()), ..Trial::of(sizes) });
    }
}

/// Sizes of groups, order, clock, links, faults and clients: all as the seed says.
#[test]
fn whatever_is_drawn() {
    all_hold(1000..1200, &Trial::default());
}

#[test]
fn whatever_else_is_drawn() {
    all_hold(1200..1400, &Trial::default());
}

#[test]
fn one_group_of_one() {
    all_hold(0..20, &faulty(&[1]));
}

#[test]
fn one_group_of_three() {
    all_hold(100..180, &faulty(&[3]));
}

#[test]
fn one_group_of_five() {
    all_hold(200..240, &faulty(&[5]));
}

#[test]
fn two_groups_of_three() {
    all_hold(300..400, &faulty(&[3, 3]));
}

#[test]
fn groups_of_different_sizes() {
    all_hold(400..440, &faulty(&[3, 1, 5]));
}

#[test]
fn four_groups_of_three() {
    all_hold(500..540, &faulty(&[3, 3, 3, 3]));
}

#[test]
fn each_order_with_each_clock() {
    for (at, order) in (0..).zip([Order::Sequential, Order::Linearizable]) {
        for (half, clock) in (0..).zip([ClockSource::Logical, ClockSource::Hybrid]) {
            let trial = Trial { order: Some(order), clock: Some(clock), ..Trial::of(&[3, 3]) };
            let first = 2000 + at * 100 + half * 50;
            all_hold(first..first + 30, &trial);
        }
    }
}

/// Many messages that touch few things.
#[test]
fn messages_that_commute() {
    let profile = Profile { keys: 3, all: 12, window: 8, ..Profile::default() };
    let trial = Trial { profile: Some(profile), ..faulty(&[3, 3]) };
    all_hold(2500..2560, &trial);
}

/// Clients ask any process to multicast, also one whose group is not a destination.
#[test]
fn senders_anywhere() {
    let profile = Profile { senders: Senders::Member, dest_max: 2, ..Profile::default() };
    let trial = Trial { profile: Some(profile), ..faulty(&[3, 3, 3]) };
    all_hold(2600..2640, &trial);
}

/// Messages take up to half a second, so that epochs overlap.
#[test]
fn over_slow_links() {
    all_hold(600..660, &slow(&[3, 3]));
}

/// NEW-STATE, ACCEPT and the first proposals of five members overtake each other on their ways.
#[test]
fn new_states_race_in_a_group_of_five() {
    all_hold(700..760, &slow(&[5]));
}

fn slow(sizes: &[u16]) -> Trial {
    let crash = Some(Duration::from_millis(400));
    let faults = Faults { crash, outage: Duration::from_millis(100), ..all_faults() };
    Trial { links: Some(Links::Slow), faults: Some(faults), ..Trial::of(sizes) }
}

/// Primaries are deposed one after the other.
#[test]
fn primaries_change_again_and_again() {
    let faults = Faults { depose: Some(Duration::from_millis(700)), ..all_faults() };
    for (first, sizes) in [(2700, &[3][..]), (2750, &[3, 3]), (2800, &[5, 3])] {
        all_hold(first..first + 20, &Trial { faults: Some(faults.clone()), ..faulty(sizes) });
    }
}

/// Whole groups are cut off for seconds.
#[test]
fn regions_are_cut_off() {
    let (s, split) = (Duration::from_secs(1), Duration::from_secs(3));
    let faults = Faults { region: Some(s), split, ..Faults::none() };
    let trial = Trial { faults: Some(faults), links: Some(Links::Wan), ..Trial::of(&[3, 3, 3]) };
    all_hold(2900..2940, &trial);
}

/// Nothing is kept on disks: who crashes comes back with what its group knows.
#[test]
fn without_disks() {
    let mut crashes = 0;
    for (first, sizes) in [(3000, &[3][..]), (3050, &[5]), (3100, &[3, 3])] {
        let trial = Trial { disks: Some(Disks::Absent), ..faulty(sizes) };
        each_seed(first..first + 30, |seed| crashes += holds(seed, &trial).counts.of("crashes"));
    }
    assert!(crashes > 100 || one_seed(), "only {crashes} crashes");
}

/// Logs are cut before a process that was away has seen them.
#[test]
fn big_messages_make_snapshots_necessary() {
    let profile = Profile { big: 2, window: 8, ..Profile::default() };
    let (crash, outage) = (Some(Duration::from_secs(2)), Duration::from_secs(3));
    let faults = Faults { crash, outage, down_max: 1, ..Faults::none() };
    let trial = Trial { profile: Some(profile), faults: Some(faults), ..faulty(&[3, 1]) };
    let mut installed = 0;
    each_seed(800..806, |seed| installed += holds(seed, &trial).counts.of("snapshots"));
    assert!(installed > 0 || one_seed(), "no snapshot was necessary");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let deep = Detail { deep: true, ..Detail::default() };
    let hash = |seed| {
        let report = run_with(seed, &Trial::default(), deep.clone());
        report.expect("nothing is wrong").trace_hash
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

/// No part of the trials is dead.
#[test]
fn the_drawn_trials_differ() {
    let drawn: Vec<_> = (0..200).map(|seed| Trial::default().draw(seed)).collect();
    let all = |wanted: &dyn Fn(&Drawn) -> bool| {
        let count = drawn.iter().filter(|drawn| wanted(drawn)).count();
        count > 0 && count < drawn.len()
    };
    let linearizable = |drawn: &Drawn| drawn.options.order == Order::Linearizable;
    let hybrid = |drawn: &Drawn| drawn.options.clock == ClockSource::Hybrid;
    assert!(all(&linearizable));
    assert!(all(&hybrid));
    assert!(all(&|drawn| linearizable(drawn) && hybrid(drawn)), "as nodes run it");
    assert!(all(&|drawn| drawn.profile.keys > 0));
    assert!(all(&|drawn| drawn.profile.bounds > 0));
    assert!(all(&|drawn| drawn.profile.senders == Senders::Member));
    assert!(all(&|drawn| drawn.dissemination.contains(&Dissemination::ViaLeader)));
    assert!(all(&|drawn| drawn.dissemination.contains(&Dissemination::AllToAll)));
    assert!(all(&|drawn| drawn.links == Links::Wan));
    assert!(all(&|drawn| drawn.disks == Disks::Absent));
    assert!(all(&|drawn| drawn.faults.crash.is_some()));
}
