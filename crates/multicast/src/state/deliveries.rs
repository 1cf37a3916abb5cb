//! What was delivered here, and up to where nothing more can come.

use crate::message::{Rank, Timestamp};
use crate::state::done::Done;
use meridian_core::Position;
use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Deliveries {
    /// How many messages were delivered.
    pub count: Position,
    /// The greatest rank delivered.
    pub last: Option<Rank>,
    /// `D`, as far as `T` does not hold it.
    pub done: Done,
    /// SAFE-TS when the process was idle last.
    pub safe: Timestamp,
    /// See [`crate::PrimCast::floor`].
    pub floor: Option<Timestamp>,
    /// The deliveries since the others were last told what is stable here.
    pub unreported: VecDeque<(Position, Rank)>,
}

impl Deliveries {
    /// A message of this rank is delivered.
    pub fn add(&mut self, rank: Rank) {
        self.count = Position(self.count.0 + 1);
        self.last = self.last.max(Some(rank));
        self.unreported.push_back((self.count, rank));
    }
}
