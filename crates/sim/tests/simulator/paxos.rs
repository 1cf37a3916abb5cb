//! State machine replication under faults: many seeds of each recovery mode.

use meridian_paxos::Recovery;
use meridian_sim::of::paxos::Trial;
use meridian_sim::trial::Counts;
use meridian_sim::{of, one_seed};

/// Runs so many seeds, and adds up what happened.
fn seeds(recovery: Recovery) -> Counts {
    let counts = of::trials_hold(0..130, &Trial::of(recovery));
    println!("{} {counts:?}", recovery.name());
    counts
}

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 12] = [
    "requests",
    "reads",
    "stale_reads",
    "redirects",
    "forgotten",
    "too_long",
    "repeated",
    "changes",
    "crashes",
    "removed",
    "leaders",
    "snapshots",
];

fn happened(recovery: Recovery) -> Counts {
    let counts = seeds(recovery);
    if !one_seed() {
        assert!(counts.of("truncated") > 0, "no log was cut");
        assert!(HAPPENED.iter().all(|what| counts.of(what) > 10), "{counts:?}");
    }
    counts
}

#[test]
fn crash_stop() {
    let counts = happened(Recovery::CrashStop);
    assert!(counts.of("refused") > 0 || one_seed(), "who came back took part");
}

#[test]
fn full_ss() {
    happened(Recovery::FullSs);
}

#[test]
fn epoch_ss() {
    let counts = happened(Recovery::EpochSs);
    assert!(counts.of("recovered") > 0 || one_seed(), "nobody had lost anything");
}

#[test]
fn view_ss() {
    let counts = happened(Recovery::ViewSs);
    assert!(counts.of("recovered") > 0 || one_seed(), "nobody had lost anything");
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 3);
}
