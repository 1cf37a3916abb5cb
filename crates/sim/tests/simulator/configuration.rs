//! Nodes that keep the configuration are removed, and it is never lost.

use meridian_sim::of::configuration::trial::Trial;
use meridian_sim::of::each_planted_is_found;
use meridian_sim::{Faults, Subject, each_seed, run};
use std::ops::Range;

fn all_hold(seeds: Range<u64>, trial: &Trial) {
    each_seed(seeds, |seed| match run(seed, trial) {
        Ok(report) => {
            let (versions, replaced) = (report.counts.of("versions"), report.counts.of("replaced"));
            assert!(versions >= 14 && replaced > 0, "{:?}", report.counts);
        }
        Err(failure) => panic!("{failure}"),
    });
}

#[test]
fn without_faults_others_keep_the_configuration() {
    all_hold(0..20, &Trial { faults: Some(Faults::none()), ..Trial::default() });
}

#[test]
fn the_only_node_that_keeps_the_configuration_goes_under_faults() {
    all_hold(100..200, &Trial { keepers: Some(1), ..Trial::default() });
}

#[test]
fn nodes_that_keep_the_configuration_go_under_faults() {
    all_hold(200..300, &Trial { keepers: Some(3), ..Trial::default() });
}

/// Three regions of one node each, of which one is lost.
#[test]
fn nodes_that_come_take_the_seats_of_lost_ones_under_faults() {
    all_hold(300..400, &Trial { loses: Some(true), keepers: Some(3), ..Trial::default() });
}

#[test]
fn planted_bugs_are_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..1000);
}
