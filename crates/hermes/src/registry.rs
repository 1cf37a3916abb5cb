//! Who is a member, as a replicated service (Hermes, section 2.4): what `meridian-paxos` orders.
//!
//! A replica is removed in two steps. Once its suspension is ordered, nobody who has executed that
//! grants it a lease. Each voter then says when its last grant has run out by its own clock; with
//! the words of a majority nobody can have a lease any more that counts, and it is removed.

use crate::members::{Epoch, Membership};
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
}

/// A member that is granted no leases, and whose grants have run out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Suspension {
    number: u64,
    expired: BTreeSet<NodeId>,
}

/// The members, and who is on the way in or out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Registry {
    /// Who grants leases: the replicas of the registry.
    voters: BTreeSet<NodeId>,
    members: Membership,
    /// As each has joined last.
    incarnations: BTreeMap<NodeId, u64>,
    suspended: BTreeMap<NodeId, Suspension>,
    /// How many suspensions there were.
    suspensions: u64,
    /// How often all that there was has gone.
    losses: u64,
}

impl Registry {
    /// Nobody is a member before all voters have joined: they then are the first members.
    pub fn new(voters: BTreeSet<NodeId>) -> Registry {
        let (incarnations, suspended) = (BTreeMap::new(), BTreeMap::new());
        let (members, suspensions, losses) = (Membership::default(), 0, 0);
        Registry { voters, members, incarnations, suspended, suspensions, losses }
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
        self.incarnations.get(&node) == Some(&incarnation) && (waits || self.is_member(node))
    }

    /// Whether a lease may be granted.
    pub fn may_serve(&self, node: NodeId) -> bool {
        self.members.live.contains(&node) && !self.suspended.contains_key(&node)
    }

