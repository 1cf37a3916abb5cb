//! What is multicast, and what the processes say to each other about it.
//!
//! The thesis's names: START, ACK, BUMP, NEW-EPOCH, PROMISE, NEW-STATE, ACCEPT. Differences, and
//! why, are in the crate's documentation.

use bytes::Bytes;
use meridian_core::{GroupId, MessageId, NodeId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A message to be multicast: the thesis's `m`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Start {
    /// Its name.
    pub id: MessageId,
    /// The lowest sequence number that its client still waits for: what is below may be forgotten,
    /// and is refused if it comes again.
    pub low: u64,
    /// The groups that it goes to; ascending, at least one.
    pub dest: Arc<[GroupId]>,
    /// What it says to the application.
    pub payload: Bytes,
}

/// A point of a group's logical clock; what messages are ordered by.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

/// An epoch of a group, owned by one of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    /// Counts up.
    pub number: u64,
    /// Who leads it.
    pub leader: NodeId,
}
