//! How far the memory of a server goes, and what others remember of that.
//!
//! A disk that comes back empty, or as it was an hour ago, is whole in itself: its server cannot
//! see that it has forgotten what it promised. The others can. Each server says how far its memory
//! goes ([`Standing`]) when it introduces itself, and with all that it says later. Each remembers
//! the last that it heard of every other ([`Acquaintances`]), on its own disk. Whoever comes with
//! less than it had is refused. Decision 19 says what that finds and what it cannot find.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How far the memory of a server goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Names the disk: one that was emptied has another name.
    pub disk: u64,
    /// Counts the starts on that disk.
    pub incarnation: u64,
    /// Names this start; see [`Start::mark`].
    pub mark: u64,
    /// How many records the log had at this start.
    pub began: u64,
    /// How many records the log has, all of them durable.
    pub logged: u64,
}

/// Why a server may not come back under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It comes with another disk.
    #[error("it comes with another disk than before")]
    Disk,
    /// Its disk is older than what it had before.
    #[error(
        "its disk is as it was at record {found} of its log (start {start}); it had record {had} \
         (start {started})"
    )]
    Older {
        /// How far its log goes now, or went when it started.
        found: u64,
        /// Its start.
        start: u64,
        /// How far its log went.
        had: u64,
        /// Its start then.
        started: u64,
    },
    /// It has no disk, and was started again.
    #[error("it keeps nothing and was started again")]
    Memory,
}

impl Standing {
    /// Whether a server that stood at `earlier` may stand here now: it has all that it had then.
    ///
    /// # Errors
    /// If it has lost some of that.
    pub fn check(&self, earlier: &Standing) -> Result<(), Lost> {
        if self.disk != earlier.disk {
            return Err(Lost::Disk);
        }
        if self.incarnation < earlier.incarnation {
            return Err(Standing { began: self.logged, ..*self }.older_than(earlier));
        }
        if self.incarnation > earlier.incarnation {
            // What it logged since this start is no proof: the log may have another past.
            let whole = self.began >= earlier.logged;
            return if whole { Ok(()) } else { Err(self.older_than(earlier)) };
        }
        // The same start of an older disk has logged something else since, how long it may be.
        let same = self.mark == earlier.mark && self.began == earlier.began;
        if !same || self.logged < earlier.logged {
            return Err(self.older_than(earlier));
        }
        Ok(())
    }

    /// It has lost something since `earlier`.
    fn older_than(&self, earlier: &Standing) -> Lost {
        let (found, start) = (self.logged.min(self.began), self.incarnation);
        Lost::Older { found, start, had: earlier.logged, started: earlier.incarnation }
    }
}

/// A start, as a server's own log tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Counts the starts.
    pub incarnation: u64,
    /// Drawn at random: an older disk that is started again counts the same number for another
    /// start.
    pub mark: u64,
    /// How many records the log had.
    pub began: u64,
}

impl Standing {
    /// How far the memory goes, as of that start.
    fn at(&self, start: &Start) -> Standing {
        let Start { incarnation, mark, began } = *start;
        Standing { incarnation, mark, began, ..*self }
    }

    /// The same as [`Standing::check`], by a server that remembers all its starts, the present one
    /// last: each start makes its log longer, so that after some an older log would seem to be as
    /// long as the one that it stands for.
    ///
    /// # Errors
    /// If it has lost something that it had then.
    pub fn check_past(&self, starts: &[Start], earlier: &Standing) -> Result<(), Lost> {
        let first = starts.first().is_none_or(|start| start.incarnation > earlier.incarnation);
        let same = starts.iter().find(|start| start.incarnation == earlier.incarnation);
        match same {
            Some(start) => self.at(start).check(earlier)?,
            // A start is in the log before anybody hears of it.
            None if !first => return Err(self.older_than(earlier)),
            None => {}
        }
        let after = starts.iter().find(|start| start.incarnation > earlier.incarnation);
        after.map_or(*self, |start| self.at(start)).check(earlier)
    }
}

/// The last that is known of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquaintances<I> {
    known: BTreeMap<I, Standing>,
    /// What is not written down yet.
    changed: BTreeSet<I>,
}

impl<I> Default for Acquaintances<I> {
    fn default() -> Self {
        Acquaintances { known: BTreeMap::new(), changed: BTreeSet::new() }
    }
}

impl<I: Copy + Ord> Acquaintances<I> {
    /// The last that is known of `id`.
    pub fn get(&self, id: I) -> Option<Standing> {
        self.known.get(&id).copied()
    }

    /// What was written down, in order.
    pub fn restore(&mut self, written: impl IntoIterator<Item = (I, Standing)>) {
        self.known.extend(written);
    }

    /// `id` stands here, and may: see [`Acquaintances::check`].
    pub fn meet(&mut self, id: I, standing: Standing) {
        if self.known.insert(id, standing) != Some(standing) {
            self.changed.insert(id);
        }
    }

