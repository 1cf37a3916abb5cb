//! CRAQ: chain replication with apportioned queries (CRAQ, section 2; Hermes, sections 2.5 and
//! 5.1.2).
//!
//! The replicas form a chain. A write enters at the head, which numbers it among those of its key,
//! and goes down; at the tail it is committed, and an ACK goes up again. In between the key is
//! *dirty*: a replica then holds several versions, and asks the tail which one is committed before
//! it answers a read. Of a key that is *clean* any replica reads its own memory. This is
//! linearizable.
//!
//! Two differences to the pages: any replica takes a write, and answers it when the ACK has come by
//! (at the tail: when it commits it); and a read that has asked the tail is answered with the
//! version told or, if that is gone, a later one that was committed meanwhile.
//!
//! Invariants:
//! - C1: the versions of a key ascend by one, in the order of the chain.
//! - C2: a replica holds each version that the tail has committed, or a later clean one.

use crate::batch::Nothing;
use crate::keys::{Answer, Answered, Command, Write};
use meridian_core::{
    Event, Key, Keyed, NodeId, Outbox, PLANTED_BUGS, Process, Shelf, Slot, Time, Value,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::convert::Infallible;

/// The place of a write among those of its key.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// What replicas say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// To the head: a replica was asked for this.
    Enter(Write),
    /// Down the chain.
    Update {
        /// What.
        write: Write,
        /// Its place, given by the head.
        version: Version,
    },
    /// Up the chain: this version is committed.
    Ack {
        /// Of this key.
        key: Key,
        /// Which.
        version: Version,
    },
    /// To the tail: which version is committed?
    Query {
        /// To be given back.
        token: u64,
        /// Of this key.
        key: Key,
    },
    /// This one is.
    Committed {
        /// Of the question.
        token: u64,
        /// Of this key.
        key: Key,
        /// Which.
        version: Version,
    },
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Reads the newest version, committed or not.
    ReadsDirty,
    /// Reads the last version that it knows to be committed, and asks nobody.
    NeverAsks,
}

