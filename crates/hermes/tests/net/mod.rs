//! Replicas whose messages a test carries.

use bytes::Bytes;
use meridian_core::{Effect, Event, MessageId, NodeId, Outbox, Process, Time, Value};
use meridian_hermes::{
    Action, Answer, Command, Epoch, Hermes, Membership, Message, Modified, Modify, Mutation,
    Options, Output, Record, Request, State,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Appends a letter, and answers what there is then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append(pub &'static str);

impl Modify for Append {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        let found = found.map_or(&[][..], |found| found);
        let value = Bytes::from([found, self.0.as_bytes()].concat());
        Modified::Change { value: Some(value.clone()), answer: value }
    }
}

pub type Replica = Hermes<Append>;

pub const LEASE: Time = Time(1_000_000_000_000);

/// Replicas, what is under way between them, and what they answered.
pub struct Net {
    pub replicas: BTreeMap<u16, Replica>,
    pub links: BTreeMap<(u16, u16), Vec<Message>>,
    pub answers: BTreeMap<u64, Answer>,
    pub complete: Vec<u16>,
    pub sent: usize,
    pub now: Time,
    pub epoch: u64,
    /// What is durable, of those that have a disk.
    pub disks: BTreeMap<u16, Vec<Record>>,
    options: Options,
    mutation: Mutation,
}

pub fn key() -> Bytes {
    Bytes::from("k")
}

pub fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from(text))
}

impl Net {
    pub fn of(count: u16, options: &Options, mutation: Mutation) -> Net {
        let mut net = Net {
            replicas: BTreeMap::new(),
            links: BTreeMap::new(),
            answers: BTreeMap::new(),
            complete: Vec::new(),
            sent: 0,
            now: Time(0),
            epoch: 0,
            disks: BTreeMap::new(),
            options: options.clone(),
            mutation,
        };
        (0..count).for_each(|at| net.start(at));
        let all: Vec<_> = (0..count).collect();
        net.install(&all, &[], &all);
        net.run();
        net.sent = 0;
        net
    }

    pub fn new(count: u16) -> Net {
        Net::of(count, &Options::default(), Mutation::Correct)
    }

    /// The next epoch, as far as these have heard of it.
    pub fn install(&mut self, live: &[u16], shadows: &[(u16, u64)], at: &[u16]) {
        self.epoch += 1;
        let shadows = shadows.iter().map(|(node, since)| (NodeId(*node), Epoch(*since)));
        let live: BTreeSet<_> = live.iter().copied().map(NodeId).collect();
        let membership = Membership { epoch: Epoch(self.epoch), live, shadows: shadows.collect() };
        for at in at {
            self.command(*at, Command::Install(membership.clone()));
            self.command(*at, Command::Lease { until: LEASE });
        }
    }

    pub fn step(&mut self, at: u16, event: Event<Replica>) {
        let Some(replica) = self.replicas.get_mut(&at) else { return };
        let mut out = Outbox::new();
        replica.step(self.now, event, &mut out);
        replica.step(self.now, Event::Idle, &mut out);
        replica.check_invariants().unwrap();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    self.sent += 1;
                    self.links.entry((at, to.0)).or_default().push(message);
                }
                Effect::Output(Output::Answer { token, answer }) => {
                    assert_eq!(self.answers.insert(token, answer), None, "one answer for {token}");
                }
                Effect::Output(Output::Complete { .. }) => self.complete.push(at),
                Effect::Output(Output::Watching | Output::Committed { .. }) => {}
                Effect::Persist(record) => self.disks.entry(at).or_default().push(record),
                // As if it was never flushed.
                Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
    }

    pub fn command(&mut self, at: u16, command: Command<Append>) {
        self.step(at, Event::Command(command));
    }

    pub fn write(&mut self, at: u16, token: u64, value: &'static str) {
        self.update(at, token, None, Action::Write(bytes(value)));
    }

    pub fn append(&mut self, at: u16, token: u64, letter: &'static str) {
        self.update(at, token, None, Action::Modify(Append(letter)));
    }

    pub fn update(&mut self, at: u16, token: u64, id: Option<MessageId>, action: Action<Append>) {
        self.command(at, Command::Update(Request { token, key: key(), id, action }));
    }

    pub fn read(&mut self, at: u16, token: u64) {
        self.command(at, Command::Read { token, key: key() });
    }

    /// All that is under way on one link arrives, and what it leads to stays under way.
    pub fn carry(&mut self, from: u16, to: u16) {
        for message in self.links.remove(&(from, to)).unwrap_or_default() {
            self.step(to, Event::Message { from: NodeId(from), message });
        }
    }

    pub fn lose(&mut self, from: u16, to: u16) {
        self.links.remove(&(from, to));
    }

    pub fn run(&mut self) {
        while let Some(link) = self.links.keys().next().copied() {
            self.carry(link.0, link.1);
        }
    }

    /// Time passes, timers fire, and all arrives.
    pub fn tick(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        let all: Vec<_> = self.replicas.keys().copied().collect();
        for at in all {
            self.step(at, Event::Timer(meridian_hermes::Timer::Tick));
        }
        self.run();
    }

    pub fn crash(&mut self, at: u16) {
        self.replicas.remove(&at);
        self.links.retain(|(from, to), _| *from != at && *to != at);
    }

    /// A replica starts, with what its disk has.
    pub fn start(&mut self, at: u16) {
        let hermes = Hermes::new(NodeId(at), self.options.clone(), u64::from(at));
        let mut replica = hermes.with_mutation(self.mutation);
        let records = self.disks.get(&at).into_iter().flatten();
        records.for_each(|record| replica.replay(record.clone()));
        self.replicas.insert(at, replica);
        self.step(at, Event::Started);
    }

    pub fn state(&self, at: u16) -> State {
        self.replicas[&at].state(&key()).0
    }

    pub fn held(&self, at: u16) -> Option<Bytes> {
        let found = self.replicas[&at].entries().find(|(k, ..)| ***k == *key());
        found.and_then(|(_, _, value, _)| value.map(Value::to_bytes))
    }

    /// What all hold, Valid and alike.
    pub fn agreed(&self) -> Option<Bytes> {
        let all: BTreeSet<_> =
            self.replicas.keys().map(|at| (self.state(*at), self.held(*at))).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        let (state, held) = all.into_iter().next().unwrap();
        assert_eq!(state, State::Valid);
        held
    }
}

pub fn value(value: Option<Bytes>) -> Option<Answer> {
    Some(Answer::Value { value, until: LEASE })
}
