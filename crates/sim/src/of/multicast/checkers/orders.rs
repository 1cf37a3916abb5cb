//! What the checkers of order start from: which messages conflict, and what was delivered before
//! what. Only the order of messages that conflict counts (thesis, section 4.4.3); if all do, all
//! counts.

use crate::of::multicast::history::{Entry, History};
use meridian_core::{GroupId, MessageId, ProcessId};
use meridian_multicast::Touches;
use std::collections::BTreeMap;

/// A set of small numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// For numbers below `count`; empty.
    pub fn new(count: usize) -> Self {
        Bits(vec![0; count.div_ceil(64)])
    }

    pub fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    pub fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// Adds those of `a` that are in `b`, or that are not.
    pub fn add(&mut self, a: &Bits, b: &Bits, in_b: bool) {
        for (word, (a, b)) in self.0.iter_mut().zip(a.0.iter().zip(&b.0)) {
            *word |= a & if in_b { *b } else { !*b };
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let of = |(at, word): (usize, &u64)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        };
        self.0.iter().enumerate().flat_map(of)
    }
}

/// One life of a process.
pub(crate) struct Order {
    pub process: ProcessId,
    /// The messages, by number, as they were delivered.
    pub sequence: Vec<usize>,
}

/// See the module.
pub(crate) struct Orders {
    /// The messages; elsewhere they are numbered by their places here.
    pub ids: Vec<MessageId>,
    /// Where each goes; nowhere if nobody has multicast it.
    pub dest: Vec<Vec<GroupId>>,
    /// With which others each conflicts.
    pub conflicts: Vec<Bits>,
    pub lives: Vec<Order>,
    /// Whether each conflicts with all others: then less is to be looked at.
    pub total: bool,
}

impl Orders {
    pub fn new(history: &History) -> Result<Self, String> {
        let lives = history.lives()?;
        let mut sent: BTreeMap<MessageId, (&[GroupId], &Touches)> = BTreeMap::new();
        for id in lives.iter().flat_map(|life| &life.sequence) {
            sent.insert(*id, (&[], &Touches::All));
        }
        for entry in &history.entries {
            if let Entry::Multicast { id, dest, touches, .. } = entry {
                sent.insert(*id, (dest, touches));
            }
        }
        let ids: Vec<_> = sent.keys().copied().collect();
        let dest = sent.values().map(|(dest, _)| dest.to_vec()).collect();
        let touches: Vec<_> = sent.values().map(|(_, touches)| *touches).collect();
        let conflicts = rows(&touches);
        let number: BTreeMap<_, _> = ids.iter().copied().zip(0..).collect();
        let lives = lives.into_iter().map(|life| Order {
            process: life.process,
            sequence: life.sequence.iter().map(|id| number[id]).collect(),
        });
        let lives = lives.collect();
        let total = touches.iter().all(|touched| **touched == Touches::All);
        Ok(Orders { ids, dest, conflicts, lives, total })
    }

    /// Calls `each` with each delivery of a life, and with the set of those before it.
    pub fn walk(&self, life: &Order, mut each: impl FnMut(usize, &Bits)) {
        let mut before = Bits::new(self.ids.len());
        for message in &life.sequence {
            each(*message, &before);
            before.insert(*message);
        }
    }
}

/// For each message, with which others it conflicts: put together from who touches which key, as
/// histories are long and most messages conflict with all.
fn rows(touches: &[&Touches]) -> Vec<Bits> {
    let none = Bits::new(touches.len());
    let (mut everybody, mut whole) = (none.clone(), none.clone());
    let mut by_key: BTreeMap<u64, Bits> = BTreeMap::new();
    for (at, touched) in touches.iter().enumerate() {
        everybody.insert(at);
        match touched {
            Touches::All => whole.insert(at),
            Touches::Keys(keys) => {
                for key in keys.iter() {
                    by_key.entry(*key).or_insert_with(|| none.clone()).insert(at);
                }
            }
        }
    }
    let row = |(at, touched): (usize, &&Touches)| {
        let mut row = match touched {
            Touches::All => everybody.clone(),
            Touches::Keys(keys) => {
                let mut row = whole.clone();
                keys.iter().for_each(|key| row.add(&by_key[key], &everybody, true));
                row
            }
        };
        row.remove(at);
        row
    };
    touches.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_multicast::conflicts;

    #[test]
    fn rows_say_who_conflicts() {
        let touches = [
            Touches::All,
            Touches::keys([1]),
            Touches::keys([1, 2]),
            Touches::keys([2, 3]),
            Touches::keys([4]),
            Touches::All,
        ];
        let all: Vec<_> = touches.iter().collect();
        for (a, row) in rows(&all).iter().enumerate() {
            for (b, touched) in touches.iter().enumerate() {
                assert_eq!(row.contains(b), a != b && conflicts(&touches[a], touched), "{a} {b}");
            }
        }
    }

    #[test]
    fn a_set_of_numbers() {
        let of = |numbers: &[usize]| {
            let mut bits = Bits::new(200);
            numbers.iter().for_each(|at| bits.insert(*at));
            bits
        };
        let (a, b) = (of(&[0, 63, 64, 199]), of(&[63, 199]));
        assert!(a.iter().eq([0, 63, 64, 199]));
        assert!(a.contains(64) && !b.contains(64));
        let mut both = of(&[]);
        both.add(&a, &b, true);
        assert_eq!(both, b);
        both.add(&a, &b, false);
        assert_eq!(both, a);
    }
}