/// What is held of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    key: Key,
    clean: Version,
    value: Option<Value>,
    /// Those not known to be committed, ascending from `clean`.
    dirty: VecDeque<Write>,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Entry {
    fn newest(&self) -> Version {
        Version(self.clean.0 + self.dirty.len() as u64)
    }

    /// The value of a version that is committed, or of a later one that is.
    fn committed(&self, version: Version) -> Option<&Value> {
        let Some(beyond) = version.0.checked_sub(self.clean.0 + 1) else {
            return self.value.as_ref();
        };
        let write = usize::try_from(beyond).ok().and_then(|at| self.dirty.get(at));
        Some(&write.expect("C2: what is committed has come by").value)
    }
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Craq {
    me: NodeId,
    head: NodeId,
    tail: NodeId,
    /// Up and down the chain; none beyond its ends.
    before: Option<NodeId>,
    after: Option<NodeId>,
    entries: Shelf<Entry>,
    /// How many reads wait for the tail, and how many versions are dirty.
    asked: usize,
    dirty: usize,
    mutation: Mutation,
}

impl Craq {
    /// The replica `me` of this chain, whose first is the head.
    ///
    /// # Panics
    /// If `me` is not in it.
    pub fn new(me: NodeId, chain: &[NodeId]) -> Craq {
        let place = chain.iter().position(|node| *node == me);
        let place = place.unwrap_or_else(|| panic!("{me} is not in the chain"));
        Craq {
            me,
            head: chain[0],
            tail: chain[chain.len() - 1],
            before: place.checked_sub(1).map(|before| chain[before]),
            after: chain.get(place + 1).copied(),
            entries: Shelf::default(),
            asked: 0,
            dirty: 0,
            mutation: Mutation::Correct,
        }
    }

    /// The same with a planted bug.
    ///
    /// # Panics
    /// In a release build, which contains none.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Self {
        assert!(
            PLANTED_BUGS || mutation == Mutation::Correct,
            "a release build has no bug planted"
        );
        Craq { mutation, ..self }
    }

    fn is(&self, mutation: Mutation) -> bool {
        PLANTED_BUGS && self.mutation == mutation
    }

    /// Reads from local memory, if the key is clean; the value is `None` if there is no such key.
    pub fn read(&self, key: &[u8]) -> Option<Option<&Value>> {
        let Some(slot) = self.entries.find(key) else { return Some(None) };
        let entry = self.entries.get(slot);
        if self.is(Mutation::ReadsDirty)
            && let Some(newest) = entry.dirty.back()
        {
            return Some(Some(&newest.value));
        }
        let readable = entry.dirty.is_empty() || self.is(Mutation::NeverAsks);
        readable.then_some(entry.value.as_ref())
    }

    /// What is held: key, version and value, of what is committed as far as is known here.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, Version, Option<&Value>)> {
        let entries = self.entries.since(Slot(0));
        entries.map(|(_, entry)| (&entry.key, entry.clean, entry.value.as_ref()))
    }

    /// How much it waits for: reads that have asked the tail, and versions that are dirty.
    pub fn pending(&self) -> usize {
        self.asked + self.dirty
    }

    fn on_read(&mut self, token: u64, key: &[u8], out: &mut Outbox<Self>) {
        match self.read(key) {
            Some(value) => {
                let answer = Answer::Value(value.map(Value::to_bytes));
                out.output(Answered { token, answer });
            }
            None => {
                self.asked += 1;
                out.send(self.tail, Message::Query { token, key: key.into() });
            }
        }
    }

    fn on_enter(&mut self, write: Write, out: &mut Outbox<Self>) {
        if self.me != self.head {
            return out.send(self.head, Message::Enter(write));
        }
        let slot = self.slot(&write.key);
        let version = Version(self.entries.get(slot).newest().0 + 1);
        self.on_update(write, version, out);
    }

    fn slot(&mut self, key: &Key) -> Slot {
        self.entries.slot(key, || {
            let (clean, value, dirty) = (Version(0), None, VecDeque::new());
            Entry { key: key.clone(), clean, value, dirty }
        })
    }

    fn on_update(&mut self, write: Write, version: Version, out: &mut Outbox<Self>) {
        let slot = self.slot(&write.key);
        let entry = self.entries.get_mut(slot);
        let newest = entry.newest();
        assert!(version.0 == newest.0 + 1, "C1: {version:?} of {:?} after {newest:?}", write.key);
        entry.dirty.push_back(write.clone());
        self.dirty += 1;
        match self.after {
            Some(after) => out.send(after, Message::Update { write, version }),
            None => self.on_ack(&write.key, version, out),
        }
    }

    /// What is committed is clean; the tail commits what reaches it.
    fn on_ack(&mut self, key: &Key, version: Version, out: &mut Outbox<Self>) {
        let slot = self.slot(key);
        let entry = self.entries.get_mut(slot);
        while entry.clean < version {
            let write = entry.dirty.pop_front().expect("C2: what is committed has come by");
            entry.clean.0 += 1;
            entry.value = Some(write.value);
            self.dirty -= 1;
            if write.origin == self.me {
                out.output(Answered { token: write.token, answer: Answer::Written });
            }
        }
        if let Some(before) = self.before {
            out.send(before, Message::Ack { key: key.clone(), version });
        }
    }

    fn on_query(&mut self, from: NodeId, token: u64, key: Key, out: &mut Outbox<Self>) {
        let slot = self.slot(&key);
        let version = self.entries.get(slot).clean;
        out.send(from, Message::Committed { token, key, version });
    }

    fn on_committed(&mut self, token: u64, key: &Key, version: Version, out: &mut Outbox<Self>) {
        self.asked -= 1;
        let slot = self.slot(key);
        let value = self.entries.get(slot).committed(version).map(Value::to_bytes);
        out.output(Answered { token, answer: Answer::Value(value) });
    }
}

impl Process for Craq {
    type Peer = NodeId;
    type Message = Message;
    type Record = Nothing;
    type Command = Command;
    type Output = Answered;
    type Timer = Infallible;

