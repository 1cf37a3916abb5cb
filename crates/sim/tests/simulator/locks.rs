//! Clients that lock files of each other: two never have one lock, and who waits gets it.

use meridian_sim::Subject;
use meridian_sim::of::locks::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};

#[test]
fn two_never_have_one_lock_and_who_waits_gets_it() {
    let all = ["writes", "granted", "left", "deadlocks", "lost", "refused", "still", "gone"];
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
