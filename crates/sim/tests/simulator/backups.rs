//! Snapshots of all regions are the tree at one timestamp, whatever goes on meanwhile.

use meridian_sim::of::backups::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};
use meridian_sim::{Subject, one_seed, share};

#[test]
fn a_snapshot_is_the_tree_at_one_timestamp() {
    let all = ["taken", "not taken", "judged", "looked", "made", "renamed", "written", "freed"];
    let counts = trials_show(0..60, &Trial::default(), (&all, 1));
    assert!(counts.of("judged") > 60 / share() || one_seed(), "hardly any is judged: {counts:?}");
    assert!(counts.of("marked") > counts.of("taken") || one_seed(), "no second mark: {counts:?}");
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..300);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
