//! ZAB: one leader that orders all writes (ZAB, section 4, the broadcast phase; Hermes, section
//! 5.1.1).
//!
//! Any replica takes a write and passes it to the leader, which proposes it to all; each appends
//! it to its log and acknowledges. What a majority holds is committed, in the order of the log, and
//! the leader says so (COMMIT). A replica answers a write when it has applied it.
//!
//! # What it promises
//!
//! Writes are linearizable. Reads are answered from local memory at once, and are *sequentially
//! consistent* for clients that stay at one replica and ask one thing after the other: all see the
//! writes in one order, none goes back in it, and each sees its own. A read may be old: another
//! replica may have answered a later write already. That is weaker than what Hermes and CRAQ
//! promise; the paper compares them all the same, as an upper bound for ZAB.
//!
//! ACKs and COMMITs are about all up to a place of the log, and are held back until
//! [`Event::Idle`]: one of each goes to each peer for all that came together.
//!
//! Invariants:
//! - Z1: what is applied is a prefix of the log, and the same everywhere.
//! - Z2: what is applied anywhere is held by a majority.

use crate::batch::Nothing;
use crate::consensus::Log;
use crate::keys::{Answer, Answered, Command, Write};
use meridian_core::{
    Event, Key, Keyed, NodeId, Outbox, PLANTED_BUGS, Process, Shelf, Slot, Time, Value,
};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

/// What replicas say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// To the leader: a replica was asked for this.
    Request(Write),
    /// PROPOSE: the next of the log.
    Propose(Write),
    /// The sender holds so much of the log.
    Ack(u64),
    /// So much of the log is committed.
    Commit(u64),
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// A write is answered once its proposal has come, before it is applied.
    AnswersEarly,
    /// The leader commits what it proposes, whoever holds it.
    CountsNobody,
}

/// What is held of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    key: Key,
    /// Where in the log it was written last.
    place: u64,
    value: Option<Value>,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// A replica.
#[derive(Clone, Debug)]
pub struct Zab {
    me: NodeId,
    members: Vec<NodeId>,
    log: Log<Write>,
    /// How much of the log is there, is known to be committed, and is applied.
    held: u64,
    committed: u64,
    applied: u64,
    /// What the others, or the leader, were last told.
    told: u64,
    entries: Shelf<Entry>,
    mutation: Mutation,
}

impl Zab {
    /// The replica `me` of these, whose first leads.
    ///
    /// # Panics
    /// If `me` is not among them.
    pub fn new(me: NodeId, members: &[NodeId]) -> Zab {
        assert!(members.contains(&me), "{me} is no member");
        Zab {
            me,
            members: members.to_vec(),
            log: Log::new(me, members),
            held: 0,
            committed: 0,
            applied: 0,
            told: 0,
            entries: Shelf::default(),
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
        Zab { mutation, ..self }
    }

    fn is(&self, mutation: Mutation) -> bool {
        PLANTED_BUGS && self.mutation == mutation
    }

    /// Reads from local memory; the value is `None` if there is no such key.
    pub fn read(&self, key: &[u8]) -> Option<&Value> {
        self.entries.get(self.entries.find(key)?).value.as_ref()
    }

    /// What is held: key, place in the log and value, of all that is applied.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, u64, Option<&Value>)> {
        let entries = self.entries.since(Slot(0));
        entries.map(|(_, entry)| (&entry.key, entry.place, entry.value.as_ref()))
    }

    /// How much of the log is there.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How much of the log is applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    fn leader(&self) -> NodeId {
        self.members[0]
    }

    fn i_lead(&self) -> bool {
        self.me == self.leader()
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().copied().filter(|node| *node != self.me)
    }

    fn on_request(&mut self, write: Write, out: &mut Outbox<Self>) {
        if !self.i_lead() {
            return out.send(self.leader(), Message::Request(write));
        }
        self.others().for_each(|node| out.send(node, Message::Propose(write.clone())));
        self.on_propose(write, out);
    }

    fn on_propose(&mut self, write: Write, out: &mut Outbox<Self>) {
        if self.is(Mutation::AnswersEarly) && write.origin == self.me {
            out.output(Answered { token: write.token, answer: Answer::Written });
        }
        self.held += 1;
        self.log.append(write);
        self.look(out);
    }

    /// Applies what is committed.
    fn look(&mut self, out: &mut Outbox<Self>) {
        if self.i_lead() {
            let all = self.is(Mutation::CountsNobody);
            self.committed = if all { self.held } else { self.log.decided() };
        }
        while let Some(write) = self.log.take(self.committed) {
            self.applied += 1;
            self.apply(write, out);
        }
    }

    fn apply(&mut self, write: Write, out: &mut Outbox<Self>) {
        let Write { origin, token, key, value } = write;
        let slot = self.entries.slot(&key, || Entry { key: key.clone(), place: 0, value: None });
        let entry = self.entries.get_mut(slot);
        (entry.place, entry.value) = (self.applied, Some(value));
        if origin == self.me && !self.is(Mutation::AnswersEarly) {
            out.output(Answered { token, answer: Answer::Written });
        }
    }

    /// Tells the others how far it is, if that is new.
    fn on_idle(&mut self, out: &mut Outbox<Self>) {
        let upto = if self.i_lead() { self.committed } else { self.held };
        if std::mem::replace(&mut self.told, upto) == upto {
            return;
        }
        if self.i_lead() {
            self.others().for_each(|node| out.send(node, Message::Commit(upto)));
        } else {
            out.send(self.leader(), Message::Ack(upto));
        }
    }
}

