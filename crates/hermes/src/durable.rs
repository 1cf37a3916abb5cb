//! What a replica keeps in its log, and what a start makes of it (decision 33).
//!
//! Each update that a replica takes is recorded before its ACK, or its own INV, leaves. So a live
//! replica that starts again holds all that was committed, because nothing is without its ACK. What
//! it does not know to be committed is Invalid, until it or the coordinator has replayed it.

use crate::members::{Epoch, NodeSet};
use crate::message::{Body, Modify, Record, Update};
use crate::mutation::Mutation;
use crate::options::Durability;
use crate::process::Hermes;
use crate::store::Entry;
use crate::timestamp::Timestamp;
use meridian_core::{Key, NodeId, Outbox, Slot, Time};

impl<M: Modify> Hermes<M> {
    /// Whether all that this replica has acknowledged as a live one is here after a start.
    /// Meaningful before the first event: the membership must be told
    /// ([`crate::reliable::ReliableMembership::set_holds`]).
    pub fn holds(&self) -> bool {
        self.begun && self.is_on_disk()
    }

    /// Whether it keeps a log of all that it acknowledges.
    pub fn is_on_disk(&self) -> bool {
        self.options.durability == Durability::Disk
    }

    /// Whether it has what its disk had, and was not told yet whether that counts.
    pub(crate) fn is_recovered(&self) -> bool {
        self.holds() && self.members.epoch() == Epoch(0)
    }

    /// Makes a record, on which what is said from now on relies.
    pub(crate) fn record(&self, record: impl FnOnce() -> Record, out: &mut Outbox<Self>) {
        if self.is_on_disk() {
            out.persist(record());
        }
    }

    /// Makes a record that may be lost.
    pub(crate) fn note(&self, record: impl FnOnce() -> Record, out: &mut Outbox<Self>) {
        if self.is_on_disk() {
            out.note(record());
        }
    }

    /// Records an update that it takes from another.
    pub(crate) fn record_taken(&self, update: &Update, from: NodeId, out: &mut Outbox<Self>) {
        let held = || Record::Held { update: update.clone(), from };
        if self.mutation.is(Mutation::AcksBeforeDurable) {
            self.note(held, out);
        } else {
            self.record(held, out);
        }
    }

    /// Its own ACK. With a log it is a message to itself, which comes when the record is durable:
    /// else a key could be Valid, and read, that a crash takes back.
    pub(crate) fn own_ack(&self, key: &Key, ts: Timestamp, out: &mut Outbox<Self>) -> NodeSet {
        if !self.is_on_disk() {
            return self.members.me;
        }
        self.send(self.me, Body::Ack { key: key.clone(), ts }, out);
        NodeSet::default()
    }

    /// All that was recorded before is void.
    pub(crate) fn begin_log(&mut self, out: &mut Outbox<Self>) {
        self.begun = self.is_on_disk();
        self.record(|| Record::Begun, out);
    }

    /// A log of a start that kept one does not go on in memory: who has gaps has nothing.
    pub(crate) fn end_log(&mut self, out: &mut Outbox<Self>) {
        if self.begun && !self.is_on_disk() {
            self.begun = false;
            out.persist(Record::Ended);
        }
    }

    pub(crate) fn read_record(&mut self, record: Record) {
        match record {
            Record::Begun | Record::Ended => {
                self.begun = record == Record::Begun;
                self.forget_all();
            }
            // Of a start that kept a log; this one does not.
            _ if !self.is_on_disk() => {}
            Record::Held { update, from } => {
                let slot = self.store.slot(&update.key, self.me);
                self.completions.followed(self.store.get(slot), update.base);
                self.completions.record(&update);
                self.restore(slot, update, from);
            }
            Record::Entry { update, from, valid } => {
                let slot = self.store.slot(&update.key, self.me);
                self.restore(slot, update, from);
                if valid {
                    self.restore_valid(slot);
                }
            }
            Record::Valid { key, ts } => {
                if let Some(slot) = self.held_at(&key, ts) {
                    self.restore_valid(slot);
                    self.completions.committed(self.store.get(slot));
                }
            }
            Record::Replayed { key, ts } => {
                let held = self.held_at(&key, ts).map(|slot| self.store.get(slot));
                let busy = held.and_then(|entry| self.unsettled.get_mut(entry));
                busy.into_iter().for_each(|busy| busy.replay = Some(NodeSet::default()));
            }
            Record::Completed(client, completion) => self.completions.put(client, completion),
            Record::Forgotten(client) => self.completions.forget(client),
            Record::ForgottenBefore(client) => self.completions.forget_before(client),
        }
    }

    fn held_at(&self, key: &Key, ts: Timestamp) -> Option<Slot> {
        self.store.find(key).filter(|slot| self.store.get(*slot).ts == ts)
    }

    /// Holds what a record says; it is not known to be committed. What it coordinated itself it
    /// will replay.
    fn restore(&mut self, slot: Slot, update: Update, from: NodeId) {
        let entry = self.store.hold(slot, update, from);
        let busy = self.unsettled.at(slot, entry, Time(0));
        busy.replay = (from == self.me).then(NodeSet::default);
        if self.mutation.is(Mutation::TrustsItsDisk) {
            self.restore_valid(slot);
        }
    }

    fn restore_valid(&mut self, slot: Slot) {
        self.unsettled.remove(self.store.get_mut(slot));
    }

    pub(crate) fn forget_all(&mut self) {
        self.store.clear();
        self.unsettled = Default::default();
        self.batches = Default::default();
        self.completions = Default::default();
    }

    pub(crate) fn all_records(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        if !self.holds() {
            return Box::new(std::iter::empty());
        }
        let entries = self.store.freeze().map(|entry| {
            let (from, valid) = (entry.last_writer, entry.is_valid());
            Record::Entry { update: entry.into_update(), from, valid }
        });
        let replayed = |slot: Slot| {
            let Entry { key, ts, .. } = self.store.get(slot);
            Record::Replayed { key: key.clone(), ts: *ts }
        };
        let replays = self.unsettled.slots(|busy| busy.replay.is_some());
        let replays: Vec<_> = replays.into_iter().map(replayed).collect();
        let clients = self.completions.clone().into_all();
        let clients = clients.map(|(client, known)| Record::Completed(client, known));
        Box::new(std::iter::once(Record::Begun).chain(entries).chain(replays).chain(clients))
    }
}
