//! Planted bugs, each of which some checker must catch within a few seeds.

use meridian_multicast::Mutation;
use meridian_sim::{planted, run};

/// How many seeds it may take.
const SEEDS_MAX: u64 = 300;

#[test]
fn each_planted_bug_is_caught() {
    // Their panics are expected, and many.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught: Vec<_> =
        planted::ALL.into_iter().map(|mutation| (mutation, caught(mutation))).collect();
    std::panic::set_hook(hook);
    for (mutation, caught) in &caught {
        println!("{mutation:?}: {caught:?}");
    }
    let missed: Vec<_> = caught.iter().filter(|(_, caught)| caught.is_none()).collect();
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}

/// The first seed that shows it, and what was seen.
fn caught(mutation: Mutation) -> Option<(u64, String)> {
    let trial = planted::trial(mutation);
    let failure = (0..SEEDS_MAX).find_map(|seed| run(seed, &trial).err())?;
    Some((failure.seed, failure.violated.lines().next().unwrap_or_default().to_string()))
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    for mutation in planted::ALL {
        let trial = meridian_sim::Trial { mutation: Mutation::Correct, ..planted::trial(mutation) };
        for seed in 0..5 {
            if let Err(failure) = run(seed, &trial) {
                panic!("the trial for {mutation:?}: {failure}");
            }
        }
    }
}
