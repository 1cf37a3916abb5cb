//! Who is a member, as a replicated service (Hermes, section 2.4): what `meridian-paxos` orders.
//!
//! A replica is removed in two steps. Once its suspension is ordered, nobody who has executed that
//! grants it a lease. Each voter then says when its last grant has run out by its own clock; with
//! the words of a majority nobody can have a lease any more that counts, and it is removed.
//!
//! Who should hold keys may change: see `voters`.

use crate::members::{Epoch, Membership};
use crate::reliable::Fault;
use crate::voters::Electorate;
use bytes::Bytes;
use meridian_core::NodeId;
use meridian_paxos::Service;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What replicas ask of the registry. Each may be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Request {
    /// A replica that has started wants to be a member.
    Join {
        /// Which.
        node: NodeId,
        /// How often it has started.
        incarnation: u64,
        /// Whether all that it had acknowledged is on its disk; else it holds nothing.
        holds: bool,
    },
    /// This shadow replica has everything.
    Complete {
        /// Which.
        node: NodeId,
        /// The epoch in which it followed.
        epoch: Epoch,
    },
    /// Nothing is heard of this member.
    Suspect {
        /// Which.
        node: NodeId,
        /// The epoch of who says so.
        epoch: Epoch,
    },
    /// All leases that this voter has granted to that member have run out.
    Expired {
        /// Who says so.
        voter: NodeId,
        /// Whose.
        node: NodeId,
        /// Which suspension of it.
        suspension: u64,
    },
    /// These nodes should hold keys.
    Configure {
        /// As of this version of the cluster's configuration.
        version: u64,
        /// Which.
        nodes: BTreeSet<NodeId>,
    },
    /// No lease of this member is in use any more that relies on earlier voters.
    Follows {
        /// Whose.
        node: NodeId,
        /// Earlier than this change of the voters.
        change: u64,
    },
    /// This node has been let go, and will be no replica of the registry any more.
    Dismiss {
        /// Which.
        node: NodeId,
    },
}

/// A member that is granted no leases, and whose grants have run out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Suspension {
    number: u64,
    pub(crate) expired: BTreeSet<NodeId>,
    /// Whether it is well, and let go as others are enough.
    pub(crate) leaves: bool,
}

/// The members, and who is on the way in or out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Registry {
    /// Who grants leases: replicas of the registry.
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) members: Membership,
    /// As each has joined last.
    incarnations: BTreeMap<NodeId, u64>,
    pub(crate) suspended: BTreeMap<NodeId, Suspension>,
    /// How many suspensions there were.
    suspensions: u64,
    /// How often all that there was has gone.
    losses: u64,
    pub(crate) electorate: Electorate,
}

impl Registry {
    /// Nobody is a member before all voters have joined: they then are the first members.
    pub fn new(voters: BTreeSet<NodeId>) -> Registry {
        let (incarnations, suspended) = (BTreeMap::new(), BTreeMap::new());
        let (members, suspensions, losses) = (Membership::default(), 0, 0);
        let electorate = Electorate::new(voters.clone());
        Registry { voters, members, incarnations, suspended, suspensions, losses, electorate }
    }

    /// The same with a planted bug.
    pub(crate) fn with_fault(mut self, fault: Fault) -> Registry {
        self.electorate.fault = fault;
        self
    }

    /// The members.
    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// How often all keys have gone, because the last live replica had them in memory and started
    /// again.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Who grants leases.
    pub fn voters(&self) -> &BTreeSet<NodeId> {
        &self.voters
    }

    /// Whether this incarnation of a node is a member, or will be once all have joined.
    pub fn has_joined(&self, node: NodeId, incarnation: u64) -> bool {
        let waits = self.members.epoch < Epoch::FIRST;
        self.knows(node, incarnation) && (waits || self.is_member(node))
    }

    /// Whether this incarnation of a node has joined, whatever came of it.
    pub(crate) fn knows(&self, node: NodeId, incarnation: u64) -> bool {
        self.incarnations.get(&node) == Some(&incarnation)
    }

    /// Whether a lease may be granted.
    pub fn may_serve(&self, node: NodeId) -> bool {
        self.members.live.contains(&node) && !self.suspended.contains_key(&node)
    }

