//! Directories that the client holds exclusively, and new files in them that it keeps back until
//! they have all that their programs give them (decision 102).
//!
//! What is kept back is part of what is known of its directory: looks are answered from that. What
//! cannot be answered from it waits until the file has *landed*, that is until its
//! [`Update::Make`] was answered; the owner is told to send that.
//!
//! Invariants:
//! - K7: a file is kept back only in a directory that is held exclusively, of which the attributes
//!   are known, and in which its name is known to lead nowhere.
//! - K8: a directory is released after all that was kept back in it has landed, or never will.
//! - K9: what is kept back is shown only as long as its directory is held without a break.

use super::flights::Entries;
use super::{Caps, LOOKED_MAX, LOOKS_WITHIN};
use crate::mutation::Mutation;
use meridian_core::{GroupId, Stamp, Time};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Name, Place, Timestamp};
use meridian_fs::{FsError, Query, Update, Vector};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many files a client keeps back at most.
const KEPT_BACK_MAX: usize = 1024;
/// So many files that the client makes in a directory, within [`LOOKS_WITHIN`], and it asks to hold
/// the directory exclusively.
const MADE: u32 = 2;
/// A file is kept back only if the lease lasts for so long still: most have landed by then.
const LASTS: Duration = Duration::from_secs(2);

/// A file that is kept back.
#[derive(Clone, Debug)]
struct Newborn {
    parent: Place,
    name: Name,
    /// As it was made.
    attributes: Attributes,
    /// When its directory was granted, as the client counts.
    granted: u64,
    /// Whether the owner was told to have it land.
    called: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// Whether the owner has what it makes kept back.
    pub is_on: bool,
    newborns: BTreeMap<Ino, Newborn>,
    names: BTreeMap<(Ino, Name), Ino>,
    /// How many files the client has made in directories, and since when.
    made: BTreeMap<Ino, (Time, u32)>,
    /// Numbers those that were kept back.
    last: u64,
    /// What the owner is to be told to have land.
    to_land: Vec<Place>,
}

impl Alone {
    fn within(&self, directory: Ino) -> impl Iterator<Item = Ino> + '_ {
        let all = self.names.range((directory, Name::new())..);
        all.take_while(move |((of, _), _)| *of == directory).map(|(_, ino)| *ino)
    }
}

/// What an update that lands a file is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    ino: Ino,
    /// What its directory shows as its time of change after it.
    time: Timestamp,
}

impl Landing {
    /// Of that update, if it lands what is kept back.
    pub fn of(caps: &Caps, update: &Update, time: Timestamp) -> Option<Landing> {
        let Update::Make(made) = update else { return None };
        caps.alone.newborns.contains_key(&made.ino).then_some(Landing { ino: made.ino, time })
    }
}

impl Caps {
    /// From now on the owner has new files kept back, and lets them land when it is told to; or
    /// not.
    pub fn keep_back(&mut self, is_on: bool) {
        self.alone.is_on = is_on && self.is_on;
    }

    /// The client has made something in that directory: with enough files it asks to hold the
    /// directory exclusively.
    pub(super) fn count_made(&mut self, now: Time, directory: Place, is_file: bool) {
        let ino = directory.ino;
        let paused = self.paused.get(&ino).is_some_and(|(until, _)| *until > now);
        let held = self.known.get(&ino).is_some_and(|known| !known.alone);
        if !is_file || !self.alone.is_on || self.ends || paused || !held || ino.is_top() {
            return;
        }
        if self.alone.made.len() >= LOOKED_MAX {
            self.alone.made.clear();
        }
        let (since, made) = self.alone.made.entry(ino).or_insert((now, 0));
        if now.since(*since) > LOOKS_WITHIN {
            (*since, *made) = (now, 0);
        }
        *made += 1;
        if *made >= MADE {
            self.alone.made.remove(&ino);
            let lease = self.leases.entry(directory.partition).or_default();
            lease.wanted_alone.insert(ino);
        }
    }

    /// It was asked at `sent` to hold a directory exclusively, and it does or not.
    pub(super) fn on_alone(&mut self, now: Time, place: Place, sent: Time, granted: bool) {
        let lasted = self.has_lasted(now, place.partition, sent);
        let lease = self.leases.entry(place.partition).or_default();
        lease.asking_alone = None;
        let goes = lease.going.contains(&place.ino);
        if !granted {
            self.paused.insert(place.ino, (now + super::PAUSE.0, super::PAUSE.0));
        } else if lasted
            && !goes
            && let Some(known) = self.known.get_mut(&place.ino)
        {
            known.alone = true;
        }
    }

