//! `T`: the sequence of proposals of a group (Algorithm 1, line 4), and the queue of those not yet
//! delivered.
//!
//! From `base` on all entries are held. Of those before it a few may be: *retained gaps*, which
//! wait for a group that cannot be reached, or are kept for one, while the entries around them have
//! long been delivered everywhere. They are held apart, so that `T` can be truncated past them. So
//! `base` means what it always does: a process that lacks anything before it gets a snapshot, which
//! carries the retained gaps. Nobody is sent a gap as a part of `T`, since each process that
//! follows from `base` on has, or had, all before it.
//!
//! Invariants:
//! - L1: two `T`s of the same current epoch are prefixes of each other (Lemma 2).
//! - L2: what is delivered or decided is never cut off. Only such entries are before `base`, so
//!   NEW-STATE cuts none of those.
//! - L3: `queue` holds exactly the entries not delivered, retained gaps among them, each under the
//!   greatest lower bound of its final timestamp that is known here.
//! - L4: `index` names exactly the entries that are held; that of a retained gap is less than
//!   `base`.

use crate::message::{Entry, Part, Rank, Timestamp};
use crate::state::queue::Queue;
use crate::state::runs::Runs;
use meridian_core::room::Room;
use meridian_core::{Aside, GroupId, MessageId, Table, Time};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How many bytes of entries travel in one message: well below a frame.
pub const PART_BYTES: usize = 512 << 10;

/// Decided local timestamps of one message whose final one is not known, by group, ascending.
pub type Locals = SmallVec<[(GroupId, Timestamp); 2]>;

/// Adds that of a group of which none is known.
pub(crate) fn add_local(locals: &mut Locals, group: GroupId, ts: Timestamp) {
    let at = locals.partition_point(|(of, _)| *of < group);
    locals.insert(at, (group, ts));
}

/// An entry of `T` as this process holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The entry.
    pub entry: Entry,
    /// The greatest lower bound of its final timestamp: where it stands in the queue.
    pub bound: Timestamp,
    /// The decided local timestamps that are known here. The last one is not kept: it decides the
    /// final one.
    pub locals: Locals,
    /// Whether it was delivered here.
    pub delivered: bool,
    /// In the linearizable order, whether somebody has delivered it: then all that precedes it is
    /// settled.
    pub settled: bool,
    /// When it came here.
    pub since: Time,
    /// After so many microseconds its final timestamp was known here; of more than an hour it is
    /// not known how many.
    #[serde(skip)]
    pub final_after: Aside<u32>,
}

impl Slot {
    /// When its final timestamp was known here, if it is.
    pub fn final_at(&self) -> Option<Time> {
        let after = Duration::from_micros(self.final_after.0.into());
        self.entry.final_ts.map(|_| self.since + after)
    }
}

/// `T`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Log {
    /// The index of the first of `slots`; those before were truncated, or are retained gaps.
    base: u64,
    pub(super) slots: VecDeque<Slot>,
    /// The gaps that are retained, by their indexes.
    gaps: BTreeMap<u64, Slot>,
    runs: Runs,
    pub(super) index: Table<MessageId, u64>,
    queue: Queue,
    /// The length up to which all is decided.
    pub(crate) decided: u64,
    /// About how many bytes of memory `slots` take.
    bytes: usize,
    /// About how many bytes of memory `gaps` take.
    gap_bytes: usize,
    /// The time of the event that is being handled.
    #[serde(skip)]
    pub(crate) now: Aside<Time>,
}

/// How many entries, and about how many bytes of memory they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Entries.
    pub entries: usize,
    /// Bytes.
    pub bytes: usize,
}

/// About how much memory an entry takes, in bytes.
pub(crate) fn cost(entry: &Entry) -> usize {
    entry.start.payload.len() + 128
}

impl Log {
    /// The length, counted from the group's beginning.
    pub fn len(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.gaps.is_empty()
    }

