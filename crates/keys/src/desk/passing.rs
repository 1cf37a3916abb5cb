//! What the desks of a node say to each other: each has the clients of its thread, and the keys of
//! its shard. Between two desks there is one way, which keeps the order and loses nothing.

use super::ClientNumber;
use super::watch::Subject;
use crate::access::Access;
use crate::causal::desk as causal;
use crate::grant::Grant;
use crate::resp::Reply;
use bytes::Bytes;
use meridian_core::{MessageId, NodeId};
use meridian_hermes::Epoch;
use std::sync::Arc;

/// Names a part of a client's request, which is answered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whose connection.
    pub client: ClientNumber,
    /// The number of the request on it.
    pub request: u64,
    /// Which key of the request, from 0 on.
    pub part: usize,
}

/// What is asked of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The key.
    pub key: Bytes,
    /// Its name, if it may be asked again.
    pub id: Option<MessageId>,
    /// What is done to it.
    pub access: Access,
}

/// Asks for some keys of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// From this place on.
    pub from: u32,
    /// Only keys that match it.
    pub pattern: Option<Bytes>,
    /// Only keys that this has, if the client has one.
    pub grant: Option<Arc<Grant>>,
    /// So many are looked at.
    pub count: usize,
}

/// What one desk says to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Passed {
    /// A client wants something of a key.
    Wish(Part, Wish),
    /// A client wants some keys.
    Walk(Part, Walk),
    /// A client asks whether nothing more comes of what that node was asked, live in that epoch.
    Settled(Part, NodeId, Epoch),
    /// A client wants something of causal keys.
    Causal(Part, causal::Wish),
    /// A client that has wanted something of causal keys is gone.
    Left(ClientNumber),
    /// The answer to one of these.
    Answer(Part, Reply),
    /// A client wants to be told of changes.
    Watch(ClientNumber, Subject),
    /// It does no more.
    Unwatch(ClientNumber),
    /// A change for a client of the receiver: the key's value, if it has one.
    Changed(ClientNumber, Bytes, Option<Bytes>),
    /// The client has room for so many bytes more of changes.
    Taken(ClientNumber, usize),
}
