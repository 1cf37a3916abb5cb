//! A window of a sweep, in one message: the step that asks to hold what is in it brings along what
//! all that is (decision 105). So nothing has to be listed before it if the directory's names are
//! known, and nothing after it.
//!
//! Programs that read a directory of very many entries whole go through it in the order of inode
//! numbers afterwards, as its disk has them in mostly. Here numbers are random; but a client that
//! holds the directory knows them from the listing, and so what is looked at next.

use super::sweeps::{Stage, Sweep, WINDOW};
use super::{Caps, Errand, LOOKS, LOOKS_WITHIN, PAUSE};
use crate::mutation::Mutation;
use meridian_core::{GroupId, Time};
use meridian_fs::types::{Entry, Name, Place};
use meridian_fs::{Answer, FsError, Ino, Query};
use std::collections::BTreeSet;

/// Looks at a directory's entries in the order of their numbers, or what may be that.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// Those that a replica had to be asked for, each greater than the one before, and since when.
    asked: Vec<Ino>,
    since: Time,
    /// All that were in the directory when the sweep began; none if there is no sweep.
    order: Vec<Ino>,
    /// Where the last window begins and ends.
    window: (usize, usize),
    /// Until then nobody looks whether it is a sweep.
    pause: Time,
}

impl Numbers {
    /// Whether there is a sweep.
    fn is_on(&self) -> bool {
        !self.order.is_empty()
    }

    pub fn stop(&mut self) {
        *self = Numbers { pause: self.pause, ..Numbers::default() };
    }

    /// One was looked at; whether enough were, one after the other.
    fn note(&mut self, now: Time, ino: Ino, answered: bool) -> bool {
        let goes_on = self.asked.last().is_none_or(|last| *last < ino);
        if answered || !goes_on || now.since(self.since) > LOOKS_WITHIN {
            self.asked.clear();
            self.since = now;
        }
        if !answered {
            self.asked.push(ino);
        }
        self.asked.len() >= LOOKS as usize
    }

    /// A sweep begins of these, unless one was left out of what was looked at; whether it does.
    fn begin(&mut self, now: Time, order: Vec<Ino>) -> bool {
        let (first, last) = (self.asked[0], self.asked[self.asked.len() - 1]);
        let at = |ino: Ino| order.partition_point(|of| *of <= ino);
        let (from, to) = (order.partition_point(|of| *of < first), at(last));
        let follows = order[from..to].iter().all(|ino| self.asked.contains(ino));
        self.asked.clear();
        if !follows || to == order.len() {
            self.pause = now + PAUSE.0;
            return false;
        }
        (self.window, self.order) = ((to, to), order);
        true
    }

    /// The next window.
    fn next(&mut self) -> &[Ino] {
        let from = self.window.1;
        self.window = (from, (from + WINDOW).min(self.order.len()));
        &self.order[from..self.window.1]
    }

    /// Whether a look at that one comes to the last window; the sweep is over if it does not go
    /// through it.
    fn reaches(&mut self, ino: Ino) -> bool {
        let (from, to) = self.window;
        let within = self.order[..to].last().is_some_and(|last| ino <= *last);
        if !within || (from == to && to == self.order.len()) {
            self.stop();
            return false;
        }
        self.order.get(from).is_some_and(|first| ino >= *first)
    }
}

impl Caps {
    /// The window after that name is begun. Its entries are asked for, unless they are known.
    pub(super) fn begin_window(&mut self, now: Time, directory: Ino, after: Name) {
        let known = self.known.get(&directory).filter(|_| self.making.all);
        let entries = known.and_then(|known| known.entries(&after, WINDOW));
        let Some(sweep) = self.sweeps.get_mut(&directory) else { return };
        let Some((entries, end)) = entries else { return sweep.list(after) };
        if !sweep.is_followed_by(entries.iter().map(|(name, _)| name)) {
            return sweep.stop(now + PAUSE.0);
        }
        let last = entries.last().map_or_else(|| after.clone(), |(name, _)| name.clone());
        sweep.begins((after, last, end));
        self.want(now, directory, entries.into_iter().map(|(_, entry)| entry.place));
    }

