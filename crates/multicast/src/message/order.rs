//! The family of the linearizable order: how far groups are stable.

use super::{Epoch, Timestamp};
use meridian_core::{GroupId, MessageId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What primaries say to other groups for the linearizable order: see `handlers::linearizable`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OrderMessage {
    /// How far groups are.
    Horizons(Horizons),
    /// At the sender, the primary of a group, nothing that conflicts with these is before them any
    /// more. It concerns messages that pass others, at this group or another one.
    Ready(Vec<MessageId>),
}

/// How far the sender's group and others are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Horizons {
    /// How far the sender's group is, and then what it knows of others.
    pub shown: Arc<[Horizon]>,
    /// Up to where the receiver may take the sender's group for closed, once so many of its clocks
    /// are there.
    pub closed: Timestamp,
    /// If the sender relays for its group: what a quorum of clocks has reached.
    pub clock: Timestamp,
}

/// What a primary shows of its group to others, for the linearizable order: see
/// [`crate::handlers::linearizable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Horizon {
    /// Its group.
    pub group: GroupId,
    /// In which epoch it said so, and which of what it said there this is.
    pub version: (Epoch, u64),
    /// All messages of the group with a timestamp up to this one are known to its primary.
    pub stable: Timestamp,
    /// The groups that messages not delivered by its primary go to as well, each with a lower bound
    /// of their timestamps.
    pub links: Arc<[(GroupId, Timestamp)]>,
}
