//! The family of epoch changes: Algorithm 3, its failure detector, and configurations.

use super::{Entry, Epoch, Timestamp};
use crate::state::members::Config;
use crate::state::runs::Runs;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the members of a group say to each other to change their primary; and to whom it concerns,
/// who the members are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EpochMessage {
    /// The sender misses the primary, and asks whether the receiver does.
    Suspect(Suspect),
    /// The sender misses the primary too.
    Suspected(Suspected),
    /// NEW-EPOCH.
    NewEpoch(NewEpoch),
    /// PROMISE.
    Promise(Promise),
    /// The candidate lacks a part of the most advanced `T`.
    Fetch(Fetch),
    /// The answer.
    Fetched(Fetched),
    /// NEW-STATE.
    NewState(NewState),
    /// ACCEPT.
    Accept(Accept),
    /// A configuration of the sender's group.
    Config(Arc<Config>),
}

/// The sender has heard nothing of the primary, and asks whether the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Suspect {
    /// The epoch in question.
    pub epoch: Epoch,
}

/// The sender has heard nothing of the primary either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Suspected {
    /// The epoch in question.
    pub epoch: Epoch,
}

/// NEW-EPOCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewEpoch {
    /// The new epoch; its leader asks.
    pub epoch: Epoch,
}

/// PROMISE.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Promise {
    /// The epoch promised to.
    pub epoch: Epoch,
    /// The clock.
    pub clock: Timestamp,
    /// What stands for `E_cur` and `T`.
    pub progress: Progress,
}

/// The candidate asks the most advanced promiser for what it lacks of its `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fetch {
    /// The candidate's epoch.
    pub epoch: Epoch,
    /// From this index.
    pub from: u64,
}

/// The answer to a [`Fetch`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fetched {
    /// The candidate's epoch.
    pub epoch: Epoch,
    /// A part of what was asked for.
    pub part: Part,
}

/// NEW-STATE: the receiver's `T` is what it has up to `part.start`, and then this.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewState {
    /// The new epoch.
    pub epoch: Epoch,
    /// The clock to start from.
    pub clock: Timestamp,
    /// A part of what differs.
    pub part: Part,
}

/// ACCEPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accept {
    /// The epoch accepted.
    pub epoch: Epoch,
    /// The clock: without it a clock raised by NEW-STATE would never be shown.
    pub clock: Timestamp,
}

/// How far a process is: what a PROMISE tells instead of the whole `T`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// Its current epoch.
    pub e_cur: Epoch,
    /// The length of its `T`, counted from the group's beginning.
    pub len: u64,
    /// The first entry that it still holds.
    pub base: u64,
    /// The epochs of its entries.
    pub runs: Runs,
}

/// A part of a run of entries that is too long for one message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The index at which the run starts.
    pub start: u64,
    /// The index of the first entry here.
    pub from: u64,
    /// Entries, in order.
    pub entries: Vec<Entry>,
    /// The index after the run's last entry: here if this is the last part.
    pub end: u64,
}
