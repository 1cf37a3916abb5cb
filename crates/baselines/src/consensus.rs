//! Consensus inside a group, as FastCast takes it as given: the second phase of Multi-Paxos under
//! one stable leader, with entries in a log and votes that count for all before.
//!
//! The leader's proposal is its own vote. Votes go to all members, so that each learns decisions by
//! itself; where proposal and own vote are a quorum (up to three members), only the leader waits
//! for votes and only it is sent any.

use meridian_core::NodeId;
use meridian_multicast::clocks;
use std::collections::VecDeque;

/// The log of one member, as far as it is not decided.
#[derive(Clone, Debug)]
pub(crate) struct Log<E> {
    /// Those not decided, in order.
    entries: VecDeque<E>,
    /// How many were decided.
    decided: u64,
    /// How many entries each member is known to hold.
    held: Vec<(NodeId, u64)>,
    me: NodeId,
    /// The length that the others were last told.
    told: u64,
}

impl<E> Log<E> {
    /// Of the member `me` of a group whose first member leads.
    pub fn new(me: NodeId, members: &[NodeId]) -> Self {
        let held = members.iter().map(|node| (*node, 0)).collect();
        Log { entries: VecDeque::new(), decided: 0, held, me, told: 0 }
    }

    fn len(&self) -> u64 {
        self.decided + self.entries.len() as u64
    }

    /// The leader proposes; or a follower has got the proposal.
    pub fn append(&mut self, entry: E) {
        self.entries.push_back(entry);
        let (len, me) = (self.len(), self.me);
        // The leader, first of all, holds all that anyone holds.
        self.held[0].1 = len;
        self.on_vote(me, len);
    }

    /// `node` holds so many entries.
    pub fn on_vote(&mut self, node: NodeId, len: u64) {
        if let Some((_, held)) = self.held.iter_mut().find(|(member, _)| *member == node) {
            *held = len.max(*held);
        }
    }

    /// How many entries here are decided, by what is known here.
    pub fn decided(&self) -> u64 {
        clocks::quorum_th(self.held.iter().map(|(_, held)| *held)).min(self.len())
    }

    /// Takes the next entry, if fewer than `upto` were taken.
    pub fn take(&mut self, upto: u64) -> Option<E> {
        let entry = if self.decided < upto { self.entries.pop_front() } else { None };
        self.decided += u64::from(entry.is_some());
        entry
    }

    /// The vote to be sent, if it is new, and those who need it.
    pub fn vote(&mut self) -> Option<(u64, Vec<NodeId>)> {
        let len = self.len();
        let leader = self.held[0].0;
        if self.me == leader || std::mem::replace(&mut self.told, len) == len {
            return None;
        }
        let members = self.held.iter().map(|(node, _)| *node).filter(|node| *node != self.me);
        let alone = clocks::quorum(self.held.len()) <= 2;
        Some((len, members.filter(|node| !alone || *node == leader).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeId; 5] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

    fn taken(log: &mut Log<u8>) -> Vec<u8> {
        let upto = log.decided();
        std::iter::from_fn(|| log.take(upto)).collect()
    }

    #[test]
    fn a_quorum_decides_in_order() {
        let mut leader = Log::new(NODES[0], &NODES);
        leader.append(1);
        leader.append(2);
        leader.on_vote(NODES[1], 2);
        assert_eq!(taken(&mut leader), [0; 0]);
        leader.on_vote(NODES[4], 1);
        assert_eq!(taken(&mut leader), [1]);
        leader.on_vote(NODES[3], 2);
        assert_eq!(taken(&mut leader), [2]);
        assert_eq!(leader.vote(), None);
    }

    #[test]
    fn a_follower_of_five_needs_one_more_vote() {
        let mut follower = Log::new(NODES[1], &NODES);
        follower.on_vote(NODES[2], 7);
        assert_eq!(taken(&mut follower), [0; 0]);
        follower.append(1);
        assert_eq!(taken(&mut follower), [1]);
        assert_eq!(follower.vote(), Some((1, vec![NODES[0], NODES[2], NODES[3], NODES[4]])));
        assert_eq!(follower.vote(), None, "once");
    }

    #[test]
    fn a_follower_of_three_needs_none() {
        let mut follower = Log::new(NODES[1], &NODES[..3]);
        follower.append(1);
        assert_eq!(taken(&mut follower), [1]);
        assert_eq!(follower.vote(), Some((1, vec![NODES[0]])));
    }

    #[test]
    fn alone_it_decides_at_once() {
        let mut alone = Log::new(NODES[0], &NODES[..1]);
        alone.append(1);
        assert_eq!(taken(&mut alone), [1]);
    }
}
