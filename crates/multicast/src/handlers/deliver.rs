//! Delivery: lines 26-30 and 53-56 of Algorithms 1 to 3, with section 4.4.3.

use crate::message::{Delivery, Entry, Message, OrderMessage, Output, Start, Timestamp};
use crate::mutation::{Mutation, PLANTED};
use crate::options::Deliveries;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::log::Slot;
use meridian_core::{GroupId, MessageId, Outbox};
use std::collections::BTreeMap;

impl PrimCast {
    /// Lines 26-30 and 53-56, with section 4.4.3: the queue's first has the least possible final
    /// timestamp of all in `T` (line 30); one behind it may pass if it conflicts with none before
    /// it. Lines 22 and 23 cannot be what fails it once lines 28 and 29 hold.
    ///
    /// Returns the clock up to which nothing can come any more.
    pub(crate) fn deliver_all(&mut self, out: &mut Outbox<Self>) -> Timestamp {
        if !self.stands() {
            self.linearizable.dirty = true; // They are looked at once it stands again.
            return Timestamp(0);
        }
        let mut leader = self.clock.members.min_clock(self.epochs.cur.leader);
        let mut quorum = self.clock.members.quorum_clock(self.voters());
        if self.planted.is(Mutation::NoLeaderClock) {
            leader = Timestamp(u64::MAX);
        }
        if self.planted.is(Mutation::NoQuorumClock) {
            quorum = Timestamp(u64::MAX);
        }
        if self.planted.is(Mutation::NoOrder) {
            self.deliver_any(leader.min(quorum), out);
            return leader.min(quorum);
        }
        let clock = leader.min(quorum);
        let mut ready = BTreeMap::new();
        loop {
            self.close_groups();
            self.deliver_first(clock, &mut ready, out);
            self.deliver_passing(clock, &mut ready, out);
            if !self.linearizable.is_dirty() {
                break; // Nothing that was delivered is waited for.
            }
        }
        for (group, ids) in ready {
            let message = Message::from(OrderMessage::Ready(ids));
            self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
        }
        clock
    }

    /// Those that all others come after.
    fn deliver_first(
        &mut self,
        clock: Timestamp,
        ready: &mut BTreeMap<GroupId, Vec<MessageId>>,
        out: &mut Outbox<Self>,
    ) {
        let waits = self.options.order.waits_for_others();
        let mut loaded = 0;
        while let Some((rank, index)) = self.log.queue().first() {
            let several = match self.log.get(index) {
                Some(slot) if slot.entry.final_ts.is_some() => slot.entry.start.dest.len() > 1,
                _ => break,
            };
            if rank.0 > clock {
                break;
            }
            if waits && several {
                self.answer_ready(index, ready);
                if !self.is_settled(index, rank.0) {
                    break;
                }
            }
            loaded = self.log.prefetch_ahead(index + 1, loaded);
            self.hand_up(index, rank.0, out);
        }
    }

    /// Those that conflict with none of those before them.
    fn deliver_passing(
        &mut self,
        clock: Timestamp,
        ready: &mut BTreeMap<GroupId, Vec<MessageId>>,
        out: &mut Outbox<Self>,
    ) {
        let waits = self.options.order.waits_for_others();
        let mut closed = None;
        while let Some((rank, index)) = self.log.next_to_look_at(clock) {
            let Some(slot) = self.log.get(index) else { continue };
            let Start { touches, dest, .. } = &*slot.entry.start;
            let several = dest.len() > 1;
            if slot.entry.final_ts.is_none() || !self.log.queue().is_free(rank, touches) {
                continue; // It is looked at again when that changes.
            }
            if waits && several {
                if !self.is_settled_passing(index, rank.0, clock, &mut closed) {
                    self.tell_ready(index, ready);
                    continue;
                }
                self.answer_ready(index, ready);
            }
            self.assert_free(index, rank.0);
            self.hand_up(index, rank.0, out);
        }
    }

    /// A planted bug: whatever is final first, without line 30's order.
    fn deliver_any(&mut self, clock: Timestamp, out: &mut Outbox<Self>) {
        let finals =
            self.log.waiting().filter_map(|(index, slot)| Some((index, slot.entry.final_ts?)));
        let finals: Vec<_> = finals.filter(|(_, ts)| *ts <= clock).collect();
        finals.into_iter().for_each(|(index, ts)| self.hand_up(index, ts, out));
    }

    /// For who reads the state of a process that has stopped and takes no more part in anything: as
    /// if a quorum had all that is in `T`, delivers what this group alone has to order and what has
    /// its final timestamp, in their order, unless it conflicts with something else before it.
    pub fn deliver_rest(&mut self) -> Vec<Delivery> {
        let mut delivered = Vec::new();
        let own = [self.me.group];
        loop {
            let free = |slot: &Slot| {
                let Entry { start, final_ts, .. } = &slot.entry;
                let is_final = final_ts.is_some() || start.dest[..] == own;
                is_final && self.log.queue().is_free((slot.bound, start.id), &start.touches)
            };
            let next = self.log.waiting().find(|(_, slot)| free(slot));
            let Some((index, ts)) = next.map(|(index, slot)| (index, slot.bound)) else {
                return delivered;
            };
            self.log.decide(index, ts);
            delivered.push(self.deliver(index, ts));
        }
    }

    /// # Panics
    /// P3: if one that conflicts with the entry at `index` is before it.
    pub(crate) fn assert_free(&self, index: u64, ts: Timestamp) {
        let correct = !PLANTED || self.planted.is(Mutation::Correct);
        if correct && let Some(slot) = self.log.get(index) {
            let Start { id, touches, .. } = &*slot.entry.start;
            assert!(self.log.queue().is_free((ts, *id), touches), "P3: {id} before others");
        }
    }

    /// Delivers an entry that is free.
    pub(crate) fn hand_up(&mut self, index: u64, ts: Timestamp, out: &mut Outbox<Self>) {
        self.relay_delivered(index, ts);
        let delivery = self.deliver(index, ts);
        let (id, several) = (delivery.start.id, delivery.start.dest.len() > 1);
        if several && self.options.deliveries == Deliveries::Durable {
            out.persist(Record::Delivered { id, ts });
            self.replication.noted = None;
            out.output(Output::Deliver(delivery));
        } else {
            out.output(Output::Deliver(delivery));
            out.note(Record::Delivered { id, ts });
        }
    }
}
