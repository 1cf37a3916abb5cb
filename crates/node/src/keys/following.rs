//! How the threads of keys follow the configuration of the cluster.

use super::began::in_region_of;
use crate::application::peers_of;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// What the threads of a node's keys are told when the cluster is configured anew.
#[derive(Clone, Debug)]
pub struct Following {
    /// As of this version of the configuration.
    pub version: u64,
    /// Who should hold the keys of the region.
    pub nodes: BTreeSet<NodeId>,
    /// The other nodes of the region, also those that are drained, and where they listen.
    pub peers: BTreeMap<NodeId, String>,
}

impl Following {
    /// As node `me` is told.
    pub(crate) fn new(topology: &Topology, me: NodeId) -> Following {
        let near: BTreeSet<_> = in_region_of(topology, me).collect();
        let mut peers = peers_of(topology, me);
        peers.retain(|node, _| near.contains(node));
        let nodes = topology.staying_in(topology.node(me).region).collect();
        Following { version: topology.version, nodes, peers }
    }
}
