//! What lands: which updates do what was kept back, and what is known once they were answered.

use super::super::Caps;
use super::super::flights::{Entries, leave};
use super::{KeptBack, What};
use crate::mutation::Mutation;
use meridian_core::{Stamp, Time};
use meridian_fs::batch::{Kept, Part};
use meridian_fs::types::{Attributes, Entry, Ino, Timestamp};
use meridian_fs::{Done, FsError, Update};

/// What a part of an update that lands something is about.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Landing {
    pub(super) ino: Ino,
    pub(super) number: u64,
    /// What its directory shows as its time of change after it.
    time: Timestamp,
}

impl Landing {
    /// All that the update lands, in its order; nothing if it does anything else.
    pub fn all_of(caps: &Caps, update: &Update, time: Timestamp) -> Vec<Landing> {
        if caps.alone.kept.is_empty() {
            return Vec::new();
        }
        let of = |part: &Part| {
            let ino = part.kept.child().ino;
            let kept = caps.alone.kept.get(&ino).filter(|of| of.is(&part.kept))?;
            Some(Landing { ino, number: kept.number, time: part.time })
        };
        let written = |ino: Ino| {
            let kept = caps.alone.kept.get(&ino).filter(|of| of.is_written())?;
            Some(vec![Landing { ino, number: kept.number, time }])
        };
        let all = match update {
            Update::Make(made) => {
                of(&Part { time, kept: Kept::Make(made.clone()) }).map(|of| vec![of])
            }
            Update::Batch(parts) => parts.iter().map(of).collect(),
            Update::Write { inode, .. } | Update::Settle { inode, .. } => written(inode.ino),
            _ => None,
        };
        all.unwrap_or_default()
    }
}

impl Caps {
    /// The update that lands these was answered; answers the directories in which a removal was
    /// refused, of which nothing is to be kept.
    pub(in super::super) fn landed(
        &mut self,
        landings: &[Landing],
        ts: Stamp,
        result: &Result<Done, FsError>,
    ) -> Vec<Ino> {
        let shown = |done: &Done| match done {
            Done::Written { attributes, .. } => Some(*attributes),
            _ => None,
        };
        let mut ends = match result {
            Ok(Done::Batch { done, refused }) => {
                let done = done.iter().map(|done| Ok(shown(done)));
                done.chain(refused.map(Err)).collect()
            }
            Ok(_) => vec![Ok(None); landings.len()],
            // As a whole: each may come alone.
            Err(error) if landings.len() == 1 => vec![Err(*error)],
            Err(_) => Vec::new(),
        };
        ends.truncate(landings.len());
        let pairs = landings.iter().zip(ends);
        pairs.filter_map(|(landing, end)| self.one_landed(*landing, ts, end)).collect()
    }

    fn one_landed(
        &mut self,
        landing: Landing,
        ts: Stamp,
        result: Result<Option<Attributes>, FsError>,
    ) -> Option<Ino> {
        // It is sent again, under another name.
        if let Err(FsError::InlineFull | FsError::Late { .. } | FsError::UnnamedQuota { .. }) =
            result
        {
            return None;
        }
        let kept = self.remove_kept(landing.ino, landing.number)?;
        let (count, granted, place, directory) =
            (self.count, kept.granted, kept.place, kept.parent.ino);
        let made = match kept.what {
            What::Made(made) => Some(made),
            What::Removed => None,
            What::Written => {
                self.touch(place.ino, false);
                if let (Some(child), Ok(Some(shown))) = (self.known.get_mut(&place.ino), result) {
                    child.attributes.end(count, ts, Some(shown));
                }
                return None;
            }
        };
        if made.is_none()
            && let Some(child) = self.known.get_mut(&place.ino)
        {
            child.attributes.end(count, ts, None);
            child.used = Time(0); // It goes first when there is no room.
        }
        let known = self.known.get_mut(&directory).filter(|known| known.granted == granted)?;
        let entry = made.map(|made| Entry { place, kind: made.kind });
        let (adds, leads) = match result {
            Ok(_) => (Entries::none(landing.time), Some(entry)),
            Err(_) => (Entries::kept(made.is_some(), landing.time).undone(), None),
        };
        known.attributes.amend(count, ts, |of, last| adds.add_to(of, last && result.is_ok()));
        // Another file that came in its place is shown there.
        let ends = !self.keeps_name(directory, &kept.name) || self.mutation.is(Mutation::EndsNames);
        if ends {
            let name = &kept.name;
            self.change_names(directory, |known, count| known.end_name(name, count, ts, leads));
        }
        if made.is_some() && result.is_ok() {
            self.own(&kept);
        }
        (result.is_err() && made.is_none()).then_some(directory)
    }

    /// Nobody knows whether they have landed or will; answers their directories, of which nothing
    /// is to be kept.
    pub(in super::super) fn lose_kept(&mut self, landings: &[Landing]) -> Vec<Ino> {
        let lost = landings.iter().filter_map(|of| self.remove_kept(of.ino, of.number));
        lost.filter(|of| !of.is_written()).map(|of| of.parent.ino).collect()
    }

    pub(super) fn remove_kept(&mut self, ino: Ino, number: u64) -> Option<KeptBack> {
        let is_it = |of: &&KeptBack| of.number == number;
        self.alone.kept.get(&ino).filter(is_it)?;
        let kept = self.alone.kept.remove(&ino)?;
        self.alone.names.remove(&kept.named());
        self.alone.order.remove(kept.turn());
        self.alone.uncalled -= usize::from(kept.in_order && !kept.called);
        if let Some(lease) = self.leases.get_mut(&kept.parent.partition) {
            leave(&mut lease.unlanded, &kept.parent.ino);
        }
        Some(kept)
    }
}
