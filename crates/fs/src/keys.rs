//! What an update touches: known from the update and its name alone, before it is delivered anywhere.
//!
//! Two messages without a key in common commute: whichever is delivered first, the states after both,
//! and what came of each, are equal. The multicast delivers such messages in any order, and here
//! they do not wait for each other. Why each part of the state follows from these keys:
//!
//! - **Inodes**, with their entries, locks and for whom they are kept. An update reads and changes only
//!   those that it names, and it has their keys. Also the number of a new inode is named: it follows
//!   from the message's name ([`Ino::made`]), so a write to the file comes after its creation.
//! - **Where inodes went** that were placed elsewhere: under the inode's key.
//! - **Leases** ([`crate::leases`]). What begins or renews a lease has the client's key. What ends a
//!   hold without naming the client (an inode goes with the locks on it) or only gives it back need not:
//!   it takes its inode out of the lease, whatever the lease's rank is, and the lease is there as long
//!   as any inode is in it. An [`Update::Expire`] names the inodes that its sender saw; it does
//!   nothing if the client has begun or renewed anything since, and without that no others are held.
//! - **Sums and maxima**: bytes stored, the count and the hash of what was decided, the vector.
//! - What is told of a client's earlier messages (`low`, in `host`) is a maximum, too.
//!
//! The limit of locks is one per inode, so that no client's locks need to be counted together.

use crate::operation::{Query, Update};
use crate::types::{Ino, Place};
use meridian_core::{ClientId, GroupId, MessageId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What messages queue for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Key {
    /// An inode: all of it.
    Inode(Ino),
    /// The lease of a client.
    Client(ClientId),
}

impl Key {
    /// Its name among the keys of all partitions: an inode's number is the same in all. The uppermost
    /// bit tells clients from inodes ([`meridian_core::topology::GROUPS_MAX`]). A collision would only
    /// make messages wait for each other.
    fn number(self, partition: GroupId) -> u64 {
        match self {
            Key::Inode(ino) => ino.0,
            Key::Client(client) => mix(client.0 ^ u64::from(partition.0) << 48) | 1 << 63,
        }
    }
}

/// The keys that `update`, named `id`, has in `partition`.
pub(crate) fn keys_in(update: &Update, id: MessageId, partition: GroupId) -> BTreeSet<Key> {
    let here = |(of, key): (GroupId, Key)| (of == partition).then_some(key);
    all_keys(update, id).into_iter().filter_map(here).collect()
}

/// Each key, and in which partition.
fn all_keys(update: &Update, id: MessageId) -> Vec<(GroupId, Key)> {
    let mut places: Vec<Place> = Vec::new();
    let mut client = None;
    match update {
        Update::Create { parent, .. } => {
            let made = Ino::made(parent.partition, id);
            places.extend([*parent, Place { ino: made, ..*parent }]);
        }
        Update::Link { target, parent, .. } => places.extend([*target, *parent]),
        Update::Unlink { parent, child, keep_for, .. } => {
            places.extend([*parent, *child]);
            client = keep_for.map(|client| (child.partition, client));
        }
        Update::Rmdir { parent, child, .. } => places.extend([*parent, *child]),
        Update::Rename { from, to, moved, replaced, ancestors, keep_for, .. } => {
            places.extend([*from, *to, *moved]);
            places.extend(ancestors.iter().chain(replaced));
            client = replaced.zip(*keep_for).map(|(place, client)| (place.partition, client));
        }
        Update::SetAttributes { inode, .. }
        | Update::Write { inode, .. }
        | Update::PunchHole { inode, .. }
        | Update::SetXattr { inode, .. }
        | Update::RemoveXattr { inode, .. }
        | Update::Unlock { inode, .. }
        | Update::Forget { inode, .. } => places.push(*inode),
        Update::Lock { inode, lock } => {
            places.push(*inode);
            client = Some((inode.partition, lock.owner.client));
        }
        Update::Renew { client: of, partition } => client = Some((*partition, *of)),
        Update::Expire { client: of, partition, inodes, .. } => {
            places.extend(inodes.iter().map(|ino| Place { ino: *ino, partition: *partition }));
            client = Some((*partition, *of));
        }
        Update::PlaceDirectory { parent, child, to, .. } => {
            places.extend([*parent, *child, Place { ino: child.ino, partition: *to }]);
        }
    }
    let inodes = places.into_iter().map(|place| (place.partition, Key::Inode(place.ino)));
    inodes.chain(client.map(|(partition, of)| (partition, Key::Client(of)))).collect()
}

/// The names of these keys of `partition`.
pub(crate) fn numbers(keys: &BTreeSet<Key>, partition: GroupId) -> Vec<u64> {
    keys.iter().map(|key| key.number(partition)).collect()
}

impl Update {
    /// What the update touches, in all partitions, if its message is named `id`: the order of two
    /// updates without a key in common does not matter.
    pub fn keys(&self, id: MessageId) -> BTreeSet<u64> {
        all_keys(self, id).into_iter().map(|(partition, key)| key.number(partition)).collect()
    }
}

impl Query {
    /// The inode that it is about.
    pub fn inode(&self) -> Option<Ino> {
        match self {
            Query::Lookup { parent: inode, .. }
            | Query::Attributes { inode }
            | Query::Directory { inode, .. }
            | Query::Symlink { inode }
            | Query::Contents { inode, .. }
            | Query::Xattr { inode, .. }
            | Query::Xattrs { inode }
            | Query::LockInTheWay { inode, .. } => Some(inode.ino),
            Query::Totals { .. } => None,
        }
    }

    /// What an update has in [`Update::keys`] that may change the answer; of names and listings only
    /// the directory's. [`Query::Totals`] has none: it counts what is applied at the replica asked.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.inode().map(Ino::key).into_iter()
    }
}

/// Spreads the bits of a number: the finalizer of SplitMix64, a bijection.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
