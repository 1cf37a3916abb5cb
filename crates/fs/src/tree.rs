//! The inodes of one partition, and what clients hold of them.

use crate::FsError;
use crate::blocks::Named;
use crate::caps::Caps;
use crate::inode::{Directory, Inode};
use crate::leases::Leases;
use crate::locks::Locks;
use crate::mutation::Mutation;
use crate::quota::Quotas;
use crate::tops::Tops;
use crate::types::{
    Attributes, Entry, Ino, Kind, LockFamily, LockOwner, NAME_MAX, Name, Place, Rank,
};
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId, Stamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The inodes of one partition.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub group: GroupId,
    inodes: OrdMap<Ino, Arc<Inode>>,
    /// Where directories went that were placed elsewhere. Never cut down: which were forgotten
    /// would depend on when votes came; a person places few directories.
    moved: OrdMap<Ino, GroupId>,
    pub leases: Leases,
    /// The files without a name, with the messages that took the last ones.
    nameless: OrdMap<Ino, Stamp>,
    /// Of directories that have their names here and live elsewhere.
    pub tops: Tops,
    pub quotas: Quotas,
    pub caps: Caps,
    /// The bytes stored in all files.
    stored: u64,
    pub named: Named,
    /// Who waits for locks of `fcntl`, where, and with which message each came (Q2).
    pub waits: OrdSet<(LockOwner, Ino, Rank)>,
    #[serde(skip)]
    pub mutation: Mutation,
}

impl Tree {
    pub fn new(group: GroupId) -> Tree {
        Tree {
            group,
            inodes: OrdMap::new(),
            moved: OrdMap::new(),
            leases: Leases::default(),
            nameless: OrdMap::new(),
            tops: Tops::default(),
            quotas: Quotas::default(),
            caps: Caps::default(),
            stored: 0,
            named: Named::default(),
            waits: OrdSet::new(),
            mutation: Mutation::Correct,
        }
    }

