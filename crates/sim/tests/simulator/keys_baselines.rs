//! The protocols that Hermes is compared with, under random work: CRAQ is linearizable; of ZAB the
//! writes are, and its reads are sequentially consistent. Nothing fails: that is all that the
//! baselines are made for.

use super::told::is_told;
use bytes::Bytes;
use meridian_baselines::keys::{Answer, Answered, Command, Write};
use meridian_baselines::{Craq, Zab, craq, zab};
use meridian_core::{Key, NodeId, Process, Time, Value};
use meridian_sim::checkers::linearizable::{Call, Specification, check_each};
use meridian_sim::of::{self, first_failure};
use meridian_sim::trace::Teller;
use meridian_sim::trial::{Counts, Made, Stage, Violation, WorldOf};
use meridian_sim::{
    Faults, Happened, Owner, Random, Setup, Stimulus, Subject, Way, World, one_seed, share,
};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// So many operations a client does.
const OPERATIONS: u64 = 12;

/// A protocol, and what it promises.
trait Contender: Process<Peer = NodeId, Command = Command, Output = Answered> + 'static {
    /// Bugs that can be planted in it.
    type Mutation: Copy + Default + std::fmt::Debug + 'static;

    const PLANTED: &'static [Self::Mutation];

    fn make(me: NodeId, nodes: &[NodeId], mutation: Self::Mutation) -> Self;

    /// What is held, by key.
    fn held(&self) -> BTreeMap<Bytes, Option<Bytes>>;

    /// Whether nothing is under way.
    fn rests(&self) -> bool;

    /// The token of a write that takes its place in the order of all, if there is one.
    fn ordered(_message: &Self::Message) -> Option<u64> {
        None
    }

    /// A message in the words of the paper, and the key that it is about, if it is about one.
    fn told(message: &Self::Message) -> (String, Option<u8>);

    /// How much of the order it holds, and has applied.
    fn progress(&self) -> (u64, u64) {
        (0, 0)
    }

    fn judge(clients: &Clients) -> Result<(), Violation>;
}

impl Contender for Craq {
    type Mutation = craq::Mutation;

    const PLANTED: &'static [craq::Mutation] =
        &[craq::Mutation::ReadsDirty, craq::Mutation::NeverAsks];

    fn make(me: NodeId, nodes: &[NodeId], mutation: craq::Mutation) -> Craq {
        Craq::new(me, nodes).with_mutation(mutation)
    }

    fn held(&self) -> BTreeMap<Bytes, Option<Bytes>> {
        let entry = |(key, _, value): (&Key, _, Option<&Value>)| {
            (key.to_bytes(), value.map(Value::to_bytes))
        };
        self.entries().map(entry).collect()
    }

    fn rests(&self) -> bool {
        self.pending() == 0
    }

    fn told(message: &craq::Message) -> (String, Option<u8>) {
        use craq::Message::{Ack, Committed, Enter, Query, Update};
        match message {
            Enter(write) => (format!("Enter {}", of_write(write)), Some(write.key[0])),
            Update { write, version } => {
                let words = format!("Update to version {}: {}", version.0, of_write(write));
                (words, Some(write.key[0]))
            }
            Ack { key, version } => {
                (format!("Ack version {} of k{}", version.0, key[0]), Some(key[0]))
            }
            Query { token, key } => (format!("Query k{}, token {token}", key[0]), Some(key[0])),
            Committed { token, key, version } => {
                let (key, version) = (key[0], version.0);
                (format!("Committed version {version} of k{key}, token {token}"), Some(key))
            }
        }
    }

    fn judge(clients: &Clients) -> Result<(), Violation> {
        check_each(&Register, clients.calls.iter().map(|(_, key, call)| (key, call)))
    }
}

impl Contender for Zab {
    type Mutation = zab::Mutation;

    const PLANTED: &'static [zab::Mutation] =
        &[zab::Mutation::AnswersEarly, zab::Mutation::CountsNobody];

    fn make(me: NodeId, nodes: &[NodeId], mutation: zab::Mutation) -> Zab {
        Zab::new(me, nodes).with_mutation(mutation)
    }

    fn held(&self) -> BTreeMap<Bytes, Option<Bytes>> {
        let entry = |(key, _, value): (&Key, _, Option<&Value>)| {
            (key.to_bytes(), value.map(Value::to_bytes))
        };
        self.entries().map(entry).collect()
    }

