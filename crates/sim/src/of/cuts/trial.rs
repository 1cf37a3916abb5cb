//! A trial of clients that are told which regions are cut off.

use super::CutsWorkload;
use super::regions::{nodes_on_disks, topology};
use crate::of::files::crowd::CrowdTrial;
use crate::trial::{Made, Stage, Violation};
use crate::world::{Random, World};
use meridian_core::{NodeId, RegionId};
use meridian_host::Node;
use meridian_session::Mutation;
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::time::Duration;

const CLIENTS: u64 = 9;
/// How often regions are cut off.
const CUTS: usize = 3;
/// How long it takes until all have made their files.
const BEGIN: Duration = Duration::from_secs(12);

/// The world of a trial.
pub type Cluster = World<Node, CutsWorkload>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// A bug planted in clients.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// A region is cut off.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// So long after the last one has ended.
    pub after: Duration,
    /// Which.
    pub region: RegionId,
    /// For how long.
    pub lasts: Duration,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many nodes each of the three regions has.
    pub nodes: usize,
    /// How long clients wait for what is cut off.
    pub patience: Duration,
    /// What is cut off, one after the other.
    pub cuts: Vec<Cut>,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { nodes, patience, cuts } = self;
        write!(f, "regions of {nodes} nodes, patience {patience:?}, {cuts:?}")
    }
}

impl CrowdTrial for Trial {
    type Crowd = CutsWorkload;
    type Drawn = Drawn;
    type Operator = Vec<Cut>;

    const FAULTS: Duration = BEGIN;
    const HEALING: Duration = Duration::from_secs(120);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xc076);
        let nodes = if random.random_ratio(1, 2) { 1 } else { 3 };
        let patience = Duration::from_secs([0, 3, 10][random.random_range(0..3)]);
        let ms = Duration::from_millis(1);
        let mut cut = || Cut {
            after: ms * random.random_range(500..12_000),
            region: RegionId(random.random_range(0..3)),
            // Some are over before anybody can know.
            lasts: ms * random.random_range(500..20_000),
        };
        Drawn { nodes, patience, cuts: (0..CUTS).map(|_| cut()).collect() }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let topology = topology(drawn.nodes);
        let setup = nodes_on_disks(&topology, |node| node);
        let owner = CutsWorkload::new(seed, topology, CLIENTS, drawn.patience, self.mutation);
        Made { setup, owner, operator: drawn.cuts.clone() }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let world = &mut stage.world;
        world.run_for(Self::FAULTS);
        for Cut { after, region, lasts } in stage.operator.clone() {
            world.run_for(after);
            let topology = world.owner.net.topology.clone();
            let is_in = |node: &NodeId| topology.node(*node).region == region;
            let (inside, outside): (Vec<_>, Vec<_>) = topology.node_ids().partition(is_in);
            let cut = world.cut(&inside, &outside, true);
            let now = world.now();
            world.owner.begin_cut(region, now);
            world.run_for(lasts);
            world.mend_cut(cut);
            let now = world.now();
            world.owner.end_cut(now);
        }
        world.run_for(Self::FAULTS);
        Ok(())
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.world.owner.end();
    }

    fn planted() -> Vec<(String, Self)> {
        let all = [
            Mutation::CutsUnseen,
            Mutation::BeginsSilenceAnew,
            Mutation::NeverLooksAgain,
            Mutation::HurriesAll,
            Mutation::HidesTops,
            Mutation::TellsNoTop,
        ];
        all.map(|mutation| (format!("{mutation:?}"), Trial { mutation })).into()
    }
}
