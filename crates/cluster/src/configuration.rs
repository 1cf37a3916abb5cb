//! The configuration of a cluster as a replicated service: which nodes, regions and groups there
//! are, and how the members of groups change (decision 15).
//!
//! The state is a [`ClusterFile`] with a version. A change of nodes is decided here first:
//! [`Request::AddNode`] and [`Request::RemoveNode`] say who the next members of each group
//! concerned are. The nodes follow: when the node that comes is up ([`Request::Up`]), the primary
//! of the group has it ordered there, and when the new members count it says so
//! ([`Request::InForce`]). Until then the members before count, and no other change of that group
//! begins: all that ever was a group's configuration of one number is the same.
//!
//! A node that goes is drained first (decision 26): it stays a member until it has reported that
//! what it holds is on enough nodes of its region that stay ([`Request::Drained`]), or, if it is
//! down, all those have. A node that is up reports twice: after the first time its removal is not
//! taken back any more ([`Request::KeepNode`]), and it gives up what nobody can give it again.
//!
//! Invariants:
//! - S1: the state is a topology: [`Topology::new`] takes it.
//! - S2: a name is never given to another node, nor is a [`NodeId`]: what was removed keeps its
//!   place.
//! - S3: the version grows with each change, and only then.
//! - S4: a removal leaves a region as many nodes as each block needs there, unless the state says
//!   why it does not.
//! - S5: the level never falls, and rises no higher than what all nodes speak that have not left.
//! - S6: a region whose nodes leave has given up its keys of all regions before, or is lost.
//! - S7: a region is lost once, with heirs that its group never had. Until these go on no members
//!   change: who has to report stays the same.
//! - S8: more than half of the nodes that are to keep the configuration are not lost.

mod admission;
mod draining;
mod fencing;
mod joining;
mod level;
mod regions;
mod request;
mod seats;
mod standings;

use crate::Topology;
use crate::ring::REPLICAS;
use crate::topology::{ClusterFile, Draining, Membership};
use admission::{allow, allow_keys, revoke};
use bytes::Bytes;
use draining::{begin_anew, drain_again, drained, keep};
use fencing::{Fencing, check_no_fence, fence, go_on};
pub use joining::check_node_name;
use joining::{add, free, up};
use level::{at_most, rise, speaks};
use meridian_core::{GroupId, NodeId, PLANTED_BUGS};
use meridian_paxos::Service;
pub use regions::check_region_name;
use regions::{Adding, add_region, close_region, heir_after, remove_region};
pub use request::Request;
use serde::{Deserialize, Serialize};
use standings::{follow, hear};
use std::collections::BTreeSet;

/// More members than this a group must not have: `global` has all nodes.
pub const NODES_MAX: usize = 256;

/// So many nodes keep the configuration at most: each change waits for most of them.
pub const REPLICAS_MAX: usize = 5;

/// So many bytes a reason may have for which a node is removed that its region needs.
pub const REASON_MAX: usize = 1024;

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is so, since this version or one before it.
    Done {
        /// The present version.
        version: u64,
        /// The name of the node that was added.
        added: Option<String>,
    },
    /// It is not possible, for this reason. Nothing is changed.
    Refused(String),
}

/// A question; the answer is [`Shown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Show {
    /// Of interest is only what is newer.
    pub since: u64,
}

/// The text of a `cluster.json`, or nothing if there is nothing newer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown(pub Option<String>);

/// The service: see the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Configuration {
    file: Option<ClusterFile>,
    planted: Mutation,
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// The level rises when one node speaks it (against S5).
    RisesEarly,
    /// Lost nodes are to keep the configuration no more, and nobody does in their place.
    DropsSeats,
    /// A node that comes takes no seat of a lost one.
    LeavesSeats,
}

impl Mutation {
    fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}

/// A change, or why it is refused.
type Changed = Result<Option<String>, String>;