    /// A name was looked up by a program that may go by numbers, in a directory that is swept or
    /// might be; whether it is, so.
    pub(super) fn goes_by_number(
        &mut self,
        now: Time,
        (directory, name): (Ino, &Name),
        answered: bool,
    ) -> bool {
        let named = self.known.get(&directory).and_then(|known| known.name(name)).flatten();
        let Some(Entry { place, .. }) = named.filter(|_| self.making.all) else { return false };
        let Some(sweep) = self.sweeps.get_mut(&directory) else { return false };
        let numbers = &mut sweep.numbers;
        if !numbers.is_on() {
            if numbers.pause > now || !numbers.note(now, place.ino, answered) {
                return false;
            }
            let Some(order) = self.known.get(&directory).and_then(|known| known.numbers()) else {
                numbers.stop();
                return false;
            };
            if !numbers.begin(now, order) {
                return false;
            }
        } else if !numbers.reaches(place.ino) {
            return numbers.is_on();
        }
        let inodes = numbers.next().to_vec();
        let places = inodes.into_iter().map(|ino| Place { ino, ..place });
        self.want(now, directory, places);
        true
    }

    /// These are to be held, as far as they are not and live where the directory does.
    pub(super) fn want(&mut self, now: Time, directory: Ino, places: impl Iterator<Item = Place>) {
        let Some(group) = self.known.get(&directory).map(|known| known.group) else { return };
        let here = places.filter(|place| place.partition == group);
        let inodes: Vec<_> =
            here.filter(|place| self.may_ask(now, *place)).map(|place| place.ino).collect();
        if let Some(sweep) = self.sweeps.get_mut(&directory)
            && !inodes.is_empty()
        {
            let changed = BTreeSet::new();
            sweep.stage = Stage::Window { inodes, sent: false, changed };
        }
    }

    /// What is in a window is held now, or not, and what it is has come along; answers what the
    /// owner is to drop.
    pub(super) fn on_window(
        &mut self,
        now: Time,
        (directory, sent): (Place, Time),
        (queries, told): (Vec<Query>, Vec<Result<Answer, FsError>>),
        (granted, spoiled): (Option<Vec<Ino>>, BTreeSet<Ino>),
    ) -> Vec<(GroupId, Ino)> {
        let is_this = |of: &&mut Sweep| matches!(of.stage, Stage::Window { sent: true, .. });
        let sweep = self.sweeps.get_mut(&directory.ino).filter(is_this);
        let stage = sweep.map(|sweep| std::mem::take(&mut sweep.stage));
        let Some(granted) = granted else {
            self.stop_sweep(now, directory.ino);
            return Vec::new();
        };
        let given: BTreeSet<_> = granted.iter().copied().collect();
        let granted = (granted, spoiled.clone());
        let at = (directory.partition, sent);
        let gone = self.take_granted(now, at, granted, Some(directory.ino));
        // Without the sweep nobody has noted what has changed.
        let Some(Stage::Window { changed, .. }) = stage else { return gone };
        if told.is_empty() {
            self.list_window(directory.ino); // The reply was lost, and came again without that.
        }
        let keeps = self.mutation.is(Mutation::KeepsChanged);
        for (query, answer) in queries.iter().zip(told) {
            let Some(ino) = query.inode() else { continue };
            let is_changed = changed.contains(&ino) && !keeps;
            if !is_changed && !spoiled.contains(&ino) && given.contains(&ino) {
                self.fill(now, query, (self.count, true), &answer); // K6
            }
        }
        gone
    }

    /// What is in the last window is held, and its entries are asked for.
    fn list_window(&mut self, directory: Ino) {
        let Some(sweep) = self.sweeps.get_mut(&directory) else { return };
        if let Some((after, ..)) = &sweep.window {
            sweep.stage = Stage::List { after: after.clone(), held: true, sent: false };
        }
    }

    /// The client changes an inode, or has changed it.
    pub(super) fn touch_window(&mut self, ino: Ino) {
        for sweep in self.sweeps.values_mut() {
            if let Stage::Window { changed, sent: true, .. } = &mut sweep.stage {
                changed.insert(ino);
            }
        }
    }
}

/// The message that asks for a window.
pub(super) fn errand(directory: Place, inodes: Vec<Ino>) -> Errand {
    let query = |ino: &Ino| Query::Attributes { inode: Place { ino: *ino, ..directory } };
    let queries = inodes.iter().map(query).collect();
    Errand::Window { directory, inodes, queries, told: Vec::new() }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
