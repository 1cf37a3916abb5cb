//! Directories of other regions are held with all that is in them and below them, as far as one
//! step may ask for it, and small files with their bytes: all that comes along with one grant, so
//! that a program does not wait for each look at it (decisions 101 and 114).
//!
//! What is in a directory comes along with the answer that shows it first, and so does what is in
//! directories below it. The client asks in one step to hold all of that, and what it is comes
//! along with the grant. No read has to be made after that (K1): it is from after the grant, and
//! before anything that others do later.
//!
//! Invariant K6: what has come along with a grant is kept only of what was granted by it, and not
//! of what the client itself has changed since it asked.

use super::{Caps, Errand, PAUSE, WINDOW};
use crate::calls::CallId;
use crate::mutation::Mutation;
use crate::nodes::Nodes;
use meridian_core::{GroupId, Time};
use meridian_fs::types::{FILE_MAX, Kind, Name, Place};
use meridian_fs::{Answer, FsError, Ino, Listed, Query};
use meridian_host::api::HERE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many directories are asked for at a time.
const AHEADS_MAX: usize = 16;
/// One that waits for longer, for the lease, is not asked for.
const WAITS_MAX: Duration = Duration::from_secs(3);

/// A directory that is to be asked for with what is below it, or is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    since: Time,
    /// The directory first, then what is in it, then what is further below.
    inodes: Vec<(Ino, Kind)>,
    /// Those among them whose entries are asked for, in the same order.
    listed: Vec<Ino>,
    /// So many are the directory and what is in it.
    near: usize,
    sent: bool,
    /// What the client must not keep.
    pub spoiled: BTreeSet<Ino>,
    /// What it has changed itself since it asked.
    changed: BTreeSet<Ino>,
    /// What was shown of directories below it before they were held, for a planted bug.
    brought: BTreeMap<Ino, Answer>,
}

impl Ahead {
    /// That directory, of which these entries have come along. What is in one that may not be asked
    /// for is not asked for either.
    fn new(
        now: Time,
        directory: Place,
        entries: &[Listed],
        may_ask: impl Fn(Place) -> bool,
    ) -> Ahead {
        let (mut inodes, mut listed) = (vec![(directory.ino, Kind::Directory)], Vec::new());
        let mut near = 0;
        for of in by_directory(entries) {
            let (directory, children) = match of {
                [(name, entry, _), rest @ ..] if &name[..] == HERE => (entry.place, rest),
                all => (directory, all),
            };
            if !inodes.contains(&(directory.ino, Kind::Directory)) {
                continue;
            }
            listed.push(directory.ino);
            // What has no attributes here lives elsewhere, or waits for something undecided: who
            // asked to hold it would wait, too.
            let shown = children.iter().filter_map(|(_, _, attributes)| attributes.as_ref());
            let shown = shown.filter(|of| may_ask(of.place)).take(WINDOW - inodes.len());
            inodes.extend(shown.map(|of| (of.place.ino, of.kind)));
            near = if listed.len() == 1 { inodes.len() } else { near };
        }
        let (spoiled, changed, brought) = Default::default();
        Ahead { since: now, inodes, listed, near, sent: false, spoiled, changed, brought }
    }

    /// Only the directory and what is in it, if there is more.
    fn without_below(mut self, now: Time) -> Option<Ahead> {
        let goes_below = self.listed.len() > 1;
        self.inodes.truncate(self.near);
        self.listed.truncate(1);
        goes_below.then_some(Ahead { since: now, sent: false, ..self })
    }

    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Nothing of it is to be kept.
    pub fn spoil_all(&mut self) {
        self.spoiled.extend(self.inodes.iter().map(|(ino, _)| *ino));
    }

    /// All listings, which have the attributes of what is in them; then the bytes, for which there
    /// may be no room.
    fn queries(&self, directory: Place) -> Vec<Query> {
        let place = |ino: &Ino| Place { ino: *ino, ..directory };
        let entries = |inode| Query::Directory { inode, after: Name::new(), limit: LIMIT };
        let bytes = |inode| Query::Contents { inode, offset: 0, len: FILE_MAX };
        let files = self.inodes.iter().filter(|(_, kind)| *kind == Kind::File);
        let listings = self.listed.iter().map(|ino| entries(place(ino)));
        let files = files.map(|(ino, _)| bytes(place(ino)));
        listings.chain([Query::Attributes { inode: directory }]).chain(files).collect()
    }
}

