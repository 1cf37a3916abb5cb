//! `T`: the sequence of proposals of a group (Algorithm 1, line 4), and the queue of those not yet
//! delivered.
//!
//! From `base` on all entries are held. Of those before it a few may be: *stragglers*, which wait for a group
//! that cannot be reached, or are kept for one, while what came after them has long been delivered everywhere.
//! They were set aside so that `T` can be truncated past them. So `base` means what it always does: who lacks
//! anything before it gets a snapshot, which carries the stragglers. Nobody is sent one as a part of `T`, since
//! whoever follows from `base` on has, or had, all before it.
//!
//! Invariants:
//! - L1: two `T`s of the same current epoch are prefixes of each other (Lemma 2).
//! - L2: what is delivered or decided is never cut off. Only such entries are before `base`, so NEW-STATE cuts
//!   none of those.
//! - L3: `queue` holds exactly the entries not delivered, stragglers among them, each under the greatest lower
//!   bound of its final timestamp that is known here.
//! - L4: `index` names exactly the entries that are held; the index of a straggler is less than `base`.

use crate::message::{Entry, Part, Rank, Runs, Start, Timestamp};
use crate::queue::Queue;
use meridian_core::room::Room;
use meridian_core::{GroupId, MessageId, Table, Time};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many bytes of entries travel in one message: well below a frame.
pub const PART_BYTES: usize = 512 << 10;

/// So many entries are loaded at a time: as many as a core waits for at once, or few more.
const LOADED_AHEAD: u64 = 16;

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
    /// The decided local timestamps that are known here. The last one is not kept: it decides the final one.
    pub locals: Locals,
    /// Whether it was delivered here.
    pub delivered: bool,
    /// In the linearizable order, whether somebody has delivered it: then all that precedes it is settled.
    pub settled: bool,
    /// When it came here.
    pub since: Time,
}

impl Slot {
    /// Something of each cache line that handling it touches.
    fn load(&self) -> u64 {
        let Start { id, dest, .. } = &*self.entry.start;
        id.sequence ^ (dest.len() ^ self.locals.len()) as u64 ^ self.since.0
    }
}

