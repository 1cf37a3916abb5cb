//! What clients and nodes say to each other, and what nodes say to nodes: the bodies of frames.
//!
//! After the [`meridian_core::hello`] a client sends frames of one [`Request`] or more, one after
//! the other, and the node answers each request with one [`Reply`] of the same id, in any order and
//! any number to a frame. Nodes send each other [`meridian_core::link`] packets.

use crate::drain::keep::Report as Copies;
use crate::space::Room;
use crate::steps::Report;
use bytes::Bytes;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, NodeId, Position, Stamp};
use meridian_fs::{Answer, Done, FsError, Holdings, Ino, Query, Vector};
use meridian_multicast::{Epoch, Start, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's number for it, unique on its connection.
    pub id: u64,
    /// What.
    pub body: RequestBody,
}

/// See [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Multicast `start`, whose payload is a [`meridian_fs::Operation`] in postcard, and answer
    /// when the partition `group` (one of its destinations, of which this node has a replica) has
    /// applied it. The client sends the same to a node of each destination, keeps the id when it
    /// sends again, and is answered once more each time: any one answer ends the update.
    Update {
        /// Whose replica here is asked.
        group: GroupId,
        /// What to multicast.
        start: Start,
    },
    /// Answer `query` from the replica of its partition here, once that has applied all messages up
    /// to what `vector` says of it that touch what is asked for. Attributes of entries that are not
    /// so far are left out.
    Read {
        /// What the client has seen.
        vector: Vector,
        /// Under which name it holds capabilities.
        by: ClientId,
        /// The question.
        query: Query,
    },
    /// Tell, as soon as there are any or after [`crate::replica::POLL_MAX`], which capabilities the
    /// client is to let go.
    Recalls {
        /// Whose replica here is asked.
        group: GroupId,
        /// Under which name the client holds them.
        by: ClientId,
    },
    /// Store a block, durably.
    PutBlock {
        /// Its name.
        block: BlockId,
        /// Its bytes; 1 to [`meridian_fs::types::BLOCK_MAX`].
        data: Bytes,
    },
    /// Read a part of a block.
    GetBlock {
        /// Its name.
        block: BlockId,
        /// From this byte.
        offset: u32,
        /// So many.
        len: u32,
    },
    /// Free these blocks: the client has stored them, and no update will ever name them. Those that
    /// are named all the same stay.
    Discard {
        /// Their names, [`NAMES_MAX`] at most.
        blocks: Vec<BlockId>,
    },
    /// Name the blocks that you hold, in order, [`NAMES_MAX`] at a time.
    ListBlocks {
        /// Those after this one.
        after: Option<BlockId>,
    },
    /// Tell how you are.
    Status,
    /// Read all blocks that you should hold now, as fast as you may, and tell how you are.
    Scrub,
    /// A step of keeping, or reading, the state at one timestamp (decision 95). Only for clients
    /// that may look at all of the tree.
    Snapshot {
        /// Whose replica here is asked.
        group: GroupId,
        /// Which snapshot.
        name: u64,
        /// What to do.
        step: SnapshotStep,
    },
    /// Tell what you have done for a message, and when, as far as you remember: see
    /// [`crate::steps`].
    Steps {
        /// The message.
        of: MessageId,
    },
    /// As [`RequestBody::Read`]; if the answer has the attributes of a directory, its first entries
    /// come along, and what is below it as far as there is room.
    ///
    /// Of [`Level::ALONG`](meridian_core::level::Level::ALONG).
    ReadAlong {
        /// What the client has seen.
        vector: Vector,
        /// Under which name it holds capabilities.
        by: ClientId,
        /// The question.
        query: Query,
    },
    /// As [`RequestBody::Update`]; if it grants capabilities, answers to questions come along.
    ///
    /// Of [`Level::ALONG`](meridian_core::level::Level::ALONG).
    UpdateAlong {
        /// Whose replica here is asked.
        group: GroupId,
        /// The message.
        start: Start,
        /// The questions, [`ALONG_MAX`] at most, about inodes that it grants.
        queries: Vec<Query>,
    },
}

/// So many answers come along with another: one for each inode that a step grants, and one more.
pub const ALONG_MAX: usize = meridian_fs::GRANT_MAX + 1;