    fn rests(&self) -> bool {
        self.progress().0 == self.progress().1
    }

    fn ordered(message: &zab::Message) -> Option<u64> {
        match message {
            zab::Message::Propose(write) => Some(write.token),
            zab::Message::Request(_) | zab::Message::Ack(_) | zab::Message::Commit(_) => None,
        }
    }

    fn told(message: &zab::Message) -> (String, Option<u8>) {
        use zab::Message::{Ack, Commit, Propose, Request};
        match message {
            Request(write) => (format!("Request {}", of_write(write)), Some(write.key[0])),
            Propose(write) => (format!("Propose {}", of_write(write)), Some(write.key[0])),
            Ack(held) => (format!("Ack of the first {held}"), None),
            Commit(committed) => (format!("Commit the first {committed}"), None),
        }
    }

    fn progress(&self) -> (u64, u64) {
        (Zab::held(self), self.applied())
    }

    fn judge(clients: &Clients) -> Result<(), Violation> {
        check_order(&clients.order, &clients.calls)
    }
}

/// A write; the names of keys are bytes.
fn of_write(write: &Write) -> String {
    format!("k{} at n{}, token {}", write.key[0], write.origin.0, write.token)
}

/// The words of a trace; what messages are called is keys.
struct Words;

impl<P: Contender> Teller<P> for Words {
    fn name(&self, peer: NodeId) -> String {
        format!("n{}", peer.0)
    }

    fn message(&self, _way: Way<NodeId>, message: &P::Message) -> String {
        P::told(message).0
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Read { token, key } => format!("is to read k{}, token {token}", key[0]),
            Command::Write { token, key, .. } => format!("is to write k{}, token {token}", key[0]),
        }
    }

    fn output(&self, Answered { token, answer }: &Answered) -> String {
        let what = match answer {
            Answer::Value(None) => "no value".into(),
            Answer::Value(Some(value)) => format!("value of {} bytes", value.len()),
            Answer::Written => "written".to_string(),
        };
        format!("answers token {token}: {what}")
    }

    fn about(&mut self, event: &Happened<'_, P>) -> Vec<String> {
        let asked = || match event.asked()? {
            Command::Read { key, .. } | Command::Write { key, .. } => Some(key[0]),
        };
        let key = event.said().map_or_else(asked, |(_, _, message)| P::told(message).1);
        key.map(|key| format!("k{key}")).into_iter().collect()
    }
}

/// A key that is read and written.
struct Register;

impl Specification for Register {
    type State = Option<Bytes>;
    /// A write has a value.
    type Operation = Option<Bytes>;
    type Outcome = Answer;

    fn initial(&self) -> Option<Bytes> {
        None
    }

    fn apply(&self, state: &Option<Bytes>, write: &Option<Bytes>) -> (Option<Bytes>, Answer) {
        match write {
            None => (state.clone(), Answer::Value(state.clone())),
            Some(_) => (write.clone(), Answer::Written),
        }
    }

    fn changes_nothing(&self, write: &Option<Bytes>, _: &Answer) -> bool {
        write.is_none()
    }
}

/// A client, a key, and what it asked and was answered.
type Known = (usize, u8, Call<Option<Bytes>, Answer>);

fn value(token: u64) -> Bytes {
    Bytes::from(token.to_be_bytes().to_vec())
}

/// Whether the writes, in this order, explain all that was answered: a write comes behind those
/// that were answered before it was asked for; and what a client sees, of whatever key, and its own
/// writes, never go back in the order.
fn check_order(order: &[u64], calls: &[Known]) -> Result<(), String> {
    let place: BTreeMap<Bytes, usize> = order.iter().copied().map(value).zip(1..).collect();
    let key_of: BTreeMap<&Bytes, u8> =
        calls.iter().filter_map(|(_, key, call)| Some((call.operation.as_ref()?, *key))).collect();
    let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
    let mut writes: Vec<(u64, u64, usize)> = Vec::new();
    for (client, key, call) in calls {
        let Some((answered, answer)) = &call.answered else { continue };
        let seen = seen.entry(*client).or_default();
        match (&call.operation, answer) {
            (Some(written), _) => {
                let at = *place.get(written).ok_or("answered, but in no order")?;
                writes.push((call.called, *answered, at));
                *seen = at.max(*seen);
            }
            (None, Answer::Value(read)) => {
                let at = read.as_ref().map_or(0, |read| place.get(read).copied().unwrap_or(0));
                // The next write of that key ends the span in which it is there.
                let of_key = |write: &&u64| key_of.get(&value(**write)) == Some(key);
                let later = order.iter().enumerate().skip(at).find(|(_, write)| of_key(write));
                *seen = at.max(*seen);
                if later.is_some_and(|(next, _)| next < *seen) {
                    return Err(format!("order: client {client} has read {at} of {key} at {seen}"));
                }
            }
            (None, Answer::Written) => return Err("a read was answered like a write".into()),
        }
    }
    for (called, _, at) in &writes {
        let before = writes.iter().filter(|(_, answered, _)| answered < called);
        if before.map(|(_, _, before)| before).max() > Some(at) {
            return Err(format!("order: write {at} comes before one that was answered earlier"));
        }
    }
    Ok(())
}

