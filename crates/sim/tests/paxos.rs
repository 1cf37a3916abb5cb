//! State machine replication under faults: many seeds of each recovery mode.

use meridian_paxos::Recovery;
use meridian_sim::each_seed;
use meridian_sim::paxos::{Counts, Report, Trial, run};

/// Runs so many seeds, and adds up what happened.
fn seeds(recovery: Recovery) -> (Counts, u64) {
    let trial = Trial::of(recovery);
    let (mut counts, mut truncated) = (Counts::default(), 0);
    each_seed(0..130, |seed| match run(seed, &trial) {
        Ok(Report { counts: more, truncated: cut, .. }) => {
            counts.add(&more);
            truncated += cut;
        }
        Err(failure) => panic!("{failure}\nSEED={seed} cargo test -p meridian-sim --test paxos"),
    });
    println!("{} {counts:?}, logs cut {truncated}", recovery.name());
    (counts, truncated)
}

/// What must have happened, or the trials show nothing.
fn happened(recovery: Recovery) -> Counts {
    let (counts, truncated) = seeds(recovery);
    if std::env::var_os("SEED").is_some() {
        return counts;
    }
    assert!(truncated > 0, "no log was cut");
    let Counts { requests, reads, stale, redirects, forgotten, too_long, repeated, .. } = counts;
    let Counts { changes, crashes, removed, leaders, snapshots, .. } = counts;
    let all = [requests, reads, stale, redirects, forgotten, too_long, repeated];
    let more = [changes, crashes, removed, leaders, snapshots];
    assert!(all.iter().chain(&more).all(|count| *count > 10), "{counts:?}");
    counts
}

#[test]
fn crash_stop() {
    let counts = happened(Recovery::CrashStop);
    assert!(counts.refused > 0 || std::env::var_os("SEED").is_some(), "who came back took part");
}

#[test]
fn full_ss() {
    happened(Recovery::FullSs);
}

#[test]
fn epoch_ss() {
    let counts = happened(Recovery::EpochSs);
    assert!(counts.recovered > 0 || std::env::var_os("SEED").is_some(), "nobody had lost anything");
}

#[test]
fn view_ss() {
    let counts = happened(Recovery::ViewSs);
    assert!(counts.recovered > 0 || std::env::var_os("SEED").is_some(), "nobody had lost anything");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let trial = Trial { deep: true, ..Trial::default() };
    let hash = |seed| run(seed, &trial).map(|report| report.trace_hash).map_err(|f| f.to_string());
    for seed in 0..3 {
        assert_eq!(hash(seed), hash(seed));
    }
    assert_ne!(hash(0), hash(1));
}
