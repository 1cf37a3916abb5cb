//! What clients hold in a partition: locks, and files without a name.
//!
//! A lease begins with the first thing that a client holds here and ends with the last. Its count
//! of renewals starts at the position of the message that began it, and each renewal is a message
//! of its own, so no later lease of the same client ever has a count that this one had: a late
//! [`crate::Update::Expire`] cannot end the wrong one.
//!
//! Invariant: L3: a lease names exactly the inodes on which its client holds locks or which are
//! kept for it, and counts the locks.

use crate::types::Ino;
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, Position};
use serde::{Deserialize, Serialize};

/// How many locks one client may hold in one partition: enough for any program, little enough
/// that the state stays small.
pub(crate) const CLIENT_LOCKS_MAX: u32 = 65_536;

/// What one client holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// See the module's documentation.
    pub renewals: u64,
    /// Locks held.
    pub locks: u32,
    /// With locks of the client on them, or kept for it.
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

    /// The client holds something of `ino` since `position`.
    pub fn hold(&mut self, client: ClientId, ino: Ino, position: Position) {
        let lease = self.by_client.entry(client).or_insert_with(|| Lease {
            renewals: position.0,
            locks: 0,
            inodes: OrdSet::new(),
        });
        lease.inodes.insert(ino);
    }

    /// Changes the lease of a client that is known to hold something of `ino`.
    pub fn change(&mut self, client: ClientId, ino: Ino, change: impl FnOnce(&mut Lease)) {
        let lease = self.by_client.get_mut(&client);
        let lease = lease.filter(|lease| lease.inodes.contains(&ino));
        change(lease.unwrap_or_else(|| panic!("L3: {client:?} holds nothing of {ino:?}")));
    }

    /// The client holds nothing of `ino` any more.
    pub fn release(&mut self, client: ClientId, ino: Ino) {
        let Some(lease) = self.by_client.get_mut(&client) else { return };
        lease.inodes.remove(&ino);
        if lease.inodes.is_empty() {
            assert_eq!(lease.locks, 0, "L3: {client:?} holds locks on nothing");
            self.by_client.remove(&client);
        }
    }

    /// The client lives.
    pub fn renew(&mut self, client: ClientId) {
        if let Some(lease) = self.by_client.get_mut(&client) {
            lease.renewals += 1;
        }
    }
}
