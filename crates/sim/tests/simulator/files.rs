//! Whole nodes in the simulator: what clients were told of their files holds, under all faults.

use meridian_cluster::topology::DeliveryOrder;
use meridian_sim::of::each_planted_is_found;
use meridian_sim::of::files::trial::{Trial, lost_disks, power_cuts};
use meridian_sim::trial::Counts;
use meridian_sim::{Faults, Subject, each_seed, one_seed, run};
use std::ops::Range;

fn all_hold(seeds: Range<u64>, trial: &Trial) {
    let mut counts = Counts::default();
    each_seed(seeds, |seed| match run(seed, trial) {
        Ok(report) => {
            let (updates, reads) = (report.counts.of("updates"), report.counts.of("reads"));
            assert!(updates > 100 && reads > 50, "{updates} updates and {reads} reads");
            counts.add_all(&report.counts);
        }
        Err(failure) => panic!("{failure}"),
    });
    let all = ["given up", "again", "blocks", "discarded", "files", "beyond", "taken", "facts"];
    let all_happened = all.iter().all(|name| counts.of(name) > 0);
    assert!(all_happened || one_seed(), "something never happened: {counts:?}");
}

fn sequential(nodes: usize) -> Trial {
    Trial { order: Some(DeliveryOrder::Sequential), ..Trial::of(nodes) }
}

#[test]
fn without_faults_all_is_as_told() {
    for nodes in [1, 3] {
        all_hold(0..8, &Trial { faults: Some(Faults::none()), ..sequential(nodes) });
    }
}

#[test]
fn three_regions_of_one_node() {
    all_hold(0..60, &sequential(1));
}

#[test]
fn three_regions_of_three_nodes() {
    all_hold(100..260, &sequential(3));
}

/// The other order of messages holds back more of them, and the files are as told all the same.
#[test]
fn the_linearizable_order_keeps_what_was_told() {
    let order = Some(DeliveryOrder::Linearizable);
    all_hold(300..340, &Trial { order, ..Trial::of(3) });
}

/// Every node loses power at once, again and again.
#[test]
fn all_nodes_crash_at_once() {
    all_hold(200..215, &Trial { faults: Some(power_cuts()), ..sequential(3) });
}

/// A node whose disk is empty, damaged, or as it was some time ago is refused, by itself or by the
/// others, or has forgotten nothing that it had told anybody.
#[test]
fn a_disk_that_is_not_what_it_was_does_no_harm() {
    let mut refused = 0;
    let trial = Trial { faults: Some(lost_disks()), ..Trial::of(3) };
    each_seed(400..440, |seed| match run(seed, &trial) {
        Ok(report) => refused += report.counts.of("refused"),
        Err(failure) => panic!("{failure}"),
    });
    assert!(refused > 0, "no disk was lost");
}

/// Bugs planted in the multicast show in the files, and bugs planted in the sessions of clients.
#[test]
fn planted_bugs_are_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..1_000);
}
