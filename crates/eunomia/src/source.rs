//! A source of updates: what gives them their timestamps and tells the service, without asking
//! anyone (Eunomia, Algorithm 2).
//!
//! In the thesis one server takes the updates of a partition one after the other. Here they may be
//! in flight at the same time and finish in any order, or not at all, as those of a replica of
//! Hermes do: so any replica of a group is a source of its own. An update has its timestamp when it
//! begins, and its label is sent when it is committed. What a source will not send any more is
//! said apart, by a promise: that of the thesis is implied by the last label.
//!
//! Invariants:
//! - Property 1: an update's timestamp is above what its session had seen.
//! - Property 2: a source that has promised `p` commits nothing at or below `p` after that.
//! - A label stays in the outbox until all other regions have applied it.

use crate::message::{Batch, Label};
use crate::mutation::Mutation;
use crate::timestamp::{Timestamp, Vector};
use meridian_core::{RegionId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is missing before a source may say what it wants to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation(pub Timestamp);

/// A source of updates. It is no process, but a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    region: RegionId,
    number: u16,
    /// The greatest timestamp used or promised (Eunomia, `MaxTs`).
    max_ts: Timestamp,
    /// No promise is above this before it is durable that more may be promised.
    reserved: Timestamp,
    /// The greatest promise of any source, as the service has told.
    ahead: Timestamp,
    in_flight: BTreeSet<Timestamp>,
    /// Labels that some other region may lack, as they were committed.
    outbox: VecDeque<Label>,
    /// The number of the first one in the outbox.
    base: u64,
    /// Up to which number each replica was sent them.
    sent: BTreeMap<u16, u64>,
    /// Which numbers it uses; see [`Batch::incarnation`].
    incarnation: Timestamp,
    /// See [`Batch::roster`].
    roster: u64,
    mutation: Mutation,
}

