//! What brings this process, or another, up again when `T` cannot.

use crate::state::memory::Memory;
use crate::state::transfer::Transfers;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Recovery {
    /// The incarnations of processes that keep nothing on disk.
    pub memory: Memory,
    /// Snapshots under way.
    pub transfers: Transfers,
}
