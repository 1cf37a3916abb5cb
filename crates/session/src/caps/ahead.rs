//! Directories of other regions are held with all that is in them, and small files with their
//! bytes: all that comes along with one grant, so that a program does not wait for each look at it
//! (decision 101).
//!
//! The entries of a directory come along with the answer that shows it first. The client asks in
//! one step to hold it, and them, and what they are comes along with the grant. No read has to be
//! made after that (K1): it is from after the grant, and before anything that others do later.
//!
//! Invariant K6: what has come along with a grant is kept only of what was granted by it, and not
//! of what the client itself has changed since it asked.

use super::{Caps, Errand, PAUSE, WINDOW};
use crate::calls::CallId;
use crate::mutation::Mutation;
use crate::nodes::Nodes;
use meridian_core::{GroupId, Time};
use meridian_fs::types::{FILE_MAX, Kind, Name, Place};
use meridian_fs::{Answer, FsError, Ino, Query};
use std::collections::BTreeSet;
use std::time::Duration;

/// So many directories are asked for at a time.
const AHEADS_MAX: usize = 16;
/// One that waits for longer, for the lease, is not asked for.
const WAITS_MAX: Duration = Duration::from_secs(3);

/// A directory that is to be asked for with what is in it, or is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    since: Time,
    /// The directory first.
    inodes: Vec<(Ino, Kind)>,
    sent: bool,
    /// What the client must not keep.
    pub spoiled: BTreeSet<Ino>,
    /// What it has changed itself since it asked.
    changed: BTreeSet<Ino>,
}

impl Ahead {
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Nothing of it is to be kept.
    pub fn spoil_all(&mut self) {
        self.spoiled.extend(self.inodes.iter().map(|(ino, _)| *ino));
    }

    fn queries(&self, directory: Place) -> Vec<Query> {
        let place = |ino: &Ino| Place { ino: *ino, ..directory };
        let of = |(ino, kind): &(Ino, Kind)| match kind {
            Kind::File => Query::Contents { inode: place(ino), offset: 0, len: FILE_MAX },
            _ => Query::Attributes { inode: place(ino) },
        };
        let entries = Query::Directory { inode: directory, after: Name::new(), limit: LIMIT };
        std::iter::once(entries).chain(self.inodes.iter().map(of)).collect()
    }
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

    /// The entries of the directory that an answer has shown have come along.
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
        if full || self.aheads.contains_key(&directory) || !self.may_ask(now, directory) {
            return;
        }
        // What has no attributes here lives elsewhere, or waits for something undecided: who asked
        // to hold it would wait, too.
        let shown = entries.iter().filter_map(|(_, _, attributes)| attributes.as_ref());
        let children = shown.filter(|of| self.may_ask(now, of.place));
        let children = children.take(LIMIT as usize).map(|of| (of.place.ino, of.kind));
        let inodes = std::iter::once((directory.ino, Kind::Directory)).chain(children).collect();
        let (spoiled, changed) = (BTreeSet::new(), BTreeSet::new());
        let ahead = Ahead { since: now, inodes, sent: false, spoiled, changed };
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
        let Some(ahead) = self.aheads.remove(&directory) else { return Vec::new() };
        let Some(granted) = granted else {
            self.paused.insert(directory.ino, (now + PAUSE.1, PAUSE.1));
            return Vec::new();
        };
        let granted_at = (directory.partition, sent);
        let given: BTreeSet<_> = granted.iter().copied().collect();
        let gone = self.take_granted(now, granted_at, (granted, ahead.spoiled.clone()), None);
        for (ino, _) in ahead.inodes.iter().filter(|(ino, _)| given.contains(ino)) {
            if let Some(known) = self.known.get_mut(ino) {
                known.ahead = (*ino != directory.ino).then_some(directory.ino);
                self.along += 1;
            }
        }
        let keeps = self.mutation.is(Mutation::KeepsChanged);
        for (query, mut answer) in queries.iter().zip(told) {
            let Some(ino) = query.inode() else { continue };
            let changed = ahead.changed.contains(&ino) && !keeps;
            if changed || ahead.spoiled.contains(&ino) || !given.contains(&ino) {
                continue; // K6
            }
            if let Ok(Answer::Directory { entries, .. }) = &mut answer {
                // Some are held since before, and this may be older.
                entries.iter_mut().for_each(|(_, _, attributes)| *attributes = None);
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
