//! Anybody may multicast (thesis, section 2.2): senders that are members of no group.
//!
//! A [`Sender`] asks one member of a destination to multicast its message, and others in turn until
//! one answers. A member's [`Desk`] passes on what is asked for, and answers once the member has
//! delivered it: what one has delivered, all destinations will. Only the sender and the
//! destinations take part.
//!
//! A message keeps its name however often it is asked for, so it is delivered once. What is
//! forgotten of clients that were not heard of for long ([`crate::done`]) would let a repeat pass.
//! So a sender repeats nothing after [`GIVE_UP_MAX`], and in that time all members together take so
//! few new clients ([`CLIENTS_MAX`]) that none of them is forgotten.
//!
//! Invariants:
//! - O1: a message is asked for under one name, and nobody asks for it after its call has ended.
//! - O2: a call ends with [`Failure::is_certain`] only if no member has passed its message on, nor
//!   will.
//! - O3: `low` never passes a message that may be under way.

mod desk;
mod sender;

pub use desk::Desk;
pub use sender::{CallId, Command, Due, Outgoing, Output, Sender};

use crate::done::CLIENTS_AT_LEAST;
use crate::message::{Start, Timestamp};
use meridian_core::{GroupId, MessageId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// So long a call may take at most.
pub const GIVE_UP_MAX: Duration = Duration::from_secs(60);
/// So many new clients all members of all groups together take in twice [`GIVE_UP_MAX`]: what a
/// group remembers, less a half for members and for clients that have another way.
pub const CLIENTS_MAX: usize = CLIENTS_AT_LEAST / 2;
/// The longest payload, in bytes: a START must fit into a frame with what names it.
pub const PAYLOAD_MAX: usize = 3 << 20;

/// What a sender and a member say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Say {
    /// The sender: multicast this.
    Start(Start),
    /// The member has delivered it.
    Delivered {
        /// Which message.
        id: MessageId,
        /// Its final timestamp.
        ts: Timestamp,
    },
    /// The member has not passed it on, and will not: unless the sender asked before.
    Refused {
        /// Which message.
        id: MessageId,
        /// Why.
        why: Refusal,
    },
}

/// Why a member passes a message not on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// This group has no quorum in reach.
    Unreachable(GroupId),
    /// The member knows no such group.
    NoGroup(GroupId),
    /// The member's group is not among the destinations, or they are not ascending, or the message
    /// changes members.
    NotForUs,
    /// Too many clients are new: another member may have room, or this one later.
    Busy,
}

/// Why a call ended without a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No destination is given.
    NoDestination,
    /// There is no such group.
    NoGroup(GroupId),
    /// The payload has so many bytes: more than [`PAYLOAD_MAX`].
    TooLong(usize),
    /// A member says that this group has no quorum in reach.
    Unreachable(GroupId),
    /// All members that were asked have enough new clients.
    Busy,
    /// No answer in time: it may be delivered yet, at all destinations, or at none.
    Unknown,
}

impl Failure {
    /// Whether the message is certainly delivered nowhere, and will not be.
    pub fn is_certain(self) -> bool {
        self != Failure::Unknown
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoDestination => f.write_str("no group is given to multicast to"),
            Failure::NoGroup(group) => write!(f, "there is no group {}", group.0),
            Failure::TooLong(len) => write!(f, "{len} bytes are more than {PAYLOAD_MAX}"),
            Failure::Unreachable(group) => {
                write!(f, "group {} cannot be reached; nothing was sent", group.0)
            }
            Failure::Busy => f.write_str("too many clients are new; nothing was sent: try later"),
            Failure::Unknown => f.write_str(
                "no member has answered in time: the message may be delivered yet, or never",
            ),
        }
    }
}

impl std::error::Error for Failure {}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// The sender gives each repeat a name of its own.
    RenamesRepeats,
    /// The sender takes each refusal for certain, whatever it asked before.
    BelievesRefusals,
    /// The sender says of what it gave up that it is over.
    ForgetsGivenUp,
    /// The desk answers before the message is delivered.
    AnswersAtOnce,
    /// The desk refuses what it has passed on for another connection.
    RefusesPassedOn,
}

impl Mutation {
    fn is(self, mutation: Mutation) -> bool {
        crate::mutation::PLANTED && self == mutation
    }
}
