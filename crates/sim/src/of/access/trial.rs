//! A trial of hostile clients beside others.

use super::regions::{Drawn, nodes_on_disks, topology};
use super::{AccessWorkload, TENANT, USER, granted};
use crate::faults::Faults;
use crate::of::files::crowd::CrowdTrial;
use crate::trial::Made;
use crate::world::{Random, World};
use meridian_cluster::grants::{Below, Grant};
use meridian_fs::Partition;
use meridian_fs::mutation::Mutation;
use meridian_host::Node;
use meridian_host::mutation::Mutation as InHost;
use rand::SeedableRng;
use std::sync::Arc;
use std::time::Duration;

/// Clients that may do all, and such as are hostile.
const CLIENTS: (u64, u64) = (3, 3);
/// How many things each client does.
const THINGS: u64 = 120;

/// The world of a trial.
pub type Cluster = World<Node, AccessWorkload>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong with nodes.
    pub faults: Option<Faults>,
    /// A bug planted in trees.
    #[doc(hidden)]
    pub in_tree: Mutation,
    /// A bug planted in nodes.
    #[doc(hidden)]
    pub in_host: InHost,
}

impl CrowdTrial for Trial {
    type Crowd = AccessWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(20);
    const HEALING: Duration = Duration::from_secs(240);

    fn draw(&self, seed: u64) -> Drawn {
        Drawn::draw(&mut Random::seed_from_u64(seed ^ 0xacc1), self.faults.as_ref())
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let (in_tree, in_host) = (self.in_tree, self.in_host);
        let (partition, ino) = (granted().partition.0, granted().ino.0);
        let below = Some(Below { path: "/us".into(), partition, ino });
        let grant = Grant { below, users: [USER].into(), ..Grant::default() };
        let mut topology = (*topology(drawn.nodes)).clone();
        topology.grants.insert(TENANT.into(), grant);
        let topology = Arc::new(topology);
        let with = move |node: Node| node.with_tree_mutation(in_tree).with_host_mutation(in_host);
        let mut setup = nodes_on_disks(&topology, with);
        setup.faults = drawn.faults.clone();
        let owner = AccessWorkload::new(seed, topology, CLIENTS, THINGS);
        Made { setup, owner, operator: () }
    }

    fn is_idle(one: &Partition) -> bool {
        one.counting().is_none()
    }

    fn planted() -> Vec<(String, Self)> {
        let (in_tree, in_host) = (Mutation::ReachesAll, InHost::AdmitsAll);
        vec![
            (format!("{in_tree:?}"), Trial { in_tree, ..Trial::default() }),
            (format!("{in_host:?}"), Trial { in_host, ..Trial::default() }),
        ]
    }
}
