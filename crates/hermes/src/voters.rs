//! Who grants leases follows who should hold keys (decision 59): the part of the registry that
//! changes its voters.
//!
//! A node that should hold keys is a shadow replica first, then live, then a voter. One that should
//! not is let go when others are enough: as a member, then as a voter, then as a replica of the
//! registry.
//!
//! Invariants:
//! - V1: the voters change by one node at a time, and not before no lease is in use that relies on
//!   those before the last change. So a lease in use relies on the voters of now, or on those that
//!   differ from them by one node; and any majority of either has a voter in common with any
//!   majority of the other.
//! - V2: nobody is let go while not all that should hold keys are live, are voters, and have said
//!   so since.

use crate::members::Epoch;
use crate::registry::Registry;
use crate::reliable::Fault;
use meridian_core::{NodeId, PLANTED_BUGS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the registry knows of those that should vote.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Electorate {
    /// Who should hold keys, as of this version of the cluster's configuration.
    version: u64,
    wanted: BTreeSet<NodeId>,
    /// How often the voters have changed.
    pub changes: u64,
    /// The members that may use a lease which relies on the voters before the last change (V1).
    pub behind: BTreeSet<NodeId>,
    /// Who has been let go for good.
    pub left: BTreeSet<NodeId>,
    #[serde(skip)]
    pub fault: Fault,
}

impl Electorate {
    /// As it is at first.
    pub fn new(wanted: BTreeSet<NodeId>) -> Electorate {
        let (behind, left, fault) = (BTreeSet::new(), BTreeSet::new(), Fault::Correct);
        Electorate { version: 0, wanted, changes: 0, behind, left, fault }
    }

    pub fn follows(&mut self, node: NodeId, change: u64) {
        if change == self.changes {
            self.behind.remove(&node);
        }
    }

    fn is(&self, fault: Fault) -> bool {
        PLANTED_BUGS && self.fault == fault
    }
}

impl Registry {
    /// Who should hold keys.
    pub fn wanted(&self) -> &BTreeSet<NodeId> {
        &self.electorate.wanted
    }

    /// As of this version of the cluster's configuration.
    pub(crate) fn version(&self) -> u64 {
        self.electorate.version
    }

    /// Whether a node should hold keys.
    pub fn is_wanted(&self, node: NodeId) -> bool {
        self.electorate.wanted.contains(&node)
    }

    /// How often the voters have changed.
    pub fn changes(&self) -> u64 {
        self.electorate.changes
    }

    /// Whether a member may use a lease which relies on earlier voters, as far as is known.
    pub(crate) fn is_behind(&self, node: NodeId) -> bool {
        self.electorate.behind.contains(&node)
    }

    /// Whether a node was let go for good: none with its number will hold keys again.
    pub fn has_left(&self, node: NodeId) -> bool {
        self.electorate.left.contains(&node)
    }

    /// Whether this is newer than what is known of who should hold keys, and differs.
    pub(crate) fn would_configure(&self, version: u64, nodes: &BTreeSet<NodeId>) -> bool {
        let Electorate { version: known, wanted, left, .. } = &self.electorate;
        version > *known && nodes.difference(left).ne(wanted) && !nodes.is_subset(left)
    }

    pub(crate) fn configure(&mut self, version: u64, nodes: BTreeSet<NodeId>) {
        if self.would_configure(version, &nodes) {
            let wanted = nodes.difference(&self.electorate.left).copied().collect();
            (self.electorate.version, self.electorate.wanted) = (version, wanted);
        }
    }

    /// Whether nothing relies on a node any more: it may go from the replicas of the registry.
    pub(crate) fn is_dispensable(&self, node: NodeId) -> bool {
        let needed = self.is_wanted(node) || self.voters.contains(&node) || self.is_member(node);
        !needed && self.members.epoch >= Epoch::FIRST
    }

    /// Whether the word of this node counts, that its grants have run out.
    pub(crate) fn counts(&self, voter: NodeId) -> bool {
        self.voters.contains(&voter) || self.electorate.is(Fault::CountsAnyone)
    }

    /// Whether enough has been said for a suspended member to go.
    pub(crate) fn may_go(&self, node: NodeId) -> bool {
        let Some(suspension) = self.suspended.get(&node) else { return false };
        let said = suspension.expired.iter().filter(|voter| self.counts(**voter)).count();
        // Who should hold keys and seems to be live may be gone: it must have spoken since (V2).
        let early = self.electorate.is(Fault::LetsGoEarly);
        let all = suspension.expired.is_superset(&self.electorate.wanted);
        said > self.voters.len() / 2 && (all || early || !suspension.leaves)
    }

    /// Whether all that should hold keys do, and vote (V2).
    pub(crate) fn are_enough(&self) -> bool {
        let serves = |node: &NodeId| self.may_serve(*node) && self.voters.contains(node);
        self.electorate.wanted.iter().all(serves) || self.electorate.is(Fault::LetsGoEarly)
    }

    /// All steps towards what is wanted that may be taken now.
    pub(crate) fn follow_configuration(&mut self) {
        while self.members.epoch >= Epoch::FIRST
            && (self.removes() || self.lets_go() || self.changes_voters())
        {}
    }

    /// What was said is enough for somebody to go, or is now that others are to say it.
    fn removes(&mut self) -> bool {
        let goes = self.suspended.keys().copied().find(|node| self.may_go(*node));
        goes.map(|node| self.remove(node)).is_some()
    }

    /// Begins to remove a member that should not hold keys, one after the other; or goes on with it
    /// as it is needed, or may be.
    fn lets_go(&mut self) -> bool {
        let leaving = self.suspended.iter().find(|(_, suspension)| suspension.leaves);
        let leaving = leaving.map(|(node, _)| *node);
        if !self.are_enough() {
            return leaving.map(|node| self.suspended.remove(&node)).is_some();
        }
        let members = self.members.live.iter().chain(self.members.shadows.keys());
        let goes = members.copied().find(|node| !self.is_wanted(*node) && self.may_suspect(*node));
        let goes = goes.filter(|_| leaving.is_none());
        goes.map(|node| self.suspend(node, true)).is_some()
    }

    fn changes_voters(&mut self) -> bool {
        if !self.electorate.behind.is_empty() && !self.electorate.is(Fault::ChangesAtOnce) {
            return false;
        }
        let new = |node: &&NodeId| self.may_serve(**node) && !self.voters.contains(node);
        let old = |node: &&NodeId| !self.is_wanted(**node) && !self.is_member(**node);
        if let Some(node) = self.electorate.wanted.iter().find(new).copied() {
            self.voters.insert(node);
        } else if self.are_enough()
            && let Some(node) = self.voters.iter().find(old).copied()
        {
            self.voters.remove(&node);
        } else {
            return false;
        }
        self.electorate.changes += 1;
        let members = self.members.live.iter().chain(self.members.shadows.keys());
        self.electorate.behind = members.copied().collect();
        true
    }
}
