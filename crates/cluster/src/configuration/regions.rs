//! Regions that come and go (decision 84).
//!
//! A region comes with one node, which is its group at first: nobody speaks of the group before
//! that node has been up, so until then all can be taken back. Whoever leads `global` then has the
//! region's directory made (`Update::AddRegion` of `meridian-fs`).
//!
//! A region goes with all its nodes. Other groups may still have to hear its group's word on
//! messages of both, so that group stays, as one of other nodes: its members change as those of any
//! group do. What is left of it is empty.

use super::joining::{admit_node, come, enrol};
use super::standings::check_keys_left;
use super::{Changed, change_group, quorums, replace_keeper};
use crate::Topology;
use crate::topology::{ClusterFile, Membership, RegionEntry};
use meridian_core::ids::GROUPS_MAX;
use meridian_core::level::Level;
use meridian_core::{NodeId, RegionId};
use std::collections::{BTreeMap, BTreeSet};

/// So many nodes of another region take over the group of one that goes: one of them may be down.
const HEIRS: usize = 3;

/// A region that shall come.
pub(super) struct Adding {
    pub region: String,
    pub name: Option<String>,
    pub address: String,
    pub now_ms: u64,
}

/// Whether a region may be called that.
///
/// # Errors
/// If not: what a name is made of.
pub fn check_region_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    match name {
        "global" => Err("\"global\" is what all regions hold: no region can be called that".into()),
        _ if name.is_empty() || name.len() > 32 || !name.chars().all(good) => {
            Err("a region's name has 1 to 32 lower-case letters and digits".into())
        }
        _ => Ok(()),
    }
}

/// The cluster goes by a level on which `what` is.
pub(super) fn check_level(file: &ClusterFile, needed: Level, what: &str) -> Result<(), String> {
    let now = file.configuration.levels.now;
    if now >= needed {
        return Ok(());
    }
    Err(format!(
        "the cluster goes by feature level {now}, and {what} from {needed} on: see `meridian \
         cluster level`"
    ))
}

pub(super) fn add_region(file: &mut ClusterFile, adding: Adding, up: &BTreeSet<String>) -> Changed {
    let Adding { region, name, address, now_ms } = adding;
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    check_level(file, Level::REGIONS, "regions come and go")?;
    check_region_name(&region)?;
    if let Some(id) = topology.region_named(&region) {
        if topology.has_left(id) {
            return Err(format!("there was a region {region}: a name is never given again"));
        }
        if !topology.group(topology.group_of_region(id)).members.is_empty() {
            return Err(format!("there is a region {region}"));
        }
    } else if topology.groups.len() >= GROUPS_MAX {
        return Err(format!("there were {GROUPS_MAX} groups, more is not possible"));
    }
    let name = admit_node(file, &topology, &region, (name, &address))?;
    come(file, &topology, "global", &name, up)?;
    let (members, waits_for) = (vec![name.clone()], Some(name.clone()));
    let first = Membership { members, waits_for, ..Membership::default() };
    file.configuration.groups.insert(region.clone(), first);
    let first = Some(name.clone());
    let entry = RegionEntry { added_ms: Some(now_ms), first, ..RegionEntry::default() };
    file.configuration.regions.insert(region.clone(), entry);
    enrol(file, &region, name, address)
}

fn region(topology: &Topology, name: &str) -> Result<RegionId, String> {
    let id = topology.region_named(name).filter(|id| topology.nodes_in(*id).next().is_some());
    id.ok_or_else(|| format!("no region {name}"))
}