    fn step(&mut self, _: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Command(Command::Read { token, key }) => self.on_read(token, &key, out),
            Event::Command(Command::Write { token, key, value }) => {
                self.on_enter(Write::asked(self.me, token, &key, value), out);
            }
            Event::Message { from, message } => match message {
                Message::Enter(write) => self.on_enter(write, out),
                Message::Update { write, version } => self.on_update(write, version, out),
                Message::Ack { key, version } => self.on_ack(&key, version, out),
                Message::Query { token, key } => self.on_query(from, token, key, out),
                Message::Committed { token, key, version } => {
                    self.on_committed(token, &key, version, out);
                }
            },
            Event::Started | Event::Timer(_) | Event::Restarted(_) | Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Nothing) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Nothing> + Send> {
        Box::new(std::iter::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use meridian_core::Effect;

    const CHAIN: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
    const KEY: Bytes = Bytes::from_static(b"k");

    fn replica(node: u16) -> Craq {
        Craq::new(NodeId(node), &CHAIN)
    }

    fn write(origin: u16, token: u64) -> Write {
        Write::asked(NodeId(origin), token, &KEY, Bytes::from(vec![token as u8]))
    }

    fn update(origin: u16, token: u64, version: u64) -> Message {
        Message::Update { write: write(origin, token), version: Version(version) }
    }

    fn ack(version: u64) -> Message {
        Message::Ack { key: KEY[..].into(), version: Version(version) }
    }

    fn value(token: u64) -> Answer {
        Answer::Value(Some(Bytes::from(vec![token as u8])))
    }

    /// What it sends, and what it answers.
    type Said = (Vec<(u16, Message)>, Vec<(u64, Answer)>);

    fn step(replica: &mut Craq, event: Event<Craq>) -> Said {
        let (mut out, mut sent, mut told) = (Outbox::new(), Vec::new(), Vec::new());
        replica.step(Time(0), event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => sent.push((to.0, message)),
                Effect::Output(answered) => told.push((answered.token, answered.answer)),
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
        (sent, told)
    }

    fn hear(replica: &mut Craq, from: u16, message: Message) -> Said {
        step(replica, Event::Message { from: NodeId(from), message })
    }

    fn read(replica: &mut Craq) -> Said {
        step(replica, Event::Command(Command::Read { token: 9, key: KEY }))
    }

    /// CRAQ, section 2.3: a write enters at the head, is committed at the tail, and
    /// clean at a replica when the ACK has come by.
    #[test]
    fn a_write_goes_down_the_chain_and_its_ack_up() {
        let mut chain = [0, 1, 2].map(replica);
        let write_of = |token: u64| {
            let value = Bytes::from(vec![token as u8]);
            Event::Command(Command::Write { token, key: KEY, value })
        };
        let enters = (vec![(0, Message::Enter(write(1, 7)))], vec![]);
        assert_eq!(step(&mut chain[1], write_of(7)), enters);
        let down = (vec![(1, update(1, 7, 1))], vec![]);
        assert_eq!(hear(&mut chain[0], 1, Message::Enter(write(1, 7))), down);
        let down = (vec![(2, update(1, 7, 1))], vec![]);
        assert_eq!(hear(&mut chain[1], 0, update(1, 7, 1)), down);
        assert_eq!(hear(&mut chain[2], 1, update(1, 7, 1)), (vec![(1, ack(1))], vec![]));
        let up = (vec![(0, ack(1))], vec![(7, Answer::Written)]);
        assert_eq!(hear(&mut chain[1], 2, ack(1)), up);
        assert_eq!(hear(&mut chain[0], 1, ack(1)), (vec![], vec![]));
        assert!(chain.iter().all(|replica| replica.pending() == 0));
        for mut replica in chain {
            assert_eq!(read(&mut replica), (vec![], vec![(9, value(7))]), "clean");
        }
    }

    /// CRAQ, section 2.3: a dirty read is answered by what the tail says is committed.
    #[test]
    fn a_dirty_read_asks_the_tail_for_the_version() {
        let mut middle = replica(1);
        hear(&mut middle, 0, update(0, 1, 1));
        hear(&mut middle, 2, ack(1));
        hear(&mut middle, 0, update(0, 2, 2));
        hear(&mut middle, 0, update(0, 3, 3));
        let query = (vec![(2, Message::Query { token: 9, key: KEY[..].into() })], vec![]);
        let told = |version| {
            let (key, version) = (KEY[..].into(), Version(version));
            Message::Committed { token: 9, key, version }
        };
        for (version, token) in [(1, 1), (2, 2), (3, 3)] {
            assert_eq!(read(&mut middle), query);
            assert_eq!(hear(&mut middle, 2, told(version)), (vec![], vec![(9, value(token))]));
        }
        assert_eq!(read(&mut middle), query);
        hear(&mut middle, 2, ack(2));
        let (_, later) = hear(&mut middle, 2, told(1));
        assert_eq!(later, [(9, value(2))], "the version told is gone: a later one is committed");
        let mut tail = replica(2);
        hear(&mut tail, 1, update(0, 1, 1));
        let query = Message::Query { token: 9, key: KEY[..].into() };
        assert_eq!(hear(&mut tail, 1, query), (vec![(1, told(1))], vec![]));
    }

    #[test]
    fn alone_a_replica_is_head_and_tail() {
        let mut alone = Craq::new(NodeId(0), &CHAIN[..1]);
        let command = Command::Write { token: 1, key: KEY, value: Bytes::from(vec![1]) };
        let done = (vec![], vec![(1, Answer::Written)]);
        assert_eq!(step(&mut alone, Event::Command(command)), done);
        assert_eq!(read(&mut alone), (vec![], vec![(9, value(1))]));
    }
}
