//! What travels together: the INVs, ACKs and VALs of a batch of events, one message of each kind
//! to each peer.
//!
//! A replica numbers the updates that it coordinates, from 0 in each epoch, and sends the INVs of
//! a batch as one message. Followers remember which key each number is about. So the ACKs and VALs
//! of many updates are a few runs of numbers, and no key is looked up for them.
//!
//! What is said again, or of an update of another epoch, names its key (`Inv`, `Ack`, `Val`).
//!
//! Invariants:
//! - B1: a number means the same update to its coordinator and to all followers in the epoch. A
//!   start of a replica takes no part in an epoch in which an earlier start of it did.
//! - B2: a number only names a place of a key. What holds for an ACK or a VAL that names its key
//!   holds for it: it counts only for an update with just that place.
//! - B3: who does not know a number (any more) ignores it, and asks again after the timeout.

use crate::message::{Body, Modify, Update};
use crate::mutation::Mutation;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use meridian_core::{NodeId, Outbox, Slot, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A batch of INVs is sent before it has more bytes of values than this: a longer one would keep
/// its followers waiting, and saves nothing.
const BATCH_BYTES: usize = 128 << 10;
/// A batch of ACKs or VALs is sent before it has more runs than this.
const RUNS_MAX: usize = 4096;
/// A follower remembers so many numbers of each coordinator: more than are under way before one of
/// them is said again. What is forgotten is asked for (B3).
const REMEMBERED_MAX: usize = 1 << 16;

/// Numbers of updates, as runs of successive ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numbers(Vec<Run>);

/// Successive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Run {
    first: u64,
    len: u64,
}

impl Numbers {
    /// Its runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|run| run.first..run.first.saturating_add(run.len))
    }

    fn from(first: u64, len: u64) -> Numbers {
        Numbers(vec![Run { first, len }])
    }

    fn push(&mut self, number: u64) {
        match self.0.last_mut() {
            Some(run) if run.first + run.len == number => run.len += 1,
            _ => self.0.push(Run { first: number, len: 1 }),
        }
    }

    fn is_full(&self) -> bool {
        self.0.len() >= RUNS_MAX
    }

    fn take(&mut self) -> Option<Numbers> {
        (!self.0.is_empty()).then(|| std::mem::take(self))
    }
}

/// What successive numbers are about, as far as they still matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Window {
    first: u64,
    places: VecDeque<Option<(Slot, Timestamp)>>,
}

