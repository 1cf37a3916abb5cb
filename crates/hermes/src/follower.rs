//! The follower: updates that others coordinate (Hermes, sections 3.2 and 3.6).

use crate::members::NodeSet;
use crate::message::{Answer, Body, Kind, Modify, Update};
use crate::mutation::Mutation;
use crate::options::Acks;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Slot, Time};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// ACKs that go to all and have overtaken the INV of another connection: of so many updates at
/// most. What is dropped is asked for after the message-loss timeout.
const EARLY_MAX: usize = 4096;

/// ACKs that came before their INV, by key and place (O3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct EarlyAcks(BTreeMap<(Bytes, Timestamp), NodeSet>);

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
        let held = self.store.get(slot).update.ts;
        let (key, ts, kind) = (update.key.clone(), update.ts, update.kind);
        match ts.cmp(&held) {
            Ordering::Greater => {
                self.apply(now, from, slot, update, out);
                self.acknowledge(from, key, ts, kind, out);
                self.look_at_held(now, slot, out);
            }
            Ordering::Equal if self.coordinates_rmw(slot, ts) => {
                // Nobody else commits it: its coordinator would say that it was aborted (M5).
                self.repeat_own(slot, from, out);
            }
            Ordering::Equal => self.acknowledge(from, key, ts, kind, out),
            Ordering::Less if kind == Kind::Rmw && !self.mutation.is(Mutation::AcksLowerRmw) => {
                self.tell_held(from, slot, out);
            }
            Ordering::Less => self.acknowledge(from, key, ts, kind, out),
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
        let entry = self.store.get_mut(slot);
        self.completions.followed(&entry.update, update.base);
        self.completions.record(&update);
        (entry.valid, entry.last_writer) = (false, from);
        let (key, ts) = (update.key.clone(), update.ts);
        let due = self.due_of(now, &update);
        self.record_taken(&update, from, out);
        self.store.hold(slot, update);
        let me = if self.is_on_disk() { from } else { self.me }; // See `own_ack`.
        let mut heard = self.members.of(&[me, from]);
        self.take_early(&key, ts, &mut heard);
        let busy = self.unsettled.at(slot, due);
        (busy.replay, busy.heard, busy.due) = (None, heard, due);
        if let Some(own) = busy.own.as_mut().filter(|own| own.update.kind == Kind::Rmw) {
            own.losing = true; // It is not committed any more (M3); it is answered later (M4).
            if self.mutation.is(Mutation::AbortsEarly) {
                let token = own.request.token;
                self.unsettled.end_own(slot);
                self.answer(token, Answer::Aborted, out);
            }
        }
        self.replays_end(slot, out);
    }

    /// An ACK for what is not held yet.
    pub(crate) fn heard_early(&mut self, from: NodeId, key: &Bytes, ts: Timestamp) {
        if self.options.acks == Acks::All && self.early.0.len() < EARLY_MAX {
            let heard = self.early.0.entry((key.clone(), ts)).or_default();
            self.members.add(heard, from);
        }
    }

    fn take_early(&mut self, key: &Bytes, ts: Timestamp, heard: &mut NodeSet) {
        if !self.early.0.is_empty() {
            let early = self.early.0.remove(&(key.clone(), ts)).unwrap_or_default();
            heard.join(early);
        }
    }

    fn coordinates_rmw(&self, slot: Slot, ts: Timestamp) -> bool {
        let own = self.unsettled.own(slot).filter(|own| own.update.ts == ts);
        own.is_some_and(|own| own.update.kind == Kind::Rmw)
            && !self.mutation.is(Mutation::AcksOwnRmw)
    }

    fn acknowledge(
        &self,
        to: NodeId,
        key: Bytes,
        ts: Timestamp,
        kind: Kind,
        out: &mut Outbox<Self>,
    ) {
        let ack = Body::Ack { key, ts };
        if self.options.acks == Acks::All && kind == Kind::Write {
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
        self.send(to, Body::Inv(entry.update.clone()), out);
        if entry.valid {
            let (key, ts) = (entry.update.key.clone(), entry.update.ts);
            self.send(to, Body::Val { key, ts }, out);
        }
    }

    pub(crate) fn on_val(&mut self, now: Time, key: &Bytes, ts: Timestamp, out: &mut Outbox<Self>) {
        let Some(slot) = self.store.find(key) else { return };
        let held = self.store.get(slot).update.ts;
        if ts == held || self.mutation.is(Mutation::ValidatesAnything) {
            self.become_valid(now, slot, out);
        }
    }
}
