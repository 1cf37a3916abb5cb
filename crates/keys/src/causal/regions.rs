//! Who takes part: the nodes of all regions, and what each is to Eunomia.

use meridian_core::{NodeId, RegionId};
use meridian_eunomia::{Peer, Role, Site, Topology};
use std::sync::Arc;

/// The nodes of all regions. The place of a region is its [`RegionId`]; that of a node there is the
/// number of its source, and of its replica of the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regions {
    nodes: Vec<Vec<NodeId>>,
    topology: Arc<Topology>,
}

impl Regions {
    /// These; no node is in two.
    ///
    /// # Panics
    /// As [`Topology::new`], and if a region has no nodes.
    pub fn new(nodes: Vec<Vec<NodeId>>) -> Regions {
        let site = |nodes: &Vec<NodeId>| {
            let count = u16::try_from(nodes.len()).expect("a region of few nodes");
            Site { shards: count, replicas: count }
        };
        let topology = Arc::new(Topology::new(nodes.iter().map(site).collect()));
        Regions { nodes, topology }
    }

    /// The same for Eunomia.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The nodes of a region.
    pub fn nodes(&self, region: RegionId) -> &[NodeId] {
        &self.nodes[usize::from(region.0)]
    }

    /// The region of a node, and its number there.
    pub fn find(&self, node: NodeId) -> Option<(RegionId, u16)> {
        self.topology.regions().find_map(|region| {
            let number = self.nodes(region).iter().position(|other| *other == node)?;
            Some((region, number as u16))
        })
    }

    /// The node that has a number in a region, counted round and round.
    pub fn node(&self, region: RegionId, number: usize) -> NodeId {
        let nodes = self.nodes(region);
        nodes[number % nodes.len()]
    }

    /// Where a source or a replica of the service is; `None` of a receiver, as any node may be it.
    pub fn of(&self, peer: Peer) -> Option<NodeId> {
        match peer.role {
            Role::Shard(number) | Role::Replica(number) => {
                Some(self.node(peer.region, usize::from(number)))
            }
            Role::Receiver => None,
        }
    }
}
