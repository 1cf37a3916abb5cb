//! Nodes that are drained: reports, and what is taken back.

use super::{Changed, leave};
use crate::Topology;
use crate::topology::ClusterFile;
use std::collections::BTreeSet;

/// A node that is drained stays, unless it is about to leave its groups already. Whoever keeps the
/// configuration in its place goes on with that.
pub(super) fn keep(file: &mut ClusterFile, name: &str) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let Some(node) = topology.node_named(name) else {
        return Err(format!("no node {name}"));
    };
    if topology.node(node).leaves {
        return Err(format!("node {name} has left: add a new one"));
    }
    if topology.node(node).draining.as_ref().is_some_and(|draining| draining.for_good) {
        return Err(format!(
            "node {name} goes for good: others have what it held, and it gives up its keys; when \
             it has gone, add a new one"
        ));
    }
    let entry = &mut file.nodes[usize::from(node.0)];
    if entry.draining.take().is_some() {
        let region = entry.region.clone();
        file.configuration.forced.remove(name);
        begin_anew(file, &region);
    }
    Ok(None)
}

/// It was asked for before; what is new is that the node does not answer, maybe.
pub(super) fn drain_again(file: &mut ClusterFile, at: usize, up: &BTreeSet<String>) -> Changed {
    let entry = &mut file.nodes[at];
    let is_up = up.contains(&entry.name);
    if let Some(draining) = entry.draining.as_mut().filter(|draining| !draining.down && !is_up) {
        draining.down = true;
        let region = entry.region.clone();
        begin_anew(file, &region);
    }
    Ok(None)
}

/// Others stay in `region` than before: what was reported counted on nodes that go.
pub(super) fn begin_anew(file: &mut ClusterFile, region: &str) {
    let since = file.configuration.version + 1;
    let nodes = file.nodes.iter_mut().filter(|node| node.region == region);
    for draining in nodes.filter_map(|node| node.draining.as_mut()) {
        (draining.since, draining.reported) = (since, BTreeSet::new());
    }
}

/// Notes the report. A node leaves its groups when what it held is on enough others; if these
/// groups are changing, a fence is open, or one that keeps the configuration does not take part
/// yet, at a later report.
pub(super) fn drained(file: &mut ClusterFile, name: &str, since: u64) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let Some(by) = topology.node_named(name) else { return Err(format!("no node {name}")) };
    let region = topology.node(by).region;
    let stay: Vec<_> = topology.staying_in(region).map(|id| &topology.node(id).name).collect();
    for (node, of) in topology.draining_in(region) {
        if of.since != since || !(node == by || of.down) {
            continue;
        }
        let at = usize::from(node.0);
        let Some(draining) = &mut file.nodes[at].draining else { continue };
        if node == by && !draining.for_good {
            draining.for_good = true;
            continue;
        }
        draining.reported.insert(name.into());
        let all = draining.down && stay.iter().all(|name| draining.reported.contains(*name));
        let kept = file.configuration.joining.is_empty() && topology.open_fence().is_none();
        let mut left = file.clone();
        if (all || node == by) && kept && leave(&mut left, at).is_ok() {
            *file = left;
        }
    }
    Ok(None)
}
