//! Which nodes hold a block: consistent hashing.
//!
//! Each node has [`POINTS`] points on a ring of 2^64 places, a block has one. Its nodes are those
//! met first when one walks up from there; the first [`REPLICAS`] of a region's ring hold it.
//! All of it follows from the names alone, so everybody who knows the members agrees, and a node
//! that is added takes blocks from the others without moving any between them.

use meridian_core::{BlockId, NodeId, mix};

/// On how many nodes of each region a block lies.
pub const REPLICAS: usize = 2;
/// How many points a node has: with 128 the fullest node of ten holds about a tenth more than its
/// share.
pub const POINTS: u64 = 128;

/// The ring of some nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    /// Sorted.
    points: Vec<(u64, NodeId)>,
    nodes: usize,
}

impl Ring {
    /// The ring of `nodes`; one that is named twice counts once.
    pub fn new(nodes: &[NodeId]) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        let of_node = |node: &NodeId| {
            let node = *node;
            (0..POINTS).map(move |point| (mix(mix(u64::from(node.0)) ^ point), node))
        };
        let mut points: Vec<_> = nodes.iter().flat_map(of_node).collect();
        points.sort_unstable();
        Ring { points, nodes: nodes.len() }
    }

    /// All nodes, in the order in which they come for this block.
    pub fn placement(&self, block: BlockId) -> Vec<NodeId> {
        self.first(block, self.nodes)
    }

    /// The nodes that hold this block.
    pub fn holders(&self, block: BlockId) -> Vec<NodeId> {
        self.first(block, REPLICAS.min(self.nodes))
    }

    fn first(&self, block: BlockId, most: usize) -> Vec<NodeId> {
        let place = mix(mix(block.0 as u64) ^ (block.0 >> 64) as u64);
        let start = self.points.partition_point(|(point, _)| *point < place);
        let (before, after) = self.points.split_at(start);
        let mut found = Vec::with_capacity(most);
        for (_, node) in after.iter().chain(before) {
            if !found.contains(node) {
                found.push(*node);
                if found.len() == most {
                    break;
                }
            }
        }
        found
    }
}

/// All of `nodes`, in the order in which they come for `block`: its replicas are the first
/// [`REPLICAS`]. Who asks often keeps a [`Ring`].
pub fn placement(nodes: &[NodeId], block: BlockId) -> Vec<NodeId> {
    Ring::new(nodes).placement(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(count: u16) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    proptest! {
        #[test]
        fn all_nodes_come_once_whatever_their_order(count in 1..20u16, block: u128) {
            let placed = placement(&nodes(count), BlockId(block));
            let mut sorted = placed.clone();
            sorted.sort();
            prop_assert_eq!(sorted, nodes(count));
            let reversed: Vec<_> = nodes(count).into_iter().rev().collect();
            prop_assert_eq!(placement(&reversed, BlockId(block)), placed);
        }

        #[test]
        fn a_node_that_is_added_moves_nothing_between_the_others(count in 1..20u16, block: u128) {
            let mut with = placement(&nodes(count + 1), BlockId(block));
            with.retain(|node| *node != NodeId(count));
            prop_assert_eq!(with, placement(&nodes(count), BlockId(block)));
        }
    }

    #[test]
    fn no_node_holds_much_more_than_its_share() {
        let ring = Ring::new(&nodes(10));
        let mut held = [0; 10];
        for block in 0..20_000u128 {
            for node in &ring.placement(BlockId(block))[..REPLICAS] {
                held[node.0 as usize] += 1;
            }
        }
        assert!(held.iter().all(|held| (3_200..4_800).contains(held)), "{held:?}");
    }

    /// Nodes of different versions must agree.
    #[test]
    fn the_ring_never_changes() {
        let first = |block| placement(&nodes(9), BlockId(block))[0].0;
        let firsts: Vec<_> = [1, 2, 3, 7 << 64, u128::MAX].into_iter().map(first).collect();
        assert_eq!(firsts, [1, 2, 3, 0, 2]);
    }

    #[test]
    fn no_two_nodes_share_a_point() {
        let ring = Ring::new(&nodes(100));
        assert!(ring.points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn no_nodes_no_places() {
        assert!(placement(&[], BlockId(1)).is_empty());
    }
}
