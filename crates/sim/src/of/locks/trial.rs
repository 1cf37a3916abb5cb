//! A trial of clients that lock files of each other.

use super::LocksWorkload;
use super::regions::{Drawn, faults, nodes_on_disks, partitions, topology};
use crate::faults::Faults;
use crate::of::files::crowd::CrowdTrial;
use crate::trial::{Made, Stage, Violation};
use crate::world::{Random, World};
use meridian_fs::mutation::Mutation;
use meridian_fs::{Answer, Partition, Query};
use meridian_host::Node;
use meridian_session::Mutation as InClient;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

const CLIENTS: u64 = 6;
/// How often each client begins with nothing.
const THINGS: u64 = 25;

/// The world of a trial.
pub type Cluster = World<Node, LocksWorkload>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong with nodes.
    pub faults: Option<Faults>,
    /// A bug planted in trees.
    #[doc(hidden)]
    pub in_tree: Mutation,
    /// A bug planted in clients.
    #[doc(hidden)]
    pub in_client: InClient,
}

impl CrowdTrial for Trial {
    type Crowd = LocksWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(100);
    const HEALING: Duration = Duration::from_secs(400);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0x10c6);
        let nodes = if random.random_ratio(1, 2) { 1 } else { 3 };
        let rarely = |mean: Option<Duration>| mean.map(|mean| mean * 8);
        let all = faults();
        let drawn = match random.random_range(0..2) {
            0 => Faults::none(),
            _ => Faults { crash: rarely(all.crash), disk: None, lost_disk: None, ..all },
        };
        Drawn { nodes, faults: self.faults.clone().unwrap_or(drawn) }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let in_tree = self.in_tree;
        let with = move |node: Node| node.with_tree_mutation(in_tree);
        let topology = topology(drawn.nodes);
        let mut setup = nodes_on_disks(&topology, with);
        setup.faults = drawn.faults.clone();
        let owner = LocksWorkload::new(seed, topology, (CLIENTS, THINGS), self.in_client);
        Made { setup, owner, operator: () }
    }

    fn is_idle(one: &Partition) -> bool {
        one.leases().next().is_none()
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let world = &stage.world;
        for (inode, greatest) in world.owner.greatest() {
            let query = Query::Contents { inode, offset: 0, len: 8 };
            let answer = partitions(world, inode.partition)[0].read(&query);
            let Ok(Answer::Contents { extents, .. }) = answer else {
                return Err(format!("durability: {inode:?} is {answer:?}"));
            };
            let now = super::client::value_of(extents.first().map(|(_, extent)| extent));
            if now < greatest {
                return Err(format!("durability: {greatest} was acknowledged, {now} is there"));
            }
        }
        Ok(())
    }

    fn planted() -> Vec<(String, Self)> {
        let all = [
            Mutation::ForgetsWaiters,
            Mutation::GrantsToAll,
            Mutation::KeepsGone,
            Mutation::IgnoresTenure,
            Mutation::BelievesCycles,
        ];
        let trial = |in_tree| (format!("{in_tree:?}"), Trial { in_tree, ..Trial::default() });
        let in_client = InClient::JoinsNothing;
        let joins = (format!("{in_client:?}"), Trial { in_client, ..Trial::default() });
        all.map(trial).into_iter().chain([joins]).collect()
    }
}
