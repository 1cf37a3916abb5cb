//! Skeen's algorithm (thesis, section 5.3; Algorithm 4): the reference that tests and benches
//! compare with. Each group is one process, its first member, that never fails.
//!
//! Each destination gives a message a local timestamp; the greatest is its final one, and messages
//! are delivered in that order. The [`Variant`]s differ in what else a delivery waits for.
//!
//! Two differences to the pages: ties are broken by the message's name instead of the partition's,
//! as everywhere in this crate; and a process counts its own timestamp and ACK without sending
//! them.
//!
//! Its owner multicasts each message once. Nothing waits for the order of links.
//!
//! Invariants:
//! - S1: `queue` holds exactly the proposed and undelivered, each under the final timestamp if that
//!   is known and the local one if not; so what is first and final precedes all others, and stays
//!   first.
//! - S2: deliveries ascend in (final timestamp, id).

use meridian_core::{Event, GroupId, MessageId, Outbox, Position, Process, ProcessId, Time};
use meridian_multicast::{Delivery, Groups, Protocol, Rank, Start, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// What a delivery waits for, beside its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Nothing: Algorithm 4 without its gray lines.
    Plain,
    /// All destinations know the final timestamp: Algorithm 4 with them. It is meant to give atomic
    /// global order, and does so for two messages with a common destination, but not for longer
    /// chains.
    Ack,
    /// All destinations are ready: the message is final there, and what precedes it there is
    /// delivered. This gives atomic global order. Let e(m) be the moment when all are ready for m.
    /// If x is delivered before y anywhere, y is not ready there before e(x), so e(x) <= e(y). If y
    /// is multicast after a delivery of x, e(x) < e(y). So a cycle would have no edge of real time;
    /// but the orders of delivery alone have none, since final timestamps ascend along them.
    Ready,
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// START.
    Start(Start),
    /// LOCAL-TS.
    LocalTs {
        /// Of which message.
        id: MessageId,
        /// The sender's proposal.
        ts: Timestamp,
    },
    /// ACK; READY in [`Variant::Ready`].
    Ack(MessageId),
}

/// Nothing is made durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {}

/// What is known of a message that is not delivered. The others may be heard of before START comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pending {
    /// The message and our timestamp of it.
    proposed: Option<(Start, Timestamp)>,
    locals: BTreeMap<GroupId, Timestamp>,
    final_ts: Option<Timestamp>,
    acked: BTreeSet<GroupId>,
}

/// A process of Skeen's algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Skeen {
    me: ProcessId,
    groups: Groups,
    variant: Variant,
    clock: Timestamp,
    pending: BTreeMap<MessageId, Pending>,
    queue: BTreeSet<Rank>,
    delivered: Position,
    last: Option<Rank>,
}

impl Skeen {
    /// The process `me`, with nothing delivered.
    ///
    /// # Panics
    /// If `me` is not the first member of its group.
    pub fn new(me: ProcessId, groups: Groups, variant: Variant) -> Skeen {
        assert!(groups[&me.group].first() == Some(&me.node), "{me} is not the first of its group");
        Skeen {
            me,
            groups,
            variant,
            clock: Timestamp(0),
            pending: BTreeMap::new(),
            queue: BTreeSet::new(),
            delivered: Position(0),
            last: None,
        }
    }

    /// Its clock.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// How many messages it has delivered.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// The process of `group`, if there is such a group.
    fn of(&self, group: GroupId) -> Option<ProcessId> {
        let node = *self.groups.get(&group)?.first()?;
        Some(ProcessId { group, node })
    }

    fn send(&self, dest: &[GroupId], message: &Message, out: &mut Outbox<Self>) {
        for group in dest.iter().filter(|group| **group != self.me.group) {
            if let Some(process) = self.of(*group) {
                out.send(process, message.clone());
            }
        }
    }

    /// Lines 6-7.
    fn multicast(&mut self, start: Start, out: &mut Outbox<Self>) {
        self.send(&start.dest, &Message::Start(start.clone()), out);
        if start.dest.contains(&self.me.group) {
            self.on_start(start, out);
        }
    }

