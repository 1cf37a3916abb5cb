//! The family of fences: how the heirs of a lost group learn what the others know of it.

use crate::state::members::Config;
use bytes::Bytes;
use meridian_core::{GroupId, ProcessId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is said because a group is lost: see `handlers::fence`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceMessage {
    /// The sender is sealed: nothing that it says from now on rests on what it heard of the lost
    /// members after that.
    Sealed(Arc<Fence>),
    /// An heir wants the report of the receiver.
    ReportWanted(ReportWanted),
    /// A part of the sender's report.
    ReportPart(ReportPart),
}

/// A group is lost, and goes on with other members. Its owner decides that, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The group, the members that it goes on with (its *heirs*), which it never had before, and
    /// the number of that configuration: greater than any that the group had.
    pub config: Config,
    /// Who has to report: all members of all groups that are not lost.
    pub reporters: Vec<ProcessId>,
    /// Members of other groups that are lost beside it: what they say counts for nothing any more.
    /// They are to leave their groups by the usual changes once the heirs go on.
    pub lost: Vec<ProcessId>,
}

/// An heir wants a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportWanted {
    /// On what: who does not know that is sealed by it.
    pub fence: Arc<Fence>,
    /// From this byte.
    pub offset: u64,
}

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportPart {
    /// On which group.
    pub group: GroupId,
    /// The configuration of its heirs.
    pub number: u64,
    /// Where the part starts.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// The length of the whole.
    pub total: u64,
}
