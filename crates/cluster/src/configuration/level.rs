//! By which feature level the cluster goes (decision 96). It follows from what the nodes report, in
//! programs of all levels alike.

use super::Changed;
use crate::Topology;
use crate::topology::ClusterFile;
use meridian_core::level::Level;

pub(super) fn speaks(file: &mut ClusterFile, name: String, newest: Level) -> Changed {
    if !file.nodes.iter().any(|node| node.name == name) {
        return Err(format!("no node {name}"));
    }
    let levels = &mut file.configuration.levels;
    if newest < levels.now {
        let now = levels.now;
        return Err(format!("the cluster goes by level {now}: node {name} must speak it"));
    }
    levels.spoken.insert(name, newest);
    Ok(None)
}

pub(super) fn at_most(file: &mut ClusterFile, level: Option<Level>) -> Changed {
    let levels = &mut file.configuration.levels;
    if let Some(level) = level.filter(|level| *level < levels.now) {
        let now = levels.now;
        return Err(format!(
            "the cluster goes by level {now} already: it does not fall to {level}"
        ));
    }
    levels.at_most = level;
    Ok(None)
}

/// A node that is removed counts until it has left its groups (S5).
pub(super) fn rise(file: &mut ClusterFile, topology: &Topology, early: bool) {
    let nodes = topology.present().map(|node| topology.node(node).name.as_str());
    file.configuration.levels.rise(nodes, early);
}
