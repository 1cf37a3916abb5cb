//! A trial: two of five nodes are removed. Or of three regions of one node each, which all keep the
//! configuration, one is lost and fenced, and nodes come.

use super::words::Words;
use super::{Cluster, MS, NODES, SETTINGS, file, regions};
use crate::faults::Faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation, WorldOf};
use crate::world::{Random, Setup};
use meridian_cluster::Topology;
use meridian_cluster::configuration::Mutation as InService;
use meridian_cluster::topology::ClusterFile;
use meridian_core::{NodeId, PLANTED_BUGS};
use meridian_host::configuration::{ConfigurationReplica, Mutation};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// How many nodes keep the configuration.
    pub keepers: Option<usize>,
    /// Whether a region is lost: only where three nodes keep the configuration.
    pub loses: Option<bool>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many nodes keep the configuration.
    pub keepers: usize,
    /// Which nodes are removed, and when; the first keeps the configuration.
    pub remove: Vec<(usize, Duration)>,
    /// Which region is lost, and what comes after that. Then no node is removed.
    pub lost: Option<Lost>,
    /// When the first of those that are removed, or the one that is lost, is gone for good; if it
    /// is: only one of three.
    pub dead: Option<Duration>,
    /// What may go wrong.
    pub faults: Faults,
}

/// A region of one node is lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The node.
    pub node: usize,
    /// When it is fenced: after the node has stopped, or somewhat before.
    pub fenced: Duration,
    /// Nodes that come: to whose region, and when.
    pub add: Vec<(usize, Duration)>,
}

impl Lost {
    fn draw(random: &mut Random, fenced: Duration) -> Lost {
        let node = random.random_range(0..3);
        let count = random.random_range(1..=2);
        let add = (0..count).map(|_| {
            let region = (node + random.random_range(1..3)) % 3;
            (region, fenced + MS * random.random_range(0..8000))
        });
        let add = add.collect();
        Lost { node, fenced, add }
    }
}

impl Drawn {
    /// The cluster as it is at first.
    pub fn first(&self) -> ClusterFile {
        if self.lost.is_some() { regions() } else { file(self.keepers) }
    }

    /// The node that is gone for good, and when.
    pub fn dies(&self) -> Option<(NodeId, Duration)> {
        let node = self.lost.as_ref().map_or_else(|| self.remove[0].0, |lost| lost.node);
        self.dead.map(|at| (NodeId(u16::try_from(node).expect("one of five")), at))
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { keepers, remove, lost, dead, .. } = self;
        match lost {
            Some(lost) => write!(f, "three regions of one node, {lost:?}, dead {dead:?}"),
            None => {
                write!(f, "{keepers} keep the configuration, removed {remove:?}, dead {dead:?}")
            }
        }
    }
}

/// All kinds of faults.
fn faults() -> Faults {
    Faults { outage: 400 * MS, split: 1500 * MS, ..Faults::all(1200 * MS) }
}

impl Subject for Trial {
    type Process = ConfigurationReplica;
    type Owner = Cluster;
    type Drawn = Drawn;
    /// Who is gone for good, and when.
    type Operator = Option<(NodeId, Duration)>;

