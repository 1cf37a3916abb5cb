//! Who takes part: the nodes of all regions, and what each is to Eunomia.

use meridian_core::{NodeId, RegionId};
use meridian_eunomia::{Peer, Role, SOURCES_MAX, Topology};
use std::sync::Arc;

/// The nodes of all regions. The place of a region is its [`RegionId`], the same for ever. Nodes
/// come and go; the number of one is that of its source and of its replica of the service, and no
/// other ever has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regions {
    nodes: Vec<Vec<NodeId>>,
    topology: Arc<Topology>,
}

impl Regions {
    /// These; no node is in two.
    ///
    /// # Panics
    /// There are more than [`meridian_eunomia::REGIONS_MAX`], or the number of a node is none of a
    /// source: see [`Regions::may_have`].
    pub fn new(nodes: Vec<Vec<NodeId>>) -> Regions {
        let numbers = |nodes: &Vec<NodeId>| nodes.iter().map(|node| number_of(*node)).collect();
        let topology = Arc::new(Topology::of_replicas(nodes.iter().map(numbers).collect()));
        Regions { nodes, topology }
    }

    /// Whether a node can have keys of all regions: timestamps name sources in a few bits.
    pub fn may_have(node: NodeId) -> bool {
        node.0 < SOURCES_MAX
    }

    /// The same for Eunomia.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The nodes of a region.
    pub fn nodes(&self, region: RegionId) -> &[NodeId] {
        &self.nodes[usize::from(region.0)]
    }

    /// The region of a node.
    pub fn find(&self, node: NodeId) -> Option<RegionId> {
        self.topology.regions().find(|region| self.nodes(*region).contains(&node))
    }

    /// Who has what a source of a region has made: its node, or the `turn`-th after it.
    pub fn holder(&self, region: RegionId, source: u16, turn: usize) -> Option<NodeId> {
        let nodes = self.nodes(region);
        let first = nodes.iter().position(|node| node.0 >= source).unwrap_or(0);
        nodes.get((first + turn).checked_rem(nodes.len())?).copied()
    }
}

/// The number of a node's source.
///
/// # Panics
/// It can have none.
pub(super) fn number_of(node: NodeId) -> u16 {
    assert!(Regions::may_have(node), "{node} has a number that no source can have");
    node.0
}

/// Where a source or a replica of the service is; `None` of a receiver, as any node may be it.
pub(super) fn node_of(peer: Peer) -> Option<NodeId> {
    match peer.role {
        Role::Shard(number) | Role::Replica(number) => Some(NodeId(number)),
        Role::Receiver => None,
    }
}
