//! What the owner of a replica of keys asks and is told: the same for [`Craq`] and [`Zab`].
//!
//! [`Craq`]: crate::Craq
//! [`Zab`]: crate::Zab

use bytes::Bytes;
use meridian_core::{Key, NodeId, Value};
use serde::{Deserialize, Serialize};

/// What the owner asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// To read a key.
    Read {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
    },
    /// To write a key.
    Write {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
        /// What it has then.
        value: Bytes,
    },
}

/// What the owner is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answered {
    /// To this question.
    pub token: u64,
    /// What.
    pub answer: Answer,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// What was read; `None` if nothing was ever written.
    Value(Option<Bytes>),
    /// The write is done.
    Written,
}

/// A write on its way through the replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Write {
    /// Which replica was asked for it.
    pub origin: NodeId,
    /// What that replica gives back to its owner.
    pub token: u64,
    /// Which key.
    pub key: Key,
    /// What it has then.
    pub value: Value,
}

impl Write {
    /// A write that a replica was asked for.
    pub(crate) fn asked(origin: NodeId, token: u64, key: &Bytes, value: Bytes) -> Write {
        Write { origin, token, key: key[..].into(), value: value.into() }
    }
}
