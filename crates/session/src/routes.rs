//! Which node of a group to ask, and which to avoid for a while.

use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId, RegionId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a node that failed is asked only after all others: some elections.
pub const AVOID: Duration = Duration::from_secs(3);

/// For what a node is asked. It may answer for one and not for another: the group of a partition
/// may wait for a region that is cut off, while the others and the blocks of the same node are
/// served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// The partition of a group.
    Group(GroupId),
    /// Blocks.
    Blocks,
}

/// What the client knows of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    region: RegionId,
    avoid: BTreeMap<(Service, NodeId), Time>,
    answered: BTreeMap<GroupId, NodeId>,
}

impl Routes {
    /// Of a client in `region`.
    pub fn new(region: RegionId) -> Routes {
        Routes { region, avoid: BTreeMap::new(), answered: BTreeMap::new() }
    }

    /// The nodes of `group`, the one to ask first at the front: those that did not fail lately, of
    /// these the nearest, of these the one that answered last.
    pub fn candidates(&self, topology: &Topology, group: GroupId, now: Time) -> Vec<NodeId> {
        let last = self.answered.get(&group);
        let known = topology.groups.get(usize::from(group.0));
        let mut nodes = known.map(|group| group.members.clone()).unwrap_or_default();
        nodes.sort_by_key(|node| {
            let avoided = self.is_avoided(Service::Group(group), *node, now);
            (avoided, self.distance(topology, *node), last != Some(node))
        });
        nodes
    }

    /// Whether `node` failed at that a moment ago.
    pub fn is_avoided(&self, service: Service, node: NodeId, now: Time) -> bool {
        self.avoid.get(&(service, node)).is_some_and(|until| *until > now)
    }

    /// Notes that `node` answered for `group`.
    pub fn answered(&mut self, group: GroupId, node: NodeId) {
        self.avoid.remove(&(Service::Group(group), node));
        self.answered.insert(group, node);
    }

    /// Notes that `node` failed.
    pub fn failed(&mut self, service: Service, node: NodeId, now: Time) {
        self.avoid.insert((service, node), now + AVOID);
    }

    /// Own region first, then by the delay that is added.
    fn distance(&self, topology: &Topology, node: NodeId) -> (bool, Duration) {
        let region = topology.node(node).region;
        (region != self.region, topology.delay(self.region, region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};

    fn topology() -> Topology {
        let node = |name: &str, region: &str| NodeEntry {
            name: name.into(),
            region: region.into(),
            pid: None,
            address: "127.0.0.1:1".into(),
            groups: vec!["global".into(), region.into()],
            draining: None,
        };
        let nodes = ["us-1", "us-2", "eu-1", "ap-1"].map(|name| node(name, &name[..2]));
        let rtt_ms = BTreeMap::from([("us-eu".into(), 200), ("us-ap".into(), 100)]);
        let file = ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: 1,
            nodes: nodes.into(),
            rtt_ms,
            order: Default::default(),
            configuration: Default::default(),
        };
        Topology::new(&file).unwrap()
    }

    #[test]
    fn the_nearest_comes_first_then_the_one_that_answered() {
        let (topology, now) = (topology(), Time(5));
        let mut routes = Routes::new(RegionId(0));
        let order = |routes: &Routes, now| routes.candidates(&topology, GroupId::GLOBAL, now);
        assert_eq!(order(&routes, now), [NodeId(0), NodeId(1), NodeId(3), NodeId(2)]);
        routes.answered(GroupId::GLOBAL, NodeId(1));
        assert_eq!(order(&routes, now), [NodeId(1), NodeId(0), NodeId(3), NodeId(2)]);
        routes.failed(Service::Group(GroupId::GLOBAL), NodeId(1), now);
        assert_eq!(order(&routes, now), [NodeId(0), NodeId(3), NodeId(2), NodeId(1)]);
        assert_eq!(order(&routes, now + AVOID)[0], NodeId(1));
    }

    /// Known fault 5: a group that waits for a region does not send its nodes' other clients away.
    #[test]
    fn a_node_is_avoided_for_what_it_failed_at_only() {
        let (topology, now) = (topology(), Time(5));
        let mut routes = Routes::new(RegionId(0));
        routes.failed(Service::Group(GroupId(1)), NodeId(0), now);
        assert_eq!(routes.candidates(&topology, GroupId(1), now)[0], NodeId(1));
        assert_eq!(routes.candidates(&topology, GroupId::GLOBAL, now)[0], NodeId(0));
        assert!(!routes.is_avoided(Service::Blocks, NodeId(0), now));
    }
}
