//! Small cases of state machine replication, in all orders of arrival: three replicas, two
//! requests, one view change, one crash.
//!
//! Replica 0 leads when the search begins. At any time replica 1 may believe that it has not heard
//! of its leader for long; at any time one replica may crash. In a mode that survives it, it starts
//! again at any time later with what it had on disk; what was under way to it is lost, and of what
//! it had sent last nothing or all. What is lost is not sent again, so not all runs come to an end,
//! and what is checked is safety.

use crate::explore::{
    Begun, Crash, Found, Input, Model, Options as How, Regular, Set, Suspicion, search,
};
use bytes::Bytes;
use meridian_core::{ClientId, Event, GroupId, NodeId, Position, ProcessId, Time};
use meridian_paxos::{
    Batch, Command, Configuration, Instance, Mutation, Options, Paxos, Recovery, Service, Timer,
};
use std::collections::{BTreeMap, BTreeSet};

const START: Time = Time(1_000_000_000);
const REPLICAS: usize = 3;

/// No two replicas decide differently.
const AGREEMENT: &str = "one decision for an instance";
/// Replicas that have executed equally much are equal, and none has executed anything twice.
const CONSISTENT: &str = "equal states, nothing twice";

/// A service that remembers what it executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Words(Vec<Bytes>);

impl Service for Words {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        self.0.push(request.clone());
        Bytes::from(vec![u8::try_from(self.0.len()).expect("few")])
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        Bytes::new()
    }

    fn snapshot(&self) -> Bytes {
        self.0.concat().into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = snapshot.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect();
        Ok(())
    }
}

/// What replicas have decided in a run, and what they were at each position: the first that was
/// seen, and whether there was another.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Decided {
    decisions: BTreeMap<Instance, Batch>,
    digests: BTreeMap<Position, u64>,
    differ: bool,
    unequal: bool,
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// What survives a crash.
    pub recovery: Recovery,
    /// Which request is asked of whom, once, when that one leads; of the same one in this order.
    pub requests: Vec<(u8, usize)>,
    /// A planted bug.
    pub mutation: Mutation,
}

/// The case once replica 0 leads.
struct Led {
    case: Case,
    replicas: Vec<Begun<Paxos<Words>>>,
    now: Time,
    /// Whether the replicas have only to be started.
    starts: bool,
}

impl Case {
    /// Searches until something is violated.
    ///
    /// # Panics
    /// If replica 0 does not lead after a regular start.
    pub fn search(&self) -> Found {
        let begun = |at| {
            let process = self.replica(at, at as u64);
            Begun { peer: id(at), process, disk: Vec::new() }
        };
        let replicas = (0..REPLICAS).map(begun).collect();
        let starting = Led { case: self.clone(), replicas, now: START, starts: true };
        let mut regular = Regular::new(&starting, How::default());
        regular.run();
        let (replicas, now) = regular.end();
        assert!(replicas[0].process.is_leading(), "replica 0 leads after a regular start");
        let led = Led { case: self.clone(), replicas, now, starts: false };
        let (who, restarts) = ((1 << REPLICAS) - 1, self.recovery != Recovery::CrashStop);
        let suspicion = Some(Suspicion { at: 1, because: Vec::new(), after_crash: false });
        let crash = Some(Crash { who, loses: true, restarts });
        search(&led, How { suspicion, crash, ..How::default() })
    }

    fn replica(&self, at: usize, seed: u64) -> Paxos<Words> {
        let members = (0..REPLICAS).map(|at| (id(at).node, String::new())).collect();
        let options = Options { recovery: self.recovery, batch_bytes: 1, ..Options::default() };
        let paxos = Paxos::new(id(at), Configuration { members }, options, Words::default(), seed);
        paxos.with_mutation(self.mutation)
    }
}

fn id(at: usize) -> ProcessId {
    ProcessId { group: GroupId(0), node: NodeId(u16::try_from(at).expect("few")) }
}

/// Of a client of its own each.
fn request(number: u8) -> Command {
    Command::execute(ClientId(u64::from(number + 1) << 16), 1, vec![number])
}

impl Model for Led {
    type Process = Paxos<Words>;
    type Observed = Decided;

    fn processes(&self) -> Vec<Begun<Paxos<Words>>> {
        self.replicas.clone()
    }

    fn now(&self) -> Time {
        self.now
    }

    fn timer(&self) -> Event<Paxos<Words>> {
        Event::Timer(Timer::Tick)
    }

    fn inputs(&self) -> Vec<Input<Paxos<Words>>> {
        let input = |at, event, after| Input { at, event, cause: 0, after, after_crash: false };
        if self.starts {
            return (0..REPLICAS).map(|at| input(at, Event::Started, None)).collect();
        }
        let requests = &self.case.requests;
        let of = |(number, (word, at)): (usize, &(u8, usize))| {
            let before = requests[..number].iter().rposition(|(_, other)| other == at);
            input(*at, Event::Command(request(*word)), before)
        };
        requests.iter().enumerate().map(of).collect()
    }

    fn is_due(&self, _input: usize, at: &Paxos<Words>, _observed: &Decided) -> bool {
        self.starts || at.is_leading()
    }

    fn observe(
        &self,
        observed: &mut Decided,
        _at: usize,
        _past: Set,
        process: &Paxos<Words>,
        _outputs: &[meridian_paxos::Output],
    ) {
        for (instance, batch) in process.decisions() {
            match observed.decisions.get(&instance) {
                Some(decided) => observed.differ |= decided != batch,
                None => drop(observed.decisions.insert(instance, batch.clone())),
            }
        }
        let (position, digest) = (process.status().position, process.digest());
        observed.unequal |= *observed.digests.entry(position).or_insert(digest) != digest;
    }

    fn violated(&self, observed: &Decided, up: &[&Paxos<Words>]) -> Option<&'static str> {
        if observed.differ {
            return Some(AGREEMENT);
        }
        let once = |process: &&Paxos<Words>| {
            let words = &process.service().0;
            (1..words.len()).all(|at| !words[..at].contains(&words[at]))
        };
        (observed.unequal || !up.iter().all(once)).then_some(CONSISTENT)
    }

    /// All requests are executed somewhere.
    fn is_goal(&self, _observed: &Decided, up: &[&Paxos<Words>]) -> bool {
        let all: BTreeSet<_> = self.case.requests.iter().map(|(word, _)| word).collect();
        up.iter().any(|process| process.service().0.len() >= all.len())
    }

    fn restarted(&self, at: usize) -> Paxos<Words> {
        self.case.replica(at, 100 + at as u64)
    }
}