impl Configuration {
    /// The same with a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, planted: Mutation) -> Configuration {
        Configuration { planted, ..self }
    }

    /// The configuration, if there is one yet.
    pub fn file(&self) -> Option<&ClusterFile> {
        self.file.as_ref()
    }

    /// Does what `request` says.
    pub fn change(&mut self, request: Request) -> Reply {
        let mut next = self.file.clone();
        let changed = apply(&mut next, request, self.planted);
        let added = match changed {
            Ok(added) => added,
            Err(why) => return Reply::Refused(why),
        };
        if next != self.file
            && let Some(file) = &mut next
        {
            file.configuration.version += 1;
            match Topology::new(file) {
                Ok(topology) => {
                    rise(file, &topology, self.planted.is(Mutation::RisesEarly));
                    follow(file, &topology);
                }
                Err(error) => return Reply::Refused(error.to_string()), // S1
            }
            self.file = next;
        }
        let version = self.file.as_ref().map_or(0, |file| file.configuration.version);
        Reply::Done { version, added }
    }

    /// The state, if it is newer than `since`.
    pub fn show(&self, since: u64) -> Shown {
        let newer = self.file.as_ref().filter(|file| file.configuration.version > since);
        Shown(newer.map(text))
    }
}

/// Does what `request` says to `state`.
fn apply(state: &mut Option<ClusterFile>, request: Request, planted: Mutation) -> Changed {
    if let Some(file) = state {
        check_no_fence(file, &request)?;
    }
    match (state, request) {
        (file @ None, Request::Initialise(text)) => initialise(file, &text),
        (Some(file), Request::Initialise(text)) => initialised(file, &text),
        (None, _) => Err("there is no configuration yet".into()),
        (Some(file), Request::AddNode { region, name, address, up }) => {
            add(file, &region, name, address, &up)
        }
        (Some(file), Request::Up { name }) => up(file, &name, planted),
        (Some(file), Request::RemoveNode { name, up, keeper, reason }) => {
            remove(file, &name, &up, (keeper, reason))
        }
        (Some(file), Request::KeepNode { name }) => keep(file, &name),
        (Some(file), Request::Keeps { name }) => {
            let kept = &mut file.configuration;
            kept.joining.remove(&name);
            if kept.joining.is_empty() {
                kept.replaced.clear();
            }
            Ok(None)
        }
        (Some(file), Request::Drained { name, since }) => drained(file, &name, since),
        (Some(file), Request::SetAddress { name, address }) => set_address(file, &name, address),
        (Some(file), Request::SetRtt(rtt_ms)) => {
            file.rtt_ms = rtt_ms;
            Ok(None)
        }
        (Some(file), Request::InForce { group, number }) => in_force(file, &group, number),
        (Some(file), Request::Speaks { name, newest }) => speaks(file, name, newest),
        (Some(file), Request::LevelAtMost(level)) => at_most(file, level),
        (Some(file), Request::Allow { name, grant }) => allow(file, name, grant),
        (Some(file), Request::AllowKeys { name, grant, prefixes }) => {
            allow_keys(file, name, grant, prefixes)
        }
        (Some(file), Request::Revoke { principal }) => revoke(file, principal),
        (Some(file), Request::AddRegion { region, name, address, up, now_ms }) => {
            add_region(file, Adding { region, name, address, now_ms }, &up)
        }
        (Some(file), Request::RemoveRegion { region, up, keepers, now_ms }) => {
            remove_region(file, &region, &up, (keepers, now_ms))
        }
        (Some(file), Request::CloseRegion { region, up }) => close_region(file, &region, &up),
        (Some(file), Request::Word { name, word }) => hear(file, &name, word),
        (Some(file), Request::FenceRegion { region, up, keyless, now_ms }) => {
            fence(file, Fencing { region, keyless, now_ms }, &up, planted)
        }
    }
}

/// The text of a `cluster.json`.
fn text(file: &ClusterFile) -> String {
    serde_json::to_string(file).expect("names and numbers are JSON")
}

fn initialise(state: &mut Option<ClusterFile>, text: &str) -> Changed {
    let mut file = ClusterFile::read(text).map_err(|error| error.to_string())?;
    file.nodes.iter_mut().for_each(|node| node.pid = None);
    // It begins with the version that it has, which is counted up below; or with the first.
    file.configuration.version = file.configuration.version.saturating_sub(1);
    let mut addresses = BTreeSet::new();
    for node in &file.nodes {
        if !addresses.insert(&node.address) {
            return Err(format!("two nodes listen at {}", node.address));
        }
    }
    *state = Some(file);
    Ok(None)
}

