//! Nodes that hold blocks are removed, and no block is lost.

use meridian_sim::of::drain::trial::Trial;
use meridian_sim::of::each_planted_is_found;
use meridian_sim::{Faults, Subject, each_seed, run};
use std::ops::Range;

fn all_hold(seeds: Range<u64>, trial: &Trial) {
    each_seed(seeds, |seed| match run(seed, trial) {
        Ok(report) => assert!(report.counts.of("stored") >= 120, "{:?}", report.counts),
        Err(failure) => panic!("{failure}"),
    });
}

#[test]
fn without_faults_nodes_go_and_blocks_stay() {
    all_hold(0..20, &Trial { faults: Some(Faults::none()), ..Trial::default() });
}

#[test]
fn nodes_that_go_under_faults_leave_all_blocks() {
    all_hold(100..300, &Trial { dead: Some(false), ..Trial::default() });
}

/// What a drain leaves does not lean on anybody who looks after copies later.
#[test]
fn a_drain_alone_leaves_all_blocks() {
    all_hold(400..600, &Trial { alone: true, dead: Some(false), ..Trial::default() });
    all_hold(600..650, &Trial { alone: true, dead: Some(true), ..Trial::default() });
}

#[test]
fn a_node_that_is_gone_before_it_is_removed_takes_no_block_along() {
    all_hold(300..400, &Trial { dead: Some(true), ..Trial::default() });
}

/// Among them is that of commit d60a38c: a node goes, and the others copy afterwards.
#[test]
fn planted_bugs_are_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..300);
}
