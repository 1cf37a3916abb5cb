//! What the client makes it holds from then on: the capability comes with the update that makes it,
//! and what the reply shows is kept (decision 105).
//!
//! Invariant K11: what a reply shows of what was made is kept only if nothing of it was recalled,
//! and nothing changed by the client itself, while the update was under way.

use super::flights::Flight;
use super::{Caps, LOOKED_MAX};
use meridian_core::Time;
use meridian_fs::types::{Attributes, Kind};
use meridian_fs::{Done, FsError, Ino, Update};
use std::collections::BTreeMap;

/// Own updates that are under way and make something which is to be held.
#[derive(Clone, Debug, Default)]
pub(super) struct Making {
    /// Whether that is so of all that is made; else only of directories.
    pub all: bool,
    /// The counts when they began, each as often as updates began then.
    begun: BTreeMap<u64, u32>,
    /// What was dropped meanwhile, and what the client has changed, and when last.
    spoiled: BTreeMap<Ino, u64>,
    crossed: BTreeMap<Ino, u64>,
}

impl Making {
    fn begin(&mut self, count: u64) {
        *self.begun.entry(count).or_default() += 1;
    }

    pub fn end(&mut self, begun: u64) {
        super::flights::leave(&mut self.begun, &begun);
    }

    /// The inode is dropped: it was recalled, or is let go.
    pub fn spoil(&mut self, ino: Ino, count: u64) {
        note(&self.begun, &mut self.spoiled, (ino, count));
    }

    /// The client changes the inode, or has changed it.
    pub fn cross(&mut self, ino: Ino, count: u64) {
        note(&self.begun, &mut self.crossed, (ino, count));
    }

    /// Nothing is left to be noted if nothing is being made.
    fn tidy(&mut self) {
        if self.begun.is_empty() {
            self.spoiled.clear();
            self.crossed.clear();
        }
    }
}

/// Notes an inode at that count, as long as what is being made may be it.
fn note(begun: &BTreeMap<u64, u32>, all: &mut BTreeMap<Ino, u64>, (ino, count): (Ino, u64)) {
    let Some((first, _)) = begun.first_key_value() else { return };
    let is_new = all.insert(ino, count).is_none();
    // What is older than all that is being made is of no use any more.
    if is_new && all.len().is_multiple_of(LOOKED_MAX) {
        all.retain(|_, count| *count >= *first);
    }
}

/// What was made and is held by what an update has done; that is taken from it.
pub(super) fn taken_from(result: &mut Result<Done, FsError>) -> Vec<Attributes> {
    match std::mem::replace(result, Ok(Done::Nothing)) {
        Ok(done) => {
            let (done, made) = done.apart();
            *result = Ok(done);
            made
        }
        Err(error) => {
            *result = Err(error);
            Vec::new()
        }
    }
}

impl Caps {
    /// The same, in a cluster that lets a client hold all that it makes, or only directories.
    pub fn with_all_made_held(mut self, all: bool) -> Caps {
        self.hold_all_that_is_made(all);
        self
    }

    /// Whether the cluster lets a client hold all that it makes, or only directories.
    pub fn hold_all_that_is_made(&mut self, all: bool) {
        self.making.all = all;
    }

    /// Whether the client wants to hold what an update makes: while it has a lease.
    pub(super) fn keeps_made(&mut self, now: Time, update: &Update) -> bool {
        let (makes, full) = match update {
            _ if update.makes_directory() => (true, self.is_half_full()),
            Update::Create { .. } | Update::Make(_) => (self.making.all, self.is_full()),
            Update::Batch(_) => (self.making.all && update.needs_room(), self.is_full()),
            _ => (false, true),
        };
        if !makes || full || self.ends {
            return false;
        }
        let Some(group) = update.partitions().first().copied() else { return false };
        let lease = self.leases.entry(group).or_default();
        lease.begins = lease.until <= now;
        let keeps = !lease.begins;
        if keeps {
            self.making.begin(self.count);
        }
        keeps
    }

    /// The client was told that it holds these, which it has made.
    pub(super) fn hold_all_made(&mut self, now: Time, made: &[Attributes], flight: &Flight) {
        if !made.is_empty() {
            self.lapse(now);
        }
        for of in made {
            self.hold_made(now, of, flight);
        }
        self.making.tidy();
    }

    /// If its lease has lasted meanwhile it does; unless it has gone on after another, who may have
    /// seen what is there by now. It may have been given it by a step of its own meanwhile, and
    /// then knows what that has shown.
    fn hold_made(&mut self, now: Time, made: &Attributes, flight: &Flight) {
        let (place, ino) = (made.place, made.place.ino);
        let since = |all: &BTreeMap<Ino, u64>| all.get(&ino).is_some_and(|at| *at >= flight.begun);
        if since(&self.making.spoiled) || self.known.contains_key(&ino) {
            return; // K11
        }
        let fresh = flight.begun > self.followed && !self.ends;
        if fresh && self.has_lasted(now, place.partition, flight.sent) {
            self.hold(now, place);
        } else if let Some(lease) = self.leases.get_mut(&place.partition)
            && lease.going.insert(ino)
        {
            lease.to_release.insert(ino);
        }
        let crossed = since(&self.making.crossed);
        let Some(known) = self.known.get_mut(&ino).filter(|_| !crossed) else { return };
        known.attributes.value = Some(*made);
        if made.kind == Kind::Directory {
            known.is_empty();
        }
    }
}

#[cfg(test)]
#[path = "made_tests.rs"]
mod tests;
