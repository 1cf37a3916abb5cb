//! Why a call of the client of keys failed.

use thiserror::Error;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeysError {
    /// There is no node to ask.
    #[error("no address of a node was given")]
    Nobody,
    /// No node could be reached, or none would answer, in time. Nothing was changed.
    #[error("no node answers at {addresses}: {why}")]
    Unreachable {
        /// Where.
        addresses: String,
        /// What the last one said.
        why: String,
    },
    /// The end of a change is not known: a node that may have made it, or may still, does not
    /// answer.
    #[error("it is not known whether the change was made: {why}")]
    Unknown {
        /// What was seen last.
        why: String,
    },
    /// It cannot be done.
    #[error("{0}")]
    Refused(String),
    /// What answers is no server of keys.
    #[error("no server of keys answers: {0}")]
    Protocol(String),
}
