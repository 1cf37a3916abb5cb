//! The clocks that tell when a message may be delivered: `min-clock` and `quorum-clock`
//! (Algorithm 1, lines 15-18), kept as messages arrive.
//!
//! Invariants:
//! - C1: `min_clock(q)` never goes down.
//! - C2: no later epoch starts with a clock below `quorum_clock()`: each quorum of promises
//!   contains a process whose clock is at least that.

use crate::message::{Epoch, Timestamp};
use meridian_core::NodeId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What is known of the clocks of a group's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Clocks {
    known: BTreeMap<NodeId, Timestamp>,
    /// Values shown in epochs above ours: they count once we are there.
    parked: BTreeMap<NodeId, BTreeMap<Epoch, Timestamp>>,
    /// All have reached this: what other members had before those of now.
    floor: Timestamp,
}

impl Clocks {
    /// `node` showed `clock` in `epoch`; we are in `current`.
    pub fn note(&mut self, node: NodeId, epoch: Epoch, clock: Timestamp, current: Epoch) {
        let place = if epoch <= current {
            self.known.entry(node).or_default()
        } else {
            self.parked.entry(node).or_default().entry(epoch).or_default()
        };
        *place = clock.max(*place);
    }

    /// We are in `current` now: what was parked for it counts.
    pub fn advance(&mut self, current: Epoch) {
        self.parked.retain(|node, parked| {
            let later = parked.split_off(&current);
            let reached = std::mem::replace(parked, later);
            let here = parked.remove(&current);
            for clock in reached.into_values().chain(here) {
                let known = self.known.entry(*node).or_default();
                *known = clock.max(*known);
            }
            !parked.is_empty()
        });
    }

    /// What `node` showed does not count any more: it has lost its memory.
    pub fn forget(&mut self, node: NodeId) {
        self.known.remove(&node);
        self.parked.remove(&node);
    }

    /// Other members count from now on, of whom nothing may be known yet: no epoch of theirs starts
    /// with a clock below `reached`.
    pub fn raise_floor(&mut self, reached: Timestamp) {
        self.floor = reached.max(self.floor);
    }

    /// The greatest clock shown by `node` in an epoch up to ours.
    pub fn min_clock(&self, node: NodeId) -> Timestamp {
        self.known.get(&node).copied().unwrap_or_default().max(self.floor)
    }

    /// The greatest clock that a quorum of `members` has reached.
    pub fn quorum_clock(&self, members: &[NodeId]) -> Timestamp {
        quorum_th(members.iter().map(|node| self.min_clock(*node)))
    }
}

/// How many are a quorum of `members`: a majority.
pub fn quorum(members: usize) -> usize {
    members / 2 + 1
}

/// The greatest value that a quorum has reached, given each member's.
pub fn quorum_th<T: Ord + Default + Copy>(values: impl IntoIterator<Item = T>) -> T {
    let mut sorted: SmallVec<[T; 8]> = SmallVec::new();
    for value in values {
        let at = sorted.iter().position(|other| value < *other).unwrap_or(sorted.len());
        sorted.insert(at, value);
    }
    let at = sorted.len().checked_sub(quorum(sorted.len()));
    at.and_then(|at| sorted.get(at)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeId; 5] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
    const fn epoch(number: u64) -> Epoch {
        Epoch { config: 0, number, leader: NodeId(0) }
    }

    /// The example of section 4.2.2: clocks 1 to 5, and no new primary can start below 3.
    #[test]
    fn quorum_clock_is_what_every_quorum_has_seen() {
        let mut clocks = Clocks::default();
        for (node, clock) in NODES.into_iter().zip(1..) {
            clocks.note(node, epoch(1), Timestamp(clock), epoch(1));
        }
        assert_eq!(clocks.quorum_clock(&NODES), Timestamp(3));
        assert_eq!(clocks.quorum_clock(&NODES[..1]), Timestamp(1));
        assert_eq!(clocks.quorum_clock(&NODES[..2]), Timestamp(1));
    }

    #[test]
    fn clocks_of_later_epochs_wait_for_them() {
        let mut clocks = Clocks::default();
        clocks.note(NODES[0], epoch(3), Timestamp(9), epoch(1));
        clocks.note(NODES[0], epoch(2), Timestamp(5), epoch(1));
        assert_eq!(clocks.min_clock(NODES[0]), Timestamp(0));
        clocks.advance(epoch(2));
        assert_eq!(clocks.min_clock(NODES[0]), Timestamp(5));
        clocks.advance(epoch(4));
        assert_eq!(clocks.min_clock(NODES[0]), Timestamp(9));
        clocks.note(NODES[0], epoch(4), Timestamp(2), epoch(4));
        assert_eq!(clocks.min_clock(NODES[0]), Timestamp(9), "C1");
    }
}