impl Source {
    /// The source with this number in a region; it has never run.
    pub fn new(region: RegionId, number: u16) -> Source {
        Source {
            region,
            number,
            max_ts: Timestamp::ZERO,
            reserved: Timestamp::ZERO,
            ahead: Timestamp::ZERO,
            in_flight: BTreeSet::new(),
            outbox: VecDeque::new(),
            base: 0,
            sent: BTreeMap::new(),
            incarnation: Timestamp::ZERO,
            roster: 0,
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Source {
        Source { mutation, ..self }
    }

    /// Begins an update of a session that has seen `seen`: its label, which is to be given to
    /// [`Source::commit`], or its timestamp to [`Source::abort`].
    pub fn begin(&mut self, now: Time, seen: &Vector, place: u32) -> Label {
        let dep = seen[self.region];
        let ts = Timestamp::following(now, self.max_ts.max(dep), self.number);
        self.max_ts = ts;
        self.in_flight.insert(ts);
        let mut vector = *seen;
        vector[self.region] = ts;
        Label { ts, dep, place, vector }
    }

    /// The update has happened; its label must be durable before anything else is sent.
    ///
    /// # Panics
    /// It was not begun.
    pub fn commit(&mut self, label: Label) {
        assert!(self.in_flight.remove(&label.ts), "{label:?} is not in flight");
        self.outbox.push_back(label);
    }

    /// The update has not happened, nor will it.
    pub fn abort(&mut self, ts: Timestamp) {
        self.in_flight.remove(&ts);
    }

    /// A source that starts again has committed this before, and not heard that all have it.
    pub fn recall(&mut self, number: u64, label: Label) {
        if self.outbox.is_empty() {
            self.base = number;
        }
        assert_eq!(number, self.end(), "labels have consecutive numbers");
        self.max_ts = self.max_ts.max(label.ts);
        self.outbox.push_back(label);
    }

    /// A source that starts again may have promised up to here, and its next label has at least
    /// this number.
    pub fn recall_promises(&mut self, reserved: Timestamp, base: u64) {
        if !self.mutation.is(Mutation::ForgetsPromises) {
            self.max_ts = self.max_ts.max(reserved);
        }
        self.reserved = self.reserved.max(reserved);
        if self.outbox.is_empty() {
            self.base = self.base.max(base);
        }
    }

    /// A source that starts again numbers its labels from 0. It recalls them with other numbers
    /// than before; what it may have promised before tells these numbers apart.
    pub fn begin_anew(&mut self, reserved: Timestamp) {
        self.recall_promises(reserved, 0);
        self.incarnation = reserved;
    }

    /// No update begins at or below `ts` from now on.
    pub fn pass(&mut self, ts: Timestamp) {
        self.max_ts = self.max_ts.max(ts);
    }

    /// There are these sources now, each with a replica of the service; see [`Batch::roster`].
    pub fn follow(&mut self, roster: u64, sources: &BTreeSet<u16>) {
        self.roster = roster;
        self.sent.retain(|replica, _| sources.contains(replica));
    }

    /// It is no source any more: others know what has become of all that it has begun.
    pub fn end_life(&mut self) {
        self.base = self.end();
        self.in_flight.clear();
        self.outbox.clear();
        self.sent.clear();
    }

    /// It is a source, perhaps again: no update begins at or below `above`, which another one has
    /// promised when there was this one already; so no service is further that did not wait for it.
    /// What is reserved must be durable before anything else is done.
    pub fn begin_life(&mut self, above: Timestamp) -> Reservation {
        if !self.mutation.is(Mutation::BeginsAnywhere) {
            self.pass(above);
        }
        let reserved = Timestamp(self.recalled().0.0.saturating_add(1));
        self.begin_anew(reserved);
        Reservation(reserved)
    }

    /// What must be durable before anyone hears of what was begun, if anything: an update that
    /// begins after a crash has a greater timestamp.
    pub fn reserve(&mut self, reserve_ns: u64) -> Option<Reservation> {
        if self.max_ts <= self.reserved {
            return None;
        }
        self.reserved = Timestamp(self.max_ts.0.saturating_add(reserve_ns));
        Some(Reservation(self.reserved))
    }

    /// The number of the next label.
    pub fn end(&self) -> u64 {
        self.base + self.outbox.len() as u64
    }

    /// What must be recalled if it starts again.
    pub fn recalled(&self) -> (Timestamp, u64) {
        (self.reserved.max(self.max_ts), self.base)
    }

    /// How many updates are in flight, or some other region may lack.
    pub fn outstanding(&self) -> usize {
        self.in_flight.len() + self.outbox.len()
    }

    /// The updates in flight, in the order in which they began.
    pub fn in_flight(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.in_flight.iter().copied()
    }

    /// Whether something is in flight.
    pub fn is_open(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether something is in flight, or a replica was not sent all labels.
    pub fn has_news(&self) -> bool {
        let behind = self.sent.values().any(|sent| *sent < self.end());
        self.is_open() || behind || (self.sent.is_empty() && !self.outbox.is_empty())
    }

    /// Labels that some other region may lack, as they were committed, with their numbers.
    pub fn outbox(&self) -> impl Iterator<Item = (u64, &Label)> {
        (self.base..).zip(&self.outbox)
    }

    /// What it promises now. More may have to be reserved first, by so much time: that must be
    /// durable before the next batch is sent.
    pub fn promise(&mut self, now: Time, reserve_ns: u64) -> (Timestamp, Option<Reservation>) {
        let idle = self.max_ts.max(self.ahead).max(Timestamp(now.0));
        let open = self.in_flight.first().filter(|_| !self.mutation.is(Mutation::PromisesTooMuch));
        let promise = open.map_or(idle, |first| first.before());
        self.max_ts = self.max_ts.max(promise);
        let more = promise > self.reserved;
        if more {
            self.reserved = Timestamp(promise.0.saturating_add(reserve_ns));
        }
        (promise, more.then_some(Reservation(self.reserved)))
    }

    /// What a replica of the service is sent next: the labels that it was not sent yet, and what
    /// [`Source::promise`] gave, if these are all. Whether it goes on its owner says.
    pub fn batch(&mut self, to: u16, labels_max: usize, promise: Timestamp) -> Batch {
        let sent = self.sent.entry(to).or_default();
        let first = (*sent).clamp(self.base, self.base + self.outbox.len() as u64);
        let skipped = (first - self.base) as usize;
        let labels: Vec<_> = self.outbox.range(skipped..).take(labels_max).copied().collect();
        *sent = first + labels.len() as u64;
        let all = *sent == self.base + self.outbox.len() as u64;
        let (roster, incarnation, base) = (self.roster, self.incarnation, self.base);
        let promise = all.then_some(promise);
        Batch { roster, incarnation, base, first, labels, promise, goes_on: false }
    }

    /// What a replica says of what it has: it may lack something.
    pub fn on_ack(&mut self, from: u16, next: u64, lacks: bool, ahead: Timestamp) {
        if !self.mutation.is(Mutation::BeginsAnywhere) {
            self.ahead = self.ahead.max(ahead);
        }
        if let Some(sent) = self.sent.get_mut(&from).filter(|_| lacks) {
            *sent = next;
        }
    }

    /// All other regions have applied what was made here up to `applied`: drops those labels.
    pub fn trim(&mut self, applied: Timestamp) -> Vec<Label> {
        let mut dropped = Vec::new();
        while self.outbox.front().is_some_and(|label| label.ts <= applied) {
            dropped.extend(self.outbox.pop_front());
            self.base += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: RegionId = RegionId(1);

    fn source() -> Source {
        Source::new(HERE, 3)
    }

    fn promise(source: &mut Source, now: u64) -> u64 {
        source.promise(Time(now), 1000).0.0
    }

    /// Property 1: the clock of the source is behind what the session saw elsewhere.
    #[test]
    fn an_update_is_after_all_that_its_session_saw() {
        let mut seen = Vector::default();
        (seen[HERE], seen[RegionId(0)]) = (Timestamp(1 << 40), Timestamp(9));
        let label = source().begin(Time(5), &seen, 0);
        assert!(label.ts > seen[HERE] && label.dep == seen[HERE]);
        assert!(label.vector.covers(&seen) && label.vector[HERE] == label.ts);
    }

    /// Property 2, with updates that finish in another order than they began.
    #[test]
    fn a_promise_stays_below_what_is_in_flight() {
        let mut source = source();
        let seen = Vector::default();
        let (a, b) = (source.begin(Time(10_000), &seen, 0), source.begin(Time(20_000), &seen, 0));
        source.commit(b);
        assert_eq!(promise(&mut source, 90_000), a.ts.0 - 1);
        source.abort(a.ts);
        assert_eq!(promise(&mut source, 90_000), 90_000);
        assert!(source.begin(Time(0), &seen, 0).ts.0 > 90_000, "the clock went back");
    }

    #[test]
    fn who_starts_again_is_above_all_that_it_promised() {
        let mut source = source();
        let (_, reserved) = source.promise(Time(5_000), 1000);
        assert_eq!(reserved, Some(Reservation(Timestamp(6_000))));
        assert_eq!(source.promise(Time(6_000), 1000), (Timestamp(6_000), None));
        let mut again = self::source();
        again.recall_promises(Timestamp(6_000), 0);
        assert!(again.begin(Time(0), &Vector::default(), 0).ts.0 > 6_000);
    }

    #[test]
    fn a_source_with_nothing_to_do_promises_what_the_fastest_clock_does() {
        let mut source = source();
        source.on_ack(0, 0, false, Timestamp(70_000));
        assert_eq!(promise(&mut source, 5), 70_000);
    }

    #[test]
    fn a_batch_goes_on_where_the_last_one_ended_and_promises_only_with_the_last_label() {
        let mut source = source();
        for _ in 0..3 {
            let label = source.begin(Time(0), &Vector::default(), 0);
            source.commit(label);
        }
        let sent = |batch: &Batch| (batch.first, batch.labels.len(), batch.promise.is_some());
        let next = |source: &mut Source| sent(&source.batch(0, 2, Timestamp(1 << 30)));
        assert_eq!(next(&mut source), (0, 2, false));
        assert_eq!(next(&mut source), (2, 1, true));
        assert_eq!(next(&mut source), (3, 0, true));
        source.on_ack(0, 1, true, Timestamp::ZERO);
        assert_eq!(next(&mut source), (1, 2, true));
        let second = source.outbox().nth(1).expect("three").1.ts;
        assert_eq!(source.trim(second).len(), 2);
        source.on_ack(0, 0, true, Timestamp::ZERO);
        assert_eq!(next(&mut source), (2, 1, true), "what all have is not sent");
    }

    #[test]
    fn a_source_that_comes_begins_above_what_another_has_promised() {
        let mut source = source();
        let seen = Vector::default();
        let label = source.begin(Time(500_000), &seen, 0);
        source.commit(label);
        source.begin(Time(0), &seen, 0);
        source.end_life();
        assert!(!source.has_news(), "others know what has become of it");
        let Reservation(reserved) = source.begin_life(Timestamp(70_000));
        assert!(reserved > label.ts, "its own promises hold, too");
        source.begin_life(Timestamp(9_000_000));
        assert!(source.begin(Time(0), &seen, 0).ts.0 > 9_000_000);
        assert!(source.batch(0, 9, Timestamp::ZERO).labels.is_empty());
        let mut planted = self::source().with_mutation(Mutation::BeginsAnywhere);
        planted.begin_life(Timestamp(9_000_000));
        assert!(planted.begin(Time(0), &seen, 0).ts.0 < 9_000_000);
    }
}
