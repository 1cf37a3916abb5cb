//! Where a block is stored in one region: on the first nodes of the ring that take it.
//!
//! Invariants:
//! - B1: a block counts as stored only when as many nodes as should hold it have said so.
//! - B2: no node is asked again that stores the block or has no room for it.

use crate::mutation::Mutation;
use meridian_cluster::ring::REPLICAS;
use meridian_core::NodeId;
use std::collections::{BTreeSet, VecDeque};

/// How far the storing of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nodes are being asked.
    Asking,
    /// All nodes have been asked, and too few store it: after a pause, [`Placing::again`].
    Stuck,
    /// It is stored.
    Stored,
    /// So many nodes have no room that too few are left.
    Full,
}

/// One block on its way to the nodes of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placing {
    /// Nodes that were not asked yet, the first of the ring first.
    untried: VecDeque<NodeId>,
    asked: BTreeSet<NodeId>,
    stored: BTreeSet<NodeId>,
    full: BTreeSet<NodeId>,
    /// How many nodes the region has.
    nodes: usize,
    /// How many of them should hold it.
    wanted: usize,
    mutation: Mutation,
}

impl Placing {
    /// `nodes` are those of the region, in the order of the ring; those that failed lately may come
    /// last.
    pub fn new(nodes: Vec<NodeId>) -> Placing {
        Placing {
            nodes: nodes.len(),
            wanted: REPLICAS.min(nodes.len()),
            untried: nodes.into(),
            asked: BTreeSet::new(),
            stored: BTreeSet::new(),
            full: BTreeSet::new(),
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Placing {
        self.mutation = mutation;
        self
    }

    /// The nodes that are to be asked now.
    pub fn ask(&mut self) -> Vec<NodeId> {
        let mut now = Vec::new();
        while self.stored.len() + self.asked.len() < self.wanted
            && let Some(node) = self.untried.pop_front()
        {
            if !self.stored.contains(&node) && !self.full.contains(&node) {
                self.asked.insert(node);
                now.push(node);
            }
        }
        if self.mutation.is(Mutation::PlacesTwice) {
            now.dedup_by_key(|_| ()); // The first gets two copies.
            now.extend_from_within(..);
        }
        now
    }

    /// A node stores it, durably; also one that was taken for failed.
    pub fn on_stored(&mut self, node: NodeId) {
        self.asked.remove(&node);
        self.stored.insert(node);
        if self.mutation.is(Mutation::PlacesTwice) {
            self.wanted = 1;
        }
    }

    /// A node has no room for it.
    pub fn on_full(&mut self, node: NodeId) {
        self.asked.remove(&node);
        self.full.insert(node);
    }

    /// A node does not store it now.
    pub fn on_failed(&mut self, node: NodeId) {
        self.asked.remove(&node);
    }

    /// The nodes that were asked have not answered for too long.
    pub fn on_silence(&mut self) {
        self.asked.clear();
    }

    /// The nodes are tried once more: those that the region has now.
    pub fn again(&mut self, nodes: Vec<NodeId>) {
        self.nodes = nodes.len();
        self.wanted = REPLICAS.min(nodes.len());
        self.untried = nodes.into();
    }

    /// Whether a node stores it.
    pub(super) fn is_anywhere(&self) -> bool {
        !self.stored.is_empty()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        if self.stored.len() >= self.wanted {
            Progress::Stored
        } else if self.nodes.saturating_sub(self.full.len()) < self.wanted {
            Progress::Full
        } else if self.asked.is_empty() && self.untried.is_empty() {
            Progress::Stuck
        } else {
            Progress::Asking
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(4);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(7);

    #[test]
    fn a_block_lies_on_the_first_nodes_that_take_it() {
        let mut placing = Placing::new(vec![A, B, C]);
        assert_eq!(placing.ask(), [A, B]);
        placing.on_stored(B);
        assert_eq!(placing.ask(), []);
        placing.on_failed(A);
        assert_eq!((placing.ask(), placing.progress()), (vec![C], Progress::Asking));
        placing.on_stored(C);
        assert_eq!((placing.ask(), placing.progress()), (vec![], Progress::Stored), "B1");
    }

    #[test]
    fn who_has_no_room_is_not_asked_again() {
        let mut placing = Placing::new(vec![A, B, C]);
        placing.ask();
        placing.on_full(A);
        placing.on_failed(B);
        assert_eq!(placing.ask(), [C]);
        placing.on_failed(C);
        assert_eq!(placing.progress(), Progress::Stuck);
        placing.again(vec![A, B, C]);
        assert_eq!(placing.ask(), [B, C], "B2");
        placing.on_stored(B);
        placing.on_full(C);
        assert_eq!(placing.progress(), Progress::Full, "whatever the others say");
    }

    #[test]
    fn an_answer_that_comes_late_counts() {
        let mut placing = Placing::new(vec![A, B]);
        placing.ask();
        placing.on_silence();
        assert_eq!(placing.progress(), Progress::Stuck);
        placing.on_stored(A);
        placing.again(vec![A, B]);
        assert_eq!(placing.ask(), [B], "B2");
        placing.on_stored(B);
        assert_eq!(placing.progress(), Progress::Stored);
    }

    #[test]
    fn the_nodes_of_the_region_may_change_meanwhile() {
        let mut placing = Placing::new(vec![A, B]);
        placing.ask();
        placing.on_stored(A);
        placing.on_failed(B);
        placing.again(vec![A]);
        assert_eq!(placing.progress(), Progress::Stored, "no other node is left");
        assert_eq!(Placing::new(vec![C]).ask(), [C]);
    }
}
