//! GentleRain: one number says what may be seen (GentleRain, section 4).
//!
//! The *global stable time* of a region is the least timestamp up to which each of its partitions
//! has all that was made anywhere. An update of another region may be seen when it is not above
//! that. All that it depends on has a lower timestamp, so it may be seen, too. The price: an update
//! waits for the region that is farthest away, whoever made it, for a number cannot tell them apart
//! (Eunomia, section 3.4.2.1).
//!
//! One addition to the pages: an update of this region keeps the stable time that its session had
//! seen, and who reads it has seen that as well. A session that has read of two partitions would
//! else miss at the second what the first one's update was made after: partitions learn of the
//! stable time at different moments.

use crate::regions::{Mutation, Rule};
use meridian_core::RegionId;
use meridian_eunomia::{Order, Timestamp, Topology, Vector};
use serde::{Deserialize, Serialize};

/// What a session has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// The greatest timestamp of an update, of any region (GentleRain, `DT`).
    pub latest: Timestamp,
    /// The greatest stable time (GentleRain, `GST`).
    pub stable: Timestamp,
}

/// The global stable time, as a partition knows it.
#[derive(Clone, Debug)]
pub struct GentleRain {
    regions: Vec<RegionId>,
    number: u16,
    /// Up to where each partition of the region has all that was made anywhere (GentleRain, `LST`).
    local: Vec<Timestamp>,
    /// The least of these, or what a session knew to be stable.
    stable: Timestamp,
    mutation: Mutation,
}

impl Rule for GentleRain {
    type Seen = Seen;
    type Carried = ();
    type Told = Timestamp;

    const STABILIZES: bool = true;

    fn new(region: RegionId, number: u16, topology: &Topology, mutation: Mutation) -> GentleRain {
        let local = topology.shards(region).map(|_| Timestamp::ZERO).collect();
        let (regions, stable) = (topology.regions().collect(), Timestamp::ZERO);
        GentleRain { regions, number, local, stable, mutation }
    }

    fn floor(&self, seen: &Seen) -> Timestamp {
        seen.latest
    }

    fn version(seen: &Seen) -> Timestamp {
        seen.latest
    }

    fn made(&self, seen: &Seen, order: &Order) -> Seen {
        let forgets = self.mutation.is(Mutation::CarriesNothing);
        let stable = if forgets { Timestamp::ZERO } else { seen.stable };
        Seen { latest: order.ts, stable }
    }

    fn carried(&self, _: &Seen) {}

    /// The stable time of its own region means nothing in this one.
    fn arrived(&self, order: &Order, (): &()) -> Seen {
        Seen { latest: order.ts, stable: order.ts }
    }

    fn join(mine: &mut Seen, other: &Seen) {
        mine.latest = mine.latest.max(other.latest);
        mine.stable = mine.stable.max(other.stable);
    }

    fn learn(&mut self, seen: &Seen) {
        if !self.mutation.is(Mutation::LearnsNothing) {
            self.stable = self.stable.max(seen.stable);
        }
    }

    fn is_visible(&self, order: &Order, (): &()) -> bool {
        order.ts <= self.stable || self.mutation.is(Mutation::SeesAtOnce)
    }

    fn horizon(&self) -> Timestamp {
        self.stable
    }

    fn told(&self, received: &Vector) -> Timestamp {
        let least = self.regions.iter().map(|region| received[*region]).min();
        least.unwrap_or_default()
    }

    fn on_told(&mut self, partition: u16, told: Timestamp) {
        self.local[usize::from(partition)] = told;
    }

    fn stabilize(&mut self) {
        let own = self.local[usize::from(self.number)];
        let all = self.local.iter().copied().min().unwrap_or_default();
        let stable = if self.mutation.is(Mutation::HearsNobody) { own } else { all };
        self.stable = self.stable.max(stable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_eunomia::Site;

    const HERE: RegionId = RegionId(0);

    fn rule() -> GentleRain {
        let topology = Topology::new(vec![Site { shards: 2, replicas: 1 }; 3]);
        GentleRain::new(HERE, 0, &topology, Mutation::Correct)
    }

    fn received(upto: [u64; 3]) -> Vector {
        let mut vector = Vector::default();
        (0..).zip(upto).for_each(|(region, upto)| vector[RegionId(region)] = Timestamp(upto));
        vector
    }

    fn order(ts: u64) -> Order {
        Order { version: Timestamp(ts), region: 1, ts: Timestamp(ts) }
    }

    /// GentleRain, section 4: the region that is farthest away decides, in any partition.
    #[test]
    fn an_update_is_seen_when_all_partitions_have_all_of_all_regions() {
        let mut rule = rule();
        let told = rule.told(&received([90, 80, 50]));
        assert_eq!(told, Timestamp(50));
        rule.on_told(0, told);
        rule.stabilize();
        assert!(!rule.is_visible(&order(1), &()), "partition 1 has told nothing");
        rule.on_told(1, Timestamp(40));
        rule.stabilize();
        assert!(rule.is_visible(&order(40), &()) && !rule.is_visible(&order(41), &()));
    }

    #[test]
    fn a_session_brings_the_stable_time_with_it() {
        let mut rule = rule();
        let mut seen = Seen::default();
        GentleRain::join(&mut seen, &rule.arrived(&order(60), &()));
        let made =
            rule.made(&seen, &Order { version: Timestamp(70), region: 0, ts: Timestamp(70) });
        assert_eq!(rule.floor(&made), Timestamp(70), "an update that follows is later");
        rule.learn(&made);
        assert!(rule.is_visible(&order(60), &()) && !rule.is_visible(&order(61), &()));
    }
}
