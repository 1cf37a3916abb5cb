//! Clusters for tests of whole nodes.

use meridian_cluster::Topology;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use std::sync::Arc;

/// A cluster of these nodes, each with the groups of which it is a member; its name begins with
/// that of its region.
pub fn cluster(nodes: &[(&str, &[&str])]) -> Arc<Topology> {
    let entry = |(name, groups): &(&str, &[&str])| NodeEntry {
        name: (*name).into(),
        region: name[..2].into(),
        pid: None,
        address: "127.0.0.1:1".into(),
        groups: groups.iter().map(|group| (*group).into()).collect(),
        draining: None,
    };
    let (rtt_ms, order) = Default::default();
    let file = ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 1,
        nodes: nodes.iter().map(entry).collect(),
        rtt_ms,
        order,
        configuration: Default::default(),
    };
    Arc::new(Topology::new(&file).unwrap())
}
