//! Clients that keep what they see: no look at that is older than what was acknowledged.

use meridian_sim::of::looks::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};
use meridian_sim::{Subject, one_seed};

#[test]
fn no_look_is_older_than_what_was_acknowledged() {
    let all = [
        "kept",
        "kept with attributes",
        "swept",
        "came along",
        "kept late",
        "listings kept",
        "pages kept",
        "updates",
        "reads",
        "recalled",
        "still",
        "gone",
        "taken",
    ];
    let counts = trials_show(0..120, &Trial::default(), (&all, 1));
    assert!(counts.of("kept") * 10 > counts.of("reads") || one_seed(), "hardly kept: {counts:?}");
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..400);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
