//! Nodes that come and go in any region, and regions that join, leave and are lost: what is
//! planned, who decides, and how nodes hear of it.

use super::Member;
use super::node::Command;
use crate::world::{Random, Stimulus};
use meridian_core::{NodeId, RegionId, Time};
use meridian_eunomia::{self as eunomia, Peer, REGIONS_MAX, Registry, Role, Standing, Word};
use meridian_keys::causal::Regions;
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// So many nodes are changed at most.
const CHANGES_MAX: usize = 6;
/// A region has so many nodes at most.
const NODES_MAX: usize = 4;
/// The first of those that come; the others have lower numbers.
const LATER: u16 = 100;
/// A node that is waited for hears of a configuration within this.
const TRAVELS: Duration = Duration::from_millis(250);

/// Who should hold keys, by region; nobody in a region that has not come yet.
pub type Nodes = Vec<BTreeSet<NodeId>>;

/// What is wanted from some time on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// For how long.
    pub lasts: Duration,
    /// Who should hold keys. A region joins that has nodes and was not there before.
    pub nodes: Nodes,
    /// The regions that should leave.
    pub leaves: BTreeSet<RegionId>,
    /// Those that are struck, and how.
    pub struck: BTreeMap<RegionId, Way>,
    /// Those among them that are called lost.
    pub lost: BTreeSet<RegionId>,
}

/// How a region is struck. It hears of no configuration any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its nodes stop for good.
    Stopped,
    /// It is cut off from all others until the faults end, and comes back without knowing more.
    CutOff,
    /// It goes on, as near to the others as ever.
    Alive,
}

/// What is wanted, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The first is so at first.
    pub configurations: Vec<Wanted>,
}

/// One change of what is wanted.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nodes,
    Join,
    Leave,
    Lose,
}

impl Plan {
    /// Nothing changes.
    pub fn none(first: Nodes) -> Plan {
        let wanted = Wanted { nodes: first, ..Wanted::default() };
        Plan { configurations: vec![wanted] }
    }

    /// Any nodes come and go, so that somebody is in each region at any time; one region joins
    /// while another leaves; and one or two are lost.
    pub fn drawn(
        random: &mut Random,
        first: Nodes,
        (nodes, regions, loses): (bool, bool, bool),
        span: Duration,
    ) -> Plan {
        let mut plan = Plan::none(first);
        let count = if nodes { random.random_range(1..=CHANGES_MAX) } else { 0 };
        let mut changes = vec![Change::Nodes; count];
        let more = [(Change::Join, regions), (Change::Leave, regions), (Change::Lose, loses)];
        let again = (Change::Lose, loses && random.random_ratio(1, 3));
        for (change, _) in more.into_iter().chain([again]).filter(|(_, wanted)| *wanted) {
            changes.insert(random.random_range(0..=changes.len()), change);
        }
        let (mut next, count) = (LATER, changes.len() as u32);
        for change in changes {
            let mut now = plan.last().clone();
            match change {
                Change::Nodes => change_nodes(random, &mut now.nodes, &mut next),
                Change::Join if now.nodes.len() < REGIONS_MAX => {
                    let nodes = random.random_range(1..=3);
                    now.nodes.push((next..next + nodes).map(NodeId).collect());
                    next += nodes;
                }
                Change::Join => {}
                Change::Leave => {
                    let region = RegionId(random.random_range(0..now.nodes.len() as u16));
                    if plan.stays_without(region) {
                        now.leaves.insert(region);
                    }
                }
                Change::Lose => {
                    let region = RegionId(random.random_range(0..now.nodes.len() as u16));
                    let way = [Way::Stopped, Way::CutOff, Way::Alive][random.random_range(0..3)];
                    let after = Duration::from_millis(random.random_range(0..200));
                    if plan.stays_without(region) {
                        plan.strike(region, way, random.random_range(0..=2) * span / (count * 2));
                        plan.lose(after);
                        continue;
                    }
                }
            }
            plan.then(random.random_range(0..=2) * span / (count * 2), now);
        }
        plan
    }

    /// Whether one of the first regions stays for good if this one does not.
    fn stays_without(&self, region: RegionId) -> bool {
        let last = self.last();
        let goes = |other: &RegionId| {
            *other == region || last.leaves.contains(other) || last.struck.contains_key(other)
        };
        let mut first = (0..self.first().len() as u16).map(RegionId);
        first.any(|other| !goes(&other))
    }

