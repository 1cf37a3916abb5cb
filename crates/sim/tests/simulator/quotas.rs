//! Quotas are set and taken away while clients work: in the end all that is below counts.

use meridian_sim::of::quotas::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};
use meridian_sim::{Subject, one_seed};

#[test]
fn what_is_counted_is_what_is_there() {
    let all = ["set", "taken away", "renamed", "placed", "removed", "written", "counted"];
    let counts = trials_show(0..120, &Trial::default(), (&all, 1));
    assert!(counts.of("counted") > 200 || one_seed(), "hardly anything below: {counts:?}");
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&Trial::planted(), |_| 0..400);
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
