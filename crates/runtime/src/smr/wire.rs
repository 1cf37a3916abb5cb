//! What clients and replicas say to each other. A frame holds any number of these, one after the
//! other.

use bytes::Bytes;
use meridian_core::frame::MAX_BODY;
use meridian_core::{ClientId, NodeId};
use meridian_paxos::{Answer, Batch, Consistency};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest request, question or answer, in bytes: it must fit into a frame with what names it.
pub const PAYLOAD_MAX: usize = MAX_BODY - 1024;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// An identity; the answer is [`Told::Connected`], or [`Told::Refused`].
    Identity {
        /// To be given back.
        token: u64,
    },
    /// Requests of any number of clients; each is answered by [`Told::Reply`].
    Requests(Batch),
    /// A read; answered by [`Told::Read`].
    Read {
        /// To be given back.
        token: u64,
        /// For the service.
        question: Bytes,
        /// How fresh.
        consistency: Consistency,
    },
    /// This client has ended.
    Gone(ClientId),
}

/// What a replica tells a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// The first on each connection.
    Welcome {
        /// Which replica this is.
        me: NodeId,
        /// Which one leads, as far as it knows.
        leader: Option<NodeId>,
        /// The replicas, and where each listens.
        members: BTreeMap<NodeId, String>,
    },
    /// The same, whenever they change.
    Members(BTreeMap<NodeId, String>),
    /// Answers [`Asked::Identity`].
    Connected {
        /// As asked.
        token: u64,
        /// The identity.
        client: ClientId,
    },
    /// The replica gives no identities now: ask another.
    Refused {
        /// As asked.
        token: u64,
    },
    /// Answers a request.
    Reply {
        /// Whose.
        client: ClientId,
        /// Which.
        sequence: u64,
        /// What came of it.
        answer: Answer,
    },
    /// Answers a read.
    Read {
        /// As asked.
        token: u64,
        /// What came of it.
        answer: Answer,
    },
    /// A request was executed, and its reply is longer than [`PAYLOAD_MAX`].
    LongReply {
        /// Whose.
        client: ClientId,
        /// Which.
        sequence: u64,
    },
    /// The answer to a read is longer than [`PAYLOAD_MAX`].
    LongAnswer {
        /// As asked.
        token: u64,
    },
    /// The last on a connection that the replica ends: why.
    Closing(String),
}
