//! The epochs of the entries of a `T`: what a PROMISE tells instead of the whole `T`.

use crate::message::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Where the entries of which epoch end, ascending. Two `T`s with an entry of the same epoch at the
/// same index are equal up to there (L1).
///
/// What lies before the first entry that is held is forgotten, so that there is no more to remember
/// than there are entries: all of it is decided, hence equal in each `T` that knows so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Runs {
    /// The index from which the epochs are known.
    from: u64,
    /// Epoch, and the index after its last entry.
    ends: VecDeque<(Epoch, u64)>,
}

impl Runs {
    /// How many runs are remembered.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The length of the `T`.
    pub fn len(&self) -> u64 {
        self.ends.back().map_or(self.from, |(_, end)| *end)
    }

    /// Whether no entry is known.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The next entry is of `epoch`.
    pub(crate) fn push(&mut self, epoch: Epoch) {
        let end = self.len() + 1;
        match self.ends.back_mut() {
            Some((last, known)) if *last == epoch => *known = end,
            _ => self.ends.push_back((epoch, end)),
        }
    }

    /// The `T` is cut to `len`, which is not before what is forgotten.
    pub(crate) fn cut(&mut self, len: u64) {
        while self.ends.back().is_some_and(|(_, end)| *end > len) {
            let Some((epoch, _)) = self.ends.pop_back() else { return };
            if self.len() < len {
                self.ends.push_back((epoch, len));
            }
        }
    }

    /// The entries before `base` are held no more. The epoch of the one just before it stays known:
    /// a process may hold all up to there, and nothing after.
    pub(crate) fn forget_below(&mut self, base: u64) {
        while let Some((_, end)) = self.ends.pop_front_if(|(_, end)| *end < base) {
            self.from = end;
        }
    }

    /// How many entries two `T`s have in common: up to where the same index has the same epoch. If
    /// they differ before what both still know, at most so many: less than one of them still holds.
    pub fn common(&self, other: &Runs) -> u64 {
        let known = self.from.max(other.from);
        let most = self.len().min(other.len());
        if most <= known {
            return most;
        }
        let mut common = known;
        while common < most {
            let (ours, theirs) = (self.run_at(common), other.run_at(common));
            match (ours, theirs) {
                (Some((a, end_a)), Some((b, end_b))) if a == b => common = end_a.min(end_b),
                _ => break,
            }
        }
        common
    }

    /// The run of the entry at `index`, if known.
    fn run_at(&self, index: u64) -> Option<(Epoch, u64)> {
        let at = self.ends.partition_point(|(_, end)| *end <= index);
        self.ends.get(at).filter(|_| index >= self.from).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::NodeId;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn epoch(number: u64) -> Epoch {
        Epoch { config: 0, number, leader: NodeId(0) }
    }

    fn runs(epochs: &[u64]) -> Runs {
        let mut runs = Runs::default();
        epochs.iter().for_each(|number| runs.push(epoch(*number)));
        runs
    }

    #[test]
    fn equal_epochs_at_an_index_mean_equal_prefixes() {
        let (a, b) = (runs(&[1, 1, 2]), runs(&[1, 1, 1, 1]));
        assert_eq!((a.common(&b), b.common(&a), a.common(&a)), (2, 2, 3));
        assert_eq!(a.common(&Runs::default()), 0);
    }

    #[test]
    fn a_cut_keeps_the_runs_true() {
        let mut cut = runs(&[1, 1, 2, 2]);
        cut.cut(1);
        assert_eq!(cut, runs(&[1]));
        cut.push(epoch(2));
        assert_eq!(cut, runs(&[1, 2]));
    }

    /// A group that changes its primary every hour for years.
    #[test]
    fn epochs_of_what_is_held_no_more_are_forgotten() {
        let mut runs = Runs::default();
        for number in 0..100_000 {
            runs.push(epoch(number));
            runs.forget_below(runs.len().saturating_sub(3));
            assert!(runs.count() <= 4, "{}", runs.count());
        }
        assert_eq!(runs.len(), 100_000);
    }

    /// What is forgotten never makes two `T`s look more alike than they are, as far as the one that
    /// forgot still holds entries; nor less.
    #[test]
    fn what_is_forgotten_is_not_missed() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut shorter = 0;
        for _ in 0..20_000 {
            let decided = random.random_range(0..8);
            let mut epochs = vec![];
            while epochs.len() < decided {
                let last = epochs.last().copied().unwrap_or(1);
                epochs.push(last + u64::from(random.random_bool(0.4)));
            }
            // Both hold what is decided, but that one of them may end, or err, before.
            let mut draw = |stale: bool, offset: u64| {
                let keep = if stale { random.random_range(0..=decided) } else { decided };
                let mut own = epochs[..keep].to_vec();
                let fresh = own.last().copied().unwrap_or(1) * 2 + 100 + offset;
                own.extend((0..random.random_range(0..4)).map(|n| fresh + n));
                let base = if stale { random.random_range(0..=keep) } else { decided };
                (own, base as u64)
            };
            let ((a, base_a), (b, base_b)) = (draw(true, 0), draw(false, 1000));
            let exact = runs(&a).common(&runs(&b));
            let (mut short_a, mut short_b) = (runs(&a), runs(&b));
            short_a.forget_below(base_a);
            short_b.forget_below(base_b);
            let found = short_a.common(&short_b);
            assert_eq!(found, short_b.common(&short_a));
            shorter += u64::from(found != exact);
            let needs_snapshot = exact < base_b;
            assert_eq!(found < base_b, needs_snapshot, "{a:?} {b:?} {exact} {found} {base_b}");
            assert!(needs_snapshot || found == exact, "{a:?} {b:?} {exact} {found}");
        }
        assert!(shorter > 100, "{shorter}");
    }
}