/// The entries that have come along, those of each directory: of the first one as they are, of each
/// other after what tells which it is.
fn by_directory(entries: &[Listed]) -> impl Iterator<Item = &[Listed]> {
    let all = entries.chunk_by(|_, (name, ..)| &name[..] != HERE);
    all.chain(entries.is_empty().then_some(entries))
}

/// What they show of directories below the first, as if it were told with the grant.
fn as_if_told(directory: Place, entries: &[Listed]) -> BTreeMap<Ino, Answer> {
    let below = by_directory(entries).skip(1).filter_map(<[Listed]>::split_first);
    let told = below.map(|((_, of, _), entries)| {
        let (entries, tops) = (entries.to_vec(), Vec::new());
        (of.place.ino, Answer::Directory { entries, end: true, parent: directory, tops })
    });
    told.collect()
}

/// So many entries are asked for with their directory.
const LIMIT: u32 = WINDOW as u32 - 1;

impl Caps {
    /// Whether a client that asks this wants the entries of the directory that it is shown. Then a
    /// lease is begun beside.
    pub fn wants_along(&mut self, now: Time, id: CallId, query: &Query, nodes: &Nodes) -> bool {
        let (Query::Lookup { parent: inode, .. } | Query::Attributes { inode }) = query else {
            return false;
        };
        let wants = self.is_on && !self.ends && !id.is_own();
        if !wants || !nodes.brings_along(inode.partition) {
            return false;
        }
        let lease = self.leases.entry(inode.partition).or_default();
        lease.begins |= lease.until <= now;
        lease.is_far = true;
        // What could not be asked for would come for nothing.
        let shown = match query {
            Query::Lookup { name, .. } => {
                let known = self.known.get(&inode.ino).and_then(|known| known.name(name));
                known.flatten().map(|entry| entry.place)
            }
            _ => Some(*inode),
        };
        shown.is_none_or(|shown| self.may_ask(now, shown))
    }

    /// Entries of the directory that an answer has shown have come along, and of those below it.
    pub fn on_entries(
        &mut self,
        now: Time,
        answer: &Result<Answer, FsError>,
        along: &[Result<Answer, FsError>],
    ) {
        let [Ok(Answer::Directory { entries, .. })] = along else { return };
        let Ok(Answer::Entry { attributes: Some(of), .. } | Answer::Attributes(of)) = answer else {
            return;
        };
        let directory = of.place;
        self.aheads.retain(|_, ahead| ahead.sent || now.since(ahead.since) < WAITS_MAX);
        let full = self.aheads.len() >= AHEADS_MAX || self.is_half_full();
        let comes = self.aheads.values().any(|ahead| ahead.listed.contains(&directory.ino));
        if full || comes || !self.may_ask(now, directory) {
            return;
        }
        let mut ahead = Ahead::new(now, directory, entries, |place| self.may_ask(now, place));
        if self.mutation.is(Mutation::KeepsBrought) {
            ahead.brought = as_if_told(directory, entries);
        }
        self.aheads.insert(directory, ahead);
    }

    /// Whether the inode is not held, and was not recalled lately.
    pub(super) fn may_ask(&self, now: Time, place: Place) -> bool {
        let ino = &place.ino;
        let paused = self.paused.get(ino).is_some_and(|(until, _)| *until > now);
        let lease = self.leases.get(&place.partition);
        let goes = lease.is_some_and(|lease| lease.going.contains(ino));
        !paused && !goes && !self.known.contains_key(ino)
    }

