//! A directory that is not empty gets a quota, or loses one: what is below it is counted by steps.
//!
//! Against which quota an inode counts is noted in it ([`crate::quota`]), so all that is below has
//! to be noted anew, and that is more than one update may touch. A *step* ([`Update::Count`]) does
//! so for the next entries of some directories. The primary of the group has one after the other
//! ordered, so it goes on whoever dies; others work meanwhile. Steps are numbered, and one is done
//! only if none was since it was made up: it is done once, and a primary has one under way.
//!
//! Seen so, the inodes of the quota that is left (`from`, or none) come over to another (`to`, or
//! none), beginning with the directory itself, its *root*. A directory that has come over is *open*
//! until all in it has, in the order of names; what is made in it counts against `to` at once. So
//! what a step finds in an open directory and does not name came there since the step was made up,
//! and has come over. Three rules keep all else in place:
//!
//! - a directory comes over after the one above it, so what has not come over cannot leave the root
//!   with something below it that has;
//! - a directory that is open is not placed elsewhere, and gets no quota: it stays as it is until
//!   all in it has come over;
//! - who moves something does what is due. What comes into a directory that has come over comes
//!   over, too. A file that leaves such a directory goes back, unless it has more names; and if a
//!   directory does, those above its new name come over, up to the first that has. If there is none
//!   it would leave the root: [`FsError::OtherQuota`], as ever.
//!
//! While it goes on, an update that raises what is used is held to the limits with what has been
//! counted; steps and moves are not.
//!
//! Invariants:
//! - U3: if a directory counts against `to`, but not for itself, so does the one above it, as far
//!   as both are below the root.
//! - U4: in a directory that has come over, what does not count against `to` counts for itself, or
//!   lives elsewhere, or has a name behind that up to which the directory was counted.
//! - U5: a directory that is open counts against `to` as long as it is there.

use crate::FsError;
use crate::mutation::Mutation;
use crate::operation::{Done, Update};
use crate::partition::Partition;
use crate::quota::{Limits, Quota, Stage};
use crate::tree::Tree;
use crate::types::{Entry, Ino, Kind, Name, Place};
use bytes::Bytes;
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Bound;

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Counting {
    /// The directory that gets a quota, or loses its own.
    pub root: Ino,
    /// The quota that is left.
    pub from: Option<Ino>,
    /// The one that is counted against from now on.
    pub to: Option<Ino>,
    /// The directories that are open, each with the name up to which all in it has come over.
    pub open: OrdMap<Ino, Name>,
}

/// Some entries of a directory, in the order of names.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Stretch {
    /// The directory, which is open.
    pub directory: Ino,
    /// What the entries lead to, as far as that is in the directory's partition.
    pub inodes: Vec<Ino>,
    /// The name of the last one; `None` if all that are left were looked at.
    pub upto: Option<Name>,
}

/// What a move over the border does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Border {
    /// It comes over.
    Comes,
    /// It leaves what has come over.
    Leaves,
}

impl Counting {
    fn border(&self, own: Option<Ino>, other: Option<Ino>) -> Option<Border> {
        match (own, other) {
            (own, other) if (own, other) == (self.from, self.to) => Some(Border::Comes),
            (own, other) if (own, other) == (self.to, self.from) => Some(Border::Leaves),
            (_, _) => None,
        }
    }
}

impl Partition {
    /// All directories with quotas, and those.
    pub fn quotas(&self) -> impl Iterator<Item = (Place, &Quota)> {
        self.tree.quotas.iter().map(|(ino, quota)| (self.tree.place(ino), quota))
    }

    /// The number of the next step of what is counted here, if anything is.
    pub fn counting(&self) -> Option<u64> {
        self.tree.quotas.counting.as_ref().map(|_| self.tree.quotas.steps)
    }

    /// That step, for the primary to multicast, with so many directories and entries at most, and
    /// the quotas that it names; see [`Update::Count`].
    pub fn next_count(&self, most: usize) -> Option<(Update, Vec<Place>)> {
        self.tree.next_count(most)
    }
}

