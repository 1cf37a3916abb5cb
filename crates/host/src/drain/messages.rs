//! What is said of copies of blocks, between nodes, and to the owner who has the blocks.

use crate::space::Room;
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
        /// The configuration that the question was made under.
        version: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// I hold these, durably.
    Held {
        /// That of the question.
        number: u64,
        /// The configuration under which it came here.
        version: u64,
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
    /// Copy this to that node: to the one that asks, or to another as the one that asks cannot read
    /// it any more.
    Pass {
        /// Its name.
        block: BlockId,
        /// Who is to hold it, too.
        to: NodeId,
    },
    /// You want it passed, and it cannot be read here.
    Unread {
        /// Its name.
        block: BlockId,
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
        /// That of the question.
        version: u64,
        /// Those that are here, durably, and can be read.
        blocks: Vec<BlockId>,
        /// Those that are here, damaged.
        damaged: Vec<BlockId>,
    },
    /// To [`Output::Live`].
    Live {
        /// That of the question.
        number: u64,
        /// Names of blocks that files lie in, in order; none if there are no more.
        blocks: Vec<BlockId>,
    },
    /// To [`Output::Look`].
    Lacking {
        /// That of the question.
        number: u64,
        /// Those that are not here.
        blocks: Vec<BlockId>,
    },
    /// To [`Output::Scrub`].
    Scrubbed {
        /// That of the question.
        number: u64,
        /// How many bytes were read.
        bytes: u64,
        /// Those that are here, damaged.
        damaged: Vec<BlockId>,
    },
    /// A block was read here for somebody, and is damaged.
    Damaged(BlockId),
    /// All blocks are to be read now, as fast as they may be.
    Scrub,
    /// The disk has so much room.
    Room(Room),
    /// So many updates were applied here since the start.
    Applied(u64),
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
        /// To be given back.
        version: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Name the blocks that files lie in, of all partitions that this node has a replica of.
    Live {
        /// To be given back.
        number: u64,
        /// Those after this one.
        after: Option<BlockId>,
        /// So many at most.
        limit: usize,
    },
    /// Tell which of these are not here. None needs to be read.
    Look {
        /// To be given back.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Read those of these that are here.
    Scrub {
        /// To be given back.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Hold these no more: those hold them, whom the ring names.
    GiveUp(Vec<BlockId>),
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
    /// In the pass that is under way all blocks up to this one were read.
    Scrubbed(Option<BlockId>),
}

/// The timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tick {
    /// Each [`super::TICK`].
    Look,
    /// Sixteen times as often, while copies are fetched or read as fast as they may be.
    Pace,
}

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
    /// Nobody looks whether the blocks are here that should be.
    NeverLooks,
    /// Nobody reads blocks as long as no client does.
    NeverScrubs,
    /// A copy is given up when others were asked for theirs.
    GivesUpUnheard,
    /// A copy is given up though others were told of it that go by a newer configuration.
    GivesUpPromised,
}

impl Mutation {
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
