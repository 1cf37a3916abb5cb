//! How many copies blocks lack, by region and node: what is under-replicated.
//!
//! Each node of a region knows the blocks of the same files, and which of them the ring gives to
//! it. So what the others count tells how many a node should have that does not answer.

use super::{Answered, output};
use meridian_cluster::Topology;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{NodeId, RegionId};
use meridian_host::drain::keep::Report as Copies;
use serde::Serialize;
use std::collections::BTreeMap;

/// The copies of a region.
#[derive(Debug, Serialize)]
pub struct RegionReport {
    pub region: String,
    /// How many blocks it should have copies of; `None` if no node of it answers.
    pub blocks: Option<u64>,
    /// How many copies of them are missing, damaged, or at nodes that do not answer.
    pub under_replicated: Option<u64>,
}

/// How many copies lie at a node that should and cannot be had there. `None` if it does not answer
/// and another of its region does not either: then only the sum is known.
pub fn of_node(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    node: NodeId,
) -> Option<u64> {
    if let Some(copies) = copies_of(answers, node) {
        return Some(copies.missing + copies.damaged);
    }
    let region = topology.node(node).region;
    let silent = topology.nodes_in(region).filter(|node| copies_of(answers, *node).is_none());
    match silent.eq([node]) {
        true => of_silent(topology, answers, region),
        false => None,
    }
}

pub fn reports(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<RegionReport> {
    let report = |id: RegionId| {
        let lacking: u64 =
            all_of(topology, answers, id).map(|(_, copies)| copies.missing + copies.damaged).sum();
        let silent = of_silent(topology, answers, id);
        RegionReport {
            region: topology.regions[usize::from(id.0)].name.clone(),
            blocks: blocks(topology, answers, id),
            under_replicated: silent.map(|silent| silent + lacking),
        }
    };
    topology.staying_regions().map(report).collect()
}

pub fn table(reports: &[RegionReport]) -> String {
    let or_unknown = |number: Option<u64>| number.map_or("unknown".into(), |n| n.to_string());
    let row = |report: &RegionReport| {
        let numbers = [report.blocks, report.under_replicated].map(or_unknown);
        [vec![report.region.clone()], numbers.into()].concat()
    };
    output::table(&["copies in", "blocks", "under-replicated"], reports.iter().map(row))
}

fn copies_of(answers: &BTreeMap<NodeId, Answered>, node: NodeId) -> Option<&Copies> {
    answers.get(&node)?.as_ref().ok().map(|status| &status.copies)
}

fn all_of<'a>(
    topology: &'a Topology,
    answers: &'a BTreeMap<NodeId, Answered>,
    region: RegionId,
) -> impl Iterator<Item = (NodeId, &'a Copies)> {
    topology.nodes_in(region).filter_map(|node| Some((node, copies_of(answers, node)?)))
}

/// How many blocks a region should have copies of, if a node of it answers.
fn blocks(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    region: RegionId,
) -> Option<u64> {
    all_of(topology, answers, region).map(|(_, copies)| copies.live).max()
}

/// How many copies the nodes of a region should have that do not answer.
fn of_silent(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    region: RegionId,
) -> Option<u64> {
    let blocks = blocks(topology, answers, region)?;
    let nodes = topology.nodes_in(region).count();
    if all_of(topology, answers, region).count() == nodes {
        return Some(0); // Counts of different times need not agree.
    }
    let all = blocks * REPLICAS.min(nodes) as u64;
    let counted: u64 = all_of(topology, answers, region).map(|(_, copies)| copies.own).sum();
    Some(all.saturating_sub(counted))
}
