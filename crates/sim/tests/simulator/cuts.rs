//! Regions that are cut off: clients know it in time, and only if it is so.

use meridian_sim::Subject;
use meridian_sim::of::cuts::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};

#[test]
fn clients_know_in_time_who_is_cut_off_and_wait_for_nobody_else() {
    let all = ["cuts", "reached", "given up", "answered", "tops", "tops shown in silence"];
    trials_show(0..60, &Trial::default(), (&all, 1));
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..200);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 2);
}
