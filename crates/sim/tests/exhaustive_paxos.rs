//! Exhaustive search of small cases of state machine replication over the real code: three replicas, two requests, one view
//! change, one crash; all orders in which messages can arrive on FIFO links.
//!
//! Replica 0 leads when the search begins, and both requests are asked of it: one after the other, in an instance of its
//! own each. At any time replica 1 may believe that it has not heard of its leader for long (it is then that much later
//! for all who hear from it); at any time one replica may crash. In a mode that survives it, it starts again at any time
//! later with what it had on disk; what was under way to it is lost, and of what it had sent last nothing or all.
//! Time stands still otherwise: what is lost is not sent again. So not all runs come to an end, and what is checked is
//! safety: no two decisions for an instance, equal digests at equal positions, no request executed twice, and no assertion
//! in a process fails.
//!
//! Each test prints its states (`-- --nocapture`).

#![allow(clippy::disallowed_types)] // Nobody looks at the order of the tables.

use bytes::Bytes;
use meridian_core::{
    ClientId, Effect, Event, GroupId, NodeId, Outbox, Process, ProcessId, Time, Token,
};
use meridian_paxos::{
    Batch, Command, Configuration, Instance, Message, Mutation, Options, Paxos, Record, Recovery,
    Service,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// So much later than at the beginning it is for who suspects the leader: longer than any patience.
const SILENCE: Duration = Duration::from_secs(10);
const START: Time = Time(1_000_000_000);
const REPLICAS: usize = 3;

/// Remembers what it executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Words(Vec<Bytes>);

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

type Replica = Paxos<Words>;

/// A table in which each value has a number.
struct Numbered<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Eq + Hash> Numbered<T> {
    fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let (value, number) = (Arc::new(value), u32::try_from(self.values.len()).expect("memory"));
        self.numbers.insert(value.clone(), number);
        self.values.push(value);
        number
    }

    fn value(&self, number: u32) -> Arc<T> {
        self.values[number as usize].clone()
    }
}

/// What a replica is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Input {
    Message(usize, u32),
    Timer,
    Request(u8),
}

/// What became of it.
#[derive(Clone)]
struct Step {
    next: u32,
    disk: u32,
    sends: Vec<(usize, u32)>,
    failed: bool,
}

/// A replica and its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Local {
    process: u32,
    /// What was persisted since the beginning.
    disk: u32,
    late: bool,
    up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    from: usize,
    to: usize,
    late: bool,
    message: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    locals: [Local; REPLICAS],
    /// By link, on each the first first.
    flights: Vec<Flight>,
    /// One bit for each that was asked.
    asked: u8,
    suspected: bool,
    crashed: Option<usize>,
    restarted: bool,
    /// What any replica has ever decided: of each instance the first decision, and whether there was another.
    decisions: BTreeMap<Instance, Batch>,
    differ: bool,
    failed: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Ask(usize),
    Arrive(usize, usize),
    Suspect,
    /// With all that it had sent, or nothing of it that has not arrived.
    Crash(usize, bool),
    Restart,
}

struct Case {
    recovery: Recovery,
    mutation: Mutation,
    /// Which request is asked of whom, once, when that one leads; of the same one in this order.
    asks: Vec<(u8, usize)>,
}

/// What is shared by all states.
#[derive(Default)]
struct Known {
    processes: Numbered<Replica>,
    disks: Numbered<Vec<Record>>,
    messages: Numbered<Message>,
    steps: HashMap<(u32, u32, Input, bool), Step>,
}

struct Search {
    case: Case,
    first: State,
    known: Mutex<Known>,
}

fn id(node: usize) -> ProcessId {
    ProcessId { group: GroupId(0), node: NodeId(u16::try_from(node).expect("few")) }
}

fn replica(case: &Case, node: usize, seed: u64) -> Replica {
    let members = (0..REPLICAS).map(|node| (id(node).node, String::new())).collect();
    let options = Options { recovery: case.recovery, batch_bytes: 1, ..Options::default() };
    let configuration = Configuration { members };
    Paxos::new(id(node), configuration, options, Words::default(), seed)
        .with_mutation(case.mutation)
}

