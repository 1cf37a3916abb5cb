//! The family of recovery: snapshots, and processes that keep nothing on disk.

use super::{Epoch, Timestamp};
use bytes::Bytes;
use meridian_core::{MessageId, ProcessId};
use serde::{Deserialize, Serialize};

/// What brings up a process that `T` cannot bring up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecoveryMessage {
    /// The sender no longer holds what the receiver lacks: the receiver asks for a snapshot.
    Behind,
    /// A part of a snapshot is wanted.
    SnapshotRequest(SnapshotRequest),
    /// A part of a snapshot.
    SnapshotPart(SnapshotPart),
    /// To a process of the sender's group whose `T` contains the sender's: these were delivered
    /// with these final timestamps, so the receiver may deliver them, too.
    ForwardedFinals(Vec<(MessageId, Timestamp)>),
    /// The incarnations that the sender knows of.
    Incarnations(Incarnations),
    /// The sender has lost its memory.
    Recover(Recover),
    /// The answer.
    Recovered(Recovered),
    /// Another process has lost its memory.
    NewIncarnation(NewIncarnation),
}

/// A part of a snapshot is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Which snapshot, 0 for a new one.
    pub snapshot: u64,
    /// From this byte.
    pub offset: u64,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// Which snapshot.
    pub snapshot: u64,
    /// Where the part starts.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// The length of the whole.
    pub total: u64,
}

/// The incarnations that the sender knows of, its own among them; the first of its messages on a
/// link that is new.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnations {
    /// Process and incarnation.
    pub known: Vec<(ProcessId, u64)>,
    /// Whether the sender wants to know the same, and all that the receiver would say after a
    /// restart.
    pub wanted: bool,
}

/// The sender has lost its memory, and is in this incarnation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recover {
    /// Counts the incarnations of the sender.
    pub incarnation: u64,
}

/// The answer to [`Recover`]: what its sender said before counts no more, and this is where the
/// answering process is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recovered {
    /// The incarnation that asked.
    pub incarnation: u64,
    /// As in [`Incarnations`].
    pub known: Vec<(ProcessId, u64)>,
    /// `E_prom`.
    pub e_prom: Epoch,
    /// The epoch that the sender is the primary of.
    pub primary_of: Option<Epoch>,
    /// The clock.
    pub clock: Timestamp,
}

/// A process has lost its memory: what it said in earlier incarnations counts no more together with
/// what the sender says from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewIncarnation {
    /// Which process.
    pub member: ProcessId,
    /// Its incarnation.
    pub incarnation: u64,
}
