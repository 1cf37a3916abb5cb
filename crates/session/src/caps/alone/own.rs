//! Files of which nobody else can know: those that are not sent yet, and those that the client has
//! made in a directory which it holds exclusively since (decision 116). What is written to one is
//! kept back, and one that is removed before it was sent was never there.

use super::super::Caps;
use super::{KeptBack, Landing, What};
use crate::calls::Keeping;
use crate::mutation::Mutation;
use meridian_core::Time;
use meridian_fs::types::{Ino, Kind, Name, Place, Timestamp};
use meridian_fs::{Update, Vector};

/// So many files are remembered as the client's own: more than a build writes to again.
const OWN_MAX: usize = 1 << 15;

/// Where a file is that is the client's own.
#[derive(Clone, Debug)]
pub(super) struct Own {
    parent: Place,
    name: Name,
    /// When its directory was granted, as the client counts.
    granted: u64,
}

impl Caps {
    /// A file that was kept back is there now.
    pub(super) fn own(&mut self, kept: &KeptBack) {
        if self.alone.own.len() >= OWN_MAX {
            self.alone.own.clear();
        }
        let KeptBack { parent, name, granted, .. } = kept;
        let own = Own { parent: *parent, name: name.clone(), granted: *granted };
        self.alone.own.insert(kept.place.ino, own);
    }

    /// The client is about to give a file another name, or to take one: others may come to know
    /// its number by that.
    pub(in super::super) fn disown(&mut self, update: &Update) {
        if self.alone.own.is_empty() || self.mutation.is(Mutation::OwnsForever) {
            return;
        }
        match update {
            Update::Link { target, .. } => drop(self.alone.own.remove(&target.ino)),
            Update::Unlink { child, .. } => drop(self.alone.own.remove(&child.ino)),
            Update::Rename { moved, replaced, .. } => {
                for of in [Some(moved), replaced.as_ref()].into_iter().flatten() {
                    self.alone.own.remove(&of.ino);
                }
            }
            _ => {}
        }
    }

    /// Whether the file is the client's own: it has one name, and nobody else knows of it.
    pub(super) fn is_own(&self, ino: Ino) -> bool {
        let Some(Own { parent, granted, .. }) = self.alone.own.get(&ino) else { return false };
        self.known.get(&parent.ino).is_some_and(|known| known.granted == *granted)
    }

    /// Keeps back what was written to a file that nobody writes to any more, if it may; whether it
    /// does (K12). The owner sends all of it when it is told to have the file land.
    pub fn begin_written(&mut self, now: Time, file: Place, vector: &Vector) -> bool {
        if !self.keeps_written {
            return false;
        }
        if let Some(kept) = self.alone.kept.get(&file.ino) {
            return kept.is_written() && !kept.called;
        }
        let Some(Own { parent, name, .. }) = self.alone.own.get(&file.ino).cloned() else {
            return false;
        };
        if !self.is_own(file.ino) && !self.mutation.is(Mutation::OwnsForever) {
            self.alone.own.remove(&file.ino);
            return false;
        }
        let may = self.may_keep(now, (parent, &name), vector);
        let Some((directory, Some(entry))) = may else { return false };
        let keeps = entry.place == file
            && entry.kind == Kind::File
            && self.keeping_in(Some(&directory)) == Keeping::InOrder
            && !self.alone.order.is_suspended
            && !self.busy.contains_key(&file.ino);
        if keeps {
            self.keep(true, (parent, &name), (file, What::Written), Timestamp::default());
        }
        keeps
    }

    /// Whether something that was written to a file is kept back, and nobody else has written to
    /// the file since: what is appended to it lies at its end.
    pub fn knows_end(&mut self, now: Time, file: Ino, vector: &Vector) -> bool {
        let kept = self.alone.kept.get(&file).filter(|kept| kept.is_written());
        let Some((parent, granted)) = kept.map(|kept| (kept.parent, kept.granted)) else {
            return false;
        };
        self.usable(now, parent, vector).is_some_and(|known| known.granted == granted)
    }

    /// Whether all that is kept back of a file is in order, and what is set of it comes along.
    pub fn takes_more(&self, file: Ino) -> bool {
        let kept = self.alone.kept.get(&file);
        kept.is_some_and(|kept| {
            let is_unsent = !kept.called || self.mutation.is(Mutation::JoinsCalled);
            kept.in_order && is_unsent && !matches!(kept.what, What::Removed)
        })
    }

    /// An update is sent that lands this: what was read before of what is written counts no more.
    pub(in super::super) fn begin_landing(&mut self, landing: &Landing) {
        if self.alone.kept.get(&landing.ino).is_some_and(KeptBack::is_written) {
            self.touch(landing.ino, false);
        }
    }

    /// Where a file is of which something that was written is kept back.
    pub fn written_in(&self, file: Ino) -> Option<(Place, Name)> {
        let kept = self.alone.kept.get(&file).filter(|kept| kept.is_written())?;
        Some((kept.parent, kept.name.clone()))
    }

    /// What was written to a file is not kept back any more: it is not there any more.
    pub fn end_written(&mut self, file: Ino) {
        let written = self.alone.kept.get(&file).filter(|kept| kept.is_written());
        if let Some(number) = written.map(|kept| kept.number) {
            self.remove_kept(file, number);
        }
    }

    /// A name is to go that leads to that file, which the client does not have open. If the file is
    /// new and the owner was not told to send it, it never is; whether that is so.
    pub(super) fn unmake(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        (child, time): (Place, Timestamp),
        vector: &Vector,
    ) -> bool {
        let Some(kept) = self.alone.kept.get(&child.ino) else { return false };
        let (number, granted) = (kept.number, kept.granted);
        let is_it = (kept.parent, &kept.name) == (parent, name);
        let is_unsent = kept.in_order && !kept.called && matches!(kept.what, What::Made(_));
        let shown = self.usable(now, parent, vector).is_some_and(|of| of.granted == granted);
        let unmakes = is_it && is_unsent && shown;
        if unmakes {
            self.remove_kept(child.ino, number);
            self.unsent += 1;
            self.show_kept((parent, name), (child, What::Removed), time);
        }
        unmakes
    }
}

#[cfg(test)]
#[path = "own_tests.rs"]
mod tests;