/// It may be asked again, by who starts the same cluster; what it is has been changed since, maybe.
fn initialised(file: &ClusterFile, text: &str) -> Changed {
    let other = ClusterFile::read(text).map_err(|error| error.to_string())?;
    match other.cluster == file.cluster {
        true => Ok(None),
        false => Err(format!("this is cluster {}, not {}", file.cluster, other.cluster)),
    }
}

fn remove(
    file: &mut ClusterFile,
    name: &str,
    up: &BTreeSet<String>,
    (keeper, reason): (Option<String>, Option<String>),
) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let Some(node) = topology.node_named(name) else {
        return Err(format!("no node {name}"));
    };
    if topology.node(node).leaves {
        return Err(format!("node {name} was removed already"));
    }
    if topology.node(node).draining.is_some() {
        return drain_again(file, usize::from(node.0), up);
    }
    let keeps = file.configuration.replicas.contains(name);
    let keeper = keeper.filter(|_| keeps);
    if keeps && keeper.is_none() {
        return Err(format!("node {name} keeps the configuration: another must do that"));
    }
    let at = usize::from(node.0);
    let groups = file.nodes[at].groups.clone();
    let mut left = file.clone();
    leave(&mut left, at)?; // What could not be begun now is not asked for.
    if topology.groups.iter().any(|group| group.waits_for == Some(node)) {
        *file = left; // It never came, so it holds nothing.
        return Ok(None);
    }
    if topology.nodes_in(topology.node(node).region).count() == 1 {
        let region = &file.nodes[at].region;
        return Err(format!(
            "node {name} is the last of region {region}: `meridian cluster remove-region` removes \
             both"
        ));
    }
    let forced = check_need(&topology, node, reason)?;
    for group in &groups {
        quorums(&left, group, |node| up.contains(node))?;
    }
    file.configuration.forced.extend(forced.map(|reason| (name.to_string(), reason)));
    let entry = &mut file.nodes[at];
    entry.draining = Some(Draining { down: !up.contains(name), ..Draining::default() });
    let region = entry.region.clone();
    begin_anew(file, &region);
    match keeper {
        Some(keeper) => replace_keeper(file, name, keeper),
        None => Ok(None),
    }
}

/// The region can do without the node; or there is a reason why it must, which is noted (S4).
fn check_need(
    topology: &Topology,
    node: NodeId,
    reason: Option<String>,
) -> Result<Option<String>, String> {
    let (name, in_region) = (&topology.node(node).name, topology.node(node).region);
    let left = topology.staying_in(in_region).filter(|other| *other != node).count();
    if left >= REPLICAS {
        return Ok(None);
    }
    match reason.filter(|reason| !reason.trim().is_empty()) {
        Some(reason) if reason.len() <= REASON_MAX => Ok(Some(reason)),
        Some(reason) => {
            let len = reason.len();
            Err(format!("the reason has {len} bytes: {REASON_MAX} at most are kept"))
        }
        None => {
            let region = &topology.regions[usize::from(in_region.0)].name;
            Err(format!(
                "without {name} region {region} has {left} of the {REPLICAS} nodes that it needs \
                 to have each block twice: add one first (`meridian cluster add-node --region \
                 {region}`), or say --force and --reason"
            ))
        }
    }
}

/// Another node keeps the configuration in the place of `name`. The nodes bring that about.
fn replace_keeper(file: &mut ClusterFile, name: &str, keeper: String) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let id = topology.node_named(&keeper);
    let node = id.filter(|id| topology.node(*id).draining.is_none() && !topology.node(*id).leaves);
    let kept = &mut file.configuration;
    if node.is_none() {
        return Err(format!("no node {keeper}"));
    }
    if kept.replicas.contains(&keeper) {
        return Err(format!("node {keeper} keeps the configuration already"));
    }
    if kept.first.is_empty() {
        kept.first.clone_from(&kept.replicas);
    }
    kept.replaced.extend(kept.replicas.take(name));
    kept.joining.remove(name);
    kept.joining.insert(keeper.clone());
    kept.replicas.insert(keeper);
    Ok(None)
}

