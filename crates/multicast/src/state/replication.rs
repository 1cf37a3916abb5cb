//! What passes between a primary and its followers: ACKs, and streams of entries.

use crate::message::{Epoch, Timestamp};
use crate::state::stream::Stream;
use meridian_core::NodeId;
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replication {
    /// For each member the latest epoch in which it acknowledged, and which length of `T`: what
    /// comes before NEW-STATE counts after it.
    pub acked: BTreeMap<NodeId, (Epoch, u64)>,
    /// As primary, what each follower was sent.
    pub streams: BTreeMap<NodeId, Stream>,
    /// As primary, the length of `T` up to which its proposals were recorded.
    pub recorded: u64,
    /// As a follower that need not be prompt: from here on the entries of `T` are noted only.
    /// Nothing is sent before they are durable, and our vote does not count for them.
    pub noted: Option<u64>,
    /// What the group was advertised last: epoch, length of `T`, clock.
    pub advertised: Option<(Epoch, u64, Timestamp)>,
}

impl Replication {
    /// As much of `T`, of this length, as is durable before anything that follows is seen.
    pub fn persisted(&self, len: u64) -> u64 {
        self.noted.map_or(len, |from| from.min(len))
    }

    /// `node` has acknowledged `T` up to `len` in `epoch`.
    pub fn note_ack(&mut self, node: NodeId, epoch: Epoch, len: u64) {
        let acked = self.acked.entry(node).or_insert((epoch, len));
        *acked = (epoch, len).max(*acked);
    }

    /// What `node` said does not count any more.
    pub fn forget(&mut self, node: NodeId) {
        self.acked.remove(&node);
        self.streams.remove(&node);
    }
}
