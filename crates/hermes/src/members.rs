//! Who takes part: epochs, live replicas and shadow replicas.

use meridian_core::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// So many replicas at most: a set of them is a word.
pub const MEMBERS_MAX: usize = 64;

/// Counts memberships (Hermes, `epoch_id`). 0 is none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The first one: all its members begin with nothing.
    pub const FIRST: Epoch = Epoch(1);
}

/// What the reliable membership decides (Hermes, section 2.4): an m-update without its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Membership {
    /// Its number.
    pub epoch: Epoch,
    /// Who coordinates and serves.
    pub live: BTreeSet<NodeId>,
    /// Shadow replicas: who follows all updates, is sent what there was before, and does not serve
    /// yet (Hermes, section 3.4, recovery); and since which epoch each follows.
    pub shadows: BTreeMap<NodeId, Epoch>,
}

/// Some of the followers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn join(&mut self, other: NodeSet) {
        self.0 |= other.0;
    }
}

/// The membership that a replica has installed, as the handlers need it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Members {
    pub now: Membership,
    /// Live and shadow replicas, in order; the place of one is its bit.
    followers: Vec<NodeId>,
    /// Whether this replica is live.
    pub i_am_live: bool,
    /// This replica, if it is one of them.
    pub me: NodeSet,
}

impl Members {
    /// As the replica `me` needs it.
    pub fn new(now: Membership, me: NodeId) -> Members {
        let mut followers = now.live.clone();
        followers.extend(now.shadows.keys());
        let followers: Vec<_> = followers.into_iter().collect();
        assert!(followers.len() <= MEMBERS_MAX, "{} replicas", followers.len());
        let i_am_live = now.live.contains(&me);
        let mut members = Members { now, followers, i_am_live, me: NodeSet::default() };
        members.me = members.of(&[me]);
        members
    }

    pub fn epoch(&self) -> Epoch {
        self.now.epoch
    }

    pub fn is_live(&self, node: NodeId) -> bool {
        self.now.live.contains(&node)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.followers.binary_search(&node).is_ok()
    }

    /// All who must acknowledge, the coordinator among them.
    pub fn followers(&self) -> &[NodeId] {
        &self.followers
    }

    /// Adds one of them; others change nothing.
    pub fn add(&self, set: &mut NodeSet, node: NodeId) {
        if let Ok(place) = self.followers.binary_search(&node) {
            set.0 |= 1 << place;
        }
    }

    pub fn of(&self, nodes: &[NodeId]) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.iter().for_each(|node| self.add(&mut set, *node));
        set
    }

    pub fn is_all(&self, set: NodeSet) -> bool {
        set.len() as usize == self.followers.len()
    }

    /// Those that are not in the set.
    pub fn missing(&self, set: NodeSet) -> impl Iterator<Item = NodeId> + '_ {
        let places = self.followers.iter().enumerate();
        places.filter(move |(place, _)| set.0 & (1 << place) == 0).map(|(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_replicas_acknowledge_like_live_ones() {
        let live = BTreeSet::from([NodeId(0), NodeId(7)]);
        let shadows = BTreeMap::from([(NodeId(3), Epoch::FIRST)]);
        let members = Members::new(Membership { epoch: Epoch::FIRST, live, shadows }, NodeId(0));
        let set = members.of(&[NodeId(0), NodeId(7), NodeId(9)]);
        assert!(!members.is_all(set) && !members.is_live(NodeId(3)));
        assert_eq!(members.missing(set).collect::<Vec<_>>(), [NodeId(3)]);
        assert!(members.is_all(members.of(&[NodeId(0), NodeId(3), NodeId(7)])));
    }
}
