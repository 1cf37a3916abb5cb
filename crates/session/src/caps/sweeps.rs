//! Names that are looked up one after the other, as by a program that lists a directory and looks
//! at each: what comes next is asked for, and held, all at once (decision 98).
//!
//! A sweep of a directory goes by windows. The client asks for the entries after a name, asks in
//! one step to hold what is not held of them, and asks for the entries once more: what was seen
//! before the step may be older than what another was told since (K1). Looks that come to a window
//! have the next one begun. A sweep begins only in a directory that is held.

use super::windows::{self, Numbers};
use super::{Caps, LOOKS, LOOKS_WITHIN, Mutation, PAUSE};
use crate::caps::Errand;
use meridian_core::{GroupId, Time};
use meridian_fs::types::{Name, Place};
use meridian_fs::{Answer, FsError, Ino, Query};
use std::collections::BTreeSet;

/// So many entries a window has: as many as one step may ask for. Two windows are done while a
/// program looks at the names of one, unless a look takes less than a twentieth of a millisecond.
pub(crate) const WINDOW: usize = meridian_fs::GRANT_MAX;
/// So many directories are swept at a time, and looks are noted of.
const SWEEPS_MAX: usize = 64;

/// What is being done for a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing.
    #[default]
    Idle,
    /// The entries after that name are to be asked for, or are; `held`: for the second time.
    List { after: Name, held: bool, sent: bool },
    /// These are to be asked for, or are.
    Grant { after: Name, inodes: Vec<Ino>, sent: bool },
    /// These are to be asked for, or are, with what they are; and what the client has changed
    /// itself since it asked.
    Window { inodes: Vec<Ino>, sent: bool, changed: BTreeSet<Ino> },
}

/// One directory in which names are looked up one after the other, or might be.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweep {
    /// Names that a replica had to be asked for, each greater than the one before, and since when.
    asked: Vec<Name>,
    since: Time,
    pub stage: Stage,
    /// The same of looks that go by number.
    pub numbers: Numbers,
    /// After which name the last window begins, the last name in it, and whether the directory ends
    /// there.
    pub window: Option<(Name, Name, bool)>,
    /// Until then no window is begun.
    pause: Time,
}

impl Sweep {
    pub fn list(&mut self, after: Name) {
        self.stage = Stage::List { after, held: false, sent: false };
    }

    pub fn stop(&mut self, until: Time) {
        (self.stage, self.window, self.pause) = (Stage::Idle, None, until);
        self.asked.clear();
        self.numbers.stop();
    }

    /// A window begins after the first of these names, and ends with the other; whether the
    /// directory ends there, too.
    pub fn begins(&mut self, window: (Name, Name, bool)) {
        self.asked.clear();
        self.window = Some(window);
    }

    /// Whether no name was left out of what was asked for one after the other.
    pub fn is_followed_by<'a>(&self, entries: impl Iterator<Item = &'a Name>) -> bool {
        let Some(last) = self.asked.last() else { return true };
        let mut among = entries.take_while(|name| *name <= last);
        among.all(|name| self.asked.contains(name))
    }

    fn errand(&mut self, (directory, group): (Ino, GroupId), may_grant: bool) -> Option<Errand> {
        match &mut self.stage {
            Stage::List { after, sent, .. } if !*sent => {
                *sent = true;
                let directory = Place { ino: directory, partition: group };
                Some(Errand::List(directory, after.clone()))
            }
            Stage::Grant { inodes, sent, .. } if !*sent && may_grant => {
                *sent = true;
                Some(Errand::Sweep(directory, inodes.clone()))
            }
            Stage::Window { inodes, sent, .. } if !*sent && may_grant => {
                *sent = true;
                let directory = Place { ino: directory, partition: group };
                Some(windows::errand(directory, inodes.clone()))
            }
            Stage::Idle | Stage::List { .. } | Stage::Grant { .. } | Stage::Window { .. } => None,
        }
    }
}

impl Caps {
    /// A name was looked up in a directory that is held, and all of it answered from what is kept,
    /// or not.
    pub fn looked_up(&mut self, now: Time, query: &Query, answered: bool) {
        let Query::Lookup { parent, name } = query else { return };
        if !self.is_on || self.ends || !self.known.contains_key(&parent.ino) {
            return;
        }
        if self.sweeps.len() >= SWEEPS_MAX && !self.sweeps.contains_key(&parent.ino) {
            self.sweeps.retain(|_, sweep| sweep.stage != Stage::Idle);
            if self.sweeps.len() >= SWEEPS_MAX {
                return;
            }
        }
        let sweep = self.sweeps.entry(parent.ino).or_default();
        if sweep.stage != Stage::Idle || sweep.pause > now {
            return;
        }
        if let Some((after, last, false)) = &sweep.window
            && answered
            && after < name
        {
            let last = last.clone();
            return self.begin_window(now, parent.ino, last);
        }
        if self.goes_by_number(now, (parent.ino, name), answered) {
            return;
        }
        let Some(sweep) = self.sweeps.get_mut(&parent.ino) else { return };
        let goes_on = sweep.asked.last().is_none_or(|last| last < name);
        if answered || !goes_on || now.since(sweep.since) > LOOKS_WITHIN {
            sweep.asked.clear();
            sweep.since = now;
        }
        if !answered {
            sweep.asked.push(name.clone());
        }
        if sweep.asked.len() >= LOOKS as usize {
            let first = sweep.asked[0].clone();
            self.begin_window(now, parent.ino, first);
        }
    }

