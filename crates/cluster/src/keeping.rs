//! Which nodes keep the configuration.

use crate::topology::{Kept, Topology, TopologyError};
use meridian_core::NodeId;
use std::collections::BTreeSet;

/// The nodes that keep the configuration; see [`Kept`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keeping {
    /// Those that are to keep it.
    pub replicas: BTreeSet<NodeId>,
    /// Those that kept it first.
    pub first: BTreeSet<NodeId>,
    /// Those of them that do not take part yet.
    pub joining: BTreeSet<NodeId>,
    /// Those in whose place they come.
    pub replaced: BTreeSet<NodeId>,
}

impl Keeping {
    /// Those that `kept` names.
    ///
    /// # Errors
    /// If it names a node that there is not.
    pub(crate) fn new(topology: &Topology, kept: &Kept) -> Result<Keeping, TopologyError> {
        let nodes = |names: &BTreeSet<String>| {
            let node = |name: &String| {
                let unknown = || format!("no node {name}, and it is to keep the configuration");
                topology.node_named(name).ok_or_else(|| TopologyError::Invalid(unknown()))
            };
            names.iter().map(node).collect::<Result<BTreeSet<_>, _>>()
        };
        let replicas = nodes(&kept.replicas)?;
        let first = if kept.first.is_empty() { replicas.clone() } else { nodes(&kept.first)? };
        let (joining, replaced) = (nodes(&kept.joining)?, nodes(&kept.replaced)?);
        Ok(Keeping { replicas, first, joining, replaced })
    }

    /// Whether `node` is to keep the configuration, or does so until another does.
    pub fn goes_on(&self, node: NodeId) -> bool {
        self.replicas.contains(&node) || self.replaced.contains(&node)
    }
}
