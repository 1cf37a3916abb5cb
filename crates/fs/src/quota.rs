//! How much may lie below a directory.
//!
//! A directory with a quota, and all that is made in it or below it, counts against the quota: each
//! inode against one, that of the nearest such directory, as long as it has a name. Only what lives
//! in the directory's own partition counts: what is placed elsewhere does not. So that it stays so,
//! nothing gets a name under another quota than its own ([`FsError::OtherQuota`]); a directory that
//! has a quota itself moves freely.
//!
//! Whether there is room is decided in order: an update that counts against a quota, or gives back
//! to it, names it ([`crate::Operation::quotas`]) and so has its key. A client that did not know is
//! told which, and repeats.
//!
//! Invariants:
//! - U1: what is used of a quota is the sum over the inodes that count against it.
//! - U2: an update that raises what is used leaves it within the limits.

use crate::FsError;
use crate::inode::Inode;
use crate::operation::Update;
use crate::tree::Tree;
use crate::types::{Ino, Place};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

/// How much there may be; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes stored in files.
    pub bytes: Option<u64>,
    /// Inodes, the directory itself among them.
    pub inodes: Option<u64>,
}

/// The quota of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quota {
    /// How much there may be.
    pub limits: Limits,
    /// Bytes stored in files that count against it, each once.
    pub bytes: u64,
    /// Inodes that count against it.
    pub inodes: u64,
}

/// All quotas of a partition, by their directories.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Quotas {
    by_directory: OrdMap<Ino, Quota>,
}

impl Quota {
    /// Whether it is used beyond a limit, and more than it was before.
    fn is_exceeded(&self, before: &Quota) -> bool {
        let beyond = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        self.bytes > before.bytes && beyond(self.bytes, self.limits.bytes)
            || self.inodes > before.inodes && beyond(self.inodes, self.limits.inodes)
    }
}

impl Quotas {
    pub fn get(&self, directory: Ino) -> Option<&Quota> {
        self.by_directory.get(&directory)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Quota)> {
        self.by_directory.iter().map(|(ino, quota)| (*ino, quota))
    }

    /// A directory gets a quota, of which nothing is used.
    pub fn add(&mut self, directory: Ino) {
        self.by_directory.insert(directory, Quota::default());
    }

    /// A directory is gone.
    pub fn remove(&mut self, directory: Ino) {
        self.by_directory.remove(&directory);
    }

    /// There are other limits.
    pub fn limit(&mut self, directory: Ino, limits: Limits) {
        let quota = self.by_directory.get_mut(&directory).expect("the caller found it");
        quota.limits = limits;
    }

    /// What an inode counts against which quota has changed.
    pub fn change(&mut self, before: Option<(Ino, u64)>, after: Option<(Ino, u64)>) {
        if before == after {
            return;
        }
        if let Some((directory, bytes)) = before {
            let quota = self.by_directory.get_mut(&directory).expect("U1: it was counted");
            (quota.bytes, quota.inodes) = (quota.bytes - bytes, quota.inodes - 1);
        }
        if let Some((directory, bytes)) = after {
            let quota = self.by_directory.get_mut(&directory).expect("U1: the quota is there");
            (quota.bytes, quota.inodes) = (quota.bytes + bytes, quota.inodes + 1);
        }
    }

    /// U2, for an update that may change these.
    pub fn check_limits(&self, before: &Quotas, named: &[Place]) -> Result<(), FsError> {
        let exceeded = named.iter().any(|place| {
            let (now, then) = (self.get(place.ino), before.get(place.ino));
            now.is_some_and(|now| now.is_exceeded(then.unwrap_or(now)))
        });
        if exceeded { Err(FsError::OverQuota) } else { Ok(()) }
    }
}

impl Inode {
    /// Against which quota it counts, and with how many bytes.
    pub fn counted(&self) -> Option<(Ino, u64)> {
        self.quota.map(|quota| (quota, self.stored()))
    }
}

impl Tree {
    /// Whether the quota that `update` changes here is among those that are named.
    pub fn check_named(&self, update: &Update, named: &[Place]) -> Result<(), FsError> {
        let here = |of: &Place| of.partition == self.group;
        for of in update.changes_quotas_of().into_iter().flatten().filter(here) {
            let quota = self.get(of.ino).and_then(|inode| inode.quota);
            let quota = quota.map(|quota| self.place(quota));
            if let Some(quota) = quota.filter(|quota| !named.contains(quota)) {
                return Err(FsError::UnnamedQuota { quota });
            }
        }
        Ok(())
    }

    /// Whether there is room for one more inode with so many bytes in the directory, which is here.
    pub fn check_room(&self, directory: Place, bytes: u64) -> Result<(), FsError> {
        let quota = self.get(directory.ino).and_then(|inode| inode.quota);
        let Some(now) = quota.and_then(|quota| self.quotas.get(quota)) else { return Ok(()) };
        let then = Quota { bytes: now.bytes + bytes, inodes: now.inodes + 1, ..*now };
        if then.is_exceeded(now) { Err(FsError::OverQuota) } else { Ok(()) }
    }

    /// Whether `target` may get a name in `parent`. If it has none yet, it counts from then on.
    pub fn check_link_quota(&self, target: Place, parent: Place) -> Result<(), FsError> {
        let here = |place: Place| place.partition == self.group;
        let unnamed = self.get(target.ino).filter(|inode| here(target) && inode.unnamed);
        match unnamed {
            Some(inode) if here(parent) => self.check_room(parent, inode.stored()),
            _ => self.check_same_quota(target, parent),
        }
    }

    /// Whether `moved` may have a name in the directory `to`, as far as that is known here: what
    /// lives in two partitions counts against no common quota.
    pub fn check_same_quota(&self, moved: Place, to: Place) -> Result<(), FsError> {
        let quota = |place: Place| {
            let here = place.partition == self.group;
            self.get(place.ino).filter(|_| here).and_then(|inode| inode.quota)
        };
        let (own, other) = (quota(moved), quota(to));
        let same = own == other || own == Some(moved.ino);
        if same { Ok(()) } else { Err(FsError::OtherQuota) }
    }
}

impl Update {
    /// The inodes whose quotas it may change.
    pub fn changes_quotas_of(&self) -> [Option<Place>; 2] {
        let one = |place: &Place| [Some(*place), None];
        match self {
            // A file that has had no name counts once it has one.
            Update::Create { parent, .. } | Update::Link { parent, .. } => one(parent),
            Update::Unlink { child, .. }
            | Update::Rmdir { child, .. }
            | Update::PlaceDirectory { child, .. } => one(child),
            Update::Rename { replaced, from, whiteout, .. } => [*replaced, whiteout.map(|_| *from)],
            Update::SetAttributes { inode, .. }
            | Update::Write { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. }
            | Update::SetQuota { inode, .. } => one(inode),
            Update::CreateUnnamed { .. }
            | Update::SetXattr { .. }
            | Update::RemoveXattr { .. }
            | Update::Lock { .. }
            | Update::Leave { .. }
            | Update::Untangle { .. }
            | Update::Unlock { .. }
            | Update::Hold { .. }
            | Update::Forget { .. }
            | Update::Reap { .. }
            | Update::NoteReads { .. }
            | Update::NoteTop { .. }
            | Update::Renew { .. }
            | Update::Caps { .. }
            | Update::RaiseHorizon { .. }
            | Update::Expire { .. } => [None, None],
        }
    }
}
