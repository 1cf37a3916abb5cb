//! Cure: a vector says what may be seen, an entry for each region (Cure, section 3; Eunomia,
//! section 4.2). Keys only: its transactions and its replicated data types are not here.
//!
//! A partition tells the others of its region up to where it has what each region has made. The
//! least of each entry is the *stable snapshot*. An update names what its session had seen of each
//! region, and may be seen when the snapshot covers that. So it waits for no region that it does
//! not depend on. For that more travels than with [`GentleRain`], and more is compared.
//!
//! What a session has seen is covered by the snapshot of some partition of its region. So a
//! partition that hears of it takes it into its own snapshot, and a session need not wait for what
//! it has seen elsewhere.
//!
//! [`GentleRain`]: crate::GentleRain

use crate::regions::{Mutation, Rule};
use meridian_core::RegionId;
use meridian_eunomia::{Order, Seen, Timestamp, Topology, Vector};

/// The stable snapshot, as a partition knows it.
#[derive(Clone, Debug)]
pub struct Cure {
    region: RegionId,
    others: Vec<RegionId>,
    number: u16,
    /// Up to where each partition of the region has what each region has made.
    received: Vec<Vector>,
    /// The least of these, or what a session knew to be stable.
    stable: Vector,
    mutation: Mutation,
}

impl Rule for Cure {
    type Seen = Seen;
    type Carried = Vector;
    type Told = Vector;

    const STABILIZES: bool = true;

    fn new(region: RegionId, number: u16, topology: &Topology, mutation: Mutation) -> Cure {
        let received = topology.shards(region).map(|_| Vector::default()).collect();
        let (others, stable) = (topology.others(region).collect(), Vector::default());
        Cure { region, others, number, received, stable, mutation }
    }

    fn floor(&self, seen: &Seen) -> Timestamp {
        seen.vector[self.region]
    }

    fn version(seen: &Seen) -> Timestamp {
        seen.version
    }

    fn made(&self, seen: &Seen, order: &Order) -> Seen {
        let mut vector = seen.vector;
        vector[self.region] = order.ts;
        Seen { vector, version: order.version }
    }

    fn carried(&self, seen: &Seen) -> Vector {
        let mut vector = seen.vector;
        if self.mutation.is(Mutation::CarriesNothing) {
            self.others.iter().for_each(|other| vector[*other] = Timestamp::ZERO);
        }
        vector
    }

    fn arrived(&self, order: &Order, carried: &Vector) -> Seen {
        Seen { vector: *carried, version: order.version }
    }

    fn join(mine: &mut Seen, other: &Seen) {
        mine.join(other);
    }

    fn learn(&mut self, seen: &Seen) {
        if !self.mutation.is(Mutation::LearnsNothing) {
            self.stable.join(&seen.vector);
        }
    }

    /// What this region made itself is here.
    fn is_visible(&self, _: &Order, carried: &Vector) -> bool {
        let covered = |other: &RegionId| carried[*other] <= self.stable[*other];
        self.others.iter().all(covered) || self.mutation.is(Mutation::SeesAtOnce)
    }

    fn horizon(&self) -> Timestamp {
        let latest = self.others.iter().map(|other| self.stable[*other]).max();
        latest.unwrap_or_default()
    }

    fn told(&self, received: &Vector) -> Vector {
        *received
    }

    fn on_told(&mut self, partition: u16, told: Vector) {
        self.received[usize::from(partition)] = told;
    }

    fn stabilize(&mut self) {
        for other in &self.others {
            let own = self.received[usize::from(self.number)][*other];
            let all = self.received.iter().map(|received| received[*other]).min();
            let hears_nobody = self.mutation.is(Mutation::HearsNobody);
            let stable = if hears_nobody { own } else { all.unwrap_or_default() };
            self.stable[*other] = self.stable[*other].max(stable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_eunomia::Site;

    fn rule() -> Cure {
        let topology = Topology::new(vec![Site { shards: 2, replicas: 1 }; 3]);
        Cure::new(RegionId(0), 0, &topology, Mutation::Correct)
    }

    fn vector(upto: [u64; 3]) -> Vector {
        let mut vector = Vector::default();
        (0..).zip(upto).for_each(|(region, upto)| vector[RegionId(region)] = Timestamp(upto));
        vector
    }

    /// Cure, section 3: of the regions only those count that an update depends on.
    #[test]
    fn an_update_waits_for_the_regions_that_it_depends_on() {
        let (mut rule, order) = (rule(), Order::default());
        rule.on_told(0, vector([0, 90, 80]));
        rule.stabilize();
        assert!(!rule.is_visible(&order, &vector([0, 1, 0])), "partition 1 has told nothing");
        rule.on_told(1, vector([0, 70, 10]));
        rule.stabilize();
        assert!(rule.is_visible(&order, &vector([500, 70, 10])), "its own region does not count");
        assert!(rule.is_visible(&order, &vector([0, 70, 0])));
        assert!(!rule.is_visible(&order, &vector([0, 71, 0])), "where it was made");
        assert!(!rule.is_visible(&order, &vector([0, 70, 11])), "what its session had seen");
    }

    #[test]
    fn a_session_brings_what_is_stable_with_it() {
        let (mut rule, order) =
            (rule(), Order { version: Timestamp(9), region: 1, ts: Timestamp(7) });
        let mut seen = Seen::default();
        Cure::join(&mut seen, &rule.arrived(&order, &vector([3, 7, 5])));
        assert_eq!((rule.floor(&seen), Cure::version(&seen)), (Timestamp(3), Timestamp(9)));
        rule.learn(&seen);
        assert!(rule.is_visible(&order, &vector([9, 7, 5])));
        assert!(!rule.is_visible(&order, &vector([0, 8, 0])));
    }
}