/// The node is in no group any more, once these have changed.
fn leave(file: &mut ClusterFile, at: usize) -> Result<(), String> {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let entry = &mut file.nodes[at];
    entry.draining = None;
    let (name, groups) = (entry.name.clone(), std::mem::take(&mut entry.groups));
    for group in &groups {
        let of = file.configuration.groups.entry(group.clone()).or_default();
        if of.waits_for.take_if(|node| *node == name).is_some() {
            of.next.clear(); // It never came.
            of.members.retain(|member| *member != name); // Nor did the region that it was to begin.
            continue;
        }
        let heir = heir_after(&topology, group, &name);
        change_group(file, &topology, group, |members| {
            members.retain(|member| *member != name);
            members.extend(heir.map(|heir| topology.node(heir).name.clone()));
        })?;
        if let Some(heir) = heir {
            file.nodes[usize::from(heir.0)].groups.push(group.clone());
        }
    }
    Ok(())
}

/// Says who the next members of `group` are.
fn change_group(
    file: &mut ClusterFile,
    topology: &Topology,
    group: &str,
    change: impl FnOnce(&mut Vec<String>),
) -> Result<(), String> {
    let of = topology.group_named(group).map(|id: GroupId| topology.group(id));
    let Some(of) = of else { return Err(format!("no group {group}")) };
    if let Some(node) = of.waits_for {
        let node = &topology.node(node).name;
        return Err(format!(
            "group {group} waits for {node}, which was added and is not up: start it, or remove it"
        ));
    }
    if of.next.is_some() {
        return Err(format!(
            "the members of group {group} are changing: try again when they have changed"
        ));
    }
    let names = |nodes: &[NodeId]| {
        nodes.iter().map(|node| topology.node(*node).name.clone()).collect::<Vec<_>>()
    };
    let mut next = names(&of.members);
    change(&mut next);
    let before = of.before.as_deref().map(names).unwrap_or_default();
    let (number, members, waits_for) = (of.number, names(&of.members), None);
    let membership = Membership { number, members, before, next, waits_for };
    file.configuration.groups.insert(group.into(), membership);
    Ok(())
}

/// Whether enough members answer, of those now and of those to come, for the change to come into
/// force.
fn quorums(file: &ClusterFile, group: &str, up: impl Fn(&String) -> bool) -> Result<(), String> {
    let Some(membership) = file.configuration.groups.get(group) else { return Ok(()) };
    for (members, when) in [(&membership.members, "now"), (&membership.next, "then")] {
        let (there, all) = (members.iter().filter(|node| up(node)).count(), members.len());
        if there <= all / 2 {
            return Err(format!(
                "{there} of the {all} members that group {group} has {when} can be reached: a majority must be up"
            ));
        }
    }
    Ok(())
}

fn set_address(file: &mut ClusterFile, name: &str, address: String) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let Some(node) = topology.node_named(name).filter(|node| !topology.is_gone(*node)) else {
        return Err(format!("no node {name}"));
    };
    if topology.node(node).address != address {
        free(&topology, &address)?;
        file.nodes[usize::from(node.0)].address = address;
    }
    Ok(None)
}

fn in_force(file: &mut ClusterFile, group: &str, number: u64) -> Changed {
    let Some(membership) = file.configuration.groups.get_mut(group) else {
        return Err(format!("the members of group {group} have never changed"));
    };
    let begun = !membership.next.is_empty() && membership.waits_for.is_none();
    if number > membership.number + u64::from(begun) {
        return Err(format!("group {group} has no configuration {number}"));
    }
    if number > membership.number {
        let next = std::mem::take(&mut membership.next);
        membership.before = std::mem::replace(&mut membership.members, next);
        membership.number = number;
    }
    go_on(file, group, number)
}

impl Service for Configuration {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        let reply = match postcard::from_bytes(request) {
            Ok(request) => self.change(request),
            Err(error) => Reply::Refused(format!("not a request of this version: {error}")),
        };
        encode(&reply)
    }

    fn query(&self, question: &[u8]) -> Bytes {
        let since = postcard::from_bytes(question).map_or(0, |show: Show| show.since);
        encode(&self.show(since))
    }

    fn snapshot(&self) -> Bytes {
        self.file.as_ref().map(text).unwrap_or_default().into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(snapshot).map_err(|error| error.to_string())?;
        self.file = match text {
            "" => None,
            text => {
                let file = ClusterFile::read(text).map_err(|error| error.to_string())?;
                Topology::new(&file).map_err(|error| error.to_string())?;
                Some(file)
            }
        };
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.configuration.version)
    }
}

/// The bytes of a request, a question, or what answers it.
pub fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("plain values can be encoded").into()
}

#[cfg(test)]
mod tests;
