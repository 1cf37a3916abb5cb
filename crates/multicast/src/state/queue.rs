//! The entries of `T` that are not delivered, in the order in which they will be.
//!
//! Each stands under its rank: the greatest lower bound of its final timestamp that is known here,
//! and its name. All that conflict with each other are delivered in the order of their final ranks,
//! so an entry may be delivered once no other that conflicts with it stands before it (line 30, and
//! section 4.4.3). An entry that touches keys only is looked at again when the one that it may have
//! waited for moves or goes, so a queue held up by one message costs nothing per message behind it.
//!
//! Timestamps ascend in `T`, and bounds by other groups come nearly in order: so most entries stand
//! in one of two sorted runs, and only the rest need a tree.
//!
//! Invariants:
//! - Q1: `proposed`, `raised` and `strays` hold exactly the entries of `T` not delivered; `keys`
//!   those of them that touch keys only, once for each key; `whole` the others, if there was ever
//!   one that touches keys only.
//! - Q2: an entry that touches keys only, is final and the first of all that it conflicts with is
//!   in `work`.

use crate::message::{Rank, Timestamp, Touches};
use meridian_core::room::Room;
use meridian_core::{ClientId, MessageId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// No rank is lower.
const LOWEST: Rank = (Timestamp(0), MessageId { client: ClientId(0), sequence: 0 });

/// So many that were taken out of the midst of a run are left there, or as many as there are
/// others.
const GONE_MAX: usize = 1024;

/// Ranks and indexes, ascending; taken out mostly at the front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Run {
    /// Those taken out have `None`; the first and the last do not.
    ranks: VecDeque<(Rank, Option<u64>)>,
    gone: usize,
}

impl Run {
    fn len(&self) -> usize {
        self.ranks.len() - self.gone
    }

    fn first(&self) -> Option<(Rank, u64)> {
        self.ranks.front().and_then(|(rank, index)| Some((*rank, (*index)?)))
    }

    /// Adds at the end, if it belongs there.
    fn push(&mut self, rank: Rank, index: u64) -> bool {
        let fits = self.ranks.back().is_none_or(|(last, _)| *last < rank);
        if fits {
            self.ranks.push_back((rank, Some(index)));
        }
        fits
    }

    fn is_first(&self, rank: Rank) -> bool {
        self.ranks.front().is_some_and(|(first, _)| *first == rank)
    }

    fn find(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search_by(|(other, _)| other.cmp(&rank)).ok()
    }

    fn index(&self, rank: Rank) -> Option<u64> {
        self.ranks[self.find(rank)?].1
    }

    /// Where an entry stands: mostly those of `T` stand one behind the other, from the first.
    fn place(&self, rank: Rank, index: u64) -> Option<usize> {
        let (_, first) = self.first()?;
        let guess = usize::try_from(index.wrapping_sub(first)).ok();
        let there = |at: &usize| self.ranks.get(*at).is_some_and(|(other, _)| *other == rank);
        guess.filter(there).or_else(|| self.find(rank))
    }

    /// Whether the entry was there.
    fn take_out(&mut self, rank: Rank, index: u64) -> bool {
        let Some(at) = self.place(rank, index) else { return false };
        if self.ranks[at].1.take().is_none() {
            return false;
        }
        self.gone += 1;
        while self.ranks.pop_front_if(|(_, index)| index.is_none()).is_some()
            || self.ranks.pop_back_if(|(_, index)| index.is_none()).is_some()
        {
            self.gone -= 1;
        }
        if self.gone > GONE_MAX && self.gone > self.ranks.len() / 2 {
            self.ranks.retain(|(_, index)| index.is_some()); // The first one stays for long.
            self.gone = 0;
        }
        self.ranks.give_back();
        true
    }

    /// Those after `after`.
    fn after(&self, after: Option<Rank>) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let first = self.ranks.partition_point(|(rank, _)| Some(*rank) <= after);
        self.ranks.range(first..).filter_map(|(rank, index)| Some((*rank, (*index)?)))
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Queue {
    /// Most of those under their own proposals.
    proposed: Run,
    /// Most of those under a greater bound.
    raised: Run,
    /// The rest.
    strays: BTreeMap<Rank, u64>,
    keys: BTreeSet<(u64, Rank)>,
    whole: BTreeSet<Rank>,
    /// Whether `whole` is kept.
    keyed: bool,
    work: BTreeSet<Rank>,
}

impl Queue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.proposed.len() + self.raised.len() + self.strays.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rank and index of the first.
    pub fn first(&self) -> Option<(Rank, u64)> {
        let stray = self.strays.first_key_value().map(|(rank, index)| (*rank, *index));
        let firsts = [self.proposed.first(), self.raised.first(), stray];
        firsts.into_iter().flatten().min()
    }