impl Process for Zab {
    type Peer = NodeId;
    type Message = Message;
    type Record = Nothing;
    type Command = Command;
    type Output = Answered;
    type Timer = Infallible;

    fn step(&mut self, _: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Command(Command::Read { token, key }) => {
                let answer = Answer::Value(self.read(&key).map(Value::to_bytes));
                out.output(Answered { token, answer });
            }
            Event::Command(Command::Write { token, key, value }) => {
                self.on_request(Write::asked(self.me, token, &key, value), out);
            }
            Event::Message { message: Message::Request(write), .. } => {
                self.on_request(write, out);
            }
            Event::Message { message: Message::Propose(write), .. } => {
                self.on_propose(write, out);
            }
            Event::Message { from, message: Message::Ack(held) } => {
                self.log.on_vote(from, held);
                self.look(out);
            }
            Event::Message { message: Message::Commit(upto), .. } => {
                self.committed = upto.max(self.committed);
                self.look(out);
            }
            Event::Idle => self.on_idle(out),
            Event::Started | Event::Timer(_) | Event::Restarted(_) => {}
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

    const NODES: [NodeId; 5] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
    const KEY: Bytes = Bytes::from_static(b"k");

    fn write(origin: u16, token: u64) -> Write {
        Write::asked(NodeId(origin), token, &KEY, Bytes::from(vec![token as u8]))
    }

    /// What it sends, and whom it answers.
    type Said = (Vec<(u16, Message)>, Vec<u64>);

    fn hear(replica: &mut Zab, from: u16, messages: &[Message]) -> Said {
        let (mut out, mut sent, mut told) = (Outbox::new(), Vec::new(), Vec::new());
        for message in messages.iter().cloned() {
            let from = NodeId(from);
            replica.step(Time(0), Event::Message { from, message }, &mut out);
        }
        replica.step(Time(0), Event::Idle, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => sent.push((to.0, message)),
                Effect::Output(answered) => told.push(answered.token),
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
        (sent, told)
    }

    /// ZAB, section 4.3: the leader commits what a quorum holds, in order.
    #[test]
    fn the_leader_proposes_and_commits_with_a_majority() {
        let mut leader = Zab::new(NODES[0], &NODES);
        let (sent, _) = hear(&mut leader, 1, &[Message::Request(write(1, 7))]);
        let proposed: Vec<_> = (1..5).map(|to| (to, Message::Propose(write(1, 7)))).collect();
        assert_eq!(sent, proposed);
        assert_eq!(hear(&mut leader, 3, &[Message::Ack(1)]), (vec![], vec![]), "two of five");
        let (sent, _) = hear(&mut leader, 4, &[Message::Ack(1)]);
        assert_eq!(sent, (1..5).map(|to| (to, Message::Commit(1))).collect::<Vec<_>>());
        assert_eq!(leader.read(&KEY), Some(&write(1, 7).value));
        assert_eq!(hear(&mut leader, 2, &[Message::Ack(1)]), (vec![], vec![]), "once");
    }

    #[test]
    fn a_follower_acknowledges_once_for_all_and_applies_when_told() {
        let mut follower = Zab::new(NODES[1], &NODES);
        let proposals = [Message::Propose(write(1, 7)), Message::Propose(write(2, 8))];
        assert_eq!(hear(&mut follower, 0, &proposals), (vec![(0, Message::Ack(2))], vec![]));
        assert_eq!(follower.read(&KEY), None);
        assert_eq!(hear(&mut follower, 0, &[Message::Commit(1)]), (vec![], vec![7]));
        assert_eq!(follower.read(&KEY), Some(&write(1, 7).value));
        assert_eq!(hear(&mut follower, 0, &[Message::Commit(2)]), (vec![], vec![]));
        assert_eq!((follower.read(&KEY), follower.applied()), (Some(&write(2, 8).value), 2));
    }

    #[test]
    fn alone_it_commits_at_once() {
        let mut alone = Zab::new(NODES[0], &NODES[..1]);
        assert_eq!(hear(&mut alone, 0, &[Message::Request(write(0, 1))]), (vec![], vec![1]));
    }
}