impl Known {
    fn step(&mut self, at: usize, local: Local, input: Input) -> Step {
        let key = (local.process, local.disk, input, local.late);
        if let Some(step) = self.steps.get(&key) {
            return step.clone();
        }
        let mut process = (*self.processes.value(local.process)).clone();
        let mut disk = (*self.disks.value(local.disk)).clone();
        let event = match input {
            Input::Message(from, message) => {
                let message = (*self.messages.value(message)).clone();
                Event::Message { from: id(from), message }
            }
            Input::Timer => Event::Timer(Token(0)),
            Input::Request(number) => Event::Command(request(number)),
        };
        let now = if local.late { START + SILENCE } else { START };
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let mut out = Outbox::new();
            process.step(now, event, &mut out);
            process.step(now, Event::Idle, &mut out);
            (process, out)
        }));
        let step = match stepped {
            Ok((process, mut out)) => {
                let sends = self.take_effects(&mut out, &mut disk);
                assert!(sends.iter().all(|(to, _)| *to != at), "it needs no messages to itself");
                let (next, disk) = (self.processes.number(process), self.disks.number(disk));
                Step { next, disk, sends, failed: false }
            }
            Err(_) => {
                Step { next: local.process, disk: local.disk, sends: Vec::new(), failed: true }
            }
        };
        self.steps.insert(key, step.clone());
        step
    }

    fn take_effects(
        &mut self,
        out: &mut Outbox<Replica>,
        disk: &mut Vec<Record>,
    ) -> Vec<(usize, u32)> {
        let mut sends = Vec::new();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    sends.push((usize::from(to.node.0), self.messages.number(message)));
                }
                Effect::Persist(record) | Effect::Note(record) => disk.push(record),
                Effect::Output(_) | Effect::Timer { .. } => {}
            }
        }
        sends
    }
}

/// Of a client of its own each.
fn request(number: u8) -> Command {
    Command::execute(ClientId(u64::from(number + 1) << 16), 1, vec![number])
}

impl Search {
    /// Lets replica 0 become leader, in one order.
    fn new(case: Case) -> Search {
        let mut known = Known::default();
        let mut state = State {
            locals: [Local { process: 0, disk: 0, late: false, up: true }; REPLICAS],
            flights: Vec::new(),
            asked: 0,
            suspected: false,
            crashed: None,
            restarted: false,
            decisions: BTreeMap::new(),
            differ: false,
            failed: false,
        };
        for node in 0..REPLICAS {
            let (mut process, mut out) = (replica(&case, node, node as u64), Outbox::new());
            process.step(START, Event::Started, &mut out);
            process.step(START, Event::Idle, &mut out);
            let mut disk = Vec::new();
            let sends = known.take_effects(&mut out, &mut disk);
            let (process, disk) = (known.processes.number(process), known.disks.number(disk));
            state.locals[node] = Local { process, disk, late: false, up: true };
            put(&mut state, node, sends);
        }
        let search = Search { case, first: state.clone(), known: Mutex::new(known) };
        while let Some(Flight { from, to, .. }) = state.flights.first().copied() {
            search.arrive(&mut state, from, to);
        }
        let leads = search.process(state.locals[0].process).is_leading();
        assert!(leads, "replica 0 leads after a regular start");
        Search { first: state, ..search }
    }

    fn process(&self, number: u32) -> Arc<Replica> {
        self.known.lock().expect("no panic leaves it locked").processes.value(number)
    }

    fn step(&self, state: &mut State, at: usize, input: Input) {
        let local = state.locals[at];
        let step = self.known.lock().expect("no panic leaves it locked").step(at, local, input);
        state.locals[at] = Local { process: step.next, disk: step.disk, ..local };
        state.failed |= step.failed;
        put(state, at, step.sends);
        for (instance, batch) in self.process(step.next).decisions() {
            match state.decisions.get(&instance) {
                Some(decided) => state.differ |= decided != batch,
                None => drop(state.decisions.insert(instance, batch.clone())),
            }
        }
    }

    fn arrive(&self, state: &mut State, from: usize, to: usize) {
        let first = |flight: &Flight| (flight.from, flight.to) == (from, to);
        let at = state.flights.iter().position(first).expect("it was offered");
        let flight = state.flights.remove(at);
        state.locals[to].late |= flight.late;
        self.step(state, to, Input::Message(from, flight.message));
    }

    /// It starts with what is on its disk.
    fn restart(&self, state: &mut State, at: usize) {
        let disk = state.locals[at].disk;
        let mut known = self.known.lock().expect("no panic leaves it locked");
        let mut records = (*known.disks.value(disk)).clone();
        let mut process = replica(&self.case, at, 100 + at as u64);
        let started = catch_unwind(AssertUnwindSafe(|| {
            let mut out = Outbox::new();
            records.iter().cloned().for_each(|record| process.replay(record));
            process.step(START + SILENCE, Event::Started, &mut out);
            process.step(START + SILENCE, Event::Idle, &mut out);
            (process, out)
        }));
        let Ok((process, mut out)) = started else {
            state.failed = true;
            return;
        };
        let sends = known.take_effects(&mut out, &mut records);
        let (process, disk) = (known.processes.number(process), known.disks.number(records));
        drop(known);
        state.locals[at] = Local { process, disk, late: true, up: true };
        state.restarted = true;
        put(state, at, sends);
    }

