//! What nodes say to each other, to their shells, and to their disks.

use super::heirs::{Inheritance, VotesPart};
use crate::api::{Reply, Request};
use crate::configuration;
use crate::drain;
use crate::replica::ConnectionId;
use crate::space;
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_core::{GroupId, MessageId};
use meridian_fs::vote::Vote;
use meridian_multicast as multicast;
use meridian_paxos as paxos;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From one process of the multicast to another.
    Multicast {
        /// The group of the sender.
        from: GroupId,
        /// The group of the receiver.
        to: GroupId,
        /// What it says.
        message: multicast::Message,
    },
    /// A partition's vote.
    Vote {
        /// Whose.
        from: GroupId,
        /// For a replica of which group.
        to: GroupId,
        /// For which message.
        id: MessageId,
        /// The vote.
        vote: Vote,
    },
    /// A partition keeps its vote no more: a quorum of each destination has applied the message.
    VoteSettled {
        /// Whose vote.
        from: GroupId,
        /// For a replica of which group.
        to: GroupId,
        /// For which message.
        id: MessageId,
    },
    /// A replica lacks a vote.
    VoteWanted {
        /// Of which group the replica is.
        by: GroupId,
        /// Whose vote.
        of: GroupId,
        /// For which message.
        id: MessageId,
    },
    /// What a node holds is given to others.
    Drain(drain::Message),
    /// Between those that keep the configuration.
    Configuration(configuration::Message),
    /// The sender begins as an heir of this group: whatever was said to it before is lost.
    Begins(GroupId),
    /// The sender is an heir, and lacks a report on votes.
    VotesWanted {
        /// Of the lost group.
        of: GroupId,
        /// The configuration of the heirs.
        number: u64,
        /// By the replica of which group; of the lost one: all reports together, of another heir.
        by: GroupId,
        /// From this byte.
        offset: u64,
    },
    /// A part of one.
    VotesPart(VotesPart),
}

/// What the server's shell passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A client's request: an update or a read.
    Request {
        /// Where it came.
        connection: ConnectionId,
        /// What.
        request: Request,
    },
    /// The client of a connection is called that in its certificate. Comes before its requests.
    Known {
        /// Which connection.
        connection: ConnectionId,
        /// The client's name.
        client: String,
    },
    /// A client's connection is gone.
    Closed(ConnectionId),
    /// The cluster is configured so now.
    Configured(Arc<Topology>),
    /// Of the blocks that this node holds.
    Drain(drain::Command),
    /// The names of the blocks that this node holds.
    Space(space::Command),
    /// A client of the configuration asks.
    Configuration(paxos::Command),
}

/// What the server's shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Answer a client.
    Reply {
        /// Where.
        connection: ConnectionId,
        /// What.
        reply: Reply,
    },
    /// In a group whose members change, the next ones count now.
    InForce {
        /// The group.
        group: GroupId,
        /// The number of that configuration.
        number: u64,
    },
    /// Do something with the blocks that this node holds, or report.
    Drain(drain::Output),
    /// Name the blocks that this node holds, or free some.
    Space(space::Output),
    /// What the replica of the configuration tells its clients.
    Configuration(paxos::Output),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the multicast's process of a group.
    Multicast(GroupId, multicast::Timer),
    /// Of the replica of a group: see [`crate::replica::Replica::on_tick`].
    Replica(GroupId),
    /// Of what gives this node's blocks to others.
    Drain(drain::Tick),
    /// Of what frees blocks.
    Space(space::Tick),
    /// Of the replica of the configuration.
    Configuration(configuration::Timer),
}

/// What is made durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Of the multicast's process of a group.
    Multicast {
        /// Which group.
        group: GroupId,
        /// What.
        record: multicast::Record,
    },
    /// A vote came from another node: durable before anything is said that rests on it.
    Vote {
        /// Of which group.
        from: GroupId,
        /// For our replica of which group.
        to: GroupId,
        /// For which message.
        id: MessageId,
        /// The vote.
        vote: Vote,
    },
    /// This node gives its blocks to others.
    Drain(drain::Record),
    /// Of the replica of the configuration.
    Configuration(configuration::Record),
    /// What our replica of `by` reports of the votes of a lost group. Follows the record by which
    /// that replica is sealed.
    VotesReport {
        /// The lost group.
        of: GroupId,
        /// The configuration of its heirs.
        number: u64,
        /// Of which group the replica is.
        by: GroupId,
        /// The votes, encoded.
        votes: Bytes,
    },
    /// This node begins as an heir.
    Inherited(Inheritance),
}
