//! Planted bugs, each of which some checker must catch within a few seeds.

use meridian_multicast::Mutation;
use meridian_sim::trial::{Links, all_faults};
use meridian_sim::{Faults, Trial, run};
use std::time::Duration;

/// How many seeds it may take.
const SEEDS_MAX: u64 = 400;

fn faulty(sizes: &[u16]) -> Trial {
    Trial { faults: Some(all_faults()), links: Some(Links::Lan), ..Trial::of(sizes) }
}

fn slow(sizes: &[u16]) -> Trial {
    let crash = Some(Duration::from_millis(400));
    let faults = Faults { crash, outage: Duration::from_millis(100), ..all_faults() };
    Trial { links: Some(Links::Slow), faults: Some(faults), ..Trial::of(sizes) }
}

/// All that there are, but the correct one.
const ALL: [Mutation; 7] = [
    Mutation::NoLeaderClock,
    Mutation::NoQuorumClock,
    Mutation::NoOrder,
    Mutation::NoCeiling,
    Mutation::ResumesEpoch,
    Mutation::ForgetsPromise,
    Mutation::ForgetsDone,
];

/// The trial that shows a bug soon; `None` for the one that is no bug.
fn trial(mutation: Mutation) -> Option<Trial> {
    let trial = match mutation {
        Mutation::Correct => return None,
        Mutation::NoLeaderClock
        | Mutation::NoQuorumClock
        | Mutation::NoOrder
        | Mutation::NoCeiling
        | Mutation::ForgetsDone => faulty(&[3, 3]),
        Mutation::ResumesEpoch | Mutation::ForgetsPromise => slow(&[3]),
    };
    Some(Trial { mutation, ..trial })
}

#[test]
fn each_planted_bug_is_caught() {
    for mutation in ALL {
        let trial = trial(mutation).expect("it is a bug");
        let mut failures = (0..SEEDS_MAX).filter_map(|seed| run(seed, &trial).err());
        let failure = failures.next().unwrap_or_else(|| panic!("nobody noticed {mutation:?}"));
        let what = failure.violated.lines().next().unwrap_or_default();
        println!("{mutation:?}: seed {}: {what}", failure.seed);
    }
}