/// `T`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Log {
    /// The index of the first of `slots`; those before were truncated, or set aside.
    base: u64,
    slots: VecDeque<Slot>,
    /// Those set aside, by their indexes.
    stragglers: BTreeMap<u64, Slot>,
    runs: Runs,
    index: Table<MessageId, u64>,
    queue: Queue,
    /// About how much memory `slots` take, and how much the stragglers.
    bytes: usize,
    aside: usize,
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
        self.slots.is_empty() && self.stragglers.is_empty()
    }

    /// From this index on all are held.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The first index held: of a straggler, if there is one.
    pub fn first(&self) -> u64 {
        self.stragglers.first_key_value().map_or(self.base, |(index, _)| *index)
    }

    /// About how much memory the entries take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.aside
    }

    /// How many are held from `base` on, and about how many bytes they take.
    pub fn in_line(&self) -> (usize, usize) {
        (self.slots.len(), self.bytes)
    }

    /// How many are set aside, and about how many bytes they take.
    pub fn aside(&self) -> (usize, usize) {
        (self.stragglers.len(), self.aside)
    }

    /// Those set aside, with their indexes.
    pub fn stragglers(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.stragglers.iter().map(|(index, slot)| (*index, slot))
    }

    /// See [`Runs`].
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The slot at `index`, if held.
    pub fn get(&self, index: u64) -> Option<&Slot> {
        match index.checked_sub(self.base) {
            Some(at) => self.slots.get(usize::try_from(at).ok()?),
            None => self.stragglers.get(&index),
        }
    }

    /// Loads what is about to be looked at of these entries, in a way that no load waits for another: entries are
    /// many, and out of the cache when something is heard of them. One by one each would wait for memory.
    pub fn load(&self, indexes: impl Iterator<Item = u64>) {
        let slots = indexes.filter_map(|index| self.get(index));
        std::hint::black_box(slots.fold(0, |seen, slot| seen ^ slot.load()));
    }

    /// The same of some entries from `index` on, if those before `loaded` are; returns before which they are then.
    pub fn load_ahead(&self, index: u64, loaded: u64) -> u64 {
        if index < loaded {
            return loaded;
        }
        let end = index + LOADED_AHEAD;
        self.load(index..end);
        end
    }

    /// The same from `base` on, with all that is touched when they are dropped.
    pub fn load_to_drop(&self, loaded: u64) -> u64 {
        if self.base < loaded {
            return loaded;
        }
        let slots = self.slots.iter().take(LOADED_AHEAD as usize);
        std::hint::black_box(slots.fold(0, |seen, slot| {
            let Start { id, payload, .. } = &*slot.entry.start;
            let first = payload.first().copied().unwrap_or_default();
            let index = self.index.get(id).copied().unwrap_or_default();
            seen ^ slot.load() ^ u64::from(first) ^ index
        }));
        self.base + LOADED_AHEAD
    }

    /// The slot at `index`, to be changed, and the queue.
    fn parts_mut(&mut self, index: u64) -> (&mut Slot, &mut Queue) {
        let slot = match index.checked_sub(self.base) {
            Some(at) => usize::try_from(at).ok().and_then(|at| self.slots.get_mut(at)),
            None => self.stragglers.get_mut(&index),
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

    /// The slots from `from` on, with their indexes, ascending; stragglers among them if it is before `base`.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let skip = usize::try_from(from.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let first = self.base + skip.min(self.slots.len()) as u64;
        let stragglers = self.stragglers.range(from..).map(|(index, slot)| (*index, slot));
        stragglers.chain((first..).zip(self.slots.iter().skip(skip)))
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

    /// Takes from the queue the next that was final or freed since it was looked at, with a timestamp up to `clock`.
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
        match self.runs.last_mut() {
            Some((epoch, end)) if *epoch == entry.epoch => *end = index + 1,
            _ => self.runs.push((entry.epoch, index + 1)),
        }
        self.bytes += cost(&entry);
        let bound = entry.final_ts.unwrap_or(entry.ts).max(entry.ts);
        self.queue.insert((bound, id), index, &entry.start.touches);
        if entry.final_ts.is_some() {
            self.queue.look_at((bound, id), &entry.start.touches);
        }
        let locals = Locals::new();
        let (delivered, settled, since) = (false, false, now);
        self.slots.push_back(Slot { entry, bound, locals, delivered, settled, since });
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
        while self.runs.last().is_some_and(|(_, end)| *end > len) {
            let (epoch, _) = self.runs.pop().expect("looked at");
            if self.runs.last().map_or(0, |(_, end)| *end) < len {
                self.runs.push((epoch, len));
            }
        }
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

    /// The local timestamp of the entry at `index` in `group` is decided. Decides its final timestamp if it
    /// was the last one missing.
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
        let entry = &mut self.parts_mut(index).0.entry;
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
        self.bytes -= cost(&slot.entry);
        let entry = self.forget(slot);
        // It was long while somebody was away.
        if let Some(room) = self.slots.give_back() {
            self.index.shrink_to(room);
        }
        Some(entry)
    }

    /// Drops the straggler at `index`.
    ///
    /// # Panics
    /// If it was not delivered.
    pub fn drop_straggler(&mut self, index: u64) -> Option<Entry> {
        let slot = self.stragglers.remove(&index)?;
        self.aside -= cost(&slot.entry);
        Some(self.forget(slot))
    }

    fn forget(&mut self, slot: Slot) -> Entry {
        assert!(slot.delivered, "{} truncated before its delivery", slot.entry.start.id);
        self.index.remove(&slot.entry.start.id);
        slot.entry
    }

    /// Sets the slot at `base` aside; it must be delivered or decided (L2).
    pub fn set_aside(&mut self) {
        if let Some(slot) = self.slots.pop_front() {
            let bytes = cost(&slot.entry);
            self.bytes -= bytes;
            self.aside += bytes;
            self.stragglers.insert(self.base, slot);
            self.base += 1;
        }
    }

    /// All came here at `now`: times of another process mean nothing here.
    pub fn restamp(&mut self, now: Time) {
        let slots = self.slots.iter_mut().chain(self.stragglers.values_mut());
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

/// How many entries two `T`s have in common: up to where the same index has the same epoch.
pub fn common_prefix(a: &Runs, b: &Runs) -> u64 {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut common = 0;
    while let (Some((epoch_a, end_a)), Some((epoch_b, end_b))) = (a.peek(), b.peek()) {
        if epoch_a != epoch_b {
            break;
        }
        common = *end_a.min(end_b);
        if end_a != end_b {
            break;
        }
        a.next();
        b.next();
    }
    common
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
    fn equal_epochs_at_an_index_mean_equal_prefixes() {
        let (a, b) = (log(&[E1, E1, E2]), log(&[E1, E1, E1, E1]));
        assert_eq!(common_prefix(a.runs(), b.runs()), 2);
        assert_eq!(common_prefix(a.runs(), a.runs()), 3);
        assert_eq!(common_prefix(a.runs(), &vec![]), 0);
    }

    #[test]
    fn a_cut_forgets_what_was_proposed_and_keeps_the_runs_true() {
        let mut log = log(&[E1, E1, E2, E2]);
        assert_eq!(log.cut(1).len(), 3);
        assert_eq!(log.runs(), &vec![(E1, 1)]);
        assert_eq!((log.len(), log.pending()), (1, 1));
        log.append(entry(3, E2, 9), Time(0));
        assert_eq!(log.runs(), &vec![(E1, 1), (E2, 2)]);
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

    /// Index 0 waits; all after it may go all the same.
    #[test]
    fn what_was_set_aside_is_found_and_nothing_else_waits_for_it() {
        let mut log = log(&[E1; 4]);
        let bytes = log.bytes();
        log.set_aside();
        assert_eq!((log.base(), log.first(), log.len(), log.aside().0), (1, 0, 4, 1));
        assert_eq!(log.bytes(), bytes);
        let indexes = |log: &Log| log.iter_from(0).map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!((indexes(&log), log.iter_from(2).count()), (vec![0, 1, 2, 3], 2));
        let straggler = log.get(0).map(|slot| slot.entry.start.id);
        assert_eq!(straggler.and_then(|id| log.find(id)), Some(0));
        (1..4).for_each(|index| log.deliver(index));
        (1..4).for_each(|_| drop(log.truncate_first()));
        assert_eq!((log.base(), indexes(&log)), (4, vec![0]));
        log.append(entry(9, E1, 9), Time(0));
        assert_eq!(log.cut(4).len(), 1, "it is not cut off");
        log.local_ts(0, GroupId(0), Timestamp(1));
        assert_eq!(log.waiting().map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        log.deliver(0);
        assert!(log.drop_straggler(0).is_some() && log.drop_straggler(0).is_none());
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
