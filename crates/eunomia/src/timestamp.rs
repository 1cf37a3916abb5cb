//! Points in the hybrid time of a region, vectors of them, and the order of a key's updates.
//!
//! After the hybrid clocks of Eunomia (section 3.1). The lowest bits of an update's timestamp name
//! its source, so that no two updates of a region have the same one: a stream of labels in the
//! order of their timestamps has no ties, and a single timestamp says how far one is.
//!
//! Vectors travel with each question, answer and label, so they are written as bytes of a fixed
//! layout (see `fixed`), in one piece.

use meridian_core::{RegionId, Time};
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// So many sources in a region at most.
pub const SOURCES_MAX: u16 = 1 << SOURCE_BITS;
/// So many regions at most: each label carries a vector of that length.
pub const REGIONS_MAX: usize = 8;

const SOURCE_BITS: u32 = 10;
const SOURCE_MASK: u64 = (1 << SOURCE_BITS) - 1;

/// A point in the hybrid time of a region: nanoseconds, but that the lowest bits of an update's
/// timestamp are its source.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Before all updates.
    pub const ZERO: Timestamp = Timestamp(0);
    /// After all updates: the promise of a source that sends nothing any more.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// The first one of `source` that is not before the time `now`, and is after `others`
    /// (Eunomia, Algorithm 2, line 5).
    pub fn following(now: Time, others: Timestamp, source: u16) -> Timestamp {
        let least = now.0.max(others.0 + 1);
        let stamped = (least & !SOURCE_MASK) | u64::from(source);
        Timestamp(if stamped < least { stamped + SOURCE_MASK + 1 } else { stamped })
    }

    /// The source of the update that has this one.
    pub fn source(self) -> u16 {
        (self.0 & SOURCE_MASK) as u16
    }

    /// The last point before this.
    pub fn before(self) -> Timestamp {
        Timestamp(self.0.saturating_sub(1))
    }
}

/// A point in the time of each region: what a session has seen, or what an update depends on
/// (Eunomia, section 3.4.1, `VClock` and `vts`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vector([Timestamp; REGIONS_MAX]);

impl Vector {
    /// Raises each entry to that of `other`.
    pub fn join(&mut self, other: &Vector) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, other)| *mine = (*mine).max(other));
    }

    /// All entries.
    pub(crate) fn entries(&self) -> &[Timestamp; REGIONS_MAX] {
        &self.0
    }

    /// That of these entries.
    pub(crate) fn of(entries: [Timestamp; REGIONS_MAX]) -> Vector {
        Vector(entries)
    }

    /// Whether no entry is below that of `other`.
    pub fn covers(&self, other: &Vector) -> bool {
        self.0.iter().zip(other.0).all(|(mine, other)| *mine >= other)
    }
}

impl Index<RegionId> for Vector {
    type Output = Timestamp;

    fn index(&self, region: RegionId) -> &Timestamp {
        &self.0[usize::from(region.0)]
    }
}

impl IndexMut<RegionId> for Vector {
    fn index_mut(&mut self, region: RegionId) -> &mut Timestamp {
        &mut self.0[usize::from(region.0)]
    }
}

/// The place of an update among those of its key, in all regions the same; the greater one is the
/// later. An update that knew of another has the greater one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Order {
    /// A Lamport clock: greater than those of all updates that its session had seen, of any key,
    /// and of what the key held at its source; not before its timestamp.
    pub version: Timestamp,
    /// Where it was made: decides between regions that knew nothing of each other.
    pub region: u16,
    /// Its timestamp there: decides between updates that were in flight at the same time.
    pub ts: Timestamp,
}

impl Order {
    /// That of an update which replaces what has this one, by a session that has seen `seen`.
    pub fn followed(self, seen: Timestamp, region: RegionId, ts: Timestamp) -> Order {
        let known = self.version.max(seen);
        Order { version: ts.max(Timestamp(known.0 + 1)), region: region.0, ts }
    }
}

/// What a session has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seen {
    /// Up to where of each region.
    pub vector: Vector,
    /// The greatest [`Order::version`].
    pub version: Timestamp,
}

impl Seen {
    /// This has been seen, too.
    pub fn join(&mut self, other: &Seen) {
        self.vector.join(&other.vector);
        self.version = self.version.max(other.version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_of_a_region_are_distinct_and_follow() {
        for least in [0, 1, 5, 1023, 1024, 1029, 5000] {
            for source in [0, 1, 5, 1023] {
                let ts = Timestamp::following(Time(least), Timestamp::ZERO, source);
                assert!(ts.0 >= least && ts.0 < least.max(1) + 1024 && ts.source() == source);
                let next = Timestamp::following(Time(least), ts, source);
                assert_eq!(next.0, ts.0 + 1024, "the next one of the source");
            }
        }
    }

    #[test]
    fn who_saw_an_update_follows_it_on_its_key_whatever_the_clocks_say() {
        let order = |base: Order, seen, region, ts| {
            base.followed(Timestamp(seen), RegionId(region), Timestamp(ts))
        };
        let first = order(Order::default(), 0, 1, 7000);
        assert!(order(first, 0, 0, 90) > first, "it replaces it");
        assert!(order(Order::default(), 7000, 0, 90) > first, "its session has seen it");
        assert!(order(Order::default(), 0, 2, 7000) > first, "a tie of two regions");
        assert!(order(first, 0, 0, 91) > order(first, 0, 0, 90), "a tie of two in flight");
    }

    #[test]
    fn a_vector_covers_what_it_was_joined_with() {
        let (mut a, mut b) = (Vector::default(), Vector::default());
        (a[RegionId(0)], b[RegionId(7)]) = (Timestamp(3), Timestamp(4));
        assert!(!a.covers(&b) && !b.covers(&a));
        a.join(&b);
        assert!(a.covers(&b) && a[RegionId(0)] == Timestamp(3));
    }
}
