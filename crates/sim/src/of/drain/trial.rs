//! A trial: two of four or five nodes are removed, and one of them may stay after all.

use super::{Blocks, MS, topology};
use crate::faults::Faults;
use crate::trial::{Counts, Made, Stage, Subject, Violation, WorldOf};
use crate::world::{Logs, Random, Setup};
use meridian_blocks::store;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{NodeId, PLANTED_BUGS};
use meridian_host::drain::{Drain, Mutation};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Whether the first node that is removed is gone for good before.
    pub dead: Option<bool>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// A bug planted in the stores of blocks.
    #[doc(hidden)]
    pub in_store: store::Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many nodes there are at first.
    pub nodes: u16,
    /// How many clients.
    pub clients: usize,
    /// Which nodes are removed, and when.
    pub remove: Vec<(usize, Duration)>,
    /// Whose removal is taken back, and when.
    pub keep: Option<(usize, Duration)>,
    /// When the first of them is gone for good, if it is.
    pub dead: Option<Duration>,
    /// What may go wrong.
    pub faults: Faults,
    /// A bug planted in the stores of blocks.
    #[doc(hidden)]
    pub in_store: store::Mutation,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { nodes, clients, remove, keep, dead, .. } = self;
        write!(f, "{nodes} nodes, {clients} clients, removed {remove:?}, ")?;
        write!(f, "kept {keep:?}, dead {dead:?}")
    }
}

/// All kinds of faults. A disk is lost only where the others can do without it.
fn faults(lost_disk: bool) -> Faults {
    let (disk, lost_disk) = (Some(1400 * MS), lost_disk.then_some(3000 * MS));
    Faults { outage: 300 * MS, split: 900 * MS, disk, lost_disk, ..Faults::all(700 * MS) }
}

impl Subject for Trial {
    type Process = Drain;
    type Owner = Blocks;
    type Drawn = Drawn;
    /// Who is gone for good, and when.
    type Operator = Option<(NodeId, Duration)>;

    const FAULTS: Duration = Duration::from_secs(12);
    const HEALING: Duration = Duration::from_secs(120);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xd7a1);
        let nodes = random.random_range(4..=5);
        let clients = random.random_range(2..=5);
        let mut order: Vec<usize> = (0..usize::from(nodes)).collect();
        order.shuffle(random);
        let first = MS * random.random_range(500..3000);
        let second = first + MS * random.random_range(0..4000);
        let dies = first.mul_f64(random.random_range(0.2..0.9));
        let dead = random.random_ratio(1, 4);
        let calm = random.random_ratio(1, 4);
        let dead = self.dead.unwrap_or(dead).then_some(dies);
        let drawn = if calm { Faults::none() } else { faults(nodes == 5 && dead.is_none()) };
        // Long after it may have left: then it does not stay.
        let (kept, at) = (random.random_range(0..2), random.random_range(0..5000));
        let at = MS * at + if kept == 0 { first } else { second };
        let keep = random.random_ratio(1, 2).then_some((order[kept], at));
        Drawn {
            nodes,
            clients,
            keep,
            remove: vec![(order[0], first), (order[1], second)],
            dead,
            faults: self.faults.clone().unwrap_or(drawn),
            in_store: self.in_store,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let (topology, mutation) = (topology(drawn.nodes), self.mutation);
        let peers = topology.node_ids().collect();
        // A node that starts again has the configuration of its first start, and learns of later
        // ones.
        let make = move |me| Drain::new(topology.clone(), me).with_mutation(mutation);
        let (faults, logs) = (drawn.faults.clone(), Logs::on_disks());
        let setup = Setup { faults, logs, ..Setup::lan(peers, make) };
        let node = NodeId(u16::try_from(drawn.remove[0].0).expect("a few"));
        let operator = drawn.dead.map(|at| (node, at));
        Made { setup, owner: Blocks::new(seed, drawn), operator }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let mut left = Self::FAULTS;
        if let Some((node, at)) = stage.operator {
            stage.world.run_for(at);
            stage.world.retire(node);
            left -= at;
        }
        stage.world.run_for(left);
        Ok(())
    }

    fn is_quiet(world: &WorldOf<Self>) -> bool {
        world.owner.is_done()
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let blocks = &stage.world.owner;
        // A block of a node that was lost, or damaged, may be on one other.
        let whole = blocks.dead.is_empty() && blocks.stores.altered().is_empty();
        let wanted = if whole { REPLICAS } else { 1 };
        for block in &blocks.stored {
            let copies = blocks.copies(*block);
            if copies < wanted {
                return Err(format!("copies: {block} is on {copies} of the nodes that are left"));
            }
        }
        Ok(())
    }

    fn describe(world: &WorldOf<Self>) -> String {
        world.owner.describe()
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        let blocks = &world.owner;
        let counts = [
            ("stored", blocks.stored.len() as u64),
            ("kept", blocks.kept.len() as u64),
            ("read", blocks.stores.reads()),
            ("altered", blocks.stores.altered().len() as u64),
            ("refused", world.refused().len() as u64),
        ];
        Counts(BTreeMap::from(counts))
    }

    fn planted() -> Vec<(String, Self)> {
        if !PLANTED_BUGS {
            return Vec::new();
        }
        let all = [
            Mutation::GoesFirst,
            Mutation::NeverSeals,
            Mutation::LooksEarly,
            Mutation::ForgetsSeal,
            Mutation::CountsSent,
            Mutation::StaysSealed,
            Mutation::OpensEarly,
        ];
        let of = |mutation| Trial { mutation, dead: Some(false), ..Trial::default() };
        let of_store = [
            store::Mutation::NeverSyncs,
            store::Mutation::ChecksNothing,
            store::Mutation::TrustsIndex,
            store::Mutation::TakesReserve,
        ];
        let in_store = |in_store| Trial { in_store, dead: Some(false), ..Trial::default() };
        let drains = all.map(|mutation| (format!("{mutation:?}"), of(mutation)));
        let stores = of_store.map(|mutation| (format!("{mutation:?}"), in_store(mutation)));
        drains.into_iter().chain(stores).collect()
    }
}
