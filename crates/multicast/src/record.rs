//! What a process makes durable. When, and why then, is in the crate's documentation.

use crate::message::{Entry, Epoch, Fence, Rank, Timestamp};
use crate::state::done::Done;
use crate::state::fences::Seals;
use crate::state::log::Log;
use crate::state::members::{Config, Lost, Members};
use bytes::Bytes;
use meridian_core::{MessageId, Position};
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

/// What is made durable. When, and why then, is in the crate's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// `E_prom`: before PROMISE and NEW-EPOCH.
    Promised(Epoch),
    /// Entries appended to `T`: before the ACK.
    Append {
        /// The index of the first.
        from: u64,
        /// Entries, in order.
        entries: Arc<[Entry]>,
    },
    /// `T` from `from` on is replaced, `E_cur` changes: before ACCEPT.
    NewState {
        /// The new `E_cur`.
        epoch: Epoch,
        /// The index at which `T` is cut.
        from: u64,
        /// What follows.
        entries: Vec<Entry>,
    },
    /// No clock above this is shown before another such record: before the first that would be.
    Ceiling(Timestamp),
    /// Delivered, in this order.
    Delivered {
        /// Which.
        id: MessageId,
        /// With which final timestamp.
        ts: Timestamp,
    },
    /// Changes nothing: what was noted before it is durable with it.
    Mark,
    /// The whole state: a checkpoint, or a snapshot that was installed.
    State(Box<State>),
    /// A configuration of the group that was not delivered here, but learned from another.
    Config(Arc<Config>),
    /// Sealed, with what was known of the lost group, encoded: before anything else is said.
    Fence {
        /// By what.
        fence: Arc<Fence>,
        /// The report.
        report: Bytes,
    },
}

/// All that a process needs to go on from a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    pub(crate) e_cur: Epoch,
    pub(crate) e_prom: Epoch,
    pub(crate) log: Log,
    pub(crate) delivered: Position,
    pub(crate) last: Option<Rank>,
    pub(crate) done: Done,
    pub(crate) clock: Timestamp,
    pub(crate) ceiling: Timestamp,
    pub(crate) members: Members,
    /// The application's state, if it came from another process.
    pub(crate) application: Option<Bytes>,
    /// Programs from before there were fences end here, so these stay the last.
    #[serde(default, deserialize_with = "or_none")]
    pub(crate) fences: Seals,
    #[serde(default, deserialize_with = "or_none")]
    pub(crate) lost: Lost,
}

/// What an earlier program has not written is empty. What cannot be read counts as that, too:
/// whoever changes how it is written gives the log another version.
fn or_none<'a, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'a>,
    D: Deserializer<'a>,
{
    Ok(T::deserialize(from).unwrap_or_default())
}

impl State {
    /// The same with the application's state, which whoever replays it is told to install.
    pub fn with_application(self, application: Bytes) -> State {
        State { application: Some(application), ..self }
    }
}
