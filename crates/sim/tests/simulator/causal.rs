//! Keys of all regions on groups of Hermes, under faults: many seeds.

use meridian_sim::of::causal::{Trial, planted};
use meridian_sim::{Subject, of};

/// How many seeds a planted bug may take.
const SEEDS_MAX: u64 = 600;

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 20] = [
    "reads",
    "snapshots",
    "writes",
    "rmws",
    "kept",
    "aborted",
    "refused",
    "unknown",
    "applied",
    "superseded",
    "moved",
    "stayed",
    "crashes",
    "came",
    "left",
    "joined",
    "gone",
    "denied",
    "lost",
    "dropped",
];

#[test]
fn sessions_see_causal_histories_and_regions_converge() {
    let counts = of::trials_show(0..500, &Trial::default(), (&HAPPENED, 11));
    println!("{counts:?}");
}

#[test]
fn each_planted_bug_is_found() {
    of::each_planted_is_found(&Trial::planted(), |_| 0..SEEDS_MAX);
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    let correct = |(name, trial)| {
        (name, Trial { mutation: Default::default(), eunomia: Default::default(), ..trial })
    };
    of::trials_hold_without_a_bug(planted::trials().into_iter().map(correct), 0..2);
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 2);
}
