//! Hermes with its reliable membership under faults: many seeds.

use meridian_sim::of::first_failure;
use meridian_sim::of::hermes::{Trial, planted, trial::Drawn};
use meridian_sim::trial::{Counts, Failure};
use meridian_sim::{Detail, Subject, each_is_caught, each_seed, one_seed, run, run_with};

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
    let trials = Trial::planted();
    let numbers: Vec<_> = (0..trials.len()).collect();
    each_is_caught(&numbers, |number| {
        let (name, trial) = &trials[number];
        let seeds = planted::first_seed(trial.mutation)..SEEDS_MAX;
        let found: Failure<Drawn> = first_failure(seeds, trial)?;
        let what = found.violated.lines().next().unwrap_or_default().to_string();
        println!("{name}, seed {}: {what}", found.seed);
        Some((name.clone(), found.seed))
    });
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    for mutation in planted::ALL {
        let trial = Trial { mutation: Default::default(), ..planted::trial(*mutation) };
        let first = planted::first_seed(*mutation);
        for seed in first..first + 16 {
            if let Err(failure) = run(seed, &trial) {
                panic!("the trial for {mutation:?}: {failure}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let deep = Detail { deep: true, ..Detail::default() };
    let hash = |seed| {
        let outcome = run_with(seed, &Trial::default(), deep);
        outcome.map(|report| report.trace_hash).map_err(|failure| failure.to_string())
    };
    for seed in 0..3 {
        assert_eq!(hash(seed), hash(seed));
    }
    assert_ne!(hash(0), hash(1));
}
