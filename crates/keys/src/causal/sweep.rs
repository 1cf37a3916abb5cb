//! Which updates of other regions are looked at in a tick, whether all regions have applied them.
//!
//! A group keeps them in the order of time, those of all regions together. While one region is cut
//! off, what the others make is kept for it; to look through all that at each tick would cost what
//! is kept, not what is new. So a tick looks at little:
//!
//! - Up to its *point* all regions have applied what a region has made. When that moves, updates
//!   between where it was and where it is are looked at. Points only move forward: so an update is
//!   looked at once for each region at most, and once in all if points move together.
//! - What comes late, behind the point of its region (a member of the group is sent what it missed,
//!   an INV is repeated), is found when all is looked through. That is done when as much was looked
//!   at since then as that took, where each tick counts for some ([`TICK`]). So it costs no more
//!   than the rest, and these.
//!
//! In all, over any number of ticks: a few looks for each update that was made, and for each tick
//! so many, however much is kept.

use meridian_core::RegionId;
use meridian_eunomia::{Timestamp, Vector};

/// A tick counts for so many updates that were looked at, which takes some microseconds. So what
/// comes late waits for a tick for so many that are kept: with a million for half an hour.
const TICK: usize = 64;

/// Updates behind the first time, up to the second.
pub(super) type Window = (Timestamp, Timestamp);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweep {
    /// Up to where what each region has made was looked at.
    points: Vector,
    /// Whether all is being looked through.
    is_whole: bool,
    /// How many there were when that was done last.
    whole: usize,
    /// How many were looked at since then, and ticks.
    since: usize,
}

impl Sweep {
    /// What is to be looked at, in order, and nothing twice: these are the points of the regions,
    /// and all is looked through if it must be, or its turn has come.
    pub fn begin(
        &mut self,
        points: impl Iterator<Item = (RegionId, Timestamp)>,
        must_be_whole: bool,
    ) -> Vec<Window> {
        self.is_whole = must_be_whole || self.since >= self.whole;
        let mut windows: Vec<Window> = points
            .map(|(region, point)| {
                let before = std::mem::replace(&mut self.points[region], point);
                (if self.is_whole { Timestamp::ZERO } else { before }, point)
            })
            .filter(|(after, upto)| after < upto)
            .collect();
        windows.sort_unstable();
        windows.dedup_by(|next, window| {
            let joins = next.0 <= window.1;
            window.1 = if joins { window.1.max(next.1) } else { window.1 };
            joins
        });
        windows
    }

    /// So many were in there.
    pub fn end(&mut self, looked: usize) {
        match self.is_whole {
            true => (self.whole, self.since) = (looked, 0),
            false => self.since += looked + TICK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const NEAR: RegionId = RegionId(0);
    const FAR: RegionId = RegionId(1);

    /// What is kept, as `forget_noted` goes through it; how many were looked at in all.
    #[derive(Default)]
    struct Kept {
        sweep: Sweep,
        updates: BTreeSet<(Timestamp, RegionId)>,
        looked: usize,
    }

    impl Kept {
        fn add(&mut self, region: RegionId, ts: u64) {
            self.updates.insert((Timestamp(ts), region));
        }

        fn tick(&mut self, near: u64, far: u64) {
            let points = [(NEAR, Timestamp(near)), (FAR, Timestamp(far))];
            let windows = self.sweep.begin(points.into_iter(), false);
            let is_in =
                |ts: Timestamp| windows.iter().any(|(after, upto)| *after < ts && ts <= *upto);
            let looked: Vec<_> =
                self.updates.iter().copied().filter(|(ts, _)| is_in(*ts)).collect();
            self.sweep.end(looked.len());
            self.looked += looked.len();
            let has_passed =
                |ts, region| points.iter().any(|(of, upto)| *of == region && ts <= *upto);
            let gone = looked.into_iter().filter(|(ts, region)| has_passed(*ts, *region));
            for update in gone {
                self.updates.remove(&update);
            }
        }
    }

    #[test]
    fn windows_are_where_points_have_moved_and_nothing_is_in_two() {
        let mut sweep = Sweep::default();
        let mut windows = |near, far, whole| {
            let points = [(NEAR, Timestamp(near)), (FAR, Timestamp(far))];
            let windows = sweep.begin(points.into_iter(), whole);
            sweep.end(100);
            windows.into_iter().map(|(after, upto)| (after.0, upto.0)).collect::<Vec<_>>()
        };
        assert_eq!(windows(10, 4, false), [(0, 10)], "all, at first");
        assert_eq!(windows(12, 5, false), [(4, 5), (10, 12)]);
        assert_eq!(windows(14, 13, true), [(0, 14)], "all, when it must be");
        assert_eq!(windows(20, 15, false), [(13, 20)], "they overlap");
        assert_eq!(windows(20, 15, false), [(0, 20)], "as many were looked at as there were");
        assert_eq!(windows(20, 15, false), [], "nothing has moved");
    }

    /// One region is cut off: what the other makes is kept for it, thousands of updates, for
    /// thousands of ticks. Then it comes back, by and by.
    #[test]
    fn what_is_kept_behind_a_cut_is_not_looked_at_in_each_tick() {
        let (mut kept, made) = (Kept::default(), 5000);
        for now in 1..=made {
            kept.add(NEAR, 2 * now);
            kept.add(FAR, 2 * now + 1);
            kept.tick(2 * now, 1);
        }
        let far = usize::try_from(made).unwrap();
        assert_eq!(kept.updates.len(), far, "what the near one made has gone at once");
        for point in 1..=made {
            kept.tick(2 * made, 2 * point + 1);
        }
        assert!(kept.updates.is_empty(), "{:?}", kept.updates);
        // All at each tick are 5000 looks for each.
        assert!(kept.looked < 200 * far, "{} looks for {} updates", kept.looked, 2 * far);
    }

    /// What comes behind the point of its region goes, too, though no point moves any more.
    #[test]
    fn what_comes_late_is_found() {
        let mut kept = Kept::default();
        (1..=100).for_each(|ts| kept.add(FAR, ts));
        kept.tick(100, 0);
        kept.add(NEAR, 50);
        (0..=100).for_each(|_| kept.tick(100, 0));
        assert!(!kept.updates.contains(&(Timestamp(50), NEAR)));
        assert_eq!(kept.updates.len(), 100, "what the far one made stays");
    }
}
