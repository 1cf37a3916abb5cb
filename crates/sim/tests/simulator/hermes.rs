//! Hermes with its reliable membership under faults: many seeds.

use meridian_sim::of::hermes::Trial;
use meridian_sim::{Subject, of};

/// How many seeds a planted bug may take; most show themselves in the first ten.
const SEEDS_MAX: u64 = 3000;

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 15] = [
    "reads",
    "writes",
    "rmws",
    "kept",
    "aborted",
    "unknown",
    "refused",
    "removed",
    "crashes",
    "recovered",
    "losses",
    "asked again",
    "asked another",
    "dozed",
    "let go",
];

#[test]
fn keys_are_linearizable_and_agree_in_the_end() {
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
        (name, Trial { mutation: Default::default(), fault: Default::default(), ..trial })
    };
    of::trials_hold_without_a_bug(Trial::planted().into_iter().map(correct), 0..8);
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 3);
}