impl Tree {
    /// Gives a directory a quota, or other limits, or takes its quota away.
    pub fn set_quota(
        &mut self,
        place: Place,
        parent: Place,
        limits: Option<Limits>,
    ) -> Result<Done, FsError> {
        let inode = self.inode(place)?;
        let directory = inode.as_directory().ok_or(FsError::NotDirectory)?;
        if directory.parent != parent {
            return Err(FsError::Stale);
        }
        let (empty, before, ino) = (directory.entries.is_empty(), inode.quota, place.ino);
        let own = self.quotas.get(ino).copied();
        match (limits, own) {
            (None, None) => return Err(FsError::NoAttribute),
            (Some(_), None) if self.is_open(ino) => return Err(FsError::Busy),
            (_, Some(Quota { stage: Stage::Leaves, .. }))
            | (None, Some(Quota { stage: Stage::Counts, .. })) => return Err(FsError::Busy),
            (Some(_), Some(_)) => {}
            (Some(_), None) => {
                let stage = if empty { Stage::Complete } else { Stage::Counts };
                self.begin_counting(ino, before, Some(ino), !empty)?;
                self.quotas.add(ino, stage);
                self.change(ino, |inode| inode.quota = Some(ino));
            }
            (None, Some(quota)) => {
                let above = (parent != place).then(|| self.quota_of(parent)).flatten();
                let alone = quota.inodes == 1;
                self.begin_counting(ino, Some(ino), above, !alone)?;
                self.change(ino, |inode| inode.quota = above);
                match alone {
                    true => self.quotas.remove(ino),
                    false => self.quotas.set_stage(ino, Stage::Leaves),
                }
                return Ok(Done::Nothing);
            }
        }
        self.quotas.limit(ino, limits.expect("it was looked at above"));
        Ok(Done::Nothing)
    }

    /// The quota that an inode counts against that is here.
    fn quota_of(&self, place: Place) -> Option<Ino> {
        let here = place.partition == self.group;
        self.get(place.ino).filter(|_| here).and_then(|inode| inode.quota)
    }

    fn begin_counting(
        &mut self,
        root: Ino,
        from: Option<Ino>,
        to: Option<Ino>,
        is_needed: bool,
    ) -> Result<(), FsError> {
        if !is_needed {
            return Ok(());
        }
        if self.quotas.counting.is_some() {
            return Err(FsError::Busy);
        }
        self.quotas.steps += 1;
        let open = OrdMap::unit(root, Bytes::new());
        self.quotas.counting = Some(Counting { root, from, to, open });
        Ok(())
    }

