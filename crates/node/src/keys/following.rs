//! How the threads of keys follow the configuration of the cluster.

use super::began::{in_region_of, regions};
use crate::application::{delays_of, peers_of};
use meridian_cluster::Topology;
use meridian_core::{NodeId, RegionId};
use meridian_hermes::reliable::Configured;
use meridian_keys::Grants;
use meridian_keys::causal::Regions;
use meridian_runtime::Delay;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the threads of a node's keys are told when the cluster is configured anew.
#[derive(Clone, Debug)]
pub struct Following {
    /// Who should hold the keys of the region.
    pub configured: Configured,
    /// The other nodes of the region, also those that are drained, and where they listen.
    pub peers: BTreeMap<NodeId, String>,
    /// The same for the keys of all regions, if there are such.
    pub causal: Option<CausalFollowing>,
    /// What clients may do.
    pub grants: Arc<Grants>,
}

/// What the thread with the keys of all regions is told.
#[derive(Clone, Debug)]
pub struct CausalFollowing {
    /// Who takes part.
    pub regions: Arc<Regions>,
    /// The other nodes of all regions, and where they listen.
    pub peers: BTreeMap<NodeId, String>,
    /// How far away they are made.
    pub delays: BTreeMap<NodeId, Delay>,
}

impl CausalFollowing {
    /// As node `me` is told.
    pub(super) fn new(topology: &Topology, me: NodeId) -> CausalFollowing {
        let regions = Arc::new(regions(topology));
        let (mut peers, delays) = (peers_of(topology, me), delays_of(topology, me));
        peers.retain(|node, _| regions.find(*node).is_some());
        CausalFollowing { regions, peers, delays }
    }
}

/// Who should hold the keys of a region: its nodes that have been up, and are to stay. Those of one
/// that comes begin with its first node, which hears of that before it counts as up.
fn holders(topology: &Topology, region: RegionId) -> BTreeSet<NodeId> {
    if topology.has_begun(topology.group_of_region(region)) {
        return topology.staying_in(region).collect();
    }
    let first = topology.regions[usize::from(region.0)].first.as_ref();
    first.and_then(|name| topology.node_named(name)).into_iter().collect()
}

impl Following {
    /// As node `me` is told.
    pub(super) fn new(topology: &Topology, me: NodeId, causal: bool) -> Following {
        let near: BTreeSet<_> = in_region_of(topology, me).collect();
        let mut peers = peers_of(topology, me);
        peers.retain(|node, _| near.contains(node));
        let region = topology.node(me).region;
        let may_return = topology.draining_in(region).filter(|(_, draining)| !draining.for_good);
        let configured = Configured {
            version: topology.version,
            nodes: holders(topology, region),
            may_return: may_return.map(|(node, _)| node).collect(),
        };
        let causal = causal.then(|| CausalFollowing::new(topology, me));
        let grants = Arc::new(Grants::new(topology.granted_keys()));
        Following { configured, peers, causal, grants }
    }
}
