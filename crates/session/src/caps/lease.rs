//! What a client has in one partition, and what is to be sent for it.

use meridian_core::{Stamp, Time};
use meridian_fs::types::{Name, Place};
use meridian_fs::{Answer, FsError, Ino, Query};
use meridian_host::replica::CAP_LEASE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For how long after the last use a lease is renewed in another region: there a path costs a round
/// trip for each of its names once it has lapsed.
const LINGERS: Duration = Duration::from_secs(30);

/// So many inodes are released by one message: some KiB.
const RELEASED_MAX: usize = 512;
/// The same of those that may be held exclusively: each may wait for an undecided update.
const RELEASED_ALONE_MAX: usize = 16;

/// Something that the session sends for its capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Grant(Vec<Ino>),
    /// The step that asks for many in this directory.
    Sweep(Ino, Vec<Ino>),
    /// The question which entries come after that name in the directory.
    List(Place, Name),
    /// The step that asks for a directory of another region and what is below it, with the
    /// questions what all that is, and what was told.
    Ahead {
        directory: Place,
        inodes: Vec<Ino>,
        queries: Vec<Query>,
        told: Vec<Result<Answer, FsError>>,
    },
    /// The step that asks for many in a directory, with the questions what all that is, and what
    /// was told.
    Window {
        directory: Place,
        inodes: Vec<Ino>,
        queries: Vec<Query>,
        told: Vec<Result<Answer, FsError>>,
    },
    Renew,
    Release(Vec<Ino>),
    /// The step that asks to hold a directory exclusively.
    GrantExclusive(Ino),
    /// The question which entries come after that name in a directory that is held so.
    Survey(Place, Name),
    ReleaseExclusive(Vec<Ino>),
    /// The step that has others let go what a call of the owner needs.
    Recall,
    /// The question what is recalled.
    Poll,
}

/// What a client has in one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    /// Until when it may be used.
    pub until: Time,
    /// Since when it has never run out.
    pub since: Time,
    /// It is to begin, as something will be held soon.
    pub begins: bool,
    /// When the last renewal was sent that was acknowledged.
    pub sent: Time,
    pub used: Time,
    /// Whether the group is in another region.
    pub is_far: bool,
    pub held: usize,
    pub wanted: BTreeSet<Ino>,
    /// What is being asked for, and what of that the client must not keep.
    pub granting: Option<BTreeSet<Ino>>,
    pub renewing: bool,
    /// Dropped here; to be released once the owner has dropped it, too.
    pub going: BTreeSet<Ino>,
    /// What others wait for of that.
    pub urgent: BTreeSet<Ino>,
    pub to_release: BTreeSet<Ino>,
    pub releasing: bool,
    pub wanted_alone: BTreeSet<Ino>,
    /// What it asks to hold exclusively.
    pub asking_alone: Option<Ino>,
    /// What the partition may take for held exclusively.
    pub alone: BTreeSet<Ino>,
    /// How much is kept back in directories.
    pub unlanded: BTreeMap<Ino, u32>,
    pub polling: bool,
    /// Up to where replies of the partition have told what is recalled.
    pub checked: Stamp,
}

impl Lease {
    pub fn next_errand(&mut self, now: Time, full: bool) -> Option<Errand> {
        if let Some(errand) = self.next_release() {
            return Some(errand);
        }
        if self.is_to_renew(now) {
            (self.renewing, self.begins) = (true, false);
            return Some(Errand::Renew);
        }
        // What is granted counts only while the lease lasts.
        if !self.wanted.is_empty() && self.granting.is_none() && !full && self.until > now {
            self.granting = Some(BTreeSet::new());
            let mut batch = std::mem::take(&mut self.wanted);
            batch.retain(|ino| !self.going.contains(ino));
            // One by one: updates of one inode must not wait for what another inode waits for.
            let first = batch.pop_first();
            self.wanted = batch;
            if let Some(first) = first {
                return Some(Errand::Grant(vec![first]));
            }
            self.granting = None;
        }
        if self.asking_alone.is_none() && self.until > now {
            let wanted = std::mem::take(&mut self.wanted_alone);
            // What is kept back there still is from an earlier time.
            let goes = |ino: &Ino| self.going.contains(ino) || self.unlanded.contains_key(ino);
            let mut wanted = wanted.into_iter().filter(|ino| !goes(ino));
            self.asking_alone = wanted.next();
            self.wanted_alone = wanted.collect();
            if let Some(ino) = self.asking_alone {
                self.alone.insert(ino);
                return Some(Errand::GrantExclusive(ino));
            }
        }
        if self.held == 0 || !self.urgent.is_empty() {
            return None;
        }
        (!std::mem::replace(&mut self.polling, true)).then_some(Errand::Poll)
    }

    /// What is to be released now: first what others wait for, then what goes for room.
    fn next_release(&mut self) -> Option<Errand> {
        if self.releasing || self.to_release.is_empty() {
            return None;
        }
        let urgent = self.urgent.iter().filter(|ino| self.to_release.contains(ino));
        let errand = self.release_of(urgent).or_else(|| self.release_of(self.to_release.iter()))?;
        let (Errand::Release(inodes) | Errand::ReleaseExclusive(inodes)) = &errand else {
            return None;
        };
        for ino in inodes {
            self.to_release.remove(ino);
        }
        self.releasing = true;
        Some(errand)
    }

    /// The message that releases the first of these: what is shared, many at a time; what may be
    /// exclusive once nothing is kept back in it (K8), and it is known whether it is.
    fn release_of<'a>(&self, all: impl Iterator<Item = &'a Ino> + Clone) -> Option<Errand> {
        let shared = all.clone().filter(|ino| !self.alone.contains(ino));
        let shared: Vec<_> = shared.take(RELEASED_MAX).copied().collect();
        if !shared.is_empty() {
            return Some(Errand::Release(shared));
        }
        let free =
            |ino: &&Ino| !self.unlanded.contains_key(ino) && self.asking_alone != Some(**ino);
        let free: Vec<_> = all.filter(free).take(RELEASED_ALONE_MAX).copied().collect();
        (!free.is_empty()).then_some(Errand::ReleaseExclusive(free))
    }

    /// These were released.
    pub fn released(&mut self, inodes: &[Ino]) {
        for ino in inodes {
            self.going.remove(ino);
            self.urgent.remove(ino);
        }
    }

    /// Whether the lease is to be begun, for what is wanted, or renewed, for what is used.
    fn is_to_renew(&self, now: Time) -> bool {
        if self.renewing || !self.urgent.is_empty() {
            return false; // Others wait for what goes: the lease is not to be renewed before.
        }
        let old = now.since(self.sent) >= CAP_LEASE / 3;
        let begins = self.until <= now && (self.begins || !self.wanted.is_empty());
        let lingers = self.is_far && now.since(self.used) < LINGERS;
        begins || (old && self.held > 0 && (self.used > self.sent || lingers))
    }
}