    /// The client changes names in a directory itself: it does not sweep it.
    pub(super) fn disturb(&mut self, directory: Ino) {
        if let Some(sweep) = self.sweeps.get_mut(&directory) {
            sweep.asked.clear();
        }
    }

    /// Others change what a sweep holds: no further window is begun for a while.
    pub(super) fn pause_sweep(&mut self, now: Time, recalled: Ino) {
        let of = self.known.get(&recalled).and_then(|known| known.swept);
        if let Some(sweep) = of.and_then(|directory| self.sweeps.get_mut(&directory)) {
            sweep.pause = now + PAUSE.0;
        }
    }

    /// What is to be sent for sweeps now.
    pub(super) fn next_of_sweeps(&mut self, now: Time, full: bool) -> Option<(GroupId, Errand)> {
        for (directory, sweep) in &mut self.sweeps {
            let Some(group) = self.known.get(directory).map(|known| known.group) else { continue };
            let Some(lease) = self.leases.get_mut(&group) else { continue };
            let may_grant = !full && lease.granting.is_none() && lease.until > now;
            if let Some(errand) = sweep.errand((*directory, group), may_grant) {
                if matches!(errand, Errand::Sweep(..) | Errand::Window { .. }) {
                    lease.granting = Some(Default::default());
                }
                return Some((group, errand));
            }
        }
        None
    }

    /// The entries of a window have come; what was seen of them is kept, as far as it may be.
    pub fn on_listed(&mut self, now: Time, directory: Place, result: &Result<Answer, FsError>) {
        let Some(sweep) = self.sweeps.get_mut(&directory.ino) else { return };
        let Stage::List { after, held, .. } = std::mem::take(&mut sweep.stage) else { return };
        let Ok(Answer::Directory { entries, end, .. }) = result else {
            return sweep.stop(now + PAUSE.0);
        };
        if !sweep.is_followed_by(entries.iter().map(|(name, ..)| name)) {
            return sweep.stop(now + PAUSE.0);
        }
        let last = entries.last().map_or_else(|| after.clone(), |(name, ..)| name.clone());
        sweep.begins((after.clone(), last, *end));
        if held {
            return;
        }
        // What has no attributes here lives elsewhere, or waits for something undecided: who asked
        // to hold it would wait, too, and so would all that asks for the others after it.
        let shown = entries.iter().filter_map(|(_, _, attributes)| attributes.as_ref());
        if self.making.all {
            return self.want(now, directory.ino, shown.map(|of| of.place));
        }
        let wanted = shown.filter(|of| self.may_ask(now, of.place));
        let inodes: Vec<_> = wanted.map(|of| of.place.ino).collect();
        if self.mutation.is(Mutation::KeepsListed) {
            let seen = entries.iter().filter_map(|(_, _, attributes)| *attributes);
            self.seen_before = seen.map(|of| (of.place.ino, of)).collect();
        }
        let sweep = self.sweeps.get_mut(&directory.ino).expect("it was there above");
        if !inodes.is_empty() {
            sweep.stage = Stage::Grant { after, inodes, sent: false };
        }
    }

    /// What a sweep had asked for is held, or not.
    pub(super) fn on_swept(&mut self, now: Time, directory: Ino, granted: bool) {
        let keeps = self.mutation.is(Mutation::KeepsListed);
        let Some(sweep) = self.sweeps.get_mut(&directory) else { return };
        match std::mem::take(&mut sweep.stage) {
            Stage::Grant { .. } if granted && keeps => {}
            Stage::Grant { after, .. } if granted => {
                sweep.stage = Stage::List { after, held: true, sent: false };
            }
            _ => sweep.stop(now + PAUSE.0),
        }
    }

    /// A window could not be asked for.
    pub(super) fn stop_sweep(&mut self, now: Time, directory: Ino) {
        if let Some(sweep) = self.sweeps.get_mut(&directory) {
            sweep.stop(now + PAUSE.0);
        }
    }
}

#[cfg(test)]
#[path = "sweeps_tests.rs"]
mod tests;
