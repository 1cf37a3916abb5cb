//! State machine replication under faults: many seeds of each recovery mode.

use meridian_paxos::Recovery;
use meridian_sim::each_seed;
use meridian_sim::paxos::{Trial, run};

fn seeds(recovery: Recovery) {
    let trial = Trial::of(recovery);
    let mut failures = 0;
    each_seed(0..150, |seed| match run(seed, &trial) {
        Ok(_) => {}
        Err(failure) => {
            failures += 1;
            println!("{}\n", failure.to_string().chars().take(1500).collect::<String>())
        }
    });
    assert_eq!(failures, 0);
}

#[test]
fn crash_stop() {
    seeds(Recovery::CrashStop);
}

#[test]
fn full_ss() {
    seeds(Recovery::FullSs);
}

#[test]
fn epoch_ss() {
    seeds(Recovery::EpochSs);
}

#[test]
fn view_ss() {
    seeds(Recovery::ViewSs);
}
