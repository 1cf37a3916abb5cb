//! What the replica of the configuration says to others, to its node, and to its disk.

use meridian_cluster::{Topology, configuration};
use meridian_core::{NodeId, PLANTED_BUGS};
use meridian_paxos as paxos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Names what the replica asks itself. No client is given it: theirs are counted from 1.
pub(super) const OWN_TOKEN: u64 = 0;

/// From the replica of one node to that of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Of the protocol.
    Paxos(paxos::Message),
    /// The sender's replica begins now: what it was sent before is lost.
    Began,
}

/// What the node asks of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The cluster is configured so now, as far as the node knows.
    Configured(Arc<Topology>),
    /// A client of the service asks.
    Service(paxos::Command),
}

/// What is made durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// The node keeps the configuration.
    Began {
        /// The version that says so.
        since: u64,
        /// Those that keep it, as far as the replica must know to begin.
        members: BTreeSet<NodeId>,
    },
    /// Of the protocol.
    Paxos(paxos::Record),
    /// The node keeps the configuration no more.
    Ended,
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the protocol.
    Paxos(paxos::Timer),
    /// To look whether something is to be asked of all replicas.
    Tick,
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// A replica ends when another is named in its place, not when that takes part.
    EndsEarly,
    /// A replica that comes later begins with those that are named, as if they were the first.
    BeginsAlone,
    /// A replica that comes later begins with those that kept the configuration first, as if they
    /// still did.
    BeginsWithFirst,
    /// One of the service.
    InService(configuration::Mutation),
}

impl Mutation {
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }

    pub(super) fn in_service(self) -> configuration::Mutation {
        if let Mutation::InService(planted) = self { planted } else { Default::default() }
    }
}