    /// The members, and their suspensions, that this voter has not let go yet.
    pub fn awaited_of(&self, voter: NodeId) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let suspended = self.suspended.iter();
        suspended
            .filter(move |(_, suspension)| !suspension.expired.contains(&voter))
            .map(|(node, suspension)| (*node, suspension.number))
    }

    /// Whether a member may be suspected.
    pub fn may_suspect(&self, node: NodeId) -> bool {
        self.is_member(node) && !self.suspended.contains_key(&node) && self.may_remove(node)
    }

    fn is_member(&self, node: NodeId) -> bool {
        self.members.live.contains(&node) || self.members.shadows.contains_key(&node)
    }

    /// A membership without a live replica would have lost everything. So one always stays that is
    /// not suspended.
    fn may_remove(&self, node: NodeId) -> bool {
        let stays = |other: &&NodeId| **other != node && !self.suspended.contains_key(other);
        self.members.live.iter().filter(stays).count() > 0
    }

    fn apply(&mut self, request: Request) {
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
                    self.suspensions += 1;
                    let (number, expired) = (self.suspensions, BTreeSet::new());
                    self.suspended.insert(node, Suspension { number, expired });
                }
            }
            Request::Expired { voter, node, suspension } => self.expire(voter, node, suspension),
        }
    }

    fn expire(&mut self, voter: NodeId, node: NodeId, number: u64) {
        let Some(suspension) = self.suspended.get_mut(&node) else { return };
        if suspension.number != number || !self.voters.contains(&voter) {
            return;
        }
        suspension.expired.insert(voter);
        if suspension.expired.len() > self.voters.len() / 2 {
            self.remove(node);
        }
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
            if self.incarnations.keys().eq(self.voters.iter()) {
                let live = self.voters.clone();
                self.members = Membership { epoch: Epoch::FIRST, live, shadows: BTreeMap::new() };
            }
            return;
        }
        if again {
            self.remove(node);
        }
        if !self.is_member(node) {
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

    fn remove(&mut self, node: NodeId) {
        self.suspended.remove(&node);
        self.members.live.remove(&node);
        self.members.shadows.remove(&node);
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
        *self = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(nodes: &[u16]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn joined() -> Registry {
        let mut registry = Registry::new(nodes(&[0, 1, 2]));
        for node in 0..3 {
            assert_eq!(registry.members().epoch, Epoch(0));
            registry.apply(Request::Join { node: NodeId(node), incarnation: 1, holds: false });
        }
        assert_eq!(registry.members().live, nodes(&[0, 1, 2]));
        registry
    }

    fn expired(voter: u16, suspension: u64) -> Request {
        Request::Expired { voter: NodeId(voter), node: NodeId(2), suspension }
    }

    #[test]
    fn a_member_goes_when_the_grants_of_a_majority_have_run_out() {
        let mut registry = joined();
        registry.apply(Request::Suspect { node: NodeId(2), epoch: Epoch(1) });
        assert!(!registry.may_serve(NodeId(2)) && registry.may_serve(NodeId(1)));
        registry.apply(expired(0, 1));
        registry.apply(expired(0, 1));
        assert_eq!(registry.members().epoch, Epoch(1));
        registry.apply(expired(1, 1));
        assert_eq!(
            (registry.members().epoch, &registry.members().live),
            (Epoch(2), &nodes(&[0, 1]))
        );
        registry.apply(expired(2, 1));
        assert_eq!(registry.members().epoch, Epoch(2), "it is over");
    }

    #[test]
    fn who_comes_again_follows_first() {
        let mut registry = joined();
        registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: false });
        assert_eq!(registry.members().live, nodes(&[0, 2]));
        assert_eq!(registry.members().shadows, BTreeMap::from([(NodeId(1), Epoch(3))]));
        registry.apply(Request::Complete { node: NodeId(1), epoch: Epoch(2) });
        assert!(!registry.may_serve(NodeId(1)), "that was not this time");
        registry.apply(Request::Complete { node: NodeId(1), epoch: Epoch(3) });
        assert!(registry.may_serve(NodeId(1)));
        registry.apply(Request::Join { node: NodeId(1), incarnation: 1, holds: false });
        assert!(registry.may_serve(NodeId(1)), "the word of an earlier start");
    }

    #[test]
    fn the_last_one_who_holds_anything_stays() {
        let mut registry = joined();
        for node in 0..3 {
            registry.apply(Request::Suspect { node: NodeId(node), epoch: Epoch(1) });
        }
        assert!(registry.may_serve(NodeId(2)) && !registry.may_serve(NodeId(1)));
        registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
        assert_eq!(registry.members().live, nodes(&[0, 1]), "these are needed");
        assert!(registry.may_serve(NodeId(0)) && registry.may_serve(NodeId(1)));
        registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: false });
        registry.apply(Request::Join { node: NodeId(0), incarnation: 2, holds: false });
        assert_eq!((registry.members().live.clone(), registry.losses()), (nodes(&[0]), 1));
    }

    #[test]
    fn who_comes_again_with_all_that_it_held_stays() {
        let mut registry = joined();
        registry.apply(Request::Suspect { node: NodeId(1), epoch: Epoch(1) });
        registry.apply(Request::Join { node: NodeId(1), incarnation: 2, holds: true });
        assert_eq!((registry.members().epoch, registry.members().live.len()), (Epoch(2), 3));
        assert!(registry.may_serve(NodeId(1)) && registry.has_joined(NodeId(1), 2));
        registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
        registry.apply(Request::Join { node: NodeId(2), incarnation: 3, holds: true });
        assert!(!registry.may_serve(NodeId(2)), "what a shadow replica holds does not count");
    }

    #[test]
    fn when_all_that_there_was_has_gone_all_begin_with_nothing() {
        let mut registry = joined();
        for node in [0, 1] {
            registry.apply(Request::Join { node: NodeId(node), incarnation: 2, holds: false });
        }
        let before = registry.members().epoch;
        registry.apply(Request::Join { node: NodeId(2), incarnation: 2, holds: false });
        let members = registry.members();
        assert_eq!((members.live.clone(), registry.losses()), (nodes(&[2]), 1));
        assert!(members.shadows.values().all(|since| *since > before), "{members:?}");
    }
}
