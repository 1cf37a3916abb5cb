//! Who takes part: the nodes of all regions, what each is to Eunomia, and which regions serve.

use meridian_core::{NodeId, RegionId};
use meridian_eunomia::{self as eunomia, Peer, Role, SOURCES_MAX, Topology};
use std::sync::Arc;

/// The nodes of all regions. The place of a region is its [`RegionId`], the same for ever. Nodes
/// come and go; the number of one is that of its source and of its replica of the service, and no
/// other ever has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regions {
    nodes: Vec<Vec<NodeId>>,
    topology: Arc<Topology>,
    standings: Arc<eunomia::Regions>,
    keeps: bool,
}

impl Regions {
    /// These, which all serve; no node is in two.
    ///
    /// # Panics
    /// There are more than [`meridian_eunomia::REGIONS_MAX`], or the number of a node is none of a
    /// source: see [`Regions::may_have`].
    pub fn new(nodes: Vec<Vec<NodeId>>) -> Regions {
        let numbers = |nodes: &Vec<NodeId>| nodes.iter().map(|node| number_of(*node)).collect();
        let topology = Arc::new(Topology::of_replicas(nodes.iter().map(numbers).collect()));
        let standings = Arc::new(eunomia::Regions::fixed(nodes.len()));
        Regions { nodes, topology, standings, keeps: true }
    }

    /// The same where regions join and leave, which is decided outside ([`eunomia::Registry`]).
    pub fn with_standings(self, standings: Arc<eunomia::Regions>) -> Regions {
        Regions { standings, ..self }
    }

    /// The same where nodes may run programs that do not keep of other regions' updates what others
    /// may lack (see `lost`): so nobody does.
    pub fn keeping(self, keeps: bool) -> Regions {
        Regions { keeps, ..self }
    }

    /// Whether what is applied of other regions is kept until all have it.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// What each region is to the others.
    pub fn standings(&self) -> &Arc<eunomia::Regions> {
        &self.standings
    }

    /// Whether a node can have keys of all regions: timestamps name sources in a few bits.
    pub fn may_have(node: NodeId) -> bool {
        node.0 < SOURCES_MAX
    }

    /// The same for Eunomia.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The nodes of a region; none of one that is not known.
    pub fn nodes(&self, region: RegionId) -> &[NodeId] {
        self.nodes.get(usize::from(region.0)).map_or(&[], Vec::as_slice)
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
