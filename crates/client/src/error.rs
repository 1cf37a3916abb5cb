//! Why a call of the client fails, and which errno that is.

use meridian_cluster::topology::TopologyError;
use meridian_core::level::Level;
use meridian_fs::FsError;
use meridian_host::api::Refusal;
use meridian_keys::causal::TokenError;
use std::path::PathBuf;

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The tree refuses it: nothing was done.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// No answer in time. An update may still happen.
    #[error("no answer in time: {what}")]
    Timeout {
        /// What was asked, of whom.
        what: String,
    },
    /// No node that could answer can be reached.
    #[error("cannot reach {whom}")]
    Unreachable {
        /// The group, region or node.
        whom: String,
    },
    /// A node answers that a group which the update is for cannot be reached: nobody can decide it
    /// now. It may still happen.
    #[error("{whom} cannot be reached from the other regions")]
    OutOfReach {
        /// The group.
        whom: String,
    },
    /// A node answers that it cannot.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// A block is on no node that should have it, or damaged on all, or shorter than the file says.
    #[error("lost data: {0}")]
    Lost(String),
    /// What a node answered makes no sense.
    #[error("{0}")]
    Protocol(String),
    /// Not all nodes know of it yet.
    #[error(
        "{what} needs feature level {needs}, and the cluster goes by level {now}: upgrade all \
         nodes, and let the level rise (`meridian cluster level`)"
    )]
    Level {
        /// What was asked for.
        what: &'static str,
        /// What it needs.
        needs: Level,
        /// By which level the cluster goes.
        now: Level,
    },
    /// The client only notes what it would ask for.
    #[error("it was only planned, and not sent")]
    NotSent,
}

impl ClientError {
    /// The errno that a program sees.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const EOPNOTSUPP: i32 = 95;
        const ETIMEDOUT: i32 = 110;
        match self {
            ClientError::Fs(error) => error.errno(),
            ClientError::Level { .. } => EOPNOTSUPP,
            ClientError::Timeout { .. }
            | ClientError::Unreachable { .. }
            | ClientError::OutOfReach { .. } => ETIMEDOUT,
            ClientError::Refused(Refusal::Full) => FsError::NoSpace.errno(),
            ClientError::Refused(_)
            | ClientError::Lost(_)
            | ClientError::Protocol(_)
            | ClientError::NotSent => EIO,
        }
    }

    /// Whether nobody knows if it happened, or will.
    pub fn is_unknown(&self) -> bool {
        match self {
            ClientError::Fs(_) | ClientError::Level { .. } | ClientError::NotSent => false,
            ClientError::Timeout { .. }
            | ClientError::Unreachable { .. }
            | ClientError::OutOfReach { .. }
            | ClientError::Refused(_)
            | ClientError::Lost(_)
            | ClientError::Protocol(_) => true,
        }
    }
}

/// Why files do not go on from a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// It is none that can be taken over here.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Not all that its session saw is here.
    #[error(
        "TIMEOUT this mount does not have all that the session saw: it lacks what it saw of \
         {lacks}; ask again, or for longer"
    )]
    Behind {
        /// The partitions, and which of them are cut off.
        lacks: String,
    },
}

impl TakeError {
    /// The errno that a program sees.
    pub fn errno(&self) -> i32 {
        const EINVAL: i32 = 22;
        const ETIMEDOUT: i32 = 110;
        match self {
            TakeError::Token(_) => EINVAL,
            TakeError::Behind { .. } => ETIMEDOUT,
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file says nothing sensible.
    #[error("{}: {source}", path.display())]
    Topology {
        /// Which.
        path: PathBuf,
        /// Why.
        source: TopologyError,
    },
    /// No such region.
    #[error("there is no region {name:?}; there are: {known}")]
    Region {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The operating system gives no random bytes.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
}
