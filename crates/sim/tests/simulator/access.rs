//! Hostile clients that may only work below one directory, beside others that may do all.

use meridian_sim::of::access::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_hold};
use meridian_sim::{Subject, one_seed};

#[test]
fn what_is_foreign_stays_so() {
    let counts = trials_hold(0..80, &Trial::default());
    let all = ["done by hostile ones", "done by others", "refused", "shown", "not shown"];
    let missing: Vec<_> = all.iter().filter(|name| counts.of(name) < 200).collect();
    assert!(missing.is_empty() || one_seed(), "seldom: {missing:?} of {counts:?}");
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..100);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
