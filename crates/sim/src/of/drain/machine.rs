//! The disk with the blocks of one node.

use meridian_core::{BlockId, NodeId};
use meridian_host::drain::Command;
use std::collections::BTreeSet;

/// What waits to be durable.
pub(super) enum Queued {
    /// A block, of a client or of another node.
    Put {
        /// Of this client.
        client: Option<usize>,
        /// Of this node, without a client.
        from: NodeId,
        /// Its name.
        block: BlockId,
    },
    /// Whoever is told when all before is durable.
    Settled(Command),
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Machine {
    /// What survives a crash.
    pub durable: BTreeSet<BlockId>,
    /// What is named when the blocks are listed: some may not be durable yet.
    pub listed: BTreeSet<BlockId>,
    pub queue: Vec<Queued>,
    pub flushing: bool,
    /// Whether its node runs.
    pub up: bool,
    /// Counts crashes.
    pub incarnation: u64,
    /// Whether its node takes no blocks.
    pub sealed: bool,
    /// It was removed, and its server has ended.
    pub gone: bool,
}

impl Machine {
    /// Whether a client's block is taken.
    pub fn takes(&self) -> bool {
        self.up && !self.sealed && !self.gone
    }

    /// Whether it runs, and has not crashed since that was counted.
    pub fn lives(&self, incarnation: u64) -> bool {
        self.up && self.incarnation == incarnation
    }

    pub fn crash(&mut self) {
        (self.up, self.flushing) = (false, false);
        self.incarnation += 1;
        self.queue.clear();
        self.listed = self.durable.clone();
    }
}
