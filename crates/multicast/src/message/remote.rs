//! The family of the normal case between groups: Algorithm 2, lines 39 and 45 to 50.

use super::{Epoch, Timestamp};
use meridian_core::MessageId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What processes say to those of other groups (the last two also inside a group).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RemoteMessage {
    /// The primary's ACKs.
    RemoteAppend(RemoteAppend),
    /// A member's ACK, cumulative.
    RemoteAck(RemoteAck),
    /// A group's ACK, from a primary that relays.
    RemoteDecided(RemoteDecided),
    /// The receiver is to send the whole stream: the sender misses something in it.
    RemoteWanted,
    /// The final timestamp of a message.
    Final(Final),
    /// The receiver is to send START for a message that its group acknowledged and the sender does
    /// not know.
    Pull(Pull),
}

/// The primary's ACKs, to a process of another group: what of its `T` is addressed to that group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteAppend {
    /// The primary's epoch.
    pub epoch: Epoch,
    /// Whether this is all of `T` that the receiver may not have delivered: the receiver forgets
    /// what it had. Otherwise it continues what was sent before.
    pub whole: bool,
    /// From this index of `T`,
    pub from: u64,
    /// up to this one.
    pub upto: u64,
    /// The entries between that are addressed to the receiver's group.
    pub entries: Arc<[RemoteEntry]>,
    /// Whether the sender relays for its group: then it alone is told what concerns the group.
    pub relays: bool,
}

/// ACK, cumulative: all of `T` up to `len` is durable at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteAck {
    /// The epoch followed.
    pub epoch: Epoch,
    /// The length of `T`.
    pub len: u64,
    /// The clock; it counts in the linearizable order only.
    pub clock: Timestamp,
}

/// The ACK of a whole group, from a primary that relays: a quorum holds all of `T` up to `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteDecided {
    /// The primary's epoch.
    pub epoch: Epoch,
    /// The length of `T`.
    pub len: u64,
}

/// The final timestamp of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Final {
    /// Which message.
    pub id: MessageId,
    /// Its final timestamp.
    pub ts: Timestamp,
    /// Whether the sender has delivered it.
    pub delivered: bool,
}

/// START is wanted for a message that the receiver's group acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pull {
    /// Which message.
    pub id: MessageId,
}

/// An entry of `T`, as another group needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteEntry {
    /// Its index in `T`.
    pub index: u64,
    /// Its message.
    pub id: MessageId,
    /// The timestamp proposed for it.
    pub ts: Timestamp,
}