    /// Keeps back a new file, if it may (K7); answers what it is.
    pub fn begin_new(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        (node, time): (&NewNode, Timestamp),
        vector: &Vector,
    ) -> Option<Attributes> {
        let full = self.alone.newborns.len() >= KEPT_BACK_MAX;
        if !self.alone.is_on || full || self.ends || node.kind != Kind::File {
            return None;
        }
        self.lapse(now);
        if self.busy_names.contains_key(&(parent.ino, name.clone())) || self.is_odd(parent.ino) {
            return None;
        }
        let directory = self.attributes(now, parent, vector)?;
        let known = self.usable(now, parent, vector)?;
        if !known.alone || known.name(name)?.is_some() {
            return None;
        }
        let granted = known.granted;
        let lease = self.leases.get_mut(&parent.partition)?;
        if lease.until.since(now) < LASTS {
            return None;
        }
        self.alone.last += 1;
        let ino = Ino::chosen(parent.partition, self.by, self.alone.last);
        let place = Place { ino, ..parent };
        let attributes = node.attributes_in(&directory, place, time)?;
        if !self.mutation.is(Mutation::ReleasesUnlanded) {
            *lease.unlanded.entry(parent.ino).or_default() += 1;
        }
        self.count += 1;
        let known = self.known.get_mut(&parent.ino)?;
        known.attributes.touched_by(self.count, |of| Entries::one(time).add_to(of, true));
        known.born(name, self.count, Entry { place, kind: Kind::File });
        let newborn = Newborn { parent, name: name.clone(), attributes, granted, called: false };
        self.alone.newborns.insert(ino, newborn);
        self.alone.names.insert((parent.ino, name.clone()), ino);
        self.kept_back += 1;
        Some(attributes)
    }

    /// What is kept back is shown as it was made, as long as its directory may be used (K9).
    pub(super) fn newborn(
        &mut self,
        now: Time,
        ino: Ino,
        vector: &Vector,
    ) -> Option<Option<Attributes>> {
        let newborn = self.alone.newborns.get(&ino)?;
        let (parent, granted, attributes) = (newborn.parent, newborn.granted, newborn.attributes);
        if self.mutation.is(Mutation::ShowsLapsed) {
            return Some(Some(attributes));
        }
        let known = self.usable(now, parent, vector).filter(|known| known.granted == granted);
        Some(known.map(|_| attributes))
    }

    /// Whether something is kept back in a directory from before it was held last.
    pub(super) fn is_odd(&self, directory: Ino) -> bool {
        let granted = self.known.get(&directory).map(|known| known.granted);
        let newborns = &self.alone.newborns;
        let mut within = self.alone.within(directory);
        within.any(|ino| newborns.get(&ino).is_none_or(|of| Some(of.granted) != granted))
    }

    /// What is kept back that a replica does not know of, and that the question is about.
    pub fn unlanded_of_query(&self, query: &Query) -> BTreeSet<Ino> {
        if self.alone.newborns.is_empty() {
            return BTreeSet::new();
        }
        let own = query.inode().filter(|ino| self.alone.newborns.contains_key(ino));
        match query {
            Query::Lookup { parent, name } => {
                let named = self.alone.names.get(&(parent.ino, name.clone()));
                named.copied().into_iter().collect()
            }
            Query::Attributes { inode } | Query::Directory { inode, .. } => {
                self.alone.within(inode.ino).chain(own).collect()
            }
            _ => own.into_iter().collect(),
        }
    }

    /// The same of an update of the client, but for what lands it.
    pub fn unlanded_of_update(&self, update: &Update) -> BTreeSet<Ino> {
        if self.alone.newborns.is_empty() || matches!(update, Update::Make(_)) {
            return BTreeSet::new();
        }
        let names = update.names();
        let named = names.iter().filter_map(|(parent, name)| {
            self.alone.names.get(&(parent.ino, Name::clone(name))).copied()
        });
        let touched = update.partitions().into_iter().flat_map(|group| update.inodes_in(group));
        let touched: BTreeSet<_> = touched.collect();
        let own = touched.iter().copied().filter(|ino| self.alone.newborns.contains_key(ino));
        // What changes a directory in another way than by an entry comes after all in it.
        let whole = update.alters().into_iter().filter(|of| !Entries::are_all(update, *of));
        let within = whole.flat_map(|of| self.alone.within(of.ino));
        named.chain(own).chain(within).collect()
    }