    /// Whether `id` may stand here now.
    ///
    /// # Errors
    /// If it has forgotten something.
    pub fn check(&self, id: I, standing: &Standing) -> Result<(), Lost> {
        self.known.get(&id).map_or(Ok(()), |earlier| standing.check(earlier))
    }

    /// `id`, which has been met, has logged so many records by now.
    pub fn hear(&mut self, id: I, logged: u64) {
        if let Some(known) = self.known.get_mut(&id)
            && known.logged < logged
        {
            known.logged = logged;
            self.changed.insert(id);
        }
    }

    /// Whether something is not written down yet.
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What is to be written down.
    pub fn take_changed(&mut self) -> Vec<(I, Standing)> {
        let known = &self.known;
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|id| (id, known[&id])).collect()
    }

    /// All that is known, for whom a part of what was written down is lost.
    pub fn all(&self) -> Vec<(I, Standing)> {
        self.known.iter().map(|(id, standing)| (*id, *standing)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(incarnation: u64, began: u64, logged: u64) -> Standing {
        Standing { disk: 7, incarnation, mark: 1, began, logged }
    }

    #[test]
    fn who_has_all_that_it_had_may_come_back() {
        let earlier = standing(5, 100, 200);
        for later in [standing(5, 100, 200), standing(5, 100, 300), standing(6, 200, 200)] {
            assert_eq!(later.check(&earlier), Ok(()));
        }
        assert_eq!(standing(9, 250, 260).check(&earlier), Ok(()));
    }

    #[test]
    fn who_has_less_than_it_had_may_not() {
        let earlier = standing(5, 100, 200);
        let older = [
            // As it was, without a start since.
            standing(5, 100, 199),
            // As it was some starts ago.
            standing(4, 50, 99),
            // As it was, and started again.
            standing(6, 150, 150),
            // And went on for long with nobody to tell it.
            standing(6, 150, 500),
            // As it was a start ago, so that the starts are as many again.
            standing(5, 90, 400),
        ];
        for now in older {
            assert!(matches!(now.check(&earlier), Err(Lost::Older { .. })), "{now:?}");
        }
        let empty = Standing { disk: 8, ..standing(6, 300, 300) };
        assert_eq!(empty.check(&earlier), Err(Lost::Disk));
    }

    #[test]
    fn who_has_less_than_it_had_may_not_however_often_it_starts() {
        let start = |incarnation, began| Start { incarnation, mark: 1, began };
        let check =
            |starts: &[Start], now: Standing| now.check_past(starts, &standing(5, 100, 200));
        let went_on = [start(4, 50), start(5, 100), start(6, 200), start(7, 210)];
        assert_eq!(check(&went_on, standing(7, 210, 215)), Ok(()));
        let older = [start(4, 50), start(5, 100), start(6, 190), start(7, 210)];
        assert!(check(&older, standing(7, 210, 215)).is_err());
        let older_by_a_start = [start(4, 50), start(5, 90), start(6, 220)];
        assert!(check(&older_by_a_start, standing(6, 220, 225)).is_err());
        assert_eq!(
            check(&[], standing(6, 200, 200)),
            Ok(()),
            "a log from before there were starts"
        );
    }

    /// It began where it had begun, and its log has become as long again.
    #[test]
    fn who_made_the_same_start_of_an_older_disk_may_not() {
        let earlier = standing(5, 100, 200);
        let again = Standing { mark: 2, ..standing(5, 100, 300) };
        assert!(matches!(again.check(&earlier), Err(Lost::Older { .. })));
        let starts = [(4, 1, 50), (5, 2, 100), (6, 3, 300)];
        let starts = starts.map(|(incarnation, mark, began)| Start { incarnation, mark, began });
        let now = Standing { mark: 3, ..standing(6, 300, 300) };
        assert!(matches!(now.check_past(&starts, &earlier), Err(Lost::Older { .. })));
        assert_eq!(now.check(&earlier), Ok(()), "who remembers no start does not see it");
        // It may have stopped before that start was in its log: then nobody has heard of it.
        let lacks = [starts[0], starts[2]];
        assert!(matches!(now.check_past(&lacks, &earlier), Err(Lost::Older { .. })));
        assert_eq!(now.check_past(&starts[2..], &earlier), Ok(()), "starts are forgotten");
    }

    #[test]
    fn what_is_heard_is_written_down_once() {
        let mut known = Acquaintances::default();
        known.hear(1, 50);
        assert_eq!((known.get(1), known.is_changed()), (None, false), "nobody met it");
        known.meet(1, standing(1, 0, 10));
        known.meet(2, standing(1, 0, 0));
        known.hear(1, 30);
        known.hear(1, 20);
        let written = known.take_changed();
        assert_eq!(written, [(1, standing(1, 0, 30)), (2, standing(1, 0, 0))]);
        known.meet(1, standing(1, 0, 30));
        assert!(!known.is_changed());
        let mut again = Acquaintances::default();
        again.restore(written);
        assert_eq!(again.all(), known.all());
        assert!(again.check(1, &standing(2, 29, 29)).is_err());
        assert!(again.check(1, &standing(2, 30, 30)).is_ok());
    }
}
