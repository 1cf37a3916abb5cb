//! A cluster of whole nodes in three regions.

use crate::faults::Faults;
use crate::world::{Logs, Owner, Random, Setup, World};
use meridian_cluster::Topology;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, DeliveryOrder, NodeEntry};
use meridian_core::level::Level;
use meridian_core::{GroupId, NodeId, Process};
use meridian_fs::Partition;
use meridian_host::Node;
use rand::RngExt;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Three regions with so many nodes each; the first of each replicates `global`, too.
pub fn topology(nodes: usize) -> Arc<Topology> {
    ordered(nodes, DeliveryOrder::Sequential)
}

/// The same with that order of messages.
pub fn ordered(nodes: usize, order: DeliveryOrder) -> Arc<Topology> {
    Arc::new(Topology::new(&file(nodes, order)).expect("it is well formed"))
}

/// The same in a cluster of that level.
pub fn at_level(nodes: usize, level: Level) -> Arc<Topology> {
    let mut file = file(nodes, DeliveryOrder::Sequential);
    file.configuration.levels.now = level;
    Arc::new(Topology::new(&file).expect("it is well formed"))
}

/// The same as a file.
pub fn file(nodes: usize, order: DeliveryOrder) -> ClusterFile {
    let entry = |region: &str, n: usize| {
        let mut groups = vec![region.to_string()];
        if n == 0 {
            groups.push("global".into());
        }
        let name = format!("{region}-{}", n + 1);
        let address = format!("{name}:1");
        NodeEntry { name, region: region.into(), pid: None, address, groups, draining: None }
    };
    let regions = ["us", "eu", "ap"];
    let nodes = regions.iter().flat_map(|region| (0..nodes).map(|n| entry(region, n))).collect();
    let (cluster, rtt_ms) = (1, Default::default());
    let configuration = Default::default();
    ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster,
        nodes,
        rtt_ms,
        order,
        configuration,
    }
}

/// Its nodes, far from each other if they are in different regions.
pub fn setup<P: Process<Peer = NodeId, Record: 'static>>(
    topology: &Arc<Topology>,
    make: impl FnMut(NodeId) -> P + 'static,
) -> Setup<P> {
    let count = u16::try_from(topology.nodes.len()).expect("a few");
    let of = topology.clone();
    let delay = Box::new(move |from, to, random: &mut Random| {
        let far = of.node(from).region != of.node(to).region;
        let (least, most) = if far { (15_000, 25_000) } else { (50, 1_000) };
        Duration::from_micros(random.random_range(least..=most))
    });
    Setup { delay, ..Setup::lan((0..count).map(NodeId).collect(), make) }
}

/// Nodes whose logs are on disks; `with` makes of each what the trial has.
pub fn nodes_on_disks(
    topology: &Arc<Topology>,
    with: impl Fn(Node) -> Node + 'static,
) -> Setup<Node> {
    let of = topology.clone();
    let setup = setup(topology, move |me| with(Node::new(of.clone(), me)));
    Setup { logs: Logs::on_disks(), ..setup }
}

/// What a trial of nodes was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many nodes each of the three regions has.
    pub nodes: usize,
    /// What may go wrong with nodes.
    pub faults: Faults,
}

impl Drawn {
    /// Mostly three nodes, and mostly with faults, which are these if there are any; disks are not
    /// harmed.
    pub fn draw(random: &mut Random, pinned: Option<&Faults>) -> Drawn {
        let nodes = if random.random_ratio(1, 3) { 1 } else { 3 };
        let drawn = match random.random_range(0..4) {
            0 => Faults::none(),
            _ => Faults { disk: None, lost_disk: None, ..faults() },
        };
        Drawn { nodes, faults: pinned.cloned().unwrap_or(drawn) }
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = if self.faults.any() { "with" } else { "without" };
        write!(f, "regions of {} nodes, {faults} faults", self.nodes)
    }
}

/// All kinds of faults, about as often as elections can follow.
pub fn faults() -> Faults {
    let ms = Duration::from_millis(1);
    Faults { outage: 700 * ms, split: 1500 * ms, ..Faults::all(800 * ms) }
}

/// The replicas of a group, of those nodes that are up.
pub fn partitions<O: Owner<Node>>(world: &World<Node, O>, group: GroupId) -> Vec<&Partition> {
    let replicas = world.processes().filter_map(|(_, node)| node.replica(group));
    replicas.map(|replica| replica.partition()).collect()
}

/// Whether so many replicas of a group are up, and all have applied all that was delivered to them,
/// which is the same.
pub fn have_applied_all<O: Owner<Node>>(
    world: &World<Node, O>,
    group: GroupId,
    count: usize,
) -> bool {
    let all = partitions(world, group);
    all.len() == count
        && all.iter().all(|one| one.applied() == one.delivered())
        && all.windows(2).all(|pair| pair[0].decided() == pair[1].decided())
}

/// Whether these nodes have equal replicas of a group, down to the votes that they keep, and
/// nothing waits.
pub fn are_level<O: Owner<Node>>(
    world: &World<Node, O>,
    group: GroupId,
    members: impl IntoIterator<Item = NodeId>,
) -> bool {
    let replica = |node| world.process(node).and_then(|process| process.replica(group));
    let all: Option<Vec<_>> = members.into_iter().map(replica).collect();
    let all = all.unwrap_or_default();
    let mut partitions = all.iter().map(|replica| replica.partition());
    partitions.all(|one| one == all[0].partition() && one.applied() == one.delivered())
        && !all.is_empty()
}

/// The same of all groups and their members.
pub fn all_are_level<O: Owner<Node>>(world: &World<Node, O>, topology: &Topology) -> bool {
    let members = |group| topology.group(group).members.iter().copied();
    topology.group_ids().all(|group| are_level(world, group, members(group)))
}