/// The name of what stands before the entries of a directory that is below another, among those
/// that come along with an answer which shows that: it leads to the directory, and has no
/// attributes.
pub const HERE: &[u8] = b".";

impl RequestBody {
    /// Whose replica is asked; none if the node is: then the shell answers, or the node itself.
    pub(crate) fn group(&self) -> Option<GroupId> {
        match self {
            RequestBody::Update { group, .. }
            | RequestBody::UpdateAlong { group, .. }
            | RequestBody::Recalls { group, .. }
            | RequestBody::Snapshot { group, .. } => Some(*group),
            RequestBody::Read { query, .. } | RequestBody::ReadAlong { query, .. } => {
                Some(query.partition())
            }
            RequestBody::PutBlock { .. }
            | RequestBody::GetBlock { .. }
            | RequestBody::Discard { .. }
            | RequestBody::ListBlocks { .. }
            | RequestBody::Scrub
            | RequestBody::Steps { .. }
            | RequestBody::Status => None,
        }
    }
}

/// What a replica is to do with a snapshot. Each step but [`SnapshotStep::End`] begins its lease
/// anew ([`crate::replica::SNAPSHOT_LEASE`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStep {
    /// Keep the state, and what is delivered from now on.
    Keep,
    /// Make it the state at this timestamp: with all messages up to there, and none after it.
    Cut(Stamp),
    /// Answer from the state at this timestamp. From now on there is no other.
    Look {
        /// The timestamp.
        at: Stamp,
        /// The questions; at most [`LOOKS_MAX`].
        queries: Vec<Query>,
    },
    /// It is still wanted.
    Renew,
    /// It is not.
    End,
}

/// So many questions one [`SnapshotStep::Look`] asks at most.
pub const LOOKS_MAX: usize = 4096;

/// How it stands with a snapshot at a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStand {
    /// It is kept.
    Kept,
    /// What was kept has messages after that timestamp: it takes a later one.
    Passed,
    /// Some message up to that timestamp is not here, or not decided: ask again.
    Waiting,
    /// It is the state at that timestamp. Who has seen it must have seen that of each partition.
    Whole(Vector),
    /// It is not kept here: the node was started anew, it was not asked for longer than the lease,
    /// or more was ordered than can be kept before it was whole.
    Unknown,
    /// Answers to the first questions, to one at least: the others are to be asked again.
    Answers(Vec<Result<Answer, FsError>>),
}

/// So many blocks are named at a time: 64 KiB.
pub const NAMES_MAX: usize = 4096;

/// A node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's.
    pub id: u64,
    /// What.
    pub body: ReplyBody,
}

/// See [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyBody {
    /// To [`RequestBody::Update`]: it is ordered, durable and applied (or refused) everywhere
    /// alike.
    Updated {
        /// The message.
        id: MessageId,
        /// Its timestamp.
        ts: Stamp,
        /// What the client has now seen.
        vector: Vector,
        /// What the client is to let go of this group.
        recalled: Vec<Ino>,
        /// Without the answers of these groups, too, the update is not acknowledged: others may
        /// hold what it changed there.
        and: Vec<GroupId>,
        /// What came of it.
        result: Result<Done, FsError>,
    },
    /// To [`RequestBody::Read`].
    Answer {
        /// What the client has now seen.
        vector: Vector,
        /// What the client is to let go of this group.
        recalled: Vec<Ino>,
        /// Whether it tells all up to what the client had seen: an answer about a directory may
        /// lack what is undecided, and must not be kept then.
        whole: bool,
        /// The answer.
        result: Result<Answer, FsError>,
    },
    /// To [`RequestBody::Recalls`].
    Recalled {
        /// What the client has now seen.
        vector: Vector,
        /// What it is to let go; nothing if the time is over.
        inodes: Vec<Ino>,
    },
    /// To [`RequestBody::PutBlock`]: it is durable here.
    Stored,
    /// To [`RequestBody::GetBlock`].
    Block(Bytes),
    /// To [`RequestBody::Discard`]: they go soon.
    Discarded,
    /// To [`RequestBody::ListBlocks`]: none if there are no more.
    Blocks(Vec<BlockId>),
    /// To [`RequestBody::Status`] and [`RequestBody::Scrub`].
    Status(Box<NodeStatus>),
    /// To [`RequestBody::Snapshot`].
    Snapshot(SnapshotStand),
    /// The node cannot do it; another may. Nothing was done, or (for an update) it may still
    /// happen.
    Refused(Refusal),
    /// To [`RequestBody::Steps`].
    Steps(Report),
    /// To [`RequestBody::ReadAlong`], if something comes along: as [`ReplyBody::Answer`].
    AnswerAlong {
        /// What the client has now seen.
        vector: Vector,
        /// What the client is to let go of this group.
        recalled: Vec<Ino>,
        /// As there.
        whole: bool,
        /// The answer.
        result: Result<Answer, FsError>,
        /// The first entries of the directory, [`meridian_fs::GRANT_MAX`] less one at most. As far
        /// as there is room for all entries of a directory that is among them, these come after
        /// them, breadth first, and before them one that is called [`HERE`].
        along: Box<Answer>,
    },
    /// To [`RequestBody::UpdateAlong`], if something comes along: as [`ReplyBody::Updated`].
    UpdatedAlong(Box<UpdatedAlong>),
}

