//! In which order lands what is kept back (K10). What is kept back in a directory whose mode does
//! not keep the order lands in any, but never before what is in order and was done earlier.

use meridian_core::GroupId;
use meridian_fs::Ino;
use std::collections::{BTreeMap, BTreeSet};

/// Where something comes: in which partition, and as the how manieth of all.
pub(super) type Turn = (GroupId, u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    all: BTreeMap<Turn, Ino>,
    /// Those of which the order is kept.
    strict: BTreeSet<Turn>,
    /// A node has no room: the order is not kept for now.
    pub is_suspended: bool,
}

impl Order {
    /// Something is kept back.
    pub fn add(&mut self, turn: Turn, ino: Ino, in_order: bool) {
        self.all.insert(turn, ino);
        if in_order {
            self.strict.insert(turn);
        }
    }

    /// It is not any more.
    pub fn remove(&mut self, turn: Turn) {
        self.all.remove(&turn);
        self.strict.remove(&turn);
    }

    /// What has that turn.
    pub fn at(&self, turn: Turn) -> Option<Ino> {
        self.all.get(&turn).copied()
    }

    /// All that is kept back.
    pub fn all(&self) -> impl Iterator<Item = (Turn, Ino)> + '_ {
        self.all.iter().map(|(turn, ino)| (*turn, *ino))
    }

    /// What must land before what has that turn, in its partition.
    pub fn before(&self, end: Turn) -> impl Iterator<Item = Turn> + '_ {
        let before = self.strict.range((end.0, 0)..end).copied();
        before.filter(|_| !self.is_suspended)
    }

    /// All of which the order is kept.
    pub fn strict(&self) -> impl Iterator<Item = Turn> + '_ {
        self.strict.iter().copied()
    }
}
