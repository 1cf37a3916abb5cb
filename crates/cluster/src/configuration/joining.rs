//! Nodes that come: what they are called, and into which groups.

use super::{Changed, Mutation, NODES_MAX, change_group, quorums, seats};
use crate::Topology;
use crate::topology::{ClusterFile, NodeEntry};
use std::collections::BTreeSet;

/// Whether a node may be called that.
///
/// # Errors
/// If not: what a name is made of.
pub fn check_node_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) || name.starts_with('-') {
        return Err(format!("{name:?}: a node's name has letters a to z, digits and -"));
    }
    if ["ca", "admin", "client"].contains(&name) {
        return Err(format!("{name:?} is what the certificate of somebody else is called"));
    }
    Ok(())
}

pub(super) fn add(
    file: &mut ClusterFile,
    region: &str,
    name: Option<String>,
    address: String,
    up: &BTreeSet<String>,
) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let names = topology.region_names();
    if !names.contains(&region) {
        return Err(format!(
            "no region {region}: there are {}; `meridian cluster add-region` adds one",
            names.join(", ")
        ));
    }
    let name = admit_node(file, &topology, region, (name, &address))?;
    for group in ["global", region] {
        come(file, &topology, group, &name, up)?;
    }
    enrol(file, region, name, address)
}

/// What a node that comes to a region is called, if it may come.
pub(super) fn admit_node(
    file: &ClusterFile,
    topology: &Topology,
    region: &str,
    (name, address): (Option<String>, &str),
) -> Result<String, String> {
    if file.nodes.len() >= NODES_MAX {
        return Err(format!("there were {NODES_MAX} nodes, more is not possible"));
    }
    let name = name.unwrap_or_else(|| next_name(topology, region));
    check_node_name(&name)?;
    if topology.node_named(&name).is_some() {
        return Err(format!("there is or was a node {name}: a name is never given again"));
    }
    free(topology, address)?;
    Ok(name)
}

/// A node comes into a group as soon as it is up.
pub(super) fn come(
    file: &mut ClusterFile,
    topology: &Topology,
    group: &str,
    name: &String,
    up: &BTreeSet<String>,
) -> Result<(), String> {
    change_group(file, topology, group, |members| members.push(name.clone()))?;
    // Nothing begins before it is up.
    quorums(file, group, |node| up.contains(node) || node == name)?;
    file.configuration.groups.entry(group.into()).or_default().waits_for = Some(name.clone());
    Ok(())
}

/// Writes a node that comes into the list.
pub(super) fn enrol(
    file: &mut ClusterFile,
    region: &str,
    name: String,
    address: String,
) -> Changed {
    let groups = vec!["global".to_string(), region.to_string()];
    let (region, pid) = (region.to_string(), None);
    file.configuration.added.insert(name.clone());
    file.nodes.push(NodeEntry { name: name.clone(), region, pid, address, groups, draining: None });
    Ok(Some(name))
}

/// It comes into its groups, and takes a seat that a lost node has left empty.
pub(super) fn up(file: &mut ClusterFile, name: &str, planted: Mutation) -> Changed {
    for membership in file.configuration.groups.values_mut() {
        membership.waits_for.take_if(|node| node == name);
    }
    if !planted.is(Mutation::LeavesSeats) {
        seats::fill(file, &BTreeSet::from([name.to_string()]))?;
    }
    Ok(None)
}

/// The region's name with a number that none had.
fn next_name(topology: &Topology, region: &str) -> String {
    let names = (1..).map(|number| format!("{region}-{number}"));
    let mut free = names.filter(|name| topology.node_named(name).is_none());
    free.next().expect("there are more numbers than nodes")
}

pub(super) fn free(topology: &Topology, address: &str) -> Result<(), String> {
    if address.is_empty() {
        return Err("a node needs an address".into());
    }
    let taken = topology.present().find(|node| topology.node(*node).address == address);
    match taken {
        Some(node) => Err(format!("{} listens at {address} already", topology.node(node).name)),
        None => Ok(()),
    }
}
