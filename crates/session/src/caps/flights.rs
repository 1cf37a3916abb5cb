//! The client's own updates while they are under way: what they change is not answered meanwhile,
//! and what is kept is changed by their answers.

use super::alone::Landing;
use super::{Caps, made};
use crate::calls::CallId;
use meridian_core::{GroupId, Stamp, Time};
use meridian_fs::operation::RenameMode;
use meridian_fs::types::{Attributes, Entry, Kind, Name, Place, Timestamp};
use meridian_fs::{Done, FsError, Ino, Update};
use meridian_host::update::Change;
use std::collections::BTreeMap;

/// One update of the client that is under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// The count when it began.
    pub(super) begun: u64,
    pub(super) sent: Time,
    /// Whether the client wants to hold what it makes.
    pub(super) keeps: bool,
    /// Whether what it alters may have another directory above it after it.
    moves: bool,
    /// It lands what was kept back.
    pub(super) lands: Vec<Landing>,
    /// What it changes is shown already.
    is_shown: bool,
    pub(super) alters: Vec<(Ino, Option<Entries>)>,
    names: Vec<(Ino, Name, Then)>,
}

/// What an update adds to a directory: entries, subdirectories, and its time. It adds the same
/// whatever else the client does there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    entries: i64,
    directories: i32,
    time: Timestamp,
}

/// What a name leads to after an update that succeeded.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Made,
    Linked(Place),
    Nothing,
    Unknown,
}

impl Caps {
    /// The client begins an update. Returns whether it wants to hold what it makes.
    pub fn begin_update(&mut self, now: Time, call: CallId, change: &Change) -> bool {
        let Change { time, update, .. } = change;
        if !self.is_on {
            return false;
        }
        self.count += 1;
        let moves = matches!(update, Update::Rename { .. } | Update::PlaceDirectory { .. });
        let lands = Landing::all_of(self, update, *time);
        let is_write = matches!(update, Update::Write { .. } | Update::Settle { .. });
        let is_shown = !lands.is_empty() && !is_write;
        self.disown(update);
        for landing in lands.iter().filter(|_| is_shown) {
            self.begin_landing(landing);
        }
        let alters = update.alters().into_iter().filter(|_| !is_shown);
        let alters: Vec<_> = alters.map(|place| (place.ino, added(update, place, *time))).collect();
        for (ino, _) in &alters {
            *self.busy.entry(*ino).or_default() += 1;
            self.touch(*ino, moves);
            if let Some(known) = self.known.get_mut(ino) {
                known.attributes.mark(self.count);
            }
        }
        let names = update.names().into_iter().filter(|_| !is_shown).enumerate();
        let names: Vec<_> = names
            .map(|(side, (parent, name))| (parent.ino, name.clone(), then(update, side)))
            .collect();
        for (parent, name, _) in &names {
            if !self.making.all || !update.removes() {
                self.disturb(*parent);
            }
            *self.busy_names.entry((*parent, name.clone())).or_default() += 1;
            self.change_names(*parent, |known, count| known.touch_name(name, count));
        }
        let keeps = self.keeps_made(now, update);
        let (begun, sent) = (self.count, now);
        let flight = Flight { begun, sent, keeps, moves, lands, is_shown, alters, names };
        self.flights.insert(call, flight);
        keeps
    }

    /// An update of the client was answered: what it has changed is known from that, or not any
    /// more. Answers what the owner is to drop.
    pub fn end_update(
        &mut self,
        now: Time,
        call: CallId,
        ts: Stamp,
        result: &mut Result<Done, FsError>,
    ) -> Vec<(GroupId, Ino)> {
        let made = made::taken_from(result);
        let Some(flight) = self.land(call) else { return Vec::new() };
        let odd = self.landed(&flight.lands, ts, result);
        self.hold_all_made(now, &made, &flight);
        if flight.is_shown {
            return self.held_among(odd);
        }
        let shown = match result {
            Ok(Done::Attributes(attributes) | Done::Written { attributes, .. }) => {
                Some(*attributes)
            }
            _ => None,
        };
        let count = self.count;
        for (ino, added) in &flight.alters {
            let alone = !self.busy.contains_key(ino);
            let Some(known) = self.known.get_mut(ino) else { continue };
            match (added, &*result) {
                (Some(added), Ok(_)) => {
                    known.attributes.amend(count, ts, |of, last| added.add_to(of, last));
                    continue;
                }
                (_, Err(error)) if *error != FsError::Expired => {
                    known.attributes.mark(count); // Nothing has changed.
                    continue;
                }
                (_, _) => {}
            }
            let group = known.group;
            let here = |of: &Attributes| of.place == Place { ino: *ino, partition: group };
            let value = shown.filter(|of| here(of) && alone && flight.begun >= known.granted);
            known.attributes.end(count, ts, value);
        }
        self.end_names(now, &flight, ts, (shown, result.is_ok()));
        Vec::new()
    }

