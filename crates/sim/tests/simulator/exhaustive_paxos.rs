//! Exhaustive search of small cases of state machine replication over the real code.
//!
//! Each test prints its states (`-- --nocapture`).

use meridian_paxos::{Mutation, Recovery};
use meridian_sim::of::paxos::explored::Case;

/// Searches a case until something is violated; what was.
fn search(
    recovery: Recovery,
    requests: &[(u8, usize)],
    mutation: Mutation,
) -> Option<&'static str> {
    let case = Case { recovery, requests: requests.to_vec(), mutation };
    let found = case.search();
    println!("{case:?}: {found}");
    assert!(found.states > 100, "{case:?}: nothing was searched");
    assert!(found.reached || found.violated.is_some(), "{case:?}: no run serves the requests");
    found.violated.map(|(property, _)| property)
}

/// Two requests in the first view.
const BOTH: [(u8, usize); 2] = [(0, 0), (1, 0)];
/// One in each view.
const EACH: [(u8, usize); 2] = [(0, 0), (1, 1)];
/// Both in both, in the other order: their clients do not know whether they were executed.
const AGAIN: [(u8, usize); 4] = [(0, 0), (1, 0), (1, 1), (0, 1)];

fn holds(recovery: Recovery, asks: &[(u8, usize)]) {
    assert_eq!(search(recovery, asks, Mutation::Correct), None);
}

#[test]
fn crash_stop() {
    holds(Recovery::CrashStop, &BOTH);
    holds(Recovery::CrashStop, &EACH);
    holds(Recovery::CrashStop, &AGAIN);
}

#[test]
fn full_ss() {
    holds(Recovery::FullSs, &EACH);
    holds(Recovery::FullSs, &BOTH);
}

#[test]
fn epoch_ss() {
    holds(Recovery::EpochSs, &EACH);
}

#[test]
fn view_ss() {
    holds(Recovery::ViewSs, &EACH);
}

/// Those that one view change and one crash can show; the random search has the others.
#[test]
fn planted_bugs_are_found() {
    for (recovery, asks, mutation) in [
        (Recovery::CrashStop, &EACH[..], Mutation::AcceptsOldView),
        (Recovery::CrashStop, &EACH, Mutation::IgnoresVotes),
        (Recovery::CrashStop, &EACH, Mutation::SmallQuorum),
        (Recovery::CrashStop, &BOTH, Mutation::SkipsGaps),
        (Recovery::CrashStop, &AGAIN, Mutation::ExecutesDuplicates),
        (Recovery::FullSs, &EACH, Mutation::ForgetsPromise),
        (Recovery::FullSs, &EACH, Mutation::ForgetsAccepted),
        (Recovery::EpochSs, &EACH, Mutation::RejoinsAtOnce),
        (Recovery::ViewSs, &EACH, Mutation::RejoinsAtOnce),
    ] {
        assert_ne!(search(recovery, asks, mutation), None, "{mutation:?} is not found");
    }
}
