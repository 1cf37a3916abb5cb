//! A region that is lost for good is fenced (decision 107).
//!
//! Its group goes on with heirs: nodes of another region that were never in it. They begin once all
//! members of all other groups have reported what they know of it. Until somebody says that they
//! go on ([`Request::InForce`]) the fence is *open*, and no members change: who has to report stays
//! the same. From then on the fence *stands*: the region's nodes leave all groups, and its
//! directory goes, as that of a region that is removed.
//!
//! The region's group may have been changing when it was lost. So the heirs skip a number: whatever
//! was ordered there has a lower one than theirs.

use super::regions::{check_level, heirs};
use super::{Changed, Mutation, Request, change_group, quorums, seats};
use crate::Topology;
use crate::lost::LostEntry;
use crate::topology::{ClusterFile, Group, Membership};
use meridian_core::level::Level;
use meridian_core::{NodeId, RegionId};
use std::collections::{BTreeMap, BTreeSet};

/// A region that shall be fenced.
pub(super) struct Fencing {
    pub region: String,
    pub keyless: bool,
    pub now_ms: u64,
}

/// Members do not change while a fence is open (S7).
pub(super) fn check_no_fence(file: &ClusterFile, request: &Request) -> Result<(), String> {
    let changes = matches!(
        request,
        Request::AddNode { .. }
            | Request::RemoveNode { .. }
            | Request::AddRegion { .. }
            | Request::RemoveRegion { .. }
            | Request::CloseRegion { .. }
            | Request::FenceRegion { .. }
    );
    let lost = |of: &LostEntry| !of.stands;
    let mut regions = file.configuration.regions.iter();
    match regions.find(|(_, of)| of.lost.as_ref().is_some_and(lost)) {
        Some((region, _)) if changes => Err(format!(
            "region {region} is being fenced: no nodes come or go until its heirs go on (`meridian \
             status` tells whom that waits for)"
        )),
        _ => Ok(()),
    }
}

pub(super) fn fence(
    file: &mut ClusterFile,
    Fencing { region: name, keyless, now_ms }: Fencing,
    up: &BTreeSet<String>,
    planted: Mutation,
) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    check_level(file, Level::FENCES, "a lost region is fenced")?;
    let region = check_region(&topology, &name, up)?;
    let nodes: Vec<_> = nodes_of(&topology, region).collect();
    let is_lost = |node: &NodeId| nodes.contains(node);
    check_settled(&topology, region, is_lost)?;
    let others = topology.groups.iter().filter(|group| group.region != Some(region));
    let others: Vec<_> = others.filter(|group| !group.members.is_empty()).collect();
    check_members(&topology, &others, is_lost, up)?;
    let of = topology.group(topology.group_of_region(region));
    let heirs = heirs(&topology, region, up)?;
    if let Some(heir) = heirs.iter().find(|heir| of.involved().any(|member| member == **heir)) {
        let heir = &topology.node(*heir).name;
        return Err(format!("{heir} is in group {name} already, and nobody else can inherit it"));
    }
    let names = |nodes: &mut dyn Iterator<Item = NodeId>| {
        nodes.map(|node| topology.node(node).name.clone()).collect::<Vec<_>>()
    };
    let by_group = |lost: bool| {
        let of_group = |group: &&Group| {
            let mut members = group.members.iter().copied().filter(|node| is_lost(node) == lost);
            (group.name.clone(), names(&mut members))
        };
        let all = others.iter().map(of_group).filter(|(_, members)| !members.is_empty());
        all.collect::<BTreeMap<_, _>>()
    };
    let lost = LostEntry {
        number: of.number + 2,
        heirs: names(&mut heirs.iter().copied()),
        reporters: by_group(false),
        beside: by_group(true),
        nodes: names(&mut nodes.iter().copied()),
        keyless,
        agreed: file.configuration.levels.now >= Level::KEPT,
        since_ms: now_ms,
        stands: false,
    };
    let beside: Vec<_> = lost.beside.keys().cloned().collect();
    inherit(file, &topology, &name, lost)?;
    seats::fill(file, up)?;
    seats::check_left(file)?;
    seats::drop_lost(file, planted);
    // What could not come to an end is not begun.
    let mut left = file.clone();
    stand(&mut left, &name)?;
    beside.iter().try_for_each(|group| quorums(&left, group, |node| up.contains(node)))?;
    Ok(None)
}