    /// A region is struck after a while.
    fn strike(&mut self, region: RegionId, way: Way, after: Duration) {
        let mut now = self.last().clone();
        now.struck.insert(region, way);
        self.then(after, now);
    }

    /// Then all that were struck are called lost after a while.
    fn lose(&mut self, after: Duration) {
        let mut now = self.last().clone();
        now.lost = now.struck.keys().copied().collect();
        self.then(after, now);
    }

    /// The first region is struck after a while, and called lost a while later.
    pub fn loses(first: Nodes, after: Duration, later: Duration, way: Way) -> Plan {
        let mut plan = Plan::none(first);
        plan.strike(RegionId(0), way, after);
        plan.lose(later);
        plan
    }

    /// The first region is lost, and while it is agreed on what of it is kept, the second one.
    pub fn loses_two(first: Nodes, after: Duration, later: Duration) -> Plan {
        let mut plan = Plan::loses(first, after, Duration::from_millis(1), Way::Stopped);
        plan.strike(RegionId(1), Way::Stopped, later);
        plan.lose(Duration::from_millis(1));
        plan
    }

    /// In each region so many nodes come, one after the other.
    pub fn comes(first: Nodes, apart: Duration, nodes: u16) -> Plan {
        let mut plan = Plan::none(first);
        let mut next = LATER..;
        for _ in 0..nodes {
            let mut now = plan.last().clone();
            for (nodes, new) in now.nodes.iter_mut().zip(&mut next) {
                nodes.insert(NodeId(new));
            }
            plan.then(apart, now);
        }
        plan
    }

    /// A region of so many nodes joins after a while.
    pub fn joins(first: Nodes, after: Duration, nodes: u16) -> Plan {
        let mut plan = Plan::none(first);
        let mut now = plan.last().clone();
        now.nodes.push((LATER..LATER + nodes).map(NodeId).collect());
        plan.then(after, now);
        plan
    }

    /// The first region leaves after a while.
    pub fn leaves(first: Nodes, after: Duration) -> Plan {
        let mut plan = Plan::none(first);
        let mut now = plan.last().clone();
        now.leaves.insert(RegionId(0));
        plan.then(after, now);
        plan
    }

    fn last(&self) -> &Wanted {
        self.configurations.last().expect("the first")
    }

    /// Then that is wanted, after a while.
    fn then(&mut self, after: Duration, wanted: Wanted) {
        self.configurations.last_mut().expect("the first").lasts = after;
        self.configurations.push(Wanted { lasts: Duration::ZERO, ..wanted });
    }

    /// All nodes that there are at any time.
    pub fn all_nodes(&self) -> Nodes {
        let mut all = vec![BTreeSet::new(); self.last().nodes.len()];
        for wanted in &self.configurations {
            all.iter_mut().zip(&wanted.nodes).for_each(|(all, nodes)| all.extend(nodes));
        }
        all
    }

    /// Those that are there at first.
    pub fn first(&self) -> &Nodes {
        &self.configurations[0].nodes
    }

    /// With whom the keys of a region begin.
    pub fn first_of(&self, region: RegionId) -> BTreeSet<NodeId> {
        let all = self.configurations.iter().filter_map(|wanted| nodes_in(&wanted.nodes, region));
        all.into_iter().next().cloned().unwrap_or_default()
    }
}

fn nodes_in(nodes: &Nodes, region: RegionId) -> Option<&BTreeSet<NodeId>> {
    nodes.get(usize::from(region.0))
}

/// A node of some region comes or goes, or both.
fn change_nodes(random: &mut Random, all: &mut Nodes, next: &mut u16) {
    let region = random.random_range(0..all.len());
    let nodes = &mut all[region];
    let (comes, goes) = [(true, false), (true, true), (false, true)][random.random_range(0..3)];
    let old = nodes.iter().copied().choose(random).filter(|_| goes);
    if comes && nodes.len() < NODES_MAX {
        nodes.insert(NodeId(*next));
        *next += 1;
    }
    old.filter(|_| nodes.len() > 1).map(|node| nodes.remove(&node));
}

/// Who takes part as a node knows that has never run: as of when it was named first.
pub type Files = Rc<RefCell<BTreeMap<NodeId, Arc<Regions>>>>;