    /// Whether replicas that have executed equally much are equal, and none has executed anything twice.
    fn is_consistent(&self, state: &State) -> bool {
        let processes = state.locals.map(|local| self.process(local.process));
        let told = |process: &Replica| (process.status().position, process.digest());
        let equal = processes
            .iter()
            .all(|a| processes.iter().all(|b| told(a).0 != told(b).0 || told(a).1 == told(b).1));
        let once = |process: &Arc<Replica>| {
            let words = &process.service().0;
            (1..words.len()).all(|at| !words[..at].contains(&words[at]))
        };
        equal && processes.iter().all(once)
    }
}

/// Sends, in order on each link.
fn put(state: &mut State, from: usize, sends: Vec<(usize, u32)>) {
    let late = state.locals[from].late;
    for (to, message) in sends.into_iter().filter(|(to, _)| state.locals[*to].up) {
        let place = state.flights.partition_point(|other| (other.from, other.to) <= (from, to));
        state.flights.insert(place, Flight { from, to, late, message });
    }
}

const AGREEMENT: &str = "one decision for an instance";
const CONSISTENT: &str = "equal states, nothing twice";
const ASSERTIONS: &str = "assertions hold";
const SERVED: &str = "both requests are executed somewhere in some run";

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.failed || state.differ {
            return;
        }
        let mut waits = [false; REPLICAS];
        for (number, (_, at)) in self.case.asks.iter().enumerate() {
            let asked = state.asked & (1 << number) != 0;
            let leads =
                state.locals[*at].up && self.process(state.locals[*at].process).is_leading();
            if !asked && leads && !std::mem::replace(&mut waits[*at], true) {
                actions.push(Action::Ask(number));
            }
        }
        if !state.suspected && state.locals[1].up {
            actions.push(Action::Suspect);
        }
        match state.crashed {
            None => {
                let all = (0..REPLICAS).flat_map(|at| [false, true].map(|kept| (at, kept)));
                actions.extend(all.map(|(at, kept)| Action::Crash(at, kept)));
            }
            Some(_) if !state.restarted && self.case.recovery != Recovery::CrashStop => {
                actions.push(Action::Restart);
            }
            Some(_) => {}
        }
        let mut last = None;
        for flight in &state.flights {
            if last.replace((flight.from, flight.to)) != Some((flight.from, flight.to)) {
                actions.push(Action::Arrive(flight.from, flight.to));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Ask(number) => {
                state.asked |= 1 << number;
                let (request, at) = self.case.asks[number];
                self.step(&mut state, at, Input::Request(request));
            }
            Action::Arrive(from, to) => self.arrive(&mut state, from, to),
            Action::Suspect => {
                state.suspected = true;
                state.locals[1].late = true;
                self.step(&mut state, 1, Input::Timer);
            }
            Action::Crash(at, kept) => {
                state.crashed = Some(at);
                state.locals[at].up = false;
                state.flights.retain(|flight| flight.to != at && (kept || flight.from != at));
            }
            Action::Restart => {
                let at = state.crashed.expect("it was offered");
                self.restart(&mut state, at);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AGREEMENT, |_, state: &State| !state.differ),
            Property::always(CONSISTENT, |model: &Self, state: &State| model.is_consistent(state)),
            Property::always(ASSERTIONS, |_, state: &State| !state.failed),
            Property::sometimes(SERVED, |model: &Self, state: &State| {
                let all: BTreeSet<_> = model.case.asks.iter().map(|(request, _)| request).collect();
                let served = |local: &Local| model.process(local.process).service().0.len();
                state.locals.iter().any(|local| served(local) >= all.len())
            }),
        ]
    }
}

/// Searches a case until something is violated; what was, and that something was looked at.
fn search(recovery: Recovery, asks: &[(u8, usize)], mutation: Mutation) -> Vec<&'static str> {
    let what = format!("{recovery:?} {asks:?} {mutation:?}");
    let case = Case { recovery, mutation, asks: asks.to_vec() };
    let checker = Search::new(case).checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_dfs().join();
    let states = checker.unique_state_count();
    let found: Vec<_> = checker.discoveries().into_keys().collect();
    eprintln!("{what}: {states} states, {found:?}");
    assert!(states > 100, "{what}: nothing was searched");
    let served = found.contains(&SERVED);
    let violated: Vec<_> = found.into_iter().filter(|property| *property != SERVED).collect();
    assert!(served || !violated.is_empty(), "{what}: no run serves the requests");
    violated
}

/// Two requests in the first view.
const BOTH: [(u8, usize); 2] = [(0, 0), (1, 0)];
/// One in each view.
const EACH: [(u8, usize); 2] = [(0, 0), (1, 1)];
/// Both in both, in the other order: their clients do not know whether they were executed.
const AGAIN: [(u8, usize); 4] = [(0, 0), (1, 0), (1, 1), (0, 1)];

fn holds(recovery: Recovery, asks: &[(u8, usize)]) {
    assert_eq!(search(recovery, asks, Mutation::Correct), [""; 0]);
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
        assert_ne!(search(recovery, asks, mutation), [""; 0], "{mutation:?} is not found");
    }
}
