//! A trial of quotas that are set and taken away while clients work.

use super::QuotasWorkload;
use super::regions::{Drawn, nodes_on_disks, partitions, topology};
use crate::faults::Faults;
use crate::of::files::crowd::CrowdTrial;
use crate::trial::{Made, Stage, Violation};
use crate::world::{Random, World};
use meridian_fs::mutation::Mutation;
use meridian_fs::quota::Stage as Counted;
use meridian_fs::{Answer, Kind, Partition, Place, Query};
use meridian_host::Node;
use meridian_host::mutation::Mutation as InHost;
use rand::SeedableRng;
use std::collections::BTreeSet;
use std::time::Duration;

const CLIENTS: u64 = 6;
/// How many things each client does.
const THINGS: u64 = 150;
/// A step counts so little, so that a count takes some seconds.
const STEP: usize = 4;

/// The world of a trial.
pub type Cluster = World<Node, QuotasWorkload>;

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
    type Crowd = QuotasWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(25);
    const HEALING: Duration = Duration::from_secs(240);

    fn draw(&self, seed: u64) -> Drawn {
        Drawn::draw(&mut Random::seed_from_u64(seed ^ 0x900b), self.faults.as_ref())
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let (in_tree, in_host) = (self.in_tree, self.in_host);
        let with = move |node: Node| {
            node.with_tree_mutation(in_tree).with_host_mutation(in_host).with_count_step(STEP)
        };
        let topology = topology(drawn.nodes);
        let mut setup = nodes_on_disks(&topology, with);
        setup.faults = drawn.faults.clone();
        let owner = QuotasWorkload::new(seed, topology, (CLIENTS, THINGS));
        Made { setup, owner, operator: () }
    }

    fn is_idle(one: &Partition) -> bool {
        one.counting().is_none()
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let world = &stage.world;
        let groups = world.owner.net.topology.group_ids();
        let all: Vec<&Partition> = groups.flat_map(|group| partitions(world, group)).collect();
        let mut below = 0;
        for partition in &all {
            let roots: BTreeSet<Place> = partition.quotas().map(|(place, _)| place).collect();
            for (root, quota) in partition.quotas() {
                let found = walk(partition, root, &roots);
                below += found.1 - 1;
                if (quota.bytes, quota.inodes) != found {
                    let what = format!("{quota:?}, and a walk finds {found:?}");
                    return Err(format!("quotas: that of {root:?} is {what}"));
                }
                if quota.stage != Counted::Complete {
                    return Err(format!("quotas: that of {root:?} is {:?} for ever", quota.stage));
                }
            }
        }
        stage.world.owner.net.counts.add("counted", below);
        Ok(())
    }

    fn describe(world: &Cluster) -> String {
        let counting =
            |group| partitions(world, group).iter().map(|one| one.counting()).collect::<Vec<_>>();
        let counting: Vec<_> = world.owner.net.topology.group_ids().map(counting).collect();
        format!("\ncounting: {counting:?}")
    }

    fn planted() -> Vec<(String, Self)> {
        let in_tree = [Mutation::MissesMoved, Mutation::ClosesEarly];
        let in_tree =
            in_tree.map(|in_tree| (format!("{in_tree:?}"), Trial { in_tree, ..Trial::default() }));
        let in_host = InHost::AbandonsCounts;
        let abandons = (format!("{in_host:?}"), Trial { in_host, ..Trial::default() });
        in_tree.into_iter().chain([abandons]).collect()
    }
}

/// The bytes and inodes from a directory on that live in its partition and are not below another of
/// these.
fn walk(partition: &Partition, root: Place, roots: &BTreeSet<Place>) -> (u64, u64) {
    let (mut bytes, mut inodes, mut next) = (0, 1, vec![root]);
    while let Some(inode) = next.pop() {
        let query = Query::Directory { inode, after: Default::default(), limit: u32::MAX };
        let Ok(Answer::Directory { entries, end: true, .. }) = partition.read(&query) else {
            panic!("{inode:?} is a directory, and small");
        };
        for (_, entry, attributes) in entries {
            if entry.place.partition != partition.group() || roots.contains(&entry.place) {
                continue;
            }
            inodes += 1;
            bytes += attributes.map_or(0, |of| of.stored);
            next.extend((entry.kind == Kind::Directory).then_some(entry.place));
        }
    }
    (bytes, inodes)
}