    /// What the names lead to that an update was about, which has shown that of an inode.
    fn end_names(
        &mut self,
        now: Time,
        flight: &Flight,
        ts: Stamp,
        (shown, is_done): (Option<Attributes>, bool),
    ) {
        for (parent, name, then) in &flight.names {
            let alone = !self.busy_names.contains_key(&(*parent, name.clone()));
            let Some(known) = self.known.get_mut(parent) else { continue };
            let value = match then {
                _ if !is_done => None,
                Then::Made => shown.map(|of| Some(Entry { place: of.place, kind: of.kind })),
                Then::Linked(place) => shown.map(|of| Some(Entry { place: *place, kind: of.kind })),
                Then::Nothing => Some(None),
                Then::Unknown => None,
            };
            let value = value.filter(|_| alone && flight.begun >= known.granted);
            let directory = Place { ino: *parent, partition: known.group };
            let changed = match (then, &value) {
                (Then::Made, Some(Some(made))) => (made.kind == Kind::File).then_some(false),
                (Then::Nothing, Some(None)) => Some(true),
                _ => None,
            };
            self.change_names(*parent, |known, count| known.end_name(name, count, ts, value));
            if let Some(is_removed) = changed {
                self.count_changed(now, directory, is_removed);
            }
        }
    }

    /// Those that are held.
    fn held_among(&self, inodes: impl IntoIterator<Item = Ino>) -> Vec<(GroupId, Ino)> {
        let held = |ino: Ino| self.known.get(&ino).map(|known| (known.group, ino));
        inodes.into_iter().filter_map(held).collect()
    }

    /// Nobody knows what became of an update of the client: what it may still change is not to be
    /// kept.
    pub fn lose_update(&mut self, call: CallId) -> Vec<(GroupId, Ino)> {
        let Some(flight) = self.land(call) else { return Vec::new() };
        for (ino, _) in &flight.alters {
            self.spoil(*ino);
        }
        let directories = self.lose_kept(&flight.lands);
        self.held_among(flight.alters.iter().map(|(ino, _)| *ino).chain(directories))
    }

    fn land(&mut self, call: CallId) -> Option<Flight> {
        let flight = self.flights.remove(&call)?;
        self.count += 1;
        if flight.keeps {
            self.making.end(flight.begun);
        }
        for (ino, _) in &flight.alters {
            leave(&mut self.busy, ino);
            self.touch(*ino, flight.moves);
        }
        for (parent, name, _) in &flight.names {
            leave(&mut self.busy_names, &(*parent, name.clone()));
        }
        Some(flight)
    }
}

impl Entries {
    /// One file that is made at that time, or removed.
    pub fn kept(is_made: bool, time: Timestamp) -> Entries {
        Entries { entries: if is_made { 1 } else { -1 }, directories: 0, time }
    }

    /// Nothing but the time.
    pub fn none(time: Timestamp) -> Entries {
        Entries { entries: 0, directories: 0, time }
    }

    /// What takes it away.
    pub fn undone(self) -> Entries {
        Entries { entries: -self.entries, directories: -self.directories, ..self }
    }

    /// Whether an update changes nothing else of that inode.
    pub fn are_all(update: &Update, of: Place) -> bool {
        added(update, of, Timestamp::default()).is_some()
    }

    pub fn add_to(self, of: &mut Attributes, is_last: bool) {
        of.size = of.size.saturating_add_signed(self.entries);
        of.nlink = of.nlink.saturating_add_signed(self.directories);
        if is_last {
            (of.mtime, of.ctime) = (self.time, self.time);
        }
    }
}

/// What an update adds to the directory `of`, if it is that simple.
fn added(update: &Update, of: Place, time: Timestamp) -> Option<Entries> {
    let (parent, entries, directories) = match update {
        Update::Create { parent, .. } => (parent, 1, i32::from(update.makes_directory())),
        Update::Make(made) => (&made.parent, 1, 0),
        Update::Link { parent, .. } => (parent, 1, 0),
        Update::Unlink { parent, .. } => (parent, -1, 0),
        Update::Rmdir { parent, .. } => (parent, -1, -1),
        _ => return None,
    };
    (*parent == of).then_some(Entries { entries, directories, time })
}

/// What a name that an update changes leads to after it.
fn then(update: &Update, side: usize) -> Then {
    match update {
        Update::Create { .. } => Then::Made,
        Update::Link { target, .. } => Then::Linked(*target),
        Update::Unlink { .. } | Update::Rmdir { .. } => Then::Nothing,
        // Two names of one file stay both.
        Update::Rename { mode, moved, replaced, whiteout: None, .. }
            if side == 0 && *mode != RenameMode::Exchange && *replaced != Some(*moved) =>
        {
            Then::Nothing
        }
        _ => Then::Unknown,
    }
}

/// One less is under way.
pub(super) fn leave<K: Ord>(all: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = all.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            all.remove(key);
        }
    }
}
