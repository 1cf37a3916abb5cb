//! What is said to the node that is drained, and by it.

use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_core::{BlockId, NodeId, PLANTED_BUGS};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Which of these do you hold?
    Which {
        /// To be given back.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// I hold these, durably.
    Held {
        /// That of the question.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Store this.
    Copy {
        /// Its name.
        block: BlockId,
        /// All of it.
        data: Bytes,
    },
    /// What came of a copy.
    Copied {
        /// Its name.
        block: BlockId,
        /// Whether it is durable here.
        stored: bool,
    },
    /// I cannot read this any more, and you hold it: copy it to that node.
    Pass {
        /// Its name.
        block: BlockId,
        /// Who is to hold it, too.
        to: NodeId,
    },
}

/// What the owner, who has the blocks, asks or answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The cluster is configured so now.
    Configured(Arc<Topology>),
    /// To [`Output::List`].
    Names {
        /// That of the question.
        number: u64,
        /// Names of blocks, in order; none if there are no more.
        blocks: Vec<BlockId>,
    },
    /// To [`Output::Which`].
    Held {
        /// Who asked.
        by: NodeId,
        /// That of the question.
        number: u64,
        /// Those that are here, durably, and can be read.
        blocks: Vec<BlockId>,
    },
    /// To [`Output::Read`].
    Data {
        /// Its name.
        block: BlockId,
        /// That of the question.
        to: Option<NodeId>,
        /// All of it; `None` if it cannot be read.
        data: Option<Bytes>,
    },
    /// To [`Output::Store`].
    Stored {
        /// Who sent it.
        from: NodeId,
        /// Its name.
        block: BlockId,
        /// Whether it is durable here.
        stored: bool,
    },
    /// To [`Output::Seal`].
    Sealed,
}

/// What the owner is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Name the blocks that are here, [`super::PAGE`] at a time.
    List {
        /// To be given back.
        number: u64,
        /// Those after this one.
        after: Option<BlockId>,
    },
    /// Tell which of these are here and can be read, once they are durable.
    Which {
        /// Who asks.
        by: NodeId,
        /// To be given back.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Read a block.
    Read {
        /// Its name.
        block: BlockId,
        /// To be given back: who is to get it, if another node asked for that.
        to: Option<NodeId>,
    },
    /// Store a block.
    Store {
        /// Who sent it.
        from: NodeId,
        /// Its name.
        block: BlockId,
        /// All of it.
        data: Bytes,
    },
    /// No block is taken any more ([`super::Drain::takes_blocks`]): tell when all that was taken
    /// before is durable and listed.
    Seal,
    /// What is here is on enough nodes that stay. Said again until the configuration knows.
    Drained {
        /// See [`meridian_cluster::topology::Draining::since`].
        since: u64,
    },
}

/// What is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// No block is taken any more.
    Sealed {
        /// See [`meridian_cluster::topology::Draining::since`].
        since: u64,
    },
    /// The node stays, so it takes blocks again.
    Unsealed,
}

/// The only timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// So many blocks are on enough nodes that stay.
    pub safe: u64,
    /// All are, and it was reported.
    pub done: bool,
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// A node goes first, and the others copy what is on too few of them afterwards.
    GoesFirst,
    /// Reports without a seal and a last look.
    NeverSeals,
    /// Takes its last look before all that it took is listed.
    LooksEarly,
    /// Does not write the seal to disk.
    ForgetsSeal,
    /// Counts a copy when it is sent.
    CountsSent,
    /// Takes no blocks though it stays.
    StaysSealed,
    /// Takes blocks again under a configuration from before its drain.
    OpensEarly,
}

impl Mutation {
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