    /// From this index on all are held.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The first index held: of a retained gap, if there is one.
    pub fn first(&self) -> u64 {
        self.gaps.first_key_value().map_or(self.base, |(index, _)| *index)
    }

    /// About how much memory the entries take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.gap_bytes
    }

    /// How much is held from `base` on.
    pub fn in_line(&self) -> Amount {
        Amount { entries: self.slots.len(), bytes: self.bytes }
    }

    /// How much is held as gaps.
    pub fn retained(&self) -> Amount {
        Amount { entries: self.gaps.len(), bytes: self.gap_bytes }
    }

    /// The retained gaps, with their indexes.
    pub fn gaps(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.gaps.iter().map(|(index, slot)| (*index, slot))
    }

    /// See [`Runs`].
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The slot at `index`, if held.
    pub fn get(&self, index: u64) -> Option<&Slot> {
        match index.checked_sub(self.base) {
            Some(at) => self.slots.get(usize::try_from(at).ok()?),
            None => self.gaps.get(&index),
        }
    }

    /// The slot at `index`, to be changed, and the queue.
    fn parts_mut(&mut self, index: u64) -> (&mut Slot, &mut Queue) {
        let slot = match index.checked_sub(self.base) {
            Some(at) => usize::try_from(at).ok().and_then(|at| self.slots.get_mut(at)),
            None => self.gaps.get_mut(&index),
        };
        (slot.expect("the caller found this index"), &mut self.queue)
    }

    /// Where `id` stands.
    pub fn find(&self, id: MessageId) -> Option<u64> {
        self.index.get(&id).copied()
    }

    /// The same, when it stood at `place` at some time; `None` if it stood nowhere then.
    pub fn find_near(&self, id: MessageId, place: Option<u64>) -> Option<u64> {
        let stands = |index: &u64| self.get(*index).is_some_and(|slot| slot.entry.start.id == id);
        place.filter(stands).or_else(|| self.find(id))
    }

    /// The slot of `id`.
    pub fn slot(&self, id: MessageId) -> Option<&Slot> {
        self.get(self.find(id)?)
    }

    /// The slots from `from` on, with their indexes, ascending; retained gaps among them if it is
    /// before `base`.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let skip = usize::try_from(from.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let first = self.base + skip.min(self.slots.len()) as u64;
        let gaps = self.gaps.range(from..).map(|(index, slot)| (*index, slot));
        gaps.chain((first..).zip(self.slots.iter().skip(skip)))
    }

    /// How many wait for delivery.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Those that wait for delivery, the first one first.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.queue.iter().map(|index| (index, self.get(index).expect("L3: queued is held")))
    }

    /// The queue of those that wait.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Takes from the queue the next that was final or freed since it was looked at, with a
    /// timestamp up to `clock`.
    pub fn next_to_look_at(&mut self, clock: Timestamp) -> Option<(Rank, u64)> {
        self.queue.next_to_look_at(clock)
    }

    /// Looks at the entry with this rank again.
    pub fn look_at_again(&mut self, rank: Rank) {
        if let Some(index) = self.queue.index(rank) {
            let slot = self.get(index).expect("L3: queued is held");
            let touches = slot.entry.start.touches.clone();
            self.queue.look_at(rank, &touches);
        }
    }

    /// Appends an entry.
    ///
    /// # Panics
    /// If its message is already there.
    pub fn append(&mut self, entry: Entry, now: Time) {
        let (id, index) = (entry.start.id, self.len());
        let earlier = self.index.insert(id, index);
        assert!(earlier.is_none(), "{id} proposed twice: at {earlier:?} and {index}");
        self.runs.push(entry.epoch);
        self.bytes += cost(&entry);
        let bound = entry.final_ts.unwrap_or(entry.ts).max(entry.ts);
        self.queue.insert((bound, id), index, &entry.start.touches);
        if entry.final_ts.is_some() {
            self.queue.look_at((bound, id), &entry.start.touches);
        }
        let locals = Locals::new();
        let (delivered, settled, since, final_after) = (false, false, now, Aside(0));
        let slot = Slot { entry, bound, locals, delivered, settled, since, final_after };
        self.slots.push_back(slot);
    }

    /// Cuts `T` to `len` (NEW-STATE drops what no quorum had). Returns what was cut.
    ///
    /// # Panics
    /// L2: if something delivered is cut, or what was truncated is needed.
    pub fn cut(&mut self, len: u64) -> Vec<Slot> {
        assert!(len >= self.base, "L2: cut to {len}, held from {}", self.base);
        let mut dropped = Vec::new();
        while self.len() > len {
            let slot = self.slots.pop_back().expect("longer than len, which is at least base");
            let id = slot.entry.start.id;
            assert!(!slot.delivered, "L2: {id} was delivered and is cut off");
            let index = self.len();
            self.queue.remove((slot.bound, id), index, &slot.entry.start.touches);
            self.index.remove(&id);
            self.bytes -= cost(&slot.entry);
            dropped.push(slot);
        }
        self.runs.cut(len);
        dropped
    }

    /// The final timestamp of the entry at `index` is at least `ts`.
    pub fn raise(&mut self, index: u64, ts: Timestamp) {
        let (slot, queue) = self.parts_mut(index);
        let (old, id) = (slot.bound, slot.entry.start.id);
        if ts > old && !slot.delivered {
            slot.bound = ts;
            queue.raise((old, id), (ts, id), index, &slot.entry.start.touches);
        }
    }

    /// The local timestamp of the entry at `index` in `group` is decided. Decides its final
    /// timestamp if it was the last one missing.
    ///
    /// # Panics
    /// If another was decided before (Lemma 4).
    pub fn local_ts(&mut self, index: u64, group: GroupId, ts: Timestamp) {
        let (slot, _) = self.parts_mut(index);
        if slot.entry.final_ts.is_some() {
            return;
        }
        let id = slot.entry.start.id;
        if let Some((_, known)) = slot.locals.iter().find(|(of, _)| *of == group) {
            assert!(*known == ts, "Lemma 4: {id} has local {known:?} and {ts:?}");
            return;
        }
        if slot.locals.len() + 1 < slot.entry.start.dest.len() {
            add_local(&mut slot.locals, group, ts);
            self.raise(index, ts);
        } else {
            let last = slot.bound.max(ts);
            self.decide(index, last);
        }
    }

    /// The final timestamp of the entry at `index` is `ts`.
    ///
    /// # Panics
    /// If another was decided before (Lemma 5).
    pub fn decide(&mut self, index: u64, ts: Timestamp) {
        let now = self.now;
        let slot = self.parts_mut(index).0;
        if slot.entry.final_ts.is_none() {
            let after = now.since(slot.since).as_micros();
            slot.final_after = Aside(after.try_into().unwrap_or(u32::MAX));
        }
        let entry = &mut slot.entry;
        let known = *entry.final_ts.get_or_insert(ts);
        assert!(known == ts, "Lemma 5: {} has final {known:?} and {ts:?}", entry.start.id);
        assert!(ts >= entry.ts, "{}: final {ts:?} below local {:?}", entry.start.id, entry.ts);
        self.raise(index, ts);
        let (slot, queue) = self.parts_mut(index);
        slot.locals = Locals::new();
        if !slot.delivered {
            queue.look_at((slot.bound, slot.entry.start.id), &slot.entry.start.touches);
        }
    }

    /// Somebody has delivered the entry at `index`.
    pub fn settle(&mut self, index: u64) {
        self.parts_mut(index).0.settled = true;
    }

    /// The entry at `index` is delivered.
    pub fn deliver(&mut self, index: u64) {
        let (slot, queue) = self.parts_mut(index);
        slot.delivered = true;
        queue.remove((slot.bound, slot.entry.start.id), index, &slot.entry.start.touches);
    }

    /// Drops the slot at `base`.
    ///
    /// # Panics
    /// If it was not delivered.
    pub fn truncate_first(&mut self) -> Option<Entry> {
        let slot = self.slots.pop_front()?;
        self.base += 1;
        self.runs.forget_below(self.base);
        self.bytes -= cost(&slot.entry);
        let entry = self.forget(slot);
        // It was long while somebody was away.
        if let Some(room) = self.slots.give_back() {
            self.index.shrink_to(room);
        }
        Some(entry)
    }

    /// Drops the retained gap at `index`.
    ///
    /// # Panics
    /// If it was not delivered.
    pub fn drop_gap(&mut self, index: u64) -> Option<Entry> {
        let slot = self.gaps.remove(&index)?;
        self.gap_bytes -= cost(&slot.entry);
        Some(self.forget(slot))
    }

    fn forget(&mut self, slot: Slot) -> Entry {
        assert!(slot.delivered, "{} truncated before its delivery", slot.entry.start.id);
        self.index.remove(&slot.entry.start.id);
        slot.entry
    }

    /// Retains the slot at `base` as a gap; it must be delivered or decided (L2).
    pub fn retain_first(&mut self) {
        if let Some(slot) = self.slots.pop_front() {
            let bytes = cost(&slot.entry);
            self.bytes -= bytes;
            self.gap_bytes += bytes;
            self.gaps.insert(self.base, slot);
            self.base += 1;
            self.runs.forget_below(self.base);
        }
    }

    /// All came here at `now`: times of another process mean nothing here.
    pub fn restamp(&mut self, now: Time) {
        let slots = self.slots.iter_mut().chain(self.gaps.values_mut());
        slots.for_each(|slot| slot.since = now);
    }

    /// Entries from `from` on, as many as fit into a message; at least one if there is one.
    ///
    /// # Panics
    /// If some of them are not held.
    pub fn batch(&self, from: u64) -> Arc<[Entry]> {
        assert!(from >= self.base, "a batch from {from}, held from {}", self.base);
        let mut bytes = 0;
        let fits = |(_, slot): &(u64, &Slot)| {
            bytes += cost(&slot.entry);
            bytes <= PART_BYTES || bytes == cost(&slot.entry)
        };
        self.iter_from(from).take_while(fits).map(|(_, slot)| slot.entry.clone()).collect()
    }

    /// All entries from `start` on, cut into messages; one empty part if there is none.
    pub fn parts(&self, start: u64) -> Vec<Part> {
        let (mut parts, mut from, end) = (Vec::new(), start, self.len());
        loop {
            let entries = self.batch(from).to_vec();
            let next = from + entries.len() as u64;
            parts.push(Part { start, from, entries, end });
            if next >= end {
                return parts;
            }
            from = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Epoch;
    use meridian_core::{ClientId, GroupId, NodeId};

    const E1: Epoch = Epoch { config: 0, number: 1, leader: NodeId(0) };
    const E2: Epoch = Epoch { config: 0, number: 2, leader: NodeId(1) };

    fn entry(sequence: u64, epoch: Epoch, ts: u64) -> Entry {
        let id = MessageId { client: ClientId(1), sequence };
        let start = crate::Start::new(id, [GroupId(0)], vec![0; 100_000]);
        Entry { epoch, ts: Timestamp(ts), start: start.into(), final_ts: None }
    }

    fn log(epochs: &[Epoch]) -> Log {
        let mut log = Log::default();
        for (n, epoch) in (1..).zip(epochs) {
            log.append(entry(n, *epoch, n), Time(0));
        }
        log
    }

    /// With a third cache line a LAN's throughput was 10 % lower.
    #[test]
    fn a_slot_is_two_cache_lines() {
        assert!(size_of::<Slot>() <= 128, "{} bytes", size_of::<Slot>());
    }

    #[test]
    fn a_cut_forgets_what_was_proposed_and_keeps_the_runs_true() {
        let mut log = log(&[E1, E1, E2, E2]);
        assert_eq!(log.cut(1).len(), 3);
        assert_eq!((log.runs().count(), log.runs().len()), (1, 1));
        assert_eq!((log.len(), log.pending()), (1, 1));
        log.append(entry(3, E2, 9), Time(0));
        assert_eq!((log.runs().count(), log.runs().len()), (2, 2));
    }

    #[test]
    fn the_queue_follows_the_bounds() {
        let mut log = log(&[E1, E1, E1]);
        log.raise(0, Timestamp(10));
        let order = |log: &Log| log.waiting().map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!(order(&log), [1, 2, 0]);
        log.deliver(1);
        assert_eq!(order(&log), [2, 0]);
        assert!(log.get(0).is_some() && log.truncate_first_allowed().is_none());
    }

    /// A replica was away for long, and is back.
    #[test]
    fn what_has_gone_takes_no_room() {
        let mut log = log(&[E1; 100_000]);
        assert!(log.slots.capacity() >= 100_000);
        (0..99_000).for_each(|index| log.deliver(index));
        (0..99_000).for_each(|_| drop(log.truncate_first()));
        assert!(log.slots.capacity() <= meridian_core::room::SPARE, "{}", log.slots.capacity());
        assert_eq!((log.first(), log.len()), (99_000, 100_000));
        assert!(log.iter_from(0).all(|(index, slot)| log.find(slot.entry.start.id) == Some(index)));
    }

    /// A PROMISE tells all epochs that are remembered.
    #[test]
    fn the_epochs_of_what_has_gone_are_forgotten() {
        let epoch = |number| Epoch { number, ..E1 };
        let mut log = log(&(0..100).map(epoch).collect::<Vec<_>>());
        assert_eq!(log.runs().count(), 100);
        (0..99).for_each(|index| log.deliver(index));
        (0..49).for_each(|_| drop(log.truncate_first()));
        assert_eq!(log.runs().count(), 52, "the last that has gone is known");
        (49..98).for_each(|_| log.retain_first());
        assert_eq!((log.runs().count(), log.runs().len()), (3, 100));
    }

    /// Index 0 waits; all after it may go all the same.
    #[test]
    fn what_was_retain_first_is_found_and_nothing_else_waits_for_it() {
        let mut log = log(&[E1; 4]);
        let bytes = log.bytes();
        log.retain_first();
        assert_eq!((log.base(), log.first(), log.len(), log.retained().entries), (1, 0, 4, 1));
        assert_eq!(log.bytes(), bytes);
        let indexes = |log: &Log| log.iter_from(0).map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!((indexes(&log), log.iter_from(2).count()), (vec![0, 1, 2, 3], 2));
        let gap = log.get(0).map(|slot| slot.entry.start.id);
        assert_eq!(gap.and_then(|id| log.find(id)), Some(0));
        (1..4).for_each(|index| log.deliver(index));
        (1..4).for_each(|_| drop(log.truncate_first()));
        assert_eq!((log.base(), indexes(&log)), (4, vec![0]));
        log.append(entry(9, E1, 9), Time(0));
        assert_eq!(log.cut(4).len(), 1, "it is not cut off");
        log.local_ts(0, GroupId(0), Timestamp(1));
        assert_eq!(log.waiting().map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        log.deliver(0);
        assert!(log.drop_gap(0).is_some() && log.drop_gap(0).is_none());
        assert!(log.is_empty() && log.bytes() == 0 && log.pending() == 0);
    }

    #[test]
    fn parts_cover_all_and_none_is_too_long() {
        let log = log(&[E1; 20]);
        let parts = log.parts(3);
        assert!(parts.len() > 2);
        let all: Vec<_> = parts.iter().flat_map(|part| &part.entries).collect();
        assert_eq!(all.len(), 17);
        assert!(parts.iter().all(|part| part.entries.len() * 100_000 <= PART_BYTES));
        assert_eq!(log.parts(20).len(), 1);
    }

    impl Log {
        fn truncate_first_allowed(&self) -> Option<()> {
            self.slots.front().filter(|slot| slot.delivered).map(|_| ())
        }
    }
}
