//! The family of the normal case inside a group: Algorithm 2.

use super::{Dest, Entry, Epoch, Start, Timestamp};
use meridian_core::{GroupId, MessageId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the members of a group say to each other as long as their primary stands; and START.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormalMessage {
    /// START: from the sender; to the primary from a follower that was sent it; to the other groups
    /// from one that misses their timestamps.
    Start(Arc<Start>),
    /// Several STARTs from one sender.
    Starts(Vec<Arc<Start>>),
    /// The primary's ACKs.
    Append(Append),
    /// ACK, cumulative; with an unchanged length of `T` a BUMP.
    Ack(Ack),
    /// BUMP, from a process that follows no primary.
    Bump(Bump),
    /// A follower lacks entries.
    Resend(Resend),
    /// What the primary has heard of other groups, where it relays.
    Relayed(Relayed),
    /// From a primary that relays, to its followers: the groups that cannot be reached.
    Unreachable(Dest),
}

/// The primary's ACKs, to a follower: its proposals, in the order of `T`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Append {
    /// The primary's epoch.
    pub epoch: Epoch,
    /// The index of the first entry.
    pub from: u64,
    /// Entries, in order.
    pub entries: Arc<[Entry]>,
    /// No entry after these has a timestamp at or below this one.
    pub clock: Timestamp,
    /// Whether the primary needs the ACK at once.
    pub prompt: bool,
}

/// ACK, cumulative: all of `T` up to `len` is durable at the sender. The primary's is its heartbeat
/// as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ack {
    /// The epoch followed.
    pub epoch: Epoch,
    /// The length of `T`.
    pub len: u64,
    /// The clock.
    pub clock: Timestamp,
}

/// BUMP, from a process that follows no primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bump {
    /// The epoch promised to.
    pub epoch: Epoch,
    /// The clock.
    pub clock: Timestamp,
}

/// A follower lacks entries (it restarted, or the link was reset): the primary sends them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resend {
    /// The epoch followed.
    pub epoch: Epoch,
    /// From this index.
    pub from: u64,
}

/// From a primary that relays, to its followers: what it has heard of other groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relayed {
    /// The primary's epoch.
    pub epoch: Epoch,
    /// The length of its `T`.
    pub len: u64,
    /// No entry after those has a timestamp at or below this one.
    pub clock: Timestamp,
    /// Local timestamps that other groups have decided; none in the linearizable order.
    pub locals: Arc<[RelayedLocal]>,
    /// Final timestamps. In the linearizable order: of what the primary has delivered; otherwise of
    /// messages of which the receiver may have missed the local ones.
    pub finals: Arc<[RelayedFinal]>,
}

/// A local timestamp that another group has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelayedLocal {
    /// Where the message stands in the sender's `T`.
    pub index: u64,
    /// The message.
    pub id: MessageId,
    /// Which group.
    pub group: GroupId,
    /// Its timestamp.
    pub ts: Timestamp,
}

/// A final timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelayedFinal {
    /// Where the message stands in the sender's `T`.
    pub index: u64,
    /// The message.
    pub id: MessageId,
    /// Its timestamp.
    pub ts: Timestamp,
    /// Whether the sender has delivered it.
    pub delivered: bool,
}