/// See [`ReplyBody::UpdatedAlong`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatedAlong {
    /// The message.
    pub id: MessageId,
    /// Its timestamp.
    pub ts: Stamp,
    /// What the client has now seen.
    pub vector: Vector,
    /// What the client is to let go of this group.
    pub recalled: Vec<Ino>,
    /// As there.
    pub and: Vec<GroupId>,
    /// What came of it.
    pub result: Result<Done, FsError>,
    /// Answers to the first questions. What they tell of an inode that was granted is not older
    /// than the grant; what they tell of others may be.
    pub along: Vec<Result<Answer, FsError>>,
}

impl ReplyBody {
    /// The same without what came along, and that.
    pub fn apart(self) -> (ReplyBody, Vec<Result<Answer, FsError>>) {
        match self {
            ReplyBody::AnswerAlong { vector, recalled, whole, result, along } => {
                (ReplyBody::Answer { vector, recalled, whole, result }, vec![Ok(*along)])
            }
            ReplyBody::UpdatedAlong(told) => {
                let UpdatedAlong { id, ts, vector, recalled, and, result, along } = *told;
                (ReplyBody::Updated { id, ts, vector, recalled, and, result }, along)
            }
            other => (other, Vec::new()),
        }
    }
}

/// Why a node cannot do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Ask a node of that group.
    #[error("this node has no replica of group {}", .0.0)]
    NoReplica(GroupId),
    /// The block is not here.
    #[error("this node does not hold block {0}")]
    NoBlock(BlockId),
    /// The block is damaged here.
    #[error("block {0} fails its checksum here")]
    Damaged(BlockId),
    /// The disk said no.
    #[error("disk: {0}")]
    Disk(String),
    /// The request makes no sense.
    #[error("bad request: {0}")]
    Bad(String),
    /// A group that the update is for cannot be reached from here: it would only wait.
    #[error("group {} cannot be reached", .0.0)]
    OutOfReach(GroupId),
    /// Too much waits here already.
    #[error("overloaded")]
    Overloaded,
    /// The node's disk is full: it takes nothing that needs room.
    #[error("the disk of the node is full")]
    Full,
    /// The node is to go: store the block elsewhere.
    #[error("this node is being removed and takes no blocks")]
    Draining,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which.
    pub node: NodeId,
    /// Its process of the operating system.
    pub pid: u32,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// Blocks held, and their bytes.
    pub blocks: (u64, u64),
    /// How much of the disk the blocks take, in bytes.
    pub block_disk_bytes: u64,
    /// How much room its disk has, if it has said so.
    pub room: Option<Room>,
    /// Its disk is so full that it takes no updates that need room, only such as give it back.
    pub full: bool,
    /// So many blocks no file lies in any more that are not freed yet, here or at other nodes.
    pub to_free: u64,
    /// While a node is drained: how many of these blocks are not known to be on enough nodes that
    /// stay.
    pub to_drain: Option<u64>,
    /// How the copies are that it should hold.
    pub copies: Copies,
    /// Connections closed for bytes that were not frames.
    pub bad_frames: u64,
    /// Connections that were refused for who was at their other end, since the start.
    pub unauthorized: u64,
    /// Clients of the files that have asked for something and are connected now.
    pub clients: u64,
    /// Peers that it has a connection to now.
    pub connected: Vec<NodeId>,
    /// How long it takes to them and back in the mean, as far as that is known, in microseconds.
    pub round_trips_us: Vec<(NodeId, u64)>,
    /// How long a flush of its log takes, the median of the last, in microseconds.
    pub flush_us: Option<u64>,
    /// The version of the configuration that it follows.
    pub configured: u64,
    /// Its replica of the configuration, if it keeps that.
    pub keeper: Option<KeeperStatus>,
    /// Its shards of the keys of its region; none if it serves no keys. The last may be that of the
    /// keys of all regions.
    pub keys: Vec<KeysStatus>,
    /// How far keys of all regions are, if it serves such.
    pub causal: Option<CausalStatus>,
}

