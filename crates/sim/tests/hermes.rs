//! Hermes with its reliable membership under faults: many seeds.

use meridian_sim::of::hermes::{Trial, planted};
use meridian_sim::trial::Counts;
use meridian_sim::{Subject, each_seed, of, one_seed, run};

/// How many seeds a planted bug may take; most show themselves in the first ten.
const SEEDS_MAX: u64 = 3000;

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 14] = [
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
];

#[test]
fn keys_are_linearizable_and_agree_in_the_end() {
    let mut counts = Counts::default();
    each_seed(0..500, |seed| match run(seed, &Trial::default()) {
        Ok(report) => counts.add_all(&report.counts),
        Err(failure) => panic!("{failure}"),
    });
    println!("{counts:?}");
    assert!(one_seed() || HAPPENED.iter().all(|what| counts.of(what) > 10), "{counts:?}");
}

#[test]
fn each_planted_bug_is_found() {
    of::each_planted_is_found(&Trial::planted(), |_| 0..SEEDS_MAX);
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    for mutation in planted::ALL {
        let trial = Trial { mutation: Default::default(), ..planted::trial(*mutation) };
        for seed in 0..8 {
            if let Err(failure) = run(seed, &trial) {
                panic!("the trial for {mutation:?}: {failure}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 3);
}
