//! Whole nodes in the simulator: what clients were told of their files holds, under all faults.

mod regions;

use meridian_core::topology::DeliveryOrder;
use meridian_core::{GroupId, Topology};
use meridian_fs::invariants::check_tree;
use meridian_fs::{Answer, Partition, Query};
use meridian_host::Node;
use meridian_multicast::Mutation;
use meridian_sim::files::FilesWorkload;
use meridian_sim::{Faults, World, each_seed};
use regions::{faults, ordered, setup, topology};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

type Cluster = World<Node, FilesWorkload>;

const CLIENTS: u64 = 6;
/// How many things each client does.
const THINGS: u64 = 60;

fn cluster(seed: u64, nodes: usize, faults: Faults) -> Cluster {
    cluster_with(seed, topology(nodes), faults, Mutation::Correct)
}

fn cluster_with(seed: u64, topology: Arc<Topology>, faults: Faults, mutation: Mutation) -> Cluster {
    let of = topology.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me).with_mutation(mutation));
    setup.faults = faults;
    let workload = FilesWorkload::new(seed, topology, CLIENTS, THINGS);
    let mut world = World::new(seed, setup, workload);
    world.owner.begin().into_iter().for_each(|ask| world.ask(ask));
    world
}

fn partitions(world: &Cluster, group: GroupId) -> Vec<&Partition> {
    let replicas = world.processes().filter_map(|(_, node)| node.replica(group));
    replicas.map(|replica| replica.partition()).collect()
}

/// Whether all clients are done, and all replicas have applied the same.
fn is_quiet(world: &Cluster, topology: &Topology) -> bool {
    world.owner.is_done()
        && topology.group_ids().all(|group| {
            let all = partitions(world, group);
            all.len() == topology.group(group).members.len()
                && all.iter().all(|one| one.applied() == one.delivered())
                && all.windows(2).all(|pair| pair[0].decided() == pair[1].decided())
        })
}

/// Whether all replicas of each group are equal, down to the votes that they keep for others: once all
/// have applied everything, none are needed.
fn are_equal(world: &Cluster, topology: &Topology) -> bool {
    topology
        .group_ids()
        .all(|group| partitions(world, group).windows(2).all(|pair| pair[0] == pair[1]))
}

fn describe(world: &Cluster) -> String {
    let mut text = format!("not quiet; clients wait for:\n{}", world.owner.waiting());
    for (node, process) in world.processes() {
        for status in process.status(world.now()) {
            text += &format!(
                "\n{node:?} {:?} {:?} {:?} delivered {:?} applied {:?} pending {}",
                status.group,
                status.role,
                status.epoch,
                status.delivered,
                status.applied,
                status.pending
            );
        }
        for group in 0..4 {
            if let Some(replica) = process.replica(GroupId(group)) {
                text += &format!("\n  {group} waits for {:?}", replica.partition().waiting());
            }
        }
    }
    text
}

fn faults_then_peace(mut world: Cluster, nodes: usize, faults_for: Duration) {
    let topology = topology(nodes);
    world.run_for(faults_for);
    world.heal();
    if !world.run_until(|world| is_quiet(world, &topology), Duration::from_secs(120)) {
        world.fail(&describe(&world));
    }
    if !world.run_until(|world| are_equal(world, &topology), Duration::from_secs(60)) {
        world.fail("replicas of a group differ");
    }
    check_tree(topology.group_ids().map(|group| partitions(&world, group)[0]));
    for (parent, name, child) in world.owner.entries() {
        let query = Query::Lookup { parent, name };
        match partitions(&world, parent.partition)[0].read(&query) {
            Ok(Answer::Entry { entry, .. }) if entry.place == child => {}
            other => world.fail(&format!("{query:?} was acknowledged, and is {other:?}")),
        }
    }
    let (updates, reads) = world.owner.answered;
    assert!(updates > 100 && reads > 50, "{updates} updates and {reads} reads");
}

fn all_faults(seeds: Range<u64>, nodes: usize) {
    each_seed(seeds, |seed| {
        faults_then_peace(cluster(seed, nodes, faults()), nodes, Duration::from_secs(10));
    });
}

#[test]
fn without_faults_all_is_as_told() {
    for nodes in [1, 3] {
        each_seed(0..3, |seed| {
            faults_then_peace(cluster(seed, nodes, Faults::none()), nodes, Duration::from_secs(5));
        });
    }
}

#[test]
fn three_regions_of_one_node() {
    all_faults(0..60, 1);
}

#[test]
fn three_regions_of_three_nodes() {
    all_faults(100..260, 3);
}

/// The other order of messages holds back more of them, and the files are as told all the same.
#[test]
fn the_linearizable_order_keeps_what_was_told() {
    each_seed(300..340, |seed| {
        let topology = ordered(3, DeliveryOrder::Linearizable);
        let world = cluster_with(seed, topology, faults(), Mutation::Correct);
        faults_then_peace(world, 3, Duration::from_secs(10));
    });
}

/// Every node loses power at once, again and again.
#[test]
fn all_nodes_crash_at_once() {
    each_seed(200..215, |seed| {
        let second = Duration::from_secs(1);
        let faults = Faults { crash_all: Some(4 * second), outage: second / 2, ..Faults::none() };
        faults_then_peace(cluster(seed, 3, faults), 3, 12 * second);
    });
}

/// Bugs planted in the multicast show in the files, too.
#[test]
fn planted_bugs_are_noticed() {
    for mutation in [Mutation::NoOrder, Mutation::NoLeaderClock, Mutation::NoCeiling] {
        let noticed = (0..100).any(|seed| {
            let run = || {
                let mut world = cluster_with(seed, topology(3), faults(), mutation);
                world.say_nothing();
                faults_then_peace(world, 3, Duration::from_secs(10));
            };
            std::panic::catch_unwind(run).is_err()
        });
        assert!(noticed, "nobody noticed {mutation:?}");
    }
}