/// The configuration as it is, and how it was.
#[derive(Clone, Debug)]
pub struct Configurations {
    /// Who should hold keys and what regions are, by the versions.
    all: Vec<(Nodes, Arc<eunomia::Regions>)>,
    /// The regions that should leave, those that were struck, and those that are called lost.
    leaves: BTreeSet<RegionId>,
    struck: BTreeSet<RegionId>,
    lost: BTreeSet<RegionId>,
    registry: Registry,
    /// Nodes on whom nobody relies any more.
    left: BTreeSet<NodeId>,
    /// When the last command to a node arrives that is waited for: the next one goes later.
    told: BTreeMap<NodeId, Time>,
    files: Files,
}

impl Configurations {
    /// Only the first one.
    pub fn new(first: Nodes, mutation: eunomia::Mutation) -> Configurations {
        let standings = eunomia::Regions::fixed(first.len());
        let mut new = Configurations {
            all: vec![(first, Arc::new(standings.clone()))],
            leaves: BTreeSet::new(),
            struck: BTreeSet::new(),
            lost: BTreeSet::new(),
            registry: Registry::new([], standings).with_mutation(mutation),
            left: BTreeSet::new(),
            told: BTreeMap::new(),
            files: Files::default(),
        };
        new.registry.each_speaks();
        new.follow();
        new.name_new();
        new
    }

    /// What nodes know that have never run.
    pub fn files(&self) -> Files {
        self.files.clone()
    }

    /// Whether a node is none of the first.
    pub fn is_later(node: NodeId) -> bool {
        node.0 >= LATER
    }

    /// The next one; who comes with it.
    pub fn configure(&mut self, wanted: Wanted) -> Vec<NodeId> {
        self.all.push((wanted.nodes, self.registry.regions().clone()));
        (self.leaves, self.lost) = (wanted.leaves, wanted.lost);
        self.struck = wanted.struck.into_keys().collect();
        self.follow();
        self.name_new()
    }

    /// Those that no configuration has named before know this one.
    fn name_new(&mut self) -> Vec<NodeId> {
        let regions = self.regions_at(self.all.len() - 1);
        let mut files = self.files.borrow_mut();
        let new = self.wanted().iter().flatten().filter(|node| !files.contains_key(node));
        let new: Vec<_> = new.copied().collect();
        files.extend(new.iter().map(|node| (*node, regions.clone())));
        new
    }

    /// A node has said how far it is with the regions.
    pub fn hear(&mut self, from: NodeId, word: Word) {
        let peer = self.peer(from);
        self.registry.hear(peer, word);
        self.follow();
    }

    /// Nobody relies on a node any more, as it says that knows this version; whether that is new.
    pub fn leave(&mut self, node: NodeId, version: u64) -> bool {
        let names = |(nodes, _): &(Nodes, _)| nodes.iter().any(|nodes| nodes.contains(&node));
        let is_last = self.all.iter().rposition(names).is_none_or(|last| last < version as usize);
        if self.left.contains(&node) || !is_last {
            return false; // It will come yet.
        }
        self.left.insert(node);
        self.follow();
        true
    }

    fn peer(&self, node: NodeId) -> Peer {
        Peer { region: self.region_of(node), role: Role::Shard(node.0) }
    }

    /// Whether a region was struck.
    pub fn is_struck(&self, region: RegionId) -> bool {
        self.struck.contains(&region)
    }

    /// Whether a region is called lost.
    pub fn is_lost(&self, region: RegionId) -> bool {
        self.lost.contains(&region)
    }

    /// Regions join, leave and are lost as is wanted, as soon as that may be.
    fn follow(&mut self) {
        let all = self.regions().flat_map(|region| self.present(region));
        let peers = all.filter(|node| !self.left.contains(node)).map(|node| self.peer(node));
        let peers: BTreeSet<_> = peers.collect();
        self.registry.follow(peers);
        for region in self.regions() {
            let regions = self.registry.regions().clone();
            let leaves = self.leaves.contains(&region);
            // What is denied is tried again.
            let _ = match regions.standing(region) {
                standing if self.is_lost(region) => match standing {
                    Standing::Lost { .. } | Standing::Settles { .. } => None,
                    Standing::Absent | Standing::Gone { .. } => None,
                    _ => Some(self.registry.lose(region)),
                },
                Standing::Absent if !leaves => {
                    let mut serving = regions.there().filter(|other| regions.writes(*other));
                    serving.next().map(|from| self.registry.join(region, from))
                }
                Standing::Serves if leaves => Some(self.registry.leave(region)),
                Standing::Comes { .. } | Standing::Copies { .. } if leaves => {
                    Some(self.registry.lose(region))
                }
                _ => None,
            };
        }
        let (nodes, known) = self.all.last().expect("the first").clone();
        if known.epoch() < self.registry.regions().epoch() {
            self.all.push((nodes, self.registry.regions().clone()));
        }
    }