    /// The indexes, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.between(None, None).map(|(_, index)| index)
    }

    /// Ranks and indexes after `after` and before `before`, in order.
    fn between(
        &self,
        after: Option<Rank>,
        before: Option<Rank>,
    ) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let strays = self.strays.range((after.map_or(Unbounded, Excluded), Unbounded));
        let mut strays = strays.map(|(rank, index)| (*rank, *index)).peekable();
        let mut proposed = self.proposed.after(after).peekable();
        let mut raised = self.raised.after(after).peekable();
        let next = move || {
            let heads = [proposed.peek(), raised.peek(), strays.peek()];
            let first = heads.into_iter().flatten().min().copied()?;
            if proposed.next_if_eq(&first).is_none() && raised.next_if_eq(&first).is_none() {
                strays.next();
            }
            Some(first)
        };
        std::iter::from_fn(next)
            .take_while(move |(rank, _)| before.is_none_or(|before| *rank < before))
    }

    /// Takes an entry out; whether it was there.
    fn take_out(&mut self, rank: Rank, index: u64) -> bool {
        if self.raised.is_first(rank) {
            return self.raised.take_out(rank, index);
        }
        self.proposed.take_out(rank, index)
            || self.raised.take_out(rank, index)
            || self.strays.remove(&rank).is_some()
    }

    /// The index of the entry with this rank.
    pub fn index(&self, rank: Rank) -> Option<u64> {
        let found = self.proposed.index(rank).or_else(|| self.raised.index(rank));
        found.or_else(|| self.strays.get(&rank).copied())
    }

    /// Adds an entry.
    pub fn insert(&mut self, rank: Rank, index: u64, touches: &Touches) {
        self.hold_keys(rank, touches);
        // A `T` that was restored holds proposals that are known to be raised.
        if !self.proposed.push(rank, index) {
            self.strays.insert(rank, index);
        }
    }

    fn hold_keys(&mut self, rank: Rank, touches: &Touches) {
        if let Touches::Keys(keys) = touches {
            if !self.keyed {
                self.keyed = true;
                self.whole = self.between(None, None).map(|(rank, _)| rank).collect();
            }
            self.keys.extend(keys.iter().map(|key| (*key, rank)));
        } else if self.keyed {
            self.whole.insert(rank);
        }
    }

    /// Takes out an entry: it is delivered, or cut off.
    pub fn remove(&mut self, rank: Rank, index: u64, touches: &Touches) {
        self.take_out(rank, index);
        if self.keyed {
            self.work.remove(&rank);
            self.take(rank, None, touches);
        }
    }

    /// The entry at `old` has a higher bound now.
    pub fn raise(&mut self, old: Rank, new: Rank, index: u64, touches: &Touches) {
        if !self.take_out(old, index) {
            return;
        }
        if self.keyed {
            self.take(old, Some(new), touches);
            if self.work.remove(&old) {
                self.work.insert(new);
            }
        }
        self.hold_keys(new, touches);
        if !self.raised.push(new, index) {
            self.strays.insert(new, index);
        }
    }

    /// Takes an entry out of the queues of what it touches, and notes whom it may have held up
    /// there, as far as it will hold them up no more at `new`.
    fn take(&mut self, rank: Rank, new: Option<Rank>, touches: &Touches) {
        match touches {
            Touches::Keys(keys) => {
                for key in keys.iter() {
                    self.keys.remove(&(*key, rank));
                    if let Some(next) = self.next_of(*key, rank) {
                        self.work.insert(next);
                    }
                }
            }
            Touches::All => {
                self.whole.remove(&rank);
                let next = self.whole.range((Excluded(rank), Unbounded)).next().copied();
                let end = next.into_iter().chain(new).min();
                let freed: Vec<_> = self.between(Some(rank), end).map(|(rank, _)| rank).collect();
                self.work.extend(freed);
            }
        }
    }

    fn next_of(&self, key: u64, after: Rank) -> Option<Rank> {
        let next = self.keys.range((Excluded((key, after)), Unbounded)).next();
        next.filter(|(of, _)| *of == key).map(|(_, rank)| *rank)
    }

    /// The entry is final, or something else changed for it: it is to be looked at, if it may pass
    /// others.
    pub fn look_at(&mut self, rank: Rank, touches: &Touches) {
        if matches!(touches, Touches::Keys(_)) {
            self.work.insert(rank);
        }
    }

    /// The next to look at, with a timestamp up to `clock`.
    pub fn next_to_look_at(&mut self, clock: Timestamp) -> Option<(Rank, u64)> {
        loop {
            let rank = *self.work.first().filter(|rank| rank.0 <= clock)?;
            self.work.remove(&rank);
            if let Some(index) = self.index(rank) {
                return Some((rank, index));
            }
        }
    }

    /// Whether no entry with a rank below `rank` conflicts with `touches`.
    pub fn is_free(&self, rank: Rank, touches: &Touches) -> bool {
        let before = |first: Option<Rank>| first.is_some_and(|first| first < rank);
        match touches {
            Touches::All => !before(self.first().map(|(first, _)| first)),
            Touches::Keys(_) if !self.keyed => !before(self.first().map(|(first, _)| first)),
            Touches::Keys(keys) => {
                let first_of = |key: &u64| {
                    let first = self.keys.range((*key, LOWEST)..).next();
                    first.filter(|(of, _)| of == key).map(|(_, rank)| *rank)
                };
                !before(self.whole.first().copied())
                    && !keys.iter().any(|key| before(first_of(key)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(ts: u64) -> Rank {
        (Timestamp(ts), MessageId { client: ClientId(1), sequence: ts })
    }

    fn looked_at(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.next_to_look_at(Timestamp(99)))
            .map(|(_, index)| index)
            .collect()
    }

    /// Section 4.4.3: only what conflicts holds up.
    #[test]
    fn only_what_touches_the_same_holds_up() {
        let (a, b) = (Touches::keys([1]), Touches::keys([2]));
        let both = Touches::keys([1, 2]);
        let mut queue = Queue::default();
        queue.insert(rank(1), 1, &a);
        queue.insert(rank(2), 2, &b);
        queue.insert(rank(3), 3, &both);
        queue.insert(rank(4), 4, &Touches::All);
        queue.insert(rank(5), 5, &a);
        assert!(queue.is_free(rank(2), &b) && !queue.is_free(rank(3), &both));
        queue.remove(rank(2), 2, &b);
        assert_eq!(looked_at(&mut queue), [3]);
        assert!(!queue.is_free(rank(3), &both), "1 is before it");
        queue.raise(rank(1), rank(7), 1, &a);
        assert_eq!(looked_at(&mut queue), [3]);
        assert!(queue.is_free(rank(3), &both));
        assert!(!queue.is_free(rank(4), &Touches::All) && !queue.is_free(rank(5), &a));
        queue.remove(rank(3), 3, &both);
        queue.raise(rank(4), rank(6), 4, &Touches::All);
        assert_eq!(looked_at(&mut queue), [5]);
        assert!(queue.is_free(rank(5), &a) && !queue.is_free(rank(7), &a));
    }

    /// The first waits for hours, and thousands pass it.
    #[test]
    fn what_has_passed_the_first_takes_no_room() {
        let mut queue = Queue::default();
        let touches = |n: u64| Touches::keys([n]);
        (1..=100_000).for_each(|n| {
            queue.insert(rank(n), n, &touches(n));
            if n > 10 {
                queue.remove(rank(n - 5), n - 5, &touches(n - 5));
            }
        });
        assert_eq!((queue.len(), queue.first()), (10, Some((rank(1), 1))));
        assert!(queue.proposed.ranks.len() <= 2 * GONE_MAX);
        assert!(queue.iter().eq((1..=5).chain(99_996..=100_000)));
    }

    #[test]
    fn one_that_conflicts_with_all_waits_for_all() {
        let mut queue = Queue::default();
        queue.insert(rank(1), 1, &Touches::All);
        queue.insert(rank(2), 2, &Touches::keys([1]));
        queue.insert(rank(3), 3, &Touches::All);
        assert!(!queue.is_free(rank(2), &Touches::keys([1])));
        queue.remove(rank(1), 1, &Touches::All);
        assert_eq!(looked_at(&mut queue), [2]);
        assert!(queue.is_free(rank(2), &Touches::keys([1])));
        assert!(!queue.is_free(rank(3), &Touches::All));
        queue.remove(rank(2), 2, &Touches::keys([1]));
        assert!(queue.is_free(rank(3), &Touches::All));
    }
}
