//! Services of one's own under faults; and services with a planted bug, each of which is caught.

use bytes::Bytes;
use meridian_paxos::Service;
use meridian_sim::of::service::{Ask, Trial};
use meridian_sim::rand::RngExt;
use meridian_sim::{of, one_seed};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is wrong with a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Its replies depend on how many counters there are in this process of the system.
    LooksAround,
    /// Its state does.
    KeepsWhatItSees,
    /// A snapshot lacks the last of three bits.
    ForgetsInSnapshots,
    /// A question changes what the next reply is.
    AnswersInAdvance,
}

/// Adds what it is asked to add. Equal requests change it again, so that it shows whether one is
/// executed twice.
#[derive(Clone)]
struct Counter {
    sum: u64,
    bug: Bug,
}

static SEEN: AtomicU64 = AtomicU64::new(0);

impl Service for Counter {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        self.sum += u64::from(request[0]);
        let seen = SEEN.fetch_add(1, Ordering::Relaxed);
        match self.bug {
            Bug::LooksAround => Bytes::from(seen.to_string()),
            Bug::KeepsWhatItSees => {
                self.sum += seen % 2;
                Bytes::new()
            }
            _ => Bytes::from(self.sum.to_string()),
        }
    }

    fn query(&self, _: &[u8]) -> Bytes {
        let early = u64::from(self.bug == Bug::AnswersInAdvance);
        Bytes::from((self.sum + early * (SEEN.load(Ordering::Relaxed) % 2)).to_string())
    }

    fn snapshot(&self) -> Bytes {
        let kept = if self.bug == Bug::ForgetsInSnapshots { self.sum & !4 } else { self.sum };
        Bytes::copy_from_slice(&kept.to_be_bytes())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.sum = u64::from_be_bytes(snapshot.try_into().map_err(|_| "not eight bytes")?);
        Ok(())
    }
}

fn trial(bug: Bug) -> Trial<Counter> {
    Trial::new(Counter { sum: 0, bug }, |random| match random.random_range(0..3) {
        0 => Ask::Query(Bytes::new()),
        _ => Ask::Execute(Bytes::copy_from_slice(&[random.random_range(1..9)])),
    })
}

#[test]
fn a_deterministic_service_survives_all_faults() {
    let counts = of::trials_hold(0..60, &trial(Bug::None));
    println!("{counts:?}");
    let happened = ["requests", "queries", "redirects", "crashes", "leaders", "snapshots"];
    assert!(one_seed() || happened.iter().all(|what| counts.of(what) > 5), "{counts:?}");
}

#[test]
fn services_that_are_not_are_caught() {
    let bugs = [
        (Bug::LooksAround, ["linearizable", "equal replicas"]),
        (Bug::KeepsWhatItSees, ["linearizable", "equal replicas"]),
        (Bug::ForgetsInSnapshots, ["linearizable", "equal replicas"]),
        (Bug::AnswersInAdvance, ["linearizable", "linearizable"]),
    ];
    for (bug, expected) in bugs {
        let found = of::first_failure(0..30, &trial(bug));
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", found.seed, found.violated);
        assert!(expected.iter().any(|start| found.violated.contains(start)), "{found}");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&trial(Bug::None), 3);
}