impl Window {
    fn end(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    /// Those of a run that are in the window, whatever a peer says.
    fn within(&self, run: Run) -> Range<u64> {
        run.first.max(self.first)..run.first.saturating_add(run.len).min(self.end())
    }

    fn at(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    fn get(&self, number: u64) -> Option<(Slot, Timestamp)> {
        *self.places.get(self.at(number)?)?
    }

    fn take(&mut self, number: u64) -> Option<(Slot, Timestamp)> {
        let at = self.at(number)?;
        let taken = self.places.get_mut(at)?.take();
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        taken
    }

    /// Takes note of what a coordinator says: what it said before stays, and behind a gap only
    /// what is later is remembered.
    fn note(&mut self, number: u64, slot: Slot, ts: Timestamp) {
        if number > self.end() {
            self.places.clear();
        }
        if self.places.is_empty() {
            self.first = number.max(self.first);
        }
        if number == self.end() {
            self.places.push_back(Some((slot, ts)));
        }
        if self.places.len() > REMEMBERED_MAX {
            self.forget_before(self.first + 1);
        }
    }

    /// Nothing more will be said of those before this one.
    fn forget_before(&mut self, number: u64) {
        while self.first < number && self.places.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// What is known of the numbers of another coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Followed {
    window: Window,
    /// To be acknowledged.
    acks: Numbers,
}

/// Numbers of this epoch, and what is held back until the batch of events ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Batches {
    /// The own updates that have not ended.
    own: Window,
    /// The INVs that were not sent yet, the first of which has this number.
    issued: Vec<Update>,
    issued_first: u64,
    issued_bytes: usize,
    /// What was committed since the last VALs.
    committed: Numbers,
    followed: BTreeMap<NodeId, Followed>,
}

impl Batches {
    /// The own update at this place has ended: it needs no more ACKs.
    pub fn end(&mut self, number: u64) {
        self.own.take(number);
    }

    /// It is committed, too, and the followers are to be told.
    pub fn commit(&mut self, number: u64) {
        self.committed.push(number);
    }
}

impl<M: Modify> Hermes<M> {
    /// Gives the next own update its number, and lets its INV travel with others. With a log that
    /// goes for its own ACK, too (see `own_ack`).
    pub(crate) fn send_inv(&mut self, slot: Slot, update: Update, out: &mut Outbox<Self>) -> u64 {
        let batches = &mut self.batches;
        let number = batches.own.end();
        batches.own.places.push_back(Some((slot, update.ts)));
        if batches.issued.is_empty() {
            batches.issued_first = number;
        }
        batches.issued_bytes += update.bytes();
        batches.issued.push(update);
        if batches.issued_bytes >= BATCH_BYTES {
            self.send_batches(out);
        }
        number
    }

    fn send_invs(&mut self, out: &mut Outbox<Self>) {
        let updates = std::mem::take(&mut self.batches.issued);
        self.batches.issued_bytes = 0;
        if updates.is_empty() {
            return;
        }
        let (first, ended) = (self.batches.issued_first, self.batches.own.first);
        if self.is_on_disk() {
            self.send(self.me, Body::Acks(Numbers::from(first, updates.len() as u64)), out);
        }
        self.broadcast(&Body::Invs { first, ended, updates: Arc::new(updates) }, out);
    }

    /// Says what was held back. VALs go before INVs, so that who waits to read a key is answered
    /// before it is written again.
    pub(crate) fn send_batches(&mut self, out: &mut Outbox<Self>) {
        let mut followed = std::mem::take(&mut self.batches.followed);
        for (node, followed) in &mut followed {
            if let Some(acks) = followed.acks.take() {
                self.send(*node, Body::Acks(acks), out);
            }
        }
        self.batches.followed = followed;
        if let Some(committed) = self.batches.committed.take() {
            self.broadcast(&Body::Vals(committed), out);
        }
        self.send_invs(out);
    }

    /// INVs of a batch of another coordinator.
    pub(crate) fn on_invs(
        &mut self,
        now: Time,
        from: NodeId,
        (first, ended): (u64, u64),
        updates: Vec<Update>,
        out: &mut Outbox<Self>,
    ) {
        let slots = self.store.slots(&updates, self.me);
        // Nothing that is done meanwhile looks at it.
        let mut followed = self.batches.followed.remove(&from).unwrap_or_default();
        followed.window.forget_before(ended);
        for ((number, slot), update) in (first..).zip(slots).zip(updates) {
            let (ts, kind) = (update.ts, update.kind);
            followed.window.note(number, slot, ts);
            let holds = self.take_inv(now, from, slot, update, out);
            if !holds && !self.mutation.is(Mutation::AcksWholeBatches) {
                continue;
            }
            if self.goes_to_all(kind) {
                let key = self.store.get(slot).key.clone();
                self.acknowledge(from, key, ts, kind, out);
                continue;
            }
            followed.acks.push(number);
            if followed.acks.is_full() {
                followed.acks.take().into_iter().for_each(|acks| {
                    self.send(from, Body::Acks(acks), out);
                });
            }
        }
        self.batches.followed.insert(from, followed);
    }

    /// ACKs of own updates.
    pub(crate) fn on_acks(
        &mut self,
        now: Time,
        from: NodeId,
        numbers: &Numbers,
        out: &mut Outbox<Self>,
    ) {
        let from = self.members.of(&[from]);
        for run in &numbers.0 {
            for number in self.batches.own.within(*run) {
                if let Some((slot, ts)) = self.batches.own.get(number) {
                    self.count_ack(now, from, slot, ts, out);
                }
            }
            if self.batches.committed.is_full() {
                self.send_batches(out);
            }
        }
    }

    /// VALs of updates of another coordinator.
    pub(crate) fn on_vals(
        &mut self,
        now: Time,
        from: NodeId,
        numbers: &Numbers,
        out: &mut Outbox<Self>,
    ) {
        for run in &numbers.0 {
            let Some(followed) = self.batches.followed.get_mut(&from) else { return };
            for number in followed.window.within(*run) {
                let followed = self.batches.followed.get_mut(&from);
                match followed.and_then(|known| known.window.take(number)) {
                    Some((slot, _)) if self.mutation.is(Mutation::ValidatesNumbers) => {
                        self.become_valid(now, slot, out);
                    }
                    Some((slot, ts)) => self.validated(now, slot, ts, out),
                    None => {}
                }
            }
        }
    }
}
