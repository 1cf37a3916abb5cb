//! How much there is in a partition, and what clients hold of it: for who watches.

use crate::caps::Subject;
use crate::partition::Partition;
use crate::types::{Ino, Rank};
use meridian_core::ClientId;
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

    /// Whether the reply to an update of that rank must wait: another is to let go what the update
    /// changes here, and was granted it before.
    pub fn holds_back(&self, subject: &Subject, rank: Rank) -> bool {
        self.tree.caps.holds_back(subject, rank)
    }

    /// What updates wait for that the client holds.
    pub fn recalled(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        self.tree.caps.recalled(client)
    }

    /// The holders of capabilities, and for each the lease that [`CapStep::Expire`] must name.
    pub fn holders(&self) -> impl Iterator<Item = (ClientId, Option<Rank>)> {
        self.tree.caps.holders()
    }

    /// The inodes of which a client has the capability.
    pub fn kept_by(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        self.tree.caps.held_by(client)
    }

    /// Those of them that it holds exclusively.
    pub fn kept_alone_by(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        self.tree.caps.held_alone(client)
    }

    /// How many those are.
    pub fn kept(&self, client: ClientId) -> usize {
        self.tree.caps.held(client)
    }

    /// How many capabilities and leases of holders there are.
    pub fn caps(&self) -> u64 {
        self.tree.caps.len()
    }
}