    /// The place of an inode of this partition.
    pub fn place(&self, ino: Ino) -> Place {
        Place { ino, partition: self.group }
    }

    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(&ino).map(Arc::as_ref)
    }

    /// Whether an inode has this number, here or where it was moved from here.
    pub fn is_taken(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino) || self.moved.contains_key(&ino)
    }

    /// The inode that a client names by its place.
    pub fn inode(&self, place: Place) -> Result<&Inode, FsError> {
        if place.partition != self.group {
            return Err(FsError::Stale);
        }
        self.get(place.ino).ok_or_else(|| self.absent(place.ino))
    }

    /// Why an inode is not here.
    pub fn absent(&self, ino: Ino) -> FsError {
        if self.moved.contains_key(&ino) { FsError::Stale } else { FsError::Gone }
    }

    /// The directory that a client names to find, make or remove something in it.
    pub fn directory(&self, place: Place) -> Result<&Directory, FsError> {
        match self.inode(place) {
            Ok(inode) => inode.as_directory().ok_or(FsError::NotDirectory),
            // As POSIX has it for a removed directory.
            Err(FsError::Gone) => Err(FsError::NotFound),
            Err(other) => Err(other),
        }
    }

    /// The entry `name` of `parent`, which must lead to `child`.
    pub fn entry(&self, parent: Place, name: &Name, child: Place) -> Result<&Entry, FsError> {
        check_name(name)?;
        let entry = self.directory(parent)?.entries.get(name).ok_or(FsError::NotFound)?;
        if entry.place == child { Ok(entry) } else { Err(FsError::Stale) }
    }

    /// Attributes of an inode if it lives here.
    pub fn attributes(&self, place: Place) -> Option<Attributes> {
        if place.partition != self.group {
            return None;
        }
        self.get(place.ino).map(|inode| inode.attributes(place))
    }

    /// Changes an inode that is known to be here.
    pub fn change<T>(&mut self, ino: Ino, change: impl FnOnce(&mut Inode) -> T) -> T {
        let inode = self.inodes.get_mut(&ino).expect("the caller found it here");
        let inode = Arc::make_mut(inode);
        let (before, counted) = (inode.stored(), inode.counted());
        let result = change(inode);
        self.stored = self.stored - before + inode.stored();
        self.quotas.change(counted, inode.counted());
        self.named.change(&inode.take_changes());
        result
    }

    /// Changes a directory that is known to be here: its entries, its number of subdirectories.
    pub fn change_directory<T>(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Directory, &mut u32) -> T,
    ) -> T {
        self.change(ino, |inode| {
            let mut nlink = inode.nlink;
            let directory = inode.as_directory_mut().expect("the caller found a directory");
            let result = change(directory, &mut nlink);
            inode.nlink = nlink;
            result
        })
    }

    pub fn insert(&mut self, ino: Ino, inode: Inode) {
        self.stored += inode.stored();
        self.quotas.change(None, inode.counted());
        self.named.change(&inode.blocks().map(|block| (block, true)).collect::<Vec<_>>());
        self.moved.remove(&ino);
        let before = self.inodes.insert(ino, Arc::new(inode));
        assert!(before.is_none(), "{ino:?} was here already");
    }

    /// Drops an inode, with the locks on it.
    pub fn remove(&mut self, ino: Ino) -> Arc<Inode> {
        let inode = self.inodes.remove(&ino).expect("the caller found it here");
        self.stored -= inode.stored();
        self.quotas.change(inode.counted(), None);
        self.quotas.remove(ino);
        self.named.change(&inode.blocks().map(|block| (block, false)).collect::<Vec<_>>());
        for client in inode.locks.holders() {
            self.leases.release(client, ino);
        }
        waits_of(ino, &inode.locks).for_each(|waits| _ = self.waits.remove(&waits));
        for client in &inode.open_at {
            self.leases.release(*client, ino);
        }
        self.nameless.remove(&ino);
        inode
    }

    /// Changes the locks of an inode that is known to be here, and grants what can be then.
    pub fn change_locks(&mut self, ino: Ino, change: impl FnOnce(&mut Locks)) {
        let mutation = self.mutation;
        let before = self.get(ino).map(|inode| inode.locks.clone()).unwrap_or_default();
        let after = self.change(ino, |inode| {
            change(&mut inode.locks);
            inode.locks.grant(mutation);
            inode.locks.clone()
        });
        waits_of(ino, &before).for_each(|waits| _ = self.waits.remove(&waits));
        waits_of(ino, &after).for_each(|waits| _ = self.waits.insert(waits));
    }

    /// A file has lost its last name, by the message of that timestamp.
    pub fn lose_name(&mut self, ino: Ino, ts: Stamp) {
        self.change(ino, |inode| {
            (inode.nameless, inode.before) = (Some(ts), inode.quota.or(inode.before));
            inode.quota = None;
        });
        self.nameless.insert(ino, ts);
    }

    /// A file that never had a name has got its first, and counts against that quota.
    pub fn gain_name(&mut self, ino: Ino, quota: Option<Ino>) {
        self.change(ino, |inode| {
            (inode.nameless, inode.unnamed) = (None, false);
            (inode.quota, inode.before) = (quota, None);
        });
        if !self.mutation.is(Mutation::ReapsNamed) {
            self.nameless.remove(&ino);
        }
    }

    /// The files without a name, and when they lost the last one.
    pub fn nameless(&self) -> &OrdMap<Ino, Stamp> {
        &self.nameless
    }

    /// The client holds `ino` open, from the message of that rank on.
    pub fn hold(&mut self, client: ClientId, ino: Ino, rank: Rank) {
        self.change(ino, |inode| inode.open_at.insert(client));
        self.leases.hold(client, ino, rank);
    }

    /// The client has `ino` open no more; its locks stay.
    pub fn forget(&mut self, client: ClientId, ino: Ino) {
        let held = self.change(ino, |inode| {
            inode.open_at.remove(&client);
            inode.is_held_by(client)
        });
        if !held {
            self.leases.release(client, ino);
        }
    }

    /// Drops an inode that lives in `to` from now on.
    pub fn remove_moved(&mut self, ino: Ino, to: GroupId) {
        self.remove(ino);
        self.moved.insert(ino, to);
    }

    /// How many inodes and how many bytes in files there are.
    pub fn totals(&self) -> (u64, u64) {
        (self.inodes.len() as u64, self.stored)
    }

    /// All inodes.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode.as_ref()))
    }

    /// Panics if an inode is both here and away.
    pub fn check_moved(&self) {
        for (ino, to) in &self.moved {
            assert!(!self.inodes.contains_key(ino), "{ino:?} is here and was moved to {to:?}");
            assert!(!ino.is_top(), "{ino:?} is a top directory and was moved");
        }
    }
}

/// Who waits for locks of `fcntl` on an inode.
pub(crate) fn waits_of(
    ino: Ino,
    locks: &Locks,
) -> impl Iterator<Item = (LockOwner, Ino, Rank)> + '_ {
    let posix = locks.waiting.iter().filter(|(_, of)| of.lock.family == LockFamily::Posix);
    posix.map(move |(rank, of)| (of.lock.owner, ino, *rank))
}

impl Directory {
    /// Adds a name, or changes what it leads to; keeps count of subdirectories.
    pub fn set(&mut self, nlink: &mut u32, name: Name, entry: Entry) {
        *nlink += u32::from(entry.kind == Kind::Directory);
        let before = self.entries.insert(name, entry);
        *nlink -= u32::from(before.is_some_and(|entry| entry.kind == Kind::Directory));
    }

    /// Removes a name; keeps count of subdirectories.
    pub fn unset(&mut self, nlink: &mut u32, name: &Name) {
        let before = self.entries.remove(name);
        *nlink -= u32::from(before.is_some_and(|entry| entry.kind == Kind::Directory));
    }
}

/// Whether an entry may have this name.
pub(crate) fn check_name(name: &Name) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    let special = name.is_empty() || &name[..] == b"." || &name[..] == b"..";
    if special || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(FsError::Invalid);
    }
    Ok(())
}
