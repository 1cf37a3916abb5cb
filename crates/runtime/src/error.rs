//! What can go wrong.

use meridian_core::GroupId;
use std::io;
use std::path::PathBuf;

/// Why a member does not start, or stopped.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MemberError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {why}")]
    Address {
        /// Which.
        address: String,
        /// What the system says.
        why: String,
    },
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// What lies in the member's directory cannot be used, or the disk failed.
    #[error("the log: {0}")]
    Log(String),
    /// A record of the log is none of this process's.
    #[error("{}: record {number} does not decode ({why}): written by another version?", dir.display())]
    Record {
        /// The directory of the log.
        dir: PathBuf,
        /// Its number.
        number: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The thread that members run on is gone, or cannot be started.
    #[error("no thread for the member: {0}")]
    Thread(String),
    /// Others remember more of it than it does itself: how far its log went.
    #[error("{0}")]
    Forgot(String),
    /// What runs on it has stopped it, for this reason.
    #[error("{0}")]
    Halted(String),
    /// It was closed, or a bug has shown itself and it stopped rather than go on.
    #[error("the member has stopped")]
    Stopped,
}

impl MemberError {
    pub(crate) fn address(address: &str, error: &io::Error) -> MemberError {
        MemberError::Address { address: address.into(), why: error.to_string() }
    }
}

/// Why a message was not delivered, as far as the sender knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MulticastError {
    /// There is no such group.
    #[error("there is no group {}", .0.0)]
    NoGroup(GroupId),
    /// The sender's group must be among the destinations, or nobody can say when it is delivered.
    #[error("group {} is the sender's own and not among the destinations", .0.0)]
    NotAmong(GroupId),
    /// A quorum of this group has been out of reach for a while: nothing was sent.
    #[error("group {} cannot be reached", .0.0)]
    Unreachable(GroupId),
    /// It was not delivered in time, and this group is the one that cannot be reached, or else the
    /// sender's own. It may be delivered later.
    #[error("not delivered in time: group {} holds it up", .0.0)]
    Timeout(GroupId),
    /// The member has stopped. It may be delivered, or not.
    #[error("the member has stopped")]
    Stopped,
}
