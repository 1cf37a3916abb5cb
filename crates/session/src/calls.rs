//! What the owner of a session asks for, what it is told, and what a session and a node say to each
//! other.

use crate::blocks::{Block, Part};
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_core::{BlockId, GroupId, MessageId, RegionId, Stamp, Time};
use meridian_fs::{Answer, Done, Durability, FsError, Ino, Place, Query, Vector};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request};
use meridian_host::update::Change;
use std::sync::Arc;
use std::time::Duration;

/// The owner's name of a call: no two calls of a session have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What a session and a node say to each other.
#[derive(Clone, Debug)]
pub enum Message {
    /// The session asks.
    Request(Request),
    /// The node answers.
    Reply(Reply),
}

/// What the owner asks for.
#[derive(Clone, Debug)]
pub enum Command {
    /// Do this, and tell what comes of it.
    Update {
        /// The call.
        call: CallId,
        /// What to do.
        change: Change,
        /// When to give up.
        deadline: Time,
    },
    /// Ask this.
    Read {
        /// The call.
        call: CallId,
        /// The question.
        query: Query,
        /// When to give up.
        deadline: Time,
    },
    /// Store this.
    Store {
        /// The call.
        call: CallId,
        /// For a file in this partition.
        partition: GroupId,
        /// The block.
        block: Block,
        /// When to give up.
        deadline: Time,
    },
    /// Fetch this.
    Fetch {
        /// The call.
        call: CallId,
        /// For a file in this partition.
        partition: GroupId,
        /// The part of a block.
        part: Part,
        /// When to give up.
        deadline: Time,
    },
    /// No update will ever name these blocks, which were stored or may have been: the nodes may
    /// free them. Nothing is told of it.
    Discard {
        /// They were for a file in this partition.
        partition: GroupId,
        /// Their names.
        blocks: Vec<BlockId>,
    },
    /// Go on as one who has seen this, too.
    Follow {
        /// The call.
        call: CallId,
        /// Of these partitions, up to there.
        seen: Vector,
        /// When to give up.
        deadline: Time,
    },
    /// Send an update again that has no answer yet, or go on with it until later.
    Again {
        /// The call.
        call: CallId,
        /// When to give up.
        deadline: Time,
    },
    /// Nobody waits for the call any more. An update may still happen, but not after a later one
    /// that touches the same and was acknowledged.
    Release(CallId),
    /// From now on answer looks from what may be kept: the owner obeys [`Output::Recalled`].
    Keep,
    /// From now on changes may be kept back ([`crate::Session::begin_new`]), so in directories that
    /// have no mode of their own: the owner obeys [`Output::Land`]. Comes after [`Command::Keep`].
    KeepBack(Keeping),
    /// Whether the order of what is kept back is kept: not while some node has no room for it.
    KeepOrder(bool),
    /// All that is kept back in order is to land: [`Output::Land`] tells what was not called for
    /// yet.
    Land,
    /// From now on keep nothing, and release all: the owner keeps nothing, either.
    KeepNothing,
    /// Nothing is kept any more of what was to be dropped.
    LetGo(Vec<(GroupId, Ino)>),
    /// The cluster is configured so now.
    Configured(Arc<Topology>),
    /// From now on a call that needs a group which is cut off waits until that has lasted so long.
    OnCut(Duration),
}

/// What a client may keep back in directories that it holds exclusively.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing.
    #[default]
    Nothing,
    /// New files, each until it is closed: they land in any order.
    Files,
    /// New files and removals of files, for a while. In each partition all that the client does
    /// lands in the order in which it was done (decision 104).
    InOrder,
}

impl From<Durability> for Keeping {
    fn from(mode: Durability) -> Keeping {
        match mode {
            Durability::Sync => Keeping::Nothing,
            Durability::Close => Keeping::Files,
            Durability::Fsync => Keeping::InOrder,
        }
    }
}