    /// What regions are.
    pub fn standings(&self) -> &Arc<eunomia::Regions> {
        self.registry.regions()
    }

    /// Whether no region joins or leaves.
    pub fn is_settled(&self) -> bool {
        self.standings().epoch() == 0 || self.registry.is_settled()
    }

    /// Who should hold keys.
    pub fn wanted(&self) -> &Nodes {
        &self.all.last().expect("the first").0
    }

    /// Who should in a region.
    pub fn wanted_in(&self, region: RegionId) -> &BTreeSet<NodeId> {
        &self.wanted()[usize::from(region.0)]
    }

    /// Whether a node should hold keys, and is in a region that serves.
    pub fn serves(&self, node: NodeId) -> bool {
        let region = self.region_of(node);
        self.wanted_in(region).contains(&node) && self.standings().reads(region)
    }

    /// All regions that have come.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + use<> {
        (0..self.wanted().len() as u16).map(RegionId)
    }

    /// Everybody who is there in a region, and should go or not.
    pub fn present(&self, region: RegionId) -> BTreeSet<NodeId> {
        let all = self.all.iter().filter_map(|(nodes, _)| nodes_in(nodes, region));
        all.flatten().copied().collect()
    }

    /// The region of a node.
    pub fn region_of(&self, node: NodeId) -> RegionId {
        let has = |region: &RegionId| self.present(*region).contains(&node);
        self.regions().find(has).expect("a node of a region")
    }

    /// Who takes part as of a version: those that it names, and those that it lets go.
    fn regions_at(&self, at: usize) -> Arc<Regions> {
        let (nodes, standings) = &self.all[at];
        let before = &self.all[at.saturating_sub(1)].0;
        let known = |region| {
            let (now, before) = (nodes_in(nodes, region), nodes_in(before, region));
            let all: BTreeSet<NodeId> = now.into_iter().chain(before).flatten().copied().collect();
            all.into_iter().collect()
        };
        let all = (0..nodes.len() as u16).map(RegionId).map(known).collect();
        Arc::new(Regions::new(all).with_standings(standings.clone()))
    }

    /// Some node hears of some configuration, mostly the last; and all that are waited for do.
    pub fn tell(&mut self, now: Time, random: &mut Random) -> Vec<Stimulus<Member>> {
        let heard = self.regions().filter(|region| !self.is_struck(*region));
        let present = heard.flat_map(|region| self.present(region));
        let to = present.choose(random).expect("some");
        let last = self.all.len() - 1;
        let at = if random.random_ratio(1, 5) { random.random_range(0..=last) } else { last };
        let region = self.region_of(to);
        let known = nodes_in(&self.all[at].0, region).is_some();
        let command = self.command(to, if known { at } else { last });
        let mut stimuli = vec![Stimulus::Command { to, command, after: Duration::from_millis(1) }];
        let waits = self.standings().epoch() > 0;
        for peer in self.registry.awaited().into_iter().filter(|_| waits) {
            let Role::Shard(number) = peer.role else { continue };
            if self.is_struck(peer.region) {
                continue;
            }
            let to = NodeId(number);
            if self.told.get(&to).is_none_or(|arrives| *arrives <= now) {
                let travels = TRAVELS.as_micros() as u64;
                let after = Duration::from_micros(random.random_range(0..travels));
                self.told.insert(to, now + after);
                stimuli.push(Stimulus::Command { to, command: self.command(to, last), after });
            }
        }
        stimuli
    }

    fn command(&self, to: NodeId, at: usize) -> Command {
        let nodes = nodes_in(&self.all[at].0, self.region_of(to)).cloned().unwrap_or_default();
        Command::Configure { version: at as u64, nodes, regions: self.regions_at(at) }
    }
}
