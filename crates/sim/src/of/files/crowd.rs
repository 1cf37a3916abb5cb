//! Trials of crowds: clients that are nothing but sessions, and nodes on disks. What is the same in
//! all of them.

use super::net::{self, Crowd};
use super::trial::describe_waiting;
use super::words::Words;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::World;
use meridian_fs::Partition;
use meridian_host::Node;
use meridian_multicast::mutation::PLANTED;
use std::fmt;
use std::time::Duration;

/// A trial of a crowd. What else a [`Subject`] is follows from it.
pub trait CrowdTrial: Sized {
    /// Its clients.
    type Crowd: Crowd;
    /// See [`Subject::Drawn`].
    type Drawn: Clone + fmt::Display;
    /// See [`Subject::Operator`].
    type Operator;

    /// See [`Subject::FAULTS`].
    const FAULTS: Duration;
    /// See [`Subject::HEALING`].
    const HEALING: Duration;

    /// See [`Subject::draw`].
    fn draw(&self, seed: u64) -> Self::Drawn;

    /// See [`Subject::make`].
    fn make(&self, seed: u64, drawn: &Self::Drawn) -> Made<Self>;

    /// See [`Subject::disturb`].
    ///
    /// # Errors
    /// A property does not hold.
    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.run_for(Self::FAULTS);
        Ok(())
    }

    /// See [`Subject::heal`].
    fn heal(stage: &mut Stage<Self>) {
        net::heal(&mut stage.world);
    }

    /// Whether nothing is left to be done in a partition whose clients are done.
    fn is_idle(_partition: &Partition) -> bool {
        true
    }

    /// Judges the whole run beside what holds of all: the replicas of each group are equal, and all
    /// groups together one tree.
    ///
    /// # Errors
    /// A property does not hold.
    fn judge(_stage: &mut Stage<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// What else to tell of a trial that never gets quiet.
    fn describe(_world: &World<Node, Self::Crowd>) -> String {
        String::new()
    }

    /// See [`Subject::planted`].
    fn planted() -> Vec<(String, Self)>;
}

impl<T: CrowdTrial> Subject for T {
    type Process = Node;
    type Owner = T::Crowd;
    type Drawn = T::Drawn;
    type Operator = T::Operator;

    const FAULTS: Duration = <T as CrowdTrial>::FAULTS;
    const HEALING: Duration = <T as CrowdTrial>::HEALING;

    fn draw(&self, seed: u64) -> T::Drawn {
        CrowdTrial::draw(self, seed)
    }

    fn make(&self, seed: u64, drawn: &T::Drawn) -> Made<T> {
        CrowdTrial::make(self, seed, drawn)
    }

    fn disturb(stage: &mut Stage<T>) -> Result<(), Violation> {
        <T as CrowdTrial>::disturb(stage)
    }

    fn heal(stage: &mut Stage<T>) {
        <T as CrowdTrial>::heal(stage);
    }

    fn is_quiet(world: &World<Node, T::Crowd>) -> bool {
        net::is_quiet(world, &world.owner.net().topology, T::is_idle)
    }

    fn judge(stage: &mut Stage<T>) -> Result<(), Violation> {
        net::check_equal(&stage.world, &stage.world.owner.net().topology)?;
        <T as CrowdTrial>::judge(stage)
    }

    fn describe(world: &World<Node, T::Crowd>) -> String {
        let more = <T as CrowdTrial>::describe(world);
        describe_waiting(world, &format!("{}{more}", world.owner.waiting()))
    }

    fn teller() -> Box<dyn Teller<Node>> {
        Box::new(Words::default())
    }

    fn counts(world: &World<Node, T::Crowd>) -> Counts {
        world.owner.net().counts.clone()
    }

    fn planted() -> Vec<(String, T)> {
        if PLANTED { <T as CrowdTrial>::planted() } else { Vec::new() }
    }
}