/// Clients, each at one replica, with one operation at a time.
struct Clients {
    random: Random,
    nodes: u16,
    keys: u8,
    think: Duration,
    counts: Counts,
    /// Where in `calls` what a client waits for is, and what is left to do.
    asked: Vec<(Option<usize>, u64)>,
    calls: Vec<Known>,
    /// The writes in the order of the protocol, if it has one.
    order: Vec<u64>,
    held: BTreeMap<NodeId, u64>,
}

impl Clients {
    fn pause<P: Contender>(&mut self, client: usize) -> Stimulus<P> {
        let most = u64::try_from(self.think.as_micros()).expect("short");
        let after = Duration::from_micros(self.random.random_range(0..=most));
        Stimulus::Wake { token: client as u64, after }
    }

    fn is_done(&self) -> bool {
        self.asked.iter().all(|(asked, left)| asked.is_none() && *left == 0)
    }
}

impl<P: Contender> Owner<P> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<P>> {
        (0..self.asked.len()).map(|client| self.pause(client)).collect()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<P>> {
        let client = token as usize;
        let (_, left) = self.asked[client];
        if left == 0 {
            return Vec::new();
        }
        let at = self.calls.len();
        self.asked[client] = (Some(at), left - 1);
        let (key, token) = (self.random.random_range(0..self.keys), at as u64);
        let name = Bytes::from(vec![key]);
        let write = self.random.random_bool(0.4).then(|| value(token));
        let command = match write.clone() {
            None => Command::Read { token, key: name },
            Some(value) => Command::Write { token, key: name, value },
        };
        self.calls.push((client, key, Call { operation: write, called: now.0, answered: None }));
        let to = NodeId(client as u16 % self.nodes);
        let after = Duration::from_micros(self.random.random_range(1..100));
        vec![Stimulus::Command { to, command, after }]
    }

    fn output(&mut self, at: NodeId, told: Answered, now: Time) -> Vec<Stimulus<P>> {
        let call = usize::try_from(told.token).expect("small");
        let (client, _, known) = &mut self.calls[call];
        let client = *client;
        let expected = client as u16 % self.nodes == at.0 && self.asked[client].0 == Some(call);
        assert!(expected, "{at} answers {call}, which nobody asked there");
        let name = if known.operation.is_some() { "writes" } else { "reads" };
        self.counts.add(name, 1);
        known.answered = Some((now.0, told.answer));
        self.asked[client].0 = None;
        vec![self.pause(client)]
    }

    fn traffic(&mut self, _: NodeId, message: &P::Message) {
        let token = P::ordered(message).filter(|token| !self.order.contains(token));
        self.order.extend(token);
    }

    /// Z2: what is applied anywhere is held by a majority.
    fn check(&mut self, at: NodeId, process: &P, _: bool) -> Result<(), String> {
        let (held, applied) = process.progress();
        self.held.insert(at, held);
        let holders = self.held.values().filter(|held| **held >= applied).count();
        let enough = holders > usize::from(self.nodes) / 2 || applied == 0;
        if enough { Ok(()) } else { Err(format!("Z2: {at} applies {applied}, held by {holders}")) }
    }
}

struct Trial<P: Contender> {
    mutation: P::Mutation,
}

impl<P: Contender> Trial<P> {
    fn correct() -> Self {
        Trial { mutation: P::Mutation::default() }
    }
}

impl<P: Contender> Subject for Trial<P> {
    type Process = P;
    type Owner = Clients;
    type Drawn = String;
    type Operator = ();