    /// The next directory that is asked for.
    pub(super) fn next_ahead(&mut self, now: Time, full: bool) -> Option<(GroupId, Errand)> {
        let leases = &self.leases;
        let lasts = |group| leases.get(&group).is_some_and(|lease| lease.until > now);
        let mut waiting = self.aheads.iter_mut().filter(|(_, ahead)| !ahead.sent && !full);
        let (directory, ahead) = waiting.find(|(of, _)| lasts(of.partition))?;
        ahead.sent = true;
        let (directory, queries) = (*directory, ahead.queries(*directory));
        let inodes = ahead.inodes.iter().map(|(ino, _)| *ino).collect();
        let errand = Errand::Ahead { directory, inodes, queries, told: Vec::new() };
        Some((directory.partition, errand))
    }

    /// A directory that was asked for is held, or not; answers what the owner is to drop.
    pub(super) fn on_ahead(
        &mut self,
        now: Time,
        directory: Place,
        sent: Time,
        (queries, told): (Vec<Query>, Vec<Result<Answer, FsError>>),
        granted: Option<Vec<Ino>>,
    ) -> Vec<(GroupId, Ino)> {
        let Some(mut ahead) = self.aheads.remove(&directory) else { return Vec::new() };
        let Some(granted) = granted else {
            // Something may be under way of what is further below, for which no step waits.
            if let Some(ahead) = ahead.without_below(now).filter(|_| !self.ends) {
                self.aheads.insert(directory, ahead);
            } else {
                self.paused.insert(directory.ino, (now + PAUSE.1, PAUSE.1));
            }
            return Vec::new();
        };
        let granted_at = (directory.partition, sent);
        let given: BTreeSet<_> = granted.iter().copied().collect();
        let gone = self.take_granted(now, granted_at, (granted, ahead.spoiled.clone()), None);
        for (at, (ino, _)) in ahead.inodes.iter().enumerate() {
            if let Some(known) = self.known.get_mut(ino).filter(|_| given.contains(ino)) {
                known.ahead = (*ino != directory.ino).then_some(directory.ino);
                self.along += 1;
                self.below += u64::from(at >= ahead.near);
            }
        }
        let keeps = self.mutation.is(Mutation::KeepsChanged);
        let may_keep = |ino: &Ino| {
            let changed = ahead.changed.contains(ino) && !keeps;
            given.contains(ino) && !changed && !ahead.spoiled.contains(ino) // K6
        };
        for (query, mut answer) in queries.iter().zip(told) {
            let Some(ino) = query.inode().filter(may_keep) else { continue };
            if let Some(brought) = ahead.brought.remove(&ino) {
                answer = Ok(brought);
            }
            if let Ok(Answer::Directory { entries, .. }) = &mut answer {
                // Some are held since before, and this may be older.
                for (_, _, attributes) in entries {
                    *attributes = attributes.filter(|of| may_keep(&of.place.ino));
                }
            }
            self.fill(now, query, (self.count, true), &answer);
        }
        gone
    }

    /// What is held beside these, as it was asked for with them: it goes with them. Who changes
    /// one of the files in a directory mostly changes others, and is to wait once.
    pub(super) fn held_beside(&self, recalled: &[&Ino]) -> Vec<Ino> {
        let ahead = |ino: &&Ino| self.known.get(ino).and_then(|known| known.ahead);
        let directories: BTreeSet<_> = recalled.iter().filter_map(ahead).collect();
        if directories.is_empty() {
            return Vec::new();
        }
        let held = self.known.iter().filter(|(_, known)| {
            known.ahead.is_some_and(|directory| directories.contains(&directory))
        });
        held.map(|(ino, _)| *ino).collect()
    }

    /// The client changes an inode, or has changed it; `moves` tells whether it may have moved it.
    pub(super) fn touch(&mut self, ino: Ino, moves: bool) {
        let aheads = self.aheads.values_mut().filter(|ahead| ahead.sent);
        aheads.for_each(|ahead| ahead.changed.extend([ino]));
        self.making.cross(ino, self.count);
        self.touch_window(ino);
        let keeps = self.mutation.is(Mutation::KeepsBytes);
        if let Some(known) = self.known.get_mut(&ino) {
            if !keeps {
                known.extents.touch(self.count);
                known.layout.touch(self.count);
            }
            if moves {
                known.parent.touch(self.count);
            }
        }
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
