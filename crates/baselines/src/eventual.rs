//! Eventual consistency: an update of another region is seen as soon as it has come, before or
//! after what led to it. All regions hold the same in the end, and nothing more is promised: what
//! causality costs is measured against this (Eunomia, section 4.2.1).

use crate::regions::{Mutation, Rule};
use meridian_core::RegionId;
use meridian_eunomia::{Order, Timestamp, Topology, Vector};

/// Nothing waits, nobody says anything beside the updates, and sessions know nothing.
#[derive(Clone, Copy, Debug)]
pub struct Eventual;

impl Rule for Eventual {
    type Seen = ();
    type Carried = ();
    type Told = ();

    const STABILIZES: bool = false;

    fn new(_: RegionId, _: u16, _: &Topology, _: Mutation) -> Eventual {
        Eventual
    }

    fn floor(&self, (): &()) -> Timestamp {
        Timestamp::ZERO
    }

    fn version((): &()) -> Timestamp {
        Timestamp::ZERO
    }

    fn made(&self, (): &(), _: &Order) {}

    fn carried(&self, (): &()) {}

    fn arrived(&self, _: &Order, (): &()) {}

    fn join((): &mut (), (): &()) {}

    fn learn(&mut self, (): &()) {}

    fn is_visible(&self, _: &Order, (): &()) -> bool {
        true
    }

    fn horizon(&self) -> Timestamp {
        Timestamp::NEVER
    }

    fn told(&self, _: &Vector) {}

    fn on_told(&mut self, _: u16, (): ()) {}

    fn stabilize(&mut self) {}
}
