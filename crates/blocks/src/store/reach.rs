//! How far the blocks of a directory go.

use std::fmt::{self, Display};

/// The end of the last record: which segment it lies in, and where it ends. It only grows, as the
/// newest segment is never removed and a record never cut that is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reach {
    /// The number of the newest segment; 0 if there is none.
    pub segment: u64,
    /// How many of its bytes are records.
    pub end: u64,
}

impl Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of segment {}", self.end, self.segment)
    }
}

impl super::Blocks {
    /// How far they are durable.
    pub fn reach(&self) -> Reach {
        self.read_index().reach
    }
}

impl super::Store {
    /// All that was written is durable.
    pub(super) fn note_durable(&mut self) {
        self.durable = self.end;
        self.blocks.write_index().reach = Reach { segment: self.newest, end: self.end };
    }
}