    /// The members, and their suspensions, that this voter has not let go yet.
    pub fn awaited_of(&self, voter: NodeId) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let counts = self.counts(voter);
        let suspended = self.suspended.iter().filter(move |_| counts);
        suspended
            .filter(move |(_, suspension)| !suspension.expired.contains(&voter))
            .map(|(node, suspension)| (*node, suspension.number))
    }

    /// Whether a member may be suspected.
    pub fn may_suspect(&self, node: NodeId) -> bool {
        self.is_member(node) && !self.is_suspected(node) && self.may_remove(node)
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.suspended.get(&node).is_some_and(|suspension| !suspension.leaves)
    }

    /// Whether it is live, or a shadow replica.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.members.live.contains(&node) || self.members.shadows.contains_key(&node)
    }

    /// A membership without a live replica would have lost everything. So one always stays that is
    /// not suspected.
    fn may_remove(&self, node: NodeId) -> bool {
        let stays = |other: &&NodeId| **other != node && !self.is_suspected(**other);
        self.members.live.iter().filter(stays).count() > 0
    }

    fn apply(&mut self, request: Request) {
        self.decide(request);
        self.follow_configuration();
    }

    fn decide(&mut self, request: Request) {
        match request {
            Request::Join { node, incarnation, holds } => self.join(node, incarnation, holds),
            Request::Complete { node, epoch } => {
                let followed = self.members.shadows.get(&node).is_some_and(|since| *since <= epoch);
                if followed && !self.suspended.contains_key(&node) {
                    self.members.shadows.remove(&node);
                    self.members.live.insert(node);
                    self.members.epoch.0 += 1;
                }
            }
            Request::Suspect { node, epoch } => {
                if epoch == self.members.epoch && self.may_suspect(node) {
                    self.suspend(node, false);
                }
            }
            Request::Expired { voter, node, suspension } => self.expire(voter, node, suspension),
            Request::Configure { version, nodes } => self.configure(version, nodes),
            Request::Follows { node, change } => self.electorate.follows(node, change),
            Request::Dismiss { node } => {
                if self.is_dispensable(node) {
                    self.electorate.left.insert(node);
                }
            }
        }
    }

    pub(crate) fn suspend(&mut self, node: NodeId, leaves: bool) {
        self.suspensions += 1;
        let (number, expired) = (self.suspensions, BTreeSet::new());
        self.suspended.insert(node, Suspension { number, expired, leaves });
    }

    fn expire(&mut self, voter: NodeId, node: NodeId, number: u64) {
        let counts = self.counts(voter);
        let Some(suspension) = self.suspended.get_mut(&node) else { return };
        if suspension.number != number || !counts {
            return;
        }
        suspension.expired.insert(voter);
    }

    /// A live replica that comes again with all that it held goes on in a new epoch: nothing was
    /// committed without it. One that has lost that is removed at once, because what could have a
    /// lease has stopped, and is a shadow replica of a later epoch. If all other live ones are
    /// suspended, they are needed: what they hold is all that there is.
    fn join(&mut self, node: NodeId, incarnation: u64, holds: bool) {
        let known = self.incarnations.get(&node).copied().unwrap_or_default();
        if incarnation < known {
            return; // The word of an earlier start.
        }
        let again = incarnation > known && self.is_member(node);
        let live = again && self.members.live.contains(&node);
        let last = live && self.members.live.len() == 1;
        self.incarnations.insert(node, incarnation);
        // It has no lease, and will have none before it has executed this.
        self.electorate.behind.remove(&node);
        if live && holds {
            self.suspended.remove(&node);
            self.members.epoch.0 += 1;
            return;
        }
        if last {
            return self.begin_with_nothing();
        }
        if live && !self.may_remove(node) {
            self.suspended.clear();
        }
        if self.members.epoch < Epoch::FIRST {
            if self.voters.iter().all(|voter| self.incarnations.contains_key(voter)) {
                let live = self.voters.clone();
                self.members = Membership { epoch: Epoch::FIRST, live, shadows: BTreeMap::new() };
            }
            return;
        }
        if again {
            self.remove(node);
        }
        if !self.is_member(node) && self.is_wanted(node) {
            self.members.epoch.0 += 1;
            self.members.shadows.insert(node, self.members.epoch);
        }
    }

    /// The last live replica has lost all that it held, and nobody else has everything. It serves
    /// with nothing; whoever follows it forgets what there was before, and follows anew.
    fn begin_with_nothing(&mut self) {
        self.losses += 1;
        self.members.epoch.0 += 1;
        let since = self.members.epoch;
        self.members.shadows.values_mut().for_each(|follows| *follows = since);
        self.suspended.clear();
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.suspended.remove(&node);
        self.members.live.remove(&node);
        self.members.shadows.remove(&node);
        self.electorate.behind.remove(&node);
        self.members.epoch.0 += 1;
        assert!(!self.members.live.is_empty(), "nobody is left who holds anything");
    }
}

impl Service for Registry {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        if let Ok(request) = postcard::from_bytes(request) {
            self.apply(request);
        }
        Bytes::new()
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        self.snapshot()
    }

    fn snapshot(&self) -> Bytes {
        postcard::to_stdvec(self).expect("writing to memory").into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let fault = self.electorate.fault;
        let restored: Registry =
            postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        *self = restored.with_fault(fault);
        Ok(())
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