    /// Whether it is a directory that has come over, and not yet all in it.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.quotas.counting.as_ref().is_some_and(|counting| counting.open.contains_key(&ino))
    }

    /// The next step of what is counted here, with so many entries and directories at most, and the
    /// quotas that it must name.
    pub fn next_count(&self, most: usize) -> Option<(Update, Vec<Place>)> {
        let Counting { root, from, to, open } = self.quotas.counting.as_ref()?;
        let (mut room, mut stretches) = (most.max(2), Vec::new());
        for (directory, after) in open {
            if room < 2 {
                break; // For the directory and one entry.
            }
            room -= 1;
            stretches.push(self.stretch(*directory, after, &mut room));
        }
        let leaves = self.quotas.get(*root).is_some_and(|quota| quota.stage == Stage::Leaves);
        let rest = || self.iter().filter(|(_, inode)| inode.quota == *from).map(|(ino, _)| ino);
        let rest = if leaves && open.is_empty() { rest().take(most).collect() } else { Vec::new() };
        let (root, number) = (self.place(*root), self.quotas.steps);
        let quotas: BTreeSet<Ino> = [Some(root.ino), *from, *to].into_iter().flatten().collect();
        let update = Update::Count { root, number, stretches, rest };
        Some((update, quotas.into_iter().map(|ino| self.place(ino)).collect()))
    }

    /// The next entries of a directory.
    fn stretch(&self, directory: Ino, after: &Name, room: &mut usize) -> Stretch {
        let (mut inodes, mut last) = (Vec::new(), None);
        let mut entries = self.entries_between(directory, after, Bound::Unbounded).peekable();
        while let Some((name, entry)) = entries.next_if(|_| *room > 0) {
            *room -= 1;
            let here = entry.place.partition == self.group;
            inodes.extend(here.then_some(entry.place.ino));
            last = Some(name);
        }
        let upto = entries.peek().and(last).cloned();
        Stretch { directory, inodes, upto }
    }

    /// The entries of a directory behind a name; none if it is gone.
    fn entries_between<'a>(
        &'a self,
        directory: Ino,
        after: &'a Name,
        upto: Bound<&'a Name>,
    ) -> impl Iterator<Item = (&'a Name, &'a Entry)> {
        let directory = self.get(directory).and_then(|inode| inode.as_directory());
        let range = (Bound::Excluded(after), upto);
        directory.into_iter().flat_map(move |of| of.entries.range::<_, Name>(range))
    }

    /// Does a step.
    pub fn count(&mut self, root: Place, number: u64, all: &[Stretch], rest: &[Ino]) -> Done {
        let counting = self.quotas.counting.as_ref().filter(|of| of.root == root.ino);
        if counting.is_none() || number != self.quotas.steps {
            return Done::Nothing; // Another primary had it ordered, too.
        }
        self.quotas.steps += 1;
        if self.quotas.get(root.ino).is_none() {
            self.quotas.counting = None; // The root was removed.
            return Done::Nothing;
        }
        all.iter().for_each(|stretch| self.count_in(stretch));
        rest.iter().for_each(|ino| self.come_over(*ino));
        let is_open = |counting: &Counting| !counting.open.is_empty();
        if self.quotas.counting.as_ref().is_some_and(is_open) {
            return Done::Nothing;
        }
        match self.quotas.get(root.ino).copied() {
            Some(Quota { stage: Stage::Leaves, inodes: 1.., .. }) => return Done::Nothing,
            Some(Quota { stage: Stage::Leaves, .. }) => self.quotas.remove(root.ino),
            Some(_) => self.quotas.set_stage(root.ino, Stage::Complete),
            None => {}
        }
        self.quotas.counting = None;
        Done::Nothing
    }

    /// The next entries of a directory that is open come over.
    fn count_in(&mut self, stretch: &Stretch) {
        let Stretch { directory, inodes, upto } = stretch;
        let Some(counting) = &self.quotas.counting else { return };
        let Some(after) = counting.open.get(directory).cloned() else { return };
        let is_whole = upto.is_none() || self.mutation.is(Mutation::ClosesEarly);
        let named: BTreeSet<Ino> = inodes.iter().copied().collect();
        let last = upto.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let found: Vec<Ino> = self
            .entries_between(*directory, &after, last)
            .map(|(_, entry)| entry.place)
            .filter(|place| place.partition == self.group && named.contains(&place.ino))
            .map(|place| place.ino)
            .collect();
        found.into_iter().for_each(|ino| self.come_over(ino));
        let open = &mut self.quotas.counting.as_mut().expect("it is going on").open;
        match upto.clone().filter(|_| !is_whole) {
            Some(name) => open.insert(*directory, name),
            None => open.remove(directory),
        };
    }

    /// An inode comes over if it has not yet, and does not count for itself.
    fn come_over(&mut self, ino: Ino) {
        let Some(Counting { from, to, .. }) = self.quotas.counting.clone() else { return };
        let Some(inode) = self.get(ino).filter(|inode| inode.quota == from) else { return };
        let is_directory = inode.kind == Kind::Directory;
        self.change(ino, |inode| inode.quota = to);
        let open = &mut self.quotas.counting.as_mut().expect("it is going on").open;
        if is_directory {
            open.insert(ino, Bytes::new());
        }
    }

    fn border(&self, moved: Place, to: Place) -> Option<Border> {
        let here = moved.partition == self.group && to.partition == self.group;
        let counting = self.quotas.counting.as_ref().filter(|_| here)?;
        counting.border(self.quota_of(moved), self.quota_of(to))
    }

    /// Whether `moved` may come into the directory `to`, above which are those that are listed.
    pub fn check_move(
        &self,
        moved: Place,
        to: Place,
        listed: &BTreeSet<Place>,
    ) -> Result<(), FsError> {
        let same = self.check_same_quota(moved, to);
        if same.is_ok() {
            return same;
        }
        let is_directory = self.get(moved.ino).is_some_and(|of| of.kind == Kind::Directory);
        match self.border(moved, to) {
            Some(Border::Comes) => Ok(()),
            Some(Border::Leaves) if !is_directory || self.way_up(to, listed).is_some() => Ok(()),
            Some(Border::Leaves) | None => same,
        }
    }

    /// `to` and the directories above it that have not come over, up to one that has; all of them
    /// listed. `None` if there is no such.
    fn way_up(&self, to: Place, listed: &BTreeSet<Place>) -> Option<Vec<Ino>> {
        let counting = self.quotas.counting.as_ref()?;
        let (mut way, mut at) = (Vec::new(), to);
        while at.partition == self.group && (listed.contains(&at) || at == Place::ROOT) {
            let inode = self.get(at.ino)?;
            if inode.quota == counting.to {
                return Some(way);
            }
            if inode.quota != counting.from {
                return None;
            }
            way.push(at.ino);
            let above = inode.as_directory()?.parent;
            if above == at {
                return None; // The root of all.
            }
            at = above;
        }
        None
    }

    /// `moved` is in the directory `to` from now on, or has got another name in it.
    pub fn settle_move(&mut self, moved: Place, from: Place, to: Place, listed: &BTreeSet<Place>) {
        let Some(inode) = self.get(moved.ino) else { return };
        let (is_directory, names) = (inode.kind == Kind::Directory, inode.nlink);
        match self.border(moved, to) {
            Some(Border::Comes) if self.mutation.is(Mutation::MissesMoved) => {}
            Some(Border::Comes) => self.come_over(moved.ino),
            Some(Border::Leaves) if from == to => {}
            Some(Border::Leaves) if is_directory => {
                // From the top, though the order shows nowhere.
                let way = self.way_up(to, listed).unwrap_or_default();
                way.into_iter().rev().for_each(|ino| self.come_over(ino));
            }
            Some(Border::Leaves) if names == 1 => {
                let from = self.quotas.counting.as_ref().and_then(|counting| counting.from);
                self.change(moved.ino, |inode| inode.quota = from);
            }
            Some(Border::Leaves) | None => {}
        }
    }

    /// `target` has got a name in the directory `parent`.
    pub fn settle_link(&mut self, target: Place, parent: Place) {
        if self.border(target, parent) == Some(Border::Comes) {
            self.come_over(target.ino);
        }
    }

    /// Whether `target`, which has a name, may get one in `parent`.
    pub fn check_link(&self, target: Place, parent: Place) -> Result<(), FsError> {
        match self.border(target, parent) {
            Some(_) => Ok(()),
            None => self.check_same_quota(target, parent),
        }
    }

    /// A directory that is to go must not be the last of a quota that others count against: files
    /// that had names below it and have others elsewhere.
    pub fn check_unused(&self, directory: Ino) -> Result<(), FsError> {
        let Some(quota) = self.quotas.get(directory) else { return Ok(()) };
        let own = self.get(directory).is_some_and(|inode| inode.quota == Some(directory));
        if quota.inodes == u64::from(own) { Ok(()) } else { Err(FsError::Busy) }
    }
}
