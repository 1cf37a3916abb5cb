//! Hostile clients that may only work below one directory, beside others that may do all.

use meridian_sim::Subject;
use meridian_sim::of::access::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};

#[test]
fn what_is_foreign_stays_so() {
    let all = ["done by hostile ones", "done by others", "refused", "shown", "not shown"];
    trials_show(0..80, &Trial::default(), (&all, 200));
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..100);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
