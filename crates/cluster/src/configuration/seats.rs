//! Seats: who keeps the configuration in the place of nodes that are lost with their region
//! (decision 107).
//!
//! A seat goes to a node that keeps no configuration yet. If all do it stays that of the lost node.
//! The group keeps its size then, and a majority of it is left: any change of it needs these, as
//! ever. The next node that comes takes the seat.
//!
//! Invariant:
//! - S8: more than half of the nodes that are to keep the configuration are not lost.

use super::{Mutation, replace_keeper};
use crate::Topology;
use crate::topology::ClusterFile;
use meridian_core::level::Level;
use std::collections::BTreeSet;

/// Others keep the configuration instead of lost nodes: those of `up` that may, where fewest of
/// their region do.
pub(super) fn fill(file: &mut ClusterFile, up: &BTreeSet<String>) -> Result<(), String> {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let region_of =
        |name: &String| topology.node_named(name).map(|node| topology.node(node).region);
    for seat in topology.lost_seats() {
        let replicas = file.configuration.replicas.clone();
        let keep_in = |region| replicas.iter().filter(|of| region_of(of) == Some(region)).count();
        let nodes = topology.staying_regions().flat_map(|region| topology.staying_in(region));
        let nodes = nodes.map(|node| topology.node(node));
        let free = nodes.filter(|node| up.contains(&node.name) && !replicas.contains(&node.name));
        let Some(keeper) = free.min_by_key(|node| keep_in(node.region)) else { break };
        replace_keeper(file, &topology.node(seat).name, keeper.name.clone())?;
    }
    Ok(())
}

/// Whether the seats that nobody has taken may stay those of lost nodes (S8).
pub(super) fn check_left(file: &ClusterFile) -> Result<(), String> {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let (seats, joining) = (topology.keeping.replicas.len(), &topology.keeping.joining);
    let left = seats - topology.lost_seats().count();
    // Who was about to take part never does: its predecessor would wait for it for ever.
    let low = file.configuration.levels.now < Level::SEATS;
    if let Some(seat) = topology.lost_seats().find(|seat| low || joining.contains(seat)) {
        return Err(format!(
            "node {} is to keep the configuration, and all others do already: add a node first \
             (`meridian cluster add-node`)",
            topology.node(seat).name
        ));
    }
    if seats > 0 && left <= seats / 2 {
        return Err(format!(
            "{left} of the {seats} nodes that keep the configuration would be left: a majority \
             must"
        ));
    }
    Ok(())
}

/// A planted bug: the group is called smaller, and nobody makes it so.
pub(super) fn drop_lost(file: &mut ClusterFile, planted: Mutation) {
    if planted.is(Mutation::DropsSeats)
        && let Ok(topology) = Topology::new(file)
    {
        for seat in topology.lost_seats() {
            file.configuration.replicas.remove(&topology.node(seat).name);
        }
    }
}
