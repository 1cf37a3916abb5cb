//! How much may lie below a directory.
//!
//! A directory with a quota, and all that is made in it or below it, counts against the quota: each
//! inode against one, that of the nearest such directory, as long as it has a name. Only what lives
//! in the directory's own partition counts: what is placed elsewhere does not. So that it stays so,
//! nothing gets a name under another quota than its own ([`FsError::OtherQuota`]); a directory that
//! has a quota itself moves freely. A directory that is not empty gets one, or loses it, by steps
//! ([`crate::counting`]); a file that had another name elsewhere by then counts against the quota
//! as long as it has any name.
//!
//! Whether there is room is decided in order: an update that counts against a quota, or gives back
//! to it, names it ([`crate::Operation::quotas`]) and so has its key. A client that did not know is
//! told which, and repeats.
//!
//! Invariants:
//! - U1: what is used of a quota is the sum over the inodes that count against it.
//! - U2: an update that raises what is used leaves it within the limits.

use crate::FsError;
use crate::counting::Counting;
use crate::inode::Inode;
use crate::operation::{RenameMode, Update};
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
    /// Whether that is all.
    pub stage: Stage,
}

/// Whether all that is to count against a quota does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// It does.
    #[default]
    Complete,
    /// What was below the directory when it got the quota is being counted.
    Counts,
    /// The quota is taken away: what still counts against it is being given back.
    Leaves,
}

/// All quotas of a partition, by their directories.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Quotas {
    by_directory: OrdMap<Ino, Quota>,
    /// What is being counted: one directory's at a time.
    pub counting: Option<Counting>,
    /// How often that began, and how many steps were done: the number of the next step.
    pub steps: u64,
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
    pub fn add(&mut self, directory: Ino, stage: Stage) {
        self.by_directory.insert(directory, Quota { stage, ..Quota::default() });
    }

    /// It is counted, or given back, or that has ended.
    pub fn set_stage(&mut self, directory: Ino, stage: Stage) {
        let quota = self.by_directory.get_mut(&directory).expect("the caller found it");
        quota.stage = stage;
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
        let quota = |of: &Place| self.get(of.ino).filter(|_| here(of)).and_then(|of| of.quota);
        let mut needed: Vec<Ino> =
            update.changes_quotas_of().iter().flatten().filter_map(quota).collect();
        let of_its_own = |of: &&Place| here(of) && self.quotas.get(of.ino).is_some();
        needed.extend(update.may_end_quota_of().filter(of_its_own).map(|of| of.ino));
        for (moved, to) in update.moves().into_iter().filter(|(of, to)| here(of) && here(to)) {
            let (own, other) = (quota(&moved), quota(&to));
            if own != other && own != Some(moved.ino) {
                needed.extend([own, other].into_iter().flatten());
            }
        }
        if let (Update::Count { .. }, Some(counting)) = (update, &self.quotas.counting) {
            needed.extend([counting.from, counting.to].into_iter().flatten());
        }
        let needed = needed.into_iter().map(|ino| self.place(ino));
        match needed.into_iter().find(|quota| !named.contains(quota)) {
            Some(quota) => Err(FsError::UnnamedQuota { quota }),
            None => Ok(()),
        }
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
            _ => self.check_link(target, parent),
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
            Update::Make(made) => [Some(made.parent), Some(made.place())],
            Update::Unlink { child, .. }
            | Update::Rmdir { child, .. }
            | Update::PlaceDirectory { child, .. } => one(child),
            Update::Rename { replaced, from, whiteout, .. } => [*replaced, whiteout.map(|_| *from)],
            Update::SetAttributes { inode, .. }
            | Update::Write { inode, .. }
            | Update::Settle { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. } => one(inode),
            Update::SetQuota { inode, parent, .. } => [Some(*inode), Some(*parent)],
            // Its parts are looked at one by one; what counts against a quota comes alone.
            Update::Batch(parts) => match &parts[..] {
                [only] => one(&only.kept.child()),
                _ => [None, None],
            },
            Update::CreateUnnamed { .. }
            | Update::Count { .. }
            | Update::SetXattr { .. }
            | Update::RemoveXattr { .. }
            | Update::SetDurability { .. }
            | Update::Lock { .. }
            | Update::Leave { .. }
            | Update::Untangle { .. }
            | Update::Unlock { .. }
            | Update::Hold { .. }
            | Update::Forget { .. }
            | Update::Reap { .. }
            | Update::NoteReads { .. }
            | Update::NoteTop { .. }
            | Update::AddRegion { .. }
            | Update::RemoveRegion { .. }
            | Update::Renew { .. }
            | Update::Caps { .. }
            | Update::Mark { .. }
            | Update::RaiseHorizon { .. }
            | Update::Expire { .. } => [None, None],
        }
    }

    /// Whether it is refused if it raises what is used of a quota above a limit.
    pub(crate) fn is_limited(&self) -> bool {
        !matches!(self, Update::SetQuota { .. } | Update::Count { .. })
    }

    /// The directories whose own quotas may end with it, or begin to.
    fn may_end_quota_of(&self) -> impl Iterator<Item = &Place> {
        let of = match self {
            Update::Rmdir { child, .. } | Update::PlaceDirectory { child, .. } => Some(child),
            Update::Rename { replaced, .. } => replaced.as_ref(),
            Update::SetQuota { inode, .. } => Some(inode),
            Update::Count { root, .. } => Some(root),
            _ => None,
        };
        of.into_iter()
    }

    /// What comes into which directory.
    fn moves(&self) -> Vec<(Place, Place)> {
        match self {
            Update::Link { target, parent, .. } => vec![(*target, *parent)],
            Update::Rename { from, to, moved, replaced, mode, .. } => {
                let back = replaced.filter(|_| *mode == RenameMode::Exchange);
                [(*moved, *to)].into_iter().chain(back.map(|back| (back, *from))).collect()
            }
            _ => Vec::new(),
        }
    }
}