/// What the owner is to send of what is kept back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToLand {
    /// All that it has of that new file (`Update::Make`).
    File(Place),
    /// This, as a part of a batch or alone.
    Removal(meridian_fs::batch::Part),
}

/// What the owner is told: each call has one output, and one more each time that it is asked for
/// again after [`Output::GaveUp`]. [`Output::Recalled`], `Land`, `Cut` and `Reached` belong to no
/// call.
#[derive(Clone, Debug)]
pub enum Output {
    /// An update has been decided. The call is over.
    Updated {
        /// The call.
        call: CallId,
        /// Under which name it was multicast.
        id: MessageId,
        /// Its timestamp.
        ts: Stamp,
        /// What came of it.
        result: Result<Done, FsError>,
    },
    /// The owner is to drop what it keeps of these, and then to say [`Command::LetGo`]. It must not
    /// wait for any call before that: others wait for it.
    Recalled {
        /// The inodes, each with its partition.
        gone: Vec<(GroupId, Ino)>,
    },
    /// The owner is to send what is kept back, in this order, as soon as it can: others wait for
    /// it.
    Land {
        /// What.
        all: Vec<ToLand>,
    },
    /// Nobody answers for a group: calls that need it may be given up early.
    Cut {
        /// The group.
        group: GroupId,
    },
    /// A group that was cut off answers again.
    Reached {
        /// The group.
        group: GroupId,
        /// After so long.
        after: Duration,
    },
    /// A question has been answered. The call is over.
    Answered {
        /// The call.
        call: CallId,
        /// What the client had seen of the partition when it asked: the answer contains at least
        /// that.
        seen: Stamp,
        /// The answer.
        result: Result<Answer, FsError>,
    },
    /// A block is stored. The call is over.
    Stored {
        /// The call.
        call: CallId,
        /// The regions in which it is not: most have stored it.
        missing: Vec<RegionId>,
    },
    /// A part of a block has been fetched. The call is over.
    Fetched {
        /// The call.
        call: CallId,
        /// All that was asked for.
        data: Bytes,
    },
    /// The client has seen all that the other had. The call is over.
    Followed {
        /// The call.
        call: CallId,
    },
    /// There is no answer. All but an update is over; an update waits for [`Command::Again`] or
    /// [`Command::Release`].
    GaveUp {
        /// The call.
        call: CallId,
        /// Why.
        failure: Failure,
    },
}

impl Output {
    /// The call, if it belongs to one.
    pub fn call(&self) -> Option<CallId> {
        match self {
            Output::Recalled { .. }
            | Output::Land { .. }
            | Output::Cut { .. }
            | Output::Reached { .. } => None,
            Output::Updated { call, .. }
            | Output::Answered { call, .. }
            | Output::Stored { call, .. }
            | Output::Fetched { call, .. }
            | Output::Followed { call }
            | Output::GaveUp { call, .. } => Some(*call),
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer in time.
    Timeout {
        /// From this group.
        group: GroupId,
    },
    /// Some groups do not have what another has seen of them.
    Behind {
        /// These, or no node could be asked.
        groups: Vec<GroupId>,
    },
    /// No node could be reached.
    Unreachable {
        /// Of this group.
        group: GroupId,
    },
    /// A node told that a group which the update is for cannot be reached.
    OutOfReach {
        /// That group.
        group: GroupId,
    },
    /// A node told that the request makes no sense.
    Refused(Refusal),
    /// Too many nodes have no room for a block.
    NoSpace,
    /// Too few nodes stored a block in time.
    TooFewNodes {
        /// Of this region.
        region: RegionId,
    },
    /// All nodes that may hold a block have answered that they do not, or damaged.
    Lost {
        /// The block.
        block: BlockId,
    },
    /// Each node that holds a block has answered that it ends before this part does.
    Beyond {
        /// What was asked for.
        part: Part,
    },
    /// A node answered something else than what was asked.
    Strange(Box<ReplyBody>),
}

/// What a session's timer is for: something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Due;
