//! Clients that lock files of each other: two never have one lock, and who waits gets it.

use meridian_sim::of::locks::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_hold};
use meridian_sim::{Subject, one_seed};

#[test]
fn two_never_have_one_lock_and_who_waits_gets_it() {
    let counts = trials_hold(0..60, &Trial::default());
    let all = ["writes", "granted", "left", "deadlocks", "lost", "refused", "still", "gone"];
    let missing: Vec<_> = all.iter().filter(|name| counts.of(name) == 0).collect();
    assert!(missing.is_empty() || one_seed(), "never happened: {missing:?} of {counts:?}");
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..200);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 2);
}