    /// Lines 8-11.
    fn on_start(&mut self, start: Start, out: &mut Outbox<Self>) {
        let ascending = start.dest.windows(2).all(|pair| pair[0] < pair[1]);
        let known = start.dest.iter().all(|group| self.groups.contains_key(group));
        if !ascending || !known || !start.dest.contains(&self.me.group) {
            return; // Not for us: a sender's mistake.
        }
        let pending = self.pending.entry(start.id).or_default();
        assert!(pending.proposed.is_none(), "{} was multicast twice", start.id);
        self.clock = Timestamp(self.clock.max(start.after).0 + 1);
        let (id, ts, dest) = (start.id, self.clock, start.dest.clone());
        pending.proposed = Some((start, ts));
        pending.locals.insert(self.me.group, ts);
        self.queue.insert((ts, id));
        self.send(&dest, &Message::LocalTs { id, ts }, out);
        self.decide(id, out);
    }

    /// Lines 12-16, if all timestamps are there.
    fn decide(&mut self, id: MessageId, out: &mut Outbox<Self>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let Some((start, local)) = &pending.proposed else { return };
        let Some(ts) = pending.locals.values().max().copied() else { return };
        if pending.locals.len() < start.dest.len() || pending.final_ts.is_some() {
            return;
        }
        let (local, dest) = (*local, start.dest.clone());
        pending.final_ts = Some(ts);
        self.clock = ts.max(self.clock);
        self.queue.remove(&(local, id));
        self.queue.insert((ts, id));
        if self.variant == Variant::Ack {
            pending.acked.insert(self.me.group);
            self.send(&dest, &Message::Ack(id), out);
        }
        self.try_deliver(out);
    }

    /// Lines 20-26: what is first in the queue and final precedes all others (S1).
    fn try_deliver(&mut self, out: &mut Outbox<Self>) {
        while let Some((_, id)) = self.queue.first().copied() {
            let pending = self.pending.get_mut(&id).expect("S1: what is queued is pending");
            let Some((start, _)) = &pending.proposed else { return };
            let Some(ts) = pending.final_ts else { return };
            let (dest, here) = (start.dest.clone(), self.me.group);
            let ready = self.variant == Variant::Ready && pending.acked.insert(here);
            let waits = self.variant != Variant::Plain && pending.acked.len() < dest.len();
            if ready {
                self.send(&dest, &Message::Ack(id), out);
            }
            if waits {
                return;
            }
            self.deliver(id, ts, out);
        }
    }

    fn deliver(&mut self, id: MessageId, ts: Timestamp, out: &mut Outbox<Self>) {
        assert!(self.last < Some((ts, id)), "S2: {id} at {ts:?} after {:?}", self.last);
        self.last = Some((ts, id));
        self.queue.remove(&(ts, id));
        self.delivered = Position(self.delivered.0 + 1);
        let position = self.delivered;
        let proposed = self.pending.remove(&id).and_then(|pending| pending.proposed);
        if let Some((start, _)) = proposed {
            out.output(Delivery { start: start.into(), ts, position });
        }
    }
}

impl Process for Skeen {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Record;
    type Command = Start;
    type Output = Delivery;
    type Timer = Infallible;

    fn step(&mut self, _: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Command(start) => self.multicast(start, out),
            Event::Message { message: Message::Start(start), .. } => self.on_start(start, out),
            Event::Message { from, message: Message::LocalTs { id, ts } } => {
                self.pending.entry(id).or_default().locals.insert(from.group, ts);
                self.decide(id, out);
            }
            // Lines 17-19.
            Event::Message { from, message: Message::Ack(id) } => {
                self.pending.entry(id).or_default().acked.insert(from.group);
                self.try_deliver(out);
            }
            Event::Started | Event::Timer(_) | Event::Restarted(_) | Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Record) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        Box::new(std::iter::empty())
    }
}

impl Protocol for Skeen {
    fn multicast(start: Start) -> Start {
        start
    }

    fn delivery(output: Delivery) -> Option<Delivery> {
        Some(output)
    }
}

#[cfg(test)]
mod tests;
