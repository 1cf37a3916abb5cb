//! A trial: two of four or five nodes are removed, one of them may stay after all, and disks damage
//! or lose what is on others.

use super::words::Words;
use super::{Blocks, Harm, MS, topology};
use crate::faults::Faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation, WorldOf};
use crate::world::{Logs, Random, Setup};
use meridian_blocks::store;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{NodeId, PLANTED_BUGS};
use meridian_host::drain::keep::Options;
use meridian_host::drain::{Drain, Mutation};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Whether the first node that is removed is gone for good before.
    pub dead: Option<bool>,
    /// Nobody looks after copies but for nodes that go, and no disk loses blocks.
    pub alone: bool,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// A bug planted in the stores of blocks.
    #[doc(hidden)]
    pub in_store: store::Mutation,
}

impl Default for Trial {
    fn default() -> Self {
        let (mutation, in_store) = (Mutation::Correct, store::Mutation::Correct);
        Trial { dead: None, alone: false, faults: None, mutation, in_store }
    }
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
    /// Nobody looks after copies but for nodes that go.
    pub alone: bool,
    /// What disks do with blocks, and when.
    pub harms: Vec<(Harm, Duration)>,
    /// What may go wrong.
    pub faults: Faults,
    /// A bug planted in the stores of blocks.
    #[doc(hidden)]
    pub in_store: store::Mutation,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { nodes, clients, remove, keep, dead, harms, .. } = self;
        write!(f, "{nodes} nodes, {clients} clients, removed {remove:?}, ")?;
        write!(f, "kept {keep:?}, dead {dead:?}, harmed {harms:?}")
    }
}

/// How long it takes to read all blocks once.
const SCRUB: Duration = Duration::from_secs(10);

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
        let harm = |_| {
            let harm = if random.random_bool(0.5) { Harm::Rot } else { Harm::Wipe };
            (harm, MS * random.random_range(500..20_000))
        };
        let harms = (0..3).map(harm).collect();
        let mut faults = self.faults.clone().unwrap_or(drawn);
        // Two disks are not lost at once.
        let harmed = random.random_bool(0.7) && !self.alone;
        let harms = if harmed { harms } else { Vec::new() };
        faults.lost_disk = faults.lost_disk.filter(|_| harms.is_empty());
        Drawn {
            nodes,
            clients,
            keep,
            alone: self.alone,
            harms,
            remove: vec![(order[0], first), (order[1], second)],
            dead,
            faults,
            in_store: self.in_store,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let (topology, mutation) = (topology(drawn.nodes), self.mutation);
        let peers = topology.node_ids().collect();
        // A node that starts again has the configuration of its first start, and learns of later
        // ones.
        let options = Options { pass: SCRUB, ..Options::default() };
        let alone = self.alone;
        let make = move |me| {
            let drain = Drain::new(topology.clone(), me).with_options(options);
            let drain = drain.with_mutation(mutation);
            if alone { drain.alone() } else { drain }
        };
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

    /// All is stored and has gone, and copies are where they should be.
    fn is_quiet(world: &WorldOf<Self>) -> bool {
        world.owner.is_kept
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let blocks = &stage.world.owner;
        if !blocks.alone {
            let unkept = blocks.unkept();
            let wrong = unkept.first();
            return wrong.map_or(Ok(()), |(at, block)| {
                Err(format!("copies: {at} lacks {block}, or has it for nothing"))
            });
        }
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

    fn teller() -> Box<dyn Teller<Drain>> {
        Box::new(Words)
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        let blocks = &world.owner;
        let counts = [
            ("stored", blocks.stored.len() as u64),
            ("kept", blocks.kept.len() as u64),
            ("read", blocks.stores.reads()),
            ("harmed", blocks.harm_done),
            ("given up", blocks.given_up),
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
        let of = |mutation| Trial { mutation, alone: true, dead: Some(false), ..Trial::default() };
        let of_copies = [
            Mutation::NeverLooks,
            Mutation::NeverScrubs,
            Mutation::GivesUpUnheard,
            Mutation::GivesUpPromised,
        ];
        let copies = of_copies.map(|mutation| {
            (format!("{mutation:?}"), Trial { mutation, dead: Some(false), ..Trial::default() })
        });
        let of_store = [
            store::Mutation::NeverSyncs,
            store::Mutation::ChecksNothing,
            store::Mutation::TrustsIndex,
            store::Mutation::TakesReserve,
        ];
        let in_store =
            |in_store| Trial { in_store, alone: true, dead: Some(false), ..Trial::default() };
        let drains = all.map(|mutation| (format!("{mutation:?}"), of(mutation)));
        let stores = of_store.map(|mutation| (format!("{mutation:?}"), in_store(mutation)));
        drains.into_iter().chain(copies).chain(stores).collect()
    }
}
