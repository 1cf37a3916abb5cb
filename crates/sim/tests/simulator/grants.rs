//! Clients that may use some keys, while what they may use is changed.

use meridian_sim::Subject;
use meridian_sim::of::grants::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};

#[test]
fn who_may_use_some_keys_uses_these_and_no_others() {
    let all = [
        "changed",
        "changed meanwhile",
        "carried out",
        "refused",
        "walked",
        "told",
        "watches ended",
        "crashes",
    ];
    trials_show(0..60, &Trial::default(), (&all, 60));
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..60);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