/// Who takes over the group of a region that goes: nodes of one other region that are up, an odd
/// number.
pub(super) fn heirs(
    topology: &Topology,
    of: RegionId,
    up: &BTreeSet<String>,
) -> Result<Vec<NodeId>, String> {
    let is_up = |node: &NodeId| up.contains(&topology.node(*node).name);
    let others = topology.staying_regions().filter(|other| *other != of);
    let candidates = others.map(|other| topology.staying_in(other).filter(is_up).take(HEIRS));
    let most = candidates.map(Iterator::collect::<Vec<_>>).max_by_key(Vec::len);
    let mut most = most.filter(|nodes| !nodes.is_empty()).ok_or("no other region is up")?;
    if most.len().is_multiple_of(2) {
        most.pop();
    }
    Ok(most)
}

/// Who is in the group of a region that has gone instead of `leaving`, one of its heirs: a node of
/// the same region, if there is one. Of other groups nobody.
pub(super) fn heir_after(topology: &Topology, group: &str, leaving: &str) -> Option<NodeId> {
    let group = topology.group(topology.group_named(group)?);
    let home = topology.node(topology.node_named(leaving)?).region;
    let of = group.region.filter(|of| *of != home)?;
    let mut regions: Vec<_> = topology.staying_regions().filter(|other| *other != of).collect();
    regions.sort_by_key(|region| *region != home);
    let nodes = regions.into_iter().flat_map(|region| topology.staying_in(region));
    let is_free = |node: &NodeId| !group.involved().any(|member| member == *node);
    let is_other = |node: &NodeId| topology.node(*node).name != leaving;
    nodes.filter(is_other).find(is_free)
}

pub(super) fn remove_region(
    file: &mut ClusterFile,
    name: &str,
    up: &BTreeSet<String>,
    (keepers, now_ms): (BTreeMap<String, String>, u64),
) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    check_level(file, Level::REGIONS, "regions come and go")?;
    let id = region(&topology, name)?;
    if topology.regions[usize::from(id.0)].leaves_ms.is_some() {
        return Ok(None); // It goes already.
    }
    if let Some((node, _)) = topology.draining_in(id).next() {
        let node = &topology.node(node).name;
        return Err(format!("node {node} is drained: try again when it has left"));
    }
    let heirs = heirs(&topology, id, up)?;
    let names: Vec<_> = heirs.iter().map(|node| topology.node(*node).name.clone()).collect();
    change_group(file, &topology, name, |members| members.extend(names))?;
    quorums(file, name, |node| up.contains(node))?;
    for heir in heirs {
        file.nodes[usize::from(heir.0)].groups.push(name.into());
    }
    file.configuration.regions.entry(name.into()).or_default().leaves_ms = Some(now_ms);
    for node in topology.nodes_in(id).map(|node| &topology.node(node).name) {
        if file.configuration.replicas.contains(node) {
            let keeper = keepers.get(node).filter(|keeper| {
                topology.node_named(keeper).is_some_and(|to| topology.node(to).region != id)
            });
            let keeper = keeper.ok_or_else(|| {
                format!("node {node} keeps the configuration: a node elsewhere must do that")
            })?;
            replace_keeper(file, node, keeper.clone())?;
        }
    }
    Ok(None)
}

pub(super) fn close_region(file: &mut ClusterFile, name: &str, up: &BTreeSet<String>) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let id = topology.region_named(name).ok_or_else(|| format!("no region {name}"))?;
    if topology.regions[usize::from(id.0)].leaves_ms.is_none() {
        return Err(format!("region {name} is not to go"));
    }
    if !file.configuration.joining.is_empty() {
        return Err("who keeps the configuration changes: try again when it has changed".into());
    }
    check_keys_left(&topology, id)?;
    let leaving: BTreeSet<_> =
        topology.nodes_in(id).map(|node| topology.node(node).name.clone()).collect();
    if leaving.is_empty() {
        return Ok(None); // They have left.
    }
    for group in ["global", name] {
        change_group(file, &topology, group, |members| {
            members.retain(|member| !leaving.contains(member));
        })?;
        quorums(file, group, |node| up.contains(node))?;
    }
    for node in file.nodes.iter_mut().filter(|node| leaving.contains(&node.name)) {
        node.groups.clear();
    }
    Ok(None)
}
