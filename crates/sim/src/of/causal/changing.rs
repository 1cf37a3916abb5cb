//! Nodes that come and go in any region: what is planned, and how nodes hear of it.

use super::Member;
use super::node::Command;
use crate::world::{Random, Stimulus};
use meridian_core::{NodeId, RegionId};
use meridian_keys::causal::Regions;
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// So many nodes are changed at most.
const CHANGES_MAX: usize = 6;
/// A region has so many nodes at most.
const NODES_MAX: usize = 4;
/// The first of those that come; the others have lower numbers.
const LATER: u16 = 100;

/// Who should hold keys, by region.
pub type Nodes = Vec<BTreeSet<NodeId>>;

/// Who should hold keys, one configuration after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How long each is the last one, and whom it names; the first one is there at first.
    pub configurations: Vec<(Duration, Nodes)>,
}

impl Plan {
    /// Nothing changes.
    pub fn none(first: Nodes) -> Plan {
        Plan { configurations: vec![(Duration::ZERO, first)] }
    }

    /// Any nodes come and go, so that somebody is in each region at any time.
    pub fn drawn(random: &mut Random, first: Nodes, span: Duration) -> Plan {
        let mut plan = Plan::none(first.clone());
        let changes = random.random_range(1..=CHANGES_MAX);
        let (mut now, mut next) = (first, LATER);
        for _ in 0..changes {
            let region = random.random_range(0..now.len());
            let nodes = &mut now[region];
            let (comes, goes) =
                [(true, false), (true, true), (false, true)][random.random_range(0..3)];
            let old = nodes.iter().copied().choose(random).filter(|_| goes);
            if comes && nodes.len() < NODES_MAX {
                nodes.insert(NodeId(next));
                next += 1;
            }
            old.filter(|_| nodes.len() > 1).map(|node| nodes.remove(&node));
            plan.then(random.random_range(0..=2) * span / (changes as u32 * 2), now.clone());
        }
        plan
    }

    /// In each region another node comes again and again, and the oldest goes.
    pub fn turns(first: Nodes, apart: Duration, turns: u16) -> Plan {
        let (mut plan, mut now) = (Plan::none(first.clone()), first);
        let mut next = LATER;
        for _ in 0..turns {
            for nodes in &mut now {
                nodes.insert(NodeId(next));
                next += 1;
            }
            plan.then(apart, now.clone());
            for nodes in &mut now {
                nodes.pop_first();
            }
            plan.then(apart, now.clone());
        }
        plan
    }

    /// Then these nodes should hold keys, after a while.
    fn then(&mut self, after: Duration, nodes: Nodes) {
        self.configurations.last_mut().expect("the first").0 = after;
        self.configurations.push((Duration::ZERO, nodes));
    }

    /// All nodes that there are at any time.
    pub fn all_nodes(&self) -> Nodes {
        let mut all = vec![BTreeSet::new(); self.first().len()];
        for (_, nodes) in &self.configurations {
            all.iter_mut().zip(nodes).for_each(|(all, nodes)| all.extend(nodes));
        }
        all
    }

    /// Those that are there at first.
    pub fn first(&self) -> &Nodes {
        &self.configurations[0].1
    }

    /// Who takes part, as a node knows that starts: as of when it was named first.
    pub fn regions_at_start(&self, node: NodeId) -> Arc<Regions> {
        let mut all = Vec::new();
        for (_, nodes) in &self.configurations {
            all.push(nodes.clone());
            if nodes.iter().flatten().any(|named| *named == node) {
                break;
            }
        }
        regions(&all, all.len() - 1)
    }
}

/// Who takes part as of a configuration: those that it names, and those that it lets go.
fn regions(all: &[Nodes], at: usize) -> Arc<Regions> {
    let known = |region: usize| {
        let before = &all[at.saturating_sub(1)][region];
        all[at][region].union(before).copied().collect()
    };
    Arc::new(Regions::new((0..all[at].len()).map(known).collect()))
}

/// The configuration as it is, and how it was.
#[derive(Clone, Debug)]
pub struct Configurations {
    /// All that there were, by their versions.
    all: Vec<Nodes>,
}

impl Configurations {
    /// Only the first one.
    pub fn new(first: Nodes) -> Configurations {
        Configurations { all: vec![first] }
    }

    /// Whether a node is none of the first.
    pub fn is_later(node: NodeId) -> bool {
        node.0 >= LATER
    }

    /// The next one.
    pub fn configure(&mut self, nodes: Nodes) {
        self.all.push(nodes);
    }

    /// Who should hold keys.
    pub fn wanted(&self) -> &Nodes {
        self.all.last().expect("the first")
    }

    /// Whether a node should hold keys.
    pub fn is_wanted(&self, node: NodeId) -> bool {
        self.wanted().iter().any(|nodes| nodes.contains(&node))
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + use<> {
        (0..self.all[0].len() as u16).map(RegionId)
    }

    /// Everybody who is there in a region, and should go or not.
    pub fn present(&self, region: RegionId) -> BTreeSet<NodeId> {
        self.all.iter().flat_map(|nodes| &nodes[usize::from(region.0)]).copied().collect()
    }

    /// The region of a node.
    pub fn region_of(&self, node: NodeId) -> RegionId {
        let has = |region: &RegionId| self.present(*region).contains(&node);
        self.regions().find(has).expect("a node of a region")
    }

    /// Some node hears of some configuration, mostly the last.
    pub fn tell(&self, random: &mut Random) -> Stimulus<Member> {
        let present = self.regions().flat_map(|region| self.present(region));
        let to = present.choose(random).expect("some");
        let last = self.all.len() - 1;
        let at = if random.random_ratio(1, 5) { random.random_range(0..=last) } else { last };
        let nodes = self.all[at][usize::from(self.region_of(to).0)].clone();
        let regions = regions(&self.all, at);
        let command = Command::Configure { version: at as u64, nodes, regions };
        Stimulus::Command { to, command, after: Duration::from_millis(1) }
    }
}