    /// Whether it is kept back still.
    pub fn is_unlanded(&self, ino: Ino) -> bool {
        self.alone.newborns.contains_key(&ino)
    }

    /// What is kept back in a directory.
    pub fn unlanded_in(&self, directory: Ino) -> Vec<Ino> {
        self.alone.within(directory).collect()
    }

    /// These are to land: the owner is told so.
    pub fn call_to_land(&mut self, inodes: impl IntoIterator<Item = Ino>) {
        for ino in inodes {
            if let Some(newborn) = self.alone.newborns.get_mut(&ino)
                && !std::mem::replace(&mut newborn.called, true)
            {
                self.alone.to_land.push(newborn.attributes.place);
            }
        }
    }

    /// All that is kept back in that directory is to land.
    pub(super) fn call_within(&mut self, directory: Ino) {
        let within = self.unlanded_in(directory);
        self.call_to_land(within);
    }

    /// The lease of a partition has run out: all that is kept back there is to land, if it can.
    pub(super) fn call_all_of(&mut self, group: GroupId) {
        let all = self.alone.newborns.iter().filter(|(_, of)| of.parent.partition == group);
        let all: Vec<_> = all.map(|(ino, _)| *ino).collect();
        self.call_to_land(all);
    }

    /// What the owner is to be told to have land.
    pub fn take_to_land(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.alone.to_land)
    }

    /// The update that lands a file was answered.
    pub(super) fn landed(&mut self, landing: Landing, ts: Stamp, result: Result<(), FsError>) {
        // It is sent again, under another name.
        if let Err(FsError::InlineFull | FsError::Late { .. } | FsError::UnnamedQuota { .. }) =
            result
        {
            return;
        }
        let Some(newborn) = self.remove_newborn(landing.ino) else { return };
        let (count, granted) = (self.count, newborn.granted);
        let place = newborn.attributes.place;
        let known = self.known.get_mut(&newborn.parent.ino);
        let Some(known) = known.filter(|known| known.granted == granted) else { return };
        let (adds, leads) = match result {
            Ok(()) => (Entries::none(landing.time), Some(Some(Entry { place, kind: Kind::File }))),
            Err(_) => (Entries::one(landing.time).undone(), None),
        };
        known.attributes.amend(count, ts, |of, last| adds.add_to(of, last && result.is_ok()));
        known.end_name(&newborn.name, count, ts, leads);
    }

    /// Nobody knows whether it has landed or will; answers its directory, of which nothing is to be
    /// kept.
    pub(super) fn lose_newborn(&mut self, landing: Landing) -> Option<Ino> {
        self.remove_newborn(landing.ino).map(|of| of.parent.ino)
    }

    fn remove_newborn(&mut self, ino: Ino) -> Option<Newborn> {
        let newborn = self.alone.newborns.remove(&ino)?;
        self.alone.names.remove(&(newborn.parent.ino, newborn.name.clone()));
        if let Some(lease) = self.leases.get_mut(&newborn.parent.partition) {
            super::flights::leave(&mut lease.unlanded, &newborn.parent.ino);
        }
        Some(newborn)
    }

    /// Whether the client's lease has lasted from `since` until now, so that what it keeps back
    /// there is what others must see, too.
    pub fn has_kept(&self, now: Time, group: GroupId, since: Time) -> bool {
        self.has_lasted(now, group, since)
    }

    /// Panics unless what is kept back is named, and counted (K8).
    pub(super) fn check_alone(&self) {
        if self.mutation.is(Mutation::ReleasesUnlanded) {
            return;
        }
        let named: BTreeSet<_> = self.alone.names.values().copied().collect();
        let all: BTreeSet<_> = self.alone.newborns.keys().copied().collect();
        assert_eq!(named, all, "K7: the names of what is kept back");
        let mut counts = BTreeMap::<Ino, u32>::new();
        self.alone.newborns.values().for_each(|of| *counts.entry(of.parent.ino).or_default() += 1);
        let counted = self.leases.values().flat_map(|lease| lease.unlanded.clone());
        assert_eq!(counts, counted.collect(), "K8: what is kept back in directories");
    }
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
