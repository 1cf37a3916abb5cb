//! The follower: updates that others coordinate (Hermes, sections 3.2 and 3.6).

use crate::members::NodeSet;
use crate::message::{Answer, Body, Kind, Modify, Update};
use crate::mutation::Mutation;
use crate::options::Acks;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use meridian_core::{Key, NodeId, Outbox, Slot, Time};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// ACKs that go to all and have overtaken the INV of another connection: of so many updates at
/// most. What is dropped is asked for after the message-loss timeout.
const EARLY_MAX: usize = 4096;

/// ACKs that came before their INV, by key and place (O3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct EarlyAcks(BTreeMap<(Key, Timestamp), NodeSet>);

impl EarlyAcks {
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<M: Modify> Hermes<M> {
    pub(crate) fn on_inv(
        &mut self,
        now: Time,
        from: NodeId,
        update: Update,
        out: &mut Outbox<Self>,
    ) {
        let slot = self.store.slot(&update.key, self.me);
        let (key, ts, kind) = (update.key.clone(), update.ts, update.kind);
        if self.take_inv(now, from, slot, update, out) {
            self.acknowledge(from, key, ts, kind, out);
        }
    }

    /// Takes an INV; whether it is to be acknowledged.
    pub(crate) fn take_inv(
        &mut self,
        now: Time,
        from: NodeId,
        slot: Slot,
        update: Update,
        out: &mut Outbox<Self>,
    ) -> bool {
        let (ts, kind) = (update.ts, update.kind);
        match ts.cmp(&self.store.get(slot).ts) {
            Ordering::Greater => {
                self.apply(now, from, slot, update, out);
                if self.goes_to_all(kind) {
                    self.look_at_held(now, slot, out);
                }
                true
            }
            Ordering::Equal if self.coordinates_rmw(slot, ts) => {
                // Nobody else commits it: its coordinator would say that it was aborted (M5).
                self.repeat_own(slot, from, out);
                false
            }
            Ordering::Less if kind == Kind::Rmw && !self.mutation.is(Mutation::AcksLowerRmw) => {
                self.tell_held(from, slot, out);
                false
            }
            Ordering::Equal | Ordering::Less => true,
        }
    }

    /// Takes what is later than what is held.
    pub(crate) fn apply(
        &mut self,
        now: Time,
        from: NodeId,
        slot: Slot,
        update: Update,
        out: &mut Outbox<Self>,
    ) {
        self.completions.followed(self.store.get(slot), update.base);
        self.completions.record(&update);
        let due = self.due_of(now, update.bytes());
        self.record_taken(&update, from, out);
        let me = if self.is_on_disk() { from } else { self.me }; // See `own_ack`.
        let mut heard = self.members.of(&[me, from]);
        self.take_early(&update, &mut heard);
        let entry = self.store.get_mut(slot);
        let busy = self.unsettled.at(slot, entry, due);
        (busy.replay, busy.heard, busy.due) = (None, heard, due);
        if let Some(own) = &mut busy.own {
            if own.ts == entry.ts {
                own.superseded = Some(Box::new(entry.update()));
            }
            own.losing = own.rmw.is_some(); // Not committed any more (M3); answered later (M4).
            if own.losing && self.mutation.is(Mutation::AbortsEarly) {
                let token = own.token;
                self.end_own(slot);
                self.answer(token, Answer::Aborted, out);
            }
        }
        self.store.hold(slot, update, from);
        self.replays_end(slot, out);
    }

    /// An ACK for what is not held yet.
    pub(crate) fn heard_early(&mut self, from: NodeId, key: &Key, ts: Timestamp) {
        if self.options.acks == Acks::All && self.early.0.len() < EARLY_MAX {
            let heard = self.early.0.entry((key.clone(), ts)).or_default();
            self.members.add(heard, from);
        }
    }

    fn take_early(&mut self, update: &Update, heard: &mut NodeSet) {
        if !self.early.0.is_empty() {
            let early = self.early.0.remove(&(update.key.clone(), update.ts)).unwrap_or_default();
            heard.join(early);
        }
    }

    fn coordinates_rmw(&self, slot: Slot, ts: Timestamp) -> bool {
        let own = self.unsettled.own(self.store.get(slot)).filter(|own| own.ts == ts);
        own.is_some_and(|own| own.rmw.is_some()) && !self.mutation.is(Mutation::AcksOwnRmw)
    }

    pub(crate) fn acknowledge(
        &self,
        to: NodeId,
        key: Key,
        ts: Timestamp,
        kind: Kind,
        out: &mut Outbox<Self>,
    ) {
        let ack = Body::Ack { key, ts };
        if self.goes_to_all(kind) {
            self.broadcast(&ack, out);
            if self.is_on_disk() {
                self.send(self.me, ack, out);
            }
        } else {
            self.send(to, ack, out);
        }
    }

    /// Says what is held, in place of an ACK: it came later.
    pub(crate) fn tell_held(&self, to: NodeId, slot: Slot, out: &mut Outbox<Self>) {
        let entry = self.store.get(slot);
        self.send(to, Body::Inv(entry.update()), out);
        if entry.is_valid() {
            let (key, ts) = (entry.key.clone(), entry.ts);
            self.send(to, Body::Val { key, ts }, out);
        }
    }

    pub(crate) fn on_val(&mut self, now: Time, key: &Key, ts: Timestamp, out: &mut Outbox<Self>) {
        let Some(slot) = self.store.find(key) else { return };
        if self.mutation.is(Mutation::ValidatesAnything) {
            return self.become_valid(now, slot, out);
        }
        self.validated(now, slot, ts, out);
    }

    /// What was at this place of a key is committed.
    pub(crate) fn validated(
        &mut self,
        now: Time,
        slot: Slot,
        ts: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        if ts == self.store.get(slot).ts {
            self.become_valid(now, slot, out);
        }
    }
}
