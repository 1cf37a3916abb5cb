//! Keys of all regions on groups of Hermes, under faults: many seeds.

use meridian_sim::of::causal::{Trial, planted};
use meridian_sim::trial::Counts;
use meridian_sim::{Subject, each_seed, of, one_seed, run};

/// How many seeds a planted bug may take.
const SEEDS_MAX: u64 = 40;

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 12] = [
    "reads",
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
];

#[test]
fn sessions_see_causal_histories_and_regions_converge() {
    let mut counts = Counts::default();
    each_seed(0..300, |seed| match run(seed, &Trial::default()) {
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
    for (name, trial) in planted::trials() {
        let trial = Trial { mutation: Default::default(), eunomia: Default::default(), ..trial };
        for seed in 0..2 {
            if let Err(failure) = run(seed, &trial) {
                panic!("the trial for {name}: {failure}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 2);
}