/// How far keys of all regions are, as one node knows. Times are those of clocks, in milliseconds
/// since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CausalStatus {
    /// All updates that the node's region has made up to then may go to others.
    pub stable_ms: u64,
    /// So many updates made at this node some other region may lack.
    pub outstanding: u64,
    /// How far the region is with what others have made.
    pub from: Vec<CausalFrom>,
}

/// How far a region is with what another has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CausalFrom {
    /// A node of the other region.
    pub of: NodeId,
    /// All that it has made up to then is applied.
    pub applied_ms: u64,
    /// So long ago that is.
    pub lag_ms: u64,
    /// So many updates wait at the node, or are being applied.
    pub queue: u64,
}

/// How a shard of the keys is at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysStatus {
    /// The membership that it has installed; 0 before any.
    pub epoch: u64,
    /// Who serves in that.
    pub live: BTreeSet<NodeId>,
    /// Who follows, and has not everything yet.
    pub shadows: BTreeSet<NodeId>,
    /// Who grants leases, and decides who serves.
    pub voters: BTreeSet<NodeId>,
    /// For so long it serves, in milliseconds, unless its lease is renewed before; 0 if it does
    /// not.
    pub serves_ms: u64,
    /// Connections of clients.
    pub clients: u64,
    /// Keys that have a value.
    pub keys: u64,
    /// What all keys and values take, in bytes.
    pub bytes: u64,
    /// Whether what it acknowledges is on its disk, too.
    pub on_disk: bool,
    /// Whether it is that of the keys of all regions.
    pub causal: bool,
}

/// How a replica of the configuration is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStatus {
    /// Whether it leads.
    pub leads: bool,
    /// Whether it takes part: not as long as it has no memory.
    pub takes_part: bool,
    /// So many changes it has executed.
    pub executed: Position,
    /// The nodes that keep the configuration as far as it knows.
    pub members: BTreeSet<NodeId>,
    /// Why it has stopped.
    pub stopped: Option<String>,
}

/// What keeps a replica from showing all that it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    /// The message that waits.
    pub message: MessageId,
    /// Whether it was delivered, and waits for votes; else for timestamps.
    pub votes: bool,
    /// The groups that have not given theirs; none if it waits for clocks, or for its turn.
    pub by: Vec<GroupId>,
}

/// How a replica is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Of which group.
    pub group: GroupId,
    /// `primary`, `follower`, `promised`, `candidate` or `recovering`.
    pub role: String,
    /// The epoch that it follows.
    pub epoch: Epoch,
    /// Who leads it.
    pub primary: NodeId,
    /// Messages delivered.
    pub delivered: Position,
    /// How many of them are applied: not those that wait for votes.
    pub applied: Position,
    /// Its clock.
    pub clock: Timestamp,
    /// Proposed here and not yet delivered.
    pub pending: u64,
    /// How long the first of those has waited, in milliseconds.
    pub head_age_ms: u64,
    /// What the first of them waits for, or the first delivered message that is not applied: what
    /// is before it is safe, and may be shown.
    pub held_up: Option<HeldUp>,
    /// How much there is in the partition, and what clients hold of it.
    pub holdings: Holdings,
    /// A hash of what is applied and what came of it: equal at replicas that have applied the same.
    pub state_hash: u64,
}
