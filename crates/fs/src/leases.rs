//! What clients hold in a partition: locks, and files that they have open.
//!
//! A lease begins with the first thing that a client holds here and ends with the last. Its rank is
//! that of the client's last message that began a hold or renewed, so no later lease of the same
//! client ever has a rank that this one had: a late [`crate::Update::Expire`] cannot end the wrong
//! one. And while the rank is the same, no inode was added.
//!
//! Invariants:
//! - L3: a lease names exactly the inodes on which its client holds locks or which it has open.
//! - L4: the rank of a lease only grows: messages that have the client's key are executed in order.

use crate::types::{Ino, Rank};
use imbl::{OrdMap, OrdSet};
use meridian_core::ClientId;
use serde::{Deserialize, Serialize};

/// What one client holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// See the module's documentation.
    pub renewed: Rank,
    /// With locks of the client on them, or open at it.
    pub inodes: OrdSet<Ino>,
}

/// What clients hold in a partition.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Leases {
    by_client: OrdMap<ClientId, Lease>,
}

impl Leases {
    pub fn get(&self, client: ClientId) -> Option<&Lease> {
        self.by_client.get(&client)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ClientId, &Lease)> {
        self.by_client.iter().map(|(client, lease)| (*client, lease))
    }

    /// The message of that rank gives the client something of `ino`.
    pub fn hold(&mut self, client: ClientId, ino: Ino, rank: Rank) {
        let lease = self
            .by_client
            .entry(client)
            .or_insert_with(|| Lease { renewed: rank, inodes: OrdSet::new() });
        lease.renew(rank);
        lease.inodes.insert(ino);
    }

    /// The client holds nothing of `ino` any more.
    pub fn release(&mut self, client: ClientId, ino: Ino) {
        let Some(lease) = self.by_client.get_mut(&client) else { return };
        lease.inodes.remove(&ino);
        if lease.inodes.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// The client lives: it says so in the message of that rank.
    pub fn renew(&mut self, client: ClientId, rank: Rank) {
        if let Some(lease) = self.by_client.get_mut(&client) {
            lease.renew(rank);
        }
    }
}

impl Lease {
    fn renew(&mut self, rank: Rank) {
        assert!(self.renewed <= rank, "L4: renewed at {rank:?} after {:?}", self.renewed);
        self.renewed = rank;
    }
}