/// The region can be called lost: there is one of that name, and none of its nodes answers.
fn check_region(
    topology: &Topology,
    name: &str,
    up: &BTreeSet<String>,
) -> Result<RegionId, String> {
    let id = topology.region_named(name).ok_or_else(|| format!("no region {name}"))?;
    if topology.lost_region(id).is_some() {
        return Err(format!("region {name} was declared lost already"));
    }
    if topology.regions[usize::from(id.0)].leaves_ms.is_some() {
        return Err(match nodes_of(topology, id).next() {
            Some(_) => format!("region {name} is being removed: end that (`remove-region`)"),
            None => format!("no region {name}: it was removed"),
        });
    }
    if !topology.has_begun(topology.group_of_region(id)) {
        return Err(format!(
            "region {name} has not begun: take its first node back (`meridian cluster \
             remove-node`)"
        ));
    }
    if !topology.staying_regions().any(|other| other != id) {
        return Err(format!("region {name} is the only one: nobody can go on without it"));
    }
    let mut names = nodes_of(topology, id).map(|node| &topology.node(node).name);
    match names.find(|node| up.contains(*node)) {
        Some(node) => Err(format!("node {node} of region {name} answers: it is not lost")),
        None => Ok(id),
    }
}

/// All nodes of a region that have not left.
fn nodes_of(topology: &Topology, region: RegionId) -> impl Iterator<Item = NodeId> + '_ {
    topology.present().filter(move |node| topology.node(*node).region == region)
}

/// Nothing changes but, maybe, the group that is lost: its change has no end.
fn check_settled(
    topology: &Topology,
    region: RegionId,
    is_lost: impl Fn(&NodeId) -> bool,
) -> Result<(), String> {
    for group in topology.groups.iter().filter(|group| group.region != Some(region)) {
        let name = &group.name;
        if let Some(node) = group.waits_for {
            let node = &topology.node(node).name;
            return Err(format!(
                "group {name} waits for {node}, which was added and is not up: start it, or remove \
                 it"
            ));
        }
        if group.next.is_some() {
            return Err(format!(
                "the members of group {name} are changing: try again when they have changed"
            ));
        }
    }
    let mut joining = topology.keeping.joining.iter();
    match joining.find(|node| !is_lost(node)) {
        Some(node) => Err(format!(
            "{} is to keep the configuration, and does not yet: try again when it does",
            topology.node(*node).name
        )),
        None => Ok(()),
    }
}

/// Enough members of all other groups stay, and all of these answer: each has to report.
fn check_members(
    topology: &Topology,
    others: &[&Group],
    is_lost: impl Fn(&NodeId) -> bool,
    up: &BTreeSet<String>,
) -> Result<(), String> {
    for group in others {
        let (name, all) = (&group.name, group.members.len());
        let staying: Vec<_> = group.members.iter().filter(|node| !is_lost(node)).collect();
        if staying.len() <= all / 2 {
            return Err(format!(
                "{} of the {all} members of group {name} would stay: a majority must",
                staying.len()
            ));
        }
        let mut names = staying.into_iter().map(|node| &topology.node(*node).name);
        if let Some(node) = names.find(|node| !up.contains(*node)) {
            return Err(format!(
                "node {node} does not answer, and has to report what it knows of the lost region: \
                 start it, or, if it is lost as well, remove it first (`meridian cluster \
                 remove-node {node}`)"
            ));
        }
    }
    Ok(())
}

/// The heirs are the members of the region's group from now on.
fn inherit(
    file: &mut ClusterFile,
    topology: &Topology,
    region: &str,
    lost: LostEntry,
) -> Result<(), String> {
    for node in &mut file.nodes {
        node.groups.retain(|group| group != region);
        if lost.heirs.contains(&node.name) {
            node.groups.push(region.into());
        }
        if lost.nodes.contains(&node.name) {
            node.draining = None;
            file.configuration.forced.remove(&node.name);
        }
    }
    if topology.group_named(region).is_none() {
        return Err(format!("no group {region}"));
    }
    let (number, members) = (lost.number, lost.heirs.clone());
    let membership = Membership { number, members, ..Membership::default() };
    file.configuration.groups.insert(region.into(), membership);
    file.configuration.regions.entry(region.into()).or_default().lost = Some(lost);
    Ok(())
}

/// The heirs of `group` go on, if it was lost and its fence is open.
pub(super) fn go_on(file: &mut ClusterFile, group: &str, number: u64) -> Changed {
    let entry = file.configuration.regions.get(group).and_then(|of| of.lost.as_ref());
    if entry.is_some_and(|lost| !lost.stands && number >= lost.number) {
        stand(file, group)?;
    }
    Ok(None)
}

/// The fence stands: the region's nodes leave all groups, and its directory goes.
fn stand(file: &mut ClusterFile, region: &str) -> Result<(), String> {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let of = file.configuration.regions.get_mut(region);
    let Some(lost) = of.and_then(|of| {
        of.leaves_ms = of.lost.as_ref().map(|lost| lost.since_ms);
        of.lost.as_mut()
    }) else {
        return Err(format!("region {region} is not lost"));
    };
    lost.stands = true;
    let (nodes, beside) = (lost.nodes.clone(), lost.beside.clone());
    for group in beside.keys() {
        change_group(file, &topology, group, |members| {
            members.retain(|member| !nodes.contains(member));
        })?;
    }
    for node in file.nodes.iter_mut().filter(|node| nodes.contains(&node.name)) {
        node.groups.clear();
    }
    Ok(())
}

#[cfg(test)]
#[path = "fencing_tests.rs"]
mod tests;