    const FAULTS: Duration = Duration::from_millis(100);
    const HEALING: Duration = Duration::from_secs(10);

    fn draw(&self, seed: u64) -> String {
        format!("{} nodes", nodes_of(seed))
    }

    fn make(&self, seed: u64, _: &String) -> Made<Self> {
        let mut random = Random::seed_from_u64(seed ^ 0xc4a9);
        let nodes: Vec<_> = (0..nodes_of(seed)).map(NodeId).collect();
        let (all, mutation) = (nodes.clone(), self.mutation);
        let make = move |me| P::make(me, &all, mutation);
        let mut setup = Setup { faults: Faults::none(), ..Setup::lan(nodes.clone(), make) };
        if random.random() {
            // Parts overtake each other on different ways by far.
            setup.delay = Box::new(|_, _, random| {
                let most = if random.random_bool(0.2) { 20_000 } else { 1_000 };
                Duration::from_micros(random.random_range(50..=most))
            });
        }
        let owner = Clients {
            nodes: nodes.len() as u16,
            keys: random.random_range(1..4),
            think: MS * random.random_range(1..10),
            counts: Counts::default(),
            asked: vec![(None, OPERATIONS); random.random_range(3..9)],
            calls: Vec::new(),
            order: Vec::new(),
            held: BTreeMap::new(),
            random,
        };
        Made { setup, owner, operator: () }
    }

    /// All is answered, nothing is under way, and all hold the same.
    fn is_quiet(world: &World<P, Clients>) -> bool {
        let held: Vec<_> = world.processes().map(|(_, process)| process.held()).collect();
        let even = held.windows(2).all(|pair| pair[0] == pair[1]);
        world.owner.is_done() && even && world.processes().all(|(_, process)| process.rests())
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        P::judge(&stage.world.owner)
    }

    fn describe(world: &WorldOf<Self>) -> String {
        let rest: Vec<_> =
            world.processes().map(|(node, process)| (node, process.held())).collect();
        format!("clients are done: {}; {rest:?}", world.owner.is_done())
    }

    fn teller() -> Box<dyn Teller<P>> {
        Box::new(Words)
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        world.owner.counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        let trial =
            |mutation: &P::Mutation| (format!("{mutation:?}"), Trial { mutation: *mutation });
        P::PLANTED.iter().map(trial).collect()
    }
}

fn nodes_of(seed: u64) -> u16 {
    [3, 5, 3, 4, 7, 2][(seed % 6) as usize]
}

fn holds<P: Contender>() {
    let counts = of::trials_hold(0..300, &Trial::<P>::correct());
    let happened = ["reads", "writes"].iter().all(|what| counts.of(what) > 5000 / share());
    assert!(one_seed() || happened, "{counts:?}");
}

fn bugs_are_found<P: Contender>() {
    for (bug, trial) in Trial::<P>::planted() {
        let found = first_failure(0..100, &trial);
        let found = found.unwrap_or_else(|| panic!("nobody noticed {bug}"));
        println!("{bug}, seed {}: {}", found.seed, found.violated.lines().next().unwrap_or(""));
    }
}

#[test]
fn craq_is_linearizable() {
    holds::<Craq>();
}

#[test]
fn zab_orders_writes_and_its_reads_are_sequentially_consistent() {
    holds::<Zab>();
}

#[test]
fn each_planted_bug_is_found() {
    bugs_are_found::<Craq>();
    bugs_are_found::<Zab>();
}

#[test]
fn both_are_told_in_words() {
    let second = Duration::from_secs(1);
    let words = ["Enter ", "Update to ", "Ack version ", "is to write ", "answers token "];
    is_told(&Trial::<Craq>::correct(), second, &words);
    let words = ["Request ", "Propose ", "Ack of ", "Commit the first ", "is to read "];
    is_told(&Trial::<Zab>::correct(), second, &words);
}

/// What CRAQ promises and ZAB does not: the checker tells the two apart.
#[test]
fn reads_of_zab_are_not_linearizable() {
    let judged = |seed| {
        let trial = Trial::<Zab>::correct();
        let mut stage = Stage::new(&trial, seed, &trial.draw(seed), Default::default());
        assert!(stage.world.run_until(Trial::<Zab>::is_quiet, Duration::from_secs(10)));
        Craq::judge(&stage.world.owner)
    };
    assert!((0..50).any(|seed| judged(seed).is_err()), "every read was new");
}