    const FAULTS: Duration = Duration::from_secs(40);
    const HEALING: Duration = Duration::from_secs(240);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xc0f2);
        let keepers = self.keepers.unwrap_or([1, 3][random.random_range(0..2)]);
        let place = random.random_range(0..3_usize);
        let other = random.random_range(1..usize::from(NODES));
        let first = MS * random.random_range(3000..12_000);
        let second = first + MS * random.random_range(0..8000);
        let dies = first.mul_f64(random.random_range(0.2..0.9));
        let dead = random.random_ratio(1, 4) && keepers > 1;
        let calm = random.random_ratio(1, 4);
        let place = place % keepers;
        let other = (place + other) % usize::from(NODES);
        let loses = random.random_ratio(1, 3);
        let loses = keepers == 3 && self.loses.unwrap_or(loses);
        let lost = loses.then(|| Lost::draw(random, first));
        // What is called lost may be as alive as ever.
        let dies = if loses { first.mul_f64(random.random_range(0.2..1.3)) } else { dies };
        let remove = if loses { Vec::new() } else { vec![(place, first), (other, second)] };
        Drawn {
            keepers,
            remove,
            lost,
            dead: (dead || loses).then_some(dies),
            faults: self.faults.clone().unwrap_or(if calm { Faults::none() } else { faults() }),
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let topology = Arc::new(Topology::new(&drawn.first()).expect("it is well formed"));
        let mutation = self.mutation;
        // A node that starts again has the configuration of its first start, and learns of later
        // ones.
        let make =
            move |me| ConfigurationReplica::new(topology.clone(), me).with_mutation(mutation);
        let peers = (0..NODES).map(NodeId).collect();
        let setup = Setup { faults: drawn.faults.clone(), ..Setup::lan(peers, make) };
        let owner = Cluster::new(seed, drawn);
        let operator = drawn.dies();
        Made { setup, owner, operator }
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

    /// Nobody keeps the configuration but those whom it names, who all know the last version.
    fn is_quiet(world: &WorldOf<Self>) -> bool {
        let Some(newest) = world.owner.newest().filter(|_| world.owner.is_done()) else {
            return false;
        };
        let named = Topology::new(newest).expect("S1").keeping.replicas;
        world.processes().all(|(node, process)| {
            let dead = Some(node) == world.owner.dead;
            let Some(paxos) = process.paxos() else { return dead || !named.contains(&node) };
            let members: BTreeSet<_> = paxos.status().members.members.into_keys().collect();
            dead || (members == named && paxos.service().file() == Some(newest))
        })
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let owner = &stage.world.owner;
        let newest = owner.newest().expect("it is quiet");
        let version = newest.configuration.version;
        if owner.acknowledged > version {
            return Err(format!("lost: {} was told, {version} is there", owner.acknowledged));
        }
        let topology = Topology::new(newest).expect("S1");
        if let Some(seat) = topology.lost_seats().next() {
            return Err(format!("seats: nobody that came takes that of {seat}"));
        }
        match newest.rtt_ms.values().copied().eq([SETTINGS]) {
            true => Ok(()),
            false => Err(format!("lost: {SETTINGS} was set last, {:?} is there", newest.rtt_ms)),
        }
    }

    fn describe(world: &WorldOf<Self>) -> String {
        let status = |(node, process): (NodeId, &ConfigurationReplica)| {
            process.status().map(|status| format!("{node}: {status:?}"))
        };
        let all: Vec<_> = world.processes().filter_map(status).collect();
        format!("{}; {}", world.owner.describe(), all.join("; "))
    }

    fn teller() -> Box<dyn Teller<ConfigurationReplica>> {
        Box::new(Words)
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        let versions = world.owner.versions.len() as u64;
        let replaced = world.owner.newest().map_or(0, |file| {
            let kept = &file.configuration;
            kept.first.difference(&kept.replicas).count() as u64
        });
        Counts(BTreeMap::from([("versions", versions), ("replaced", replaced)]))
    }

    fn planted() -> Vec<(String, Self)> {
        if !PLANTED_BUGS {
            return Vec::new();
        }
        let all = [Mutation::EndsEarly, Mutation::BeginsAlone, Mutation::BeginsWithFirst];
        let in_service = [InService::RisesEarly, InService::DropsSeats, InService::LeavesSeats];
        let of_replica = all.map(|mutation| (format!("{mutation:?}"), mutation));
        let of_service = in_service.map(|bug| (format!("{bug:?}"), Mutation::InService(bug)));
        let trial = |(name, mutation)| (name, Trial { mutation, ..Trial::default() });
        of_replica.into_iter().chain(of_service).map(trial).collect()
    }
}
