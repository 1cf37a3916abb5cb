//! How much there is in a partition, and what clients hold of it: for who watches.

use crate::partition::Partition;
use serde::{Deserialize, Serialize};

/// See the module. All are counts that are kept anyway, or are summed over clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holdings {
    /// Files, directories and whatever else has attributes.
    pub inodes: u64,
    /// Bytes stored in files.
    pub bytes: u64,
    /// Directories that have their names here and are placed elsewhere.
    pub elsewhere: u64,
    /// Clients that hold locks, or have files open of which the partition was told.
    pub holders: u64,
    /// Inodes that they hold, each once for each client.
    pub held: u64,
    /// Who waits for a lock of `fcntl`.
    pub waiting: u64,
    /// Capabilities of clients to look: what they may keep until it is recalled.
    pub capabilities: u64,
}

impl Partition {
    /// How much there is, and what is held.
    pub fn holdings(&self) -> Holdings {
        let (inodes, bytes) = self.tree.totals();
        let leases = || self.tree.leases.iter();
        Holdings {
            inodes,
            bytes,
            elsewhere: self.tree.tops.iter().count() as u64,
            holders: leases().count() as u64,
            held: leases().map(|(_, lease)| lease.inodes.len() as u64).sum(),
            waiting: self.tree.waits.len() as u64,
            capabilities: self.caps(),
        }
    }
}
