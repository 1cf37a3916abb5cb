//! What is multicast, and what the processes say to each other about it.
//!
//! The thesis's names: START, ACK, BUMP, NEW-EPOCH, PROMISE, NEW-STATE, ACCEPT. Inside a group ACKs
//! are cumulative, so they need no message name; between groups they carry one.

use crate::members::Config;
use bytes::Bytes;
use meridian_core::{GroupId, MessageId, NodeId, Position, ProcessId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// A message to be multicast: the thesis's `m`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Start {
    /// Its name.
    pub id: MessageId,
    /// The lowest sequence number that its client still waits for: what is below has ended in all
    /// groups that it went to, may be forgotten, and is ignored if it comes again.
    pub low: u64,
    /// Its final timestamp is to be greater than this (thesis, section 4.4.2); 0 where it does not matter.
    pub after: Timestamp,
    /// The groups that it goes to; ascending, at least one.
    pub dest: Dest,
    /// What it must be ordered with.
    pub touches: Touches,
    /// What it says to the application.
    pub payload: Bytes,
    /// What it changes in a group's membership, if it does: see [`crate::members`].
    pub config: Option<Arc<Config>>,
}

/// Decodes a START where it stays: serde would make a box of it first, and copy that.
fn shared<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Arc<Start>, D::Error> {
    Start::deserialize(from).map(Arc::new)
}

/// Groups that a message goes to; ascending.
pub type Dest = SmallVec<[GroupId; 4]>;

impl Start {
    /// A message that conflicts with all others, of a client that still waits for all that it sent.
    pub fn new(id: MessageId, dest: impl AsRef<[GroupId]>, payload: impl Into<Bytes>) -> Start {
        let (dest, payload) = (Dest::from_slice(dest.as_ref()), payload.into());
        let (low, after, touches) = (0, Timestamp(0), Touches::All);
        Start { id, low, after, dest, touches, payload, config: None }
    }

    /// A change of `group` to these members, ordered in it: its configuration `number`, which must be one more than
    /// that in force when it is proposed; else its delivery has no effect. What then has to be done is told in
    /// [`crate::members`].
    pub fn configure(
        id: MessageId,
        group: GroupId,
        number: u64,
        members: impl Into<Vec<NodeId>>,
    ) -> Start {
        let config = Config { group, number, members: members.into() };
        Start { config: Some(Arc::new(config)), ..Start::new(id, [group], Bytes::new()) }
    }

    /// A new group with these members; `dest` are all groups that there are, ascending.
    pub fn add_group(
        id: MessageId,
        dest: impl AsRef<[GroupId]>,
        group: GroupId,
        members: impl Into<Vec<NodeId>>,
    ) -> Start {
        let config = Config { group, number: 0, members: members.into() };
        Start { config: Some(Arc::new(config)), ..Start::new(id, dest, Bytes::new()) }
    }
}

/// What a message touches: says with which others it conflicts (thesis, section 4.4.3). Messages that
/// do not conflict may be delivered in different orders at different processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Touches {
    /// It conflicts with every message.
    All,
    /// It conflicts with messages that touch one of these; ascending.
    Keys(Arc<[u64]>),
}

impl Touches {
    /// Those that touch these keys, in any order.
    pub fn keys(keys: impl IntoIterator<Item = u64>) -> Touches {
        let keys: std::collections::BTreeSet<u64> = keys.into_iter().collect();
        Touches::Keys(keys.into_iter().collect())
    }
}

/// Whether the order of the two matters: the thesis's CONFLICTS.
pub fn conflicts(a: &Touches, b: &Touches) -> bool {
    match (a, b) {
        (Touches::All, _) | (_, Touches::All) => true,
        (Touches::Keys(a), Touches::Keys(b)) => {
            let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
            few.iter().any(|key| many.binary_search(key).is_ok())
        }
    }
}

/// A point of a group's logical clock; what messages are ordered by.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

/// The place of a message in the order of deliveries: final timestamp, ties broken by name.
pub type Rank = (Timestamp, MessageId);

/// An epoch of a group, owned by one of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    /// The configuration of the group whose quorums count: see [`crate::members`].
    pub config: u64,
    /// Counts up.
    pub number: u64,
    /// Who leads it.
    pub leader: NodeId,
}

/// An entry of `T`: a message and the timestamp that this group proposed for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The epoch in which it was proposed. It keeps it through later epochs.
    pub epoch: Epoch,
    /// The proposal: `local-ts`, once decided.
    pub ts: Timestamp,
    /// The message.
    #[serde(deserialize_with = "shared")]
    pub start: Arc<Start>,
    /// `final-ts`, if the process whose entry this is knows it.
    pub final_ts: Option<Timestamp>,
}

/// Where entries of which epoch end in `T`: (epoch, index after its last), ascending. Two `T`s with
/// an entry of the same epoch at the same index are equal up to there.
pub type Runs = Vec<(Epoch, u64)>;

/// An entry of `T`, as another group needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteEntry {
    /// Its index in `T`.
    pub index: u64,
    /// Its message.
    pub id: MessageId,
    /// The timestamp proposed for it.
    pub ts: Timestamp,
}

/// What a primary shows of its group to others, for the linearizable order: see [`crate::stable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shown {
    /// Its group.
    pub group: GroupId,
    /// In which epoch it said so, and which of what it said there this is.
    pub version: (Epoch, u64),
    /// All messages of the group with a timestamp up to this one are known to its primary.
    pub stable: Timestamp,
    /// The groups that messages not delivered by its primary go to as well, each with a lower bound of their
    /// timestamps.
    pub links: Arc<[(GroupId, Timestamp)]>,
}

/// How far a process is: what a PROMISE tells instead of the whole `T`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// Its current epoch.
    pub e_cur: Epoch,
    /// The length of its `T`, counted from the group's beginning.
    pub len: u64,
    /// The first entry that it still holds.
    pub base: u64,
    /// The epochs of its entries.
    pub runs: Runs,
}

/// A part of a run of entries that is too long for one message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The index at which the run starts.
    pub start: u64,
    /// The index of the first entry here.
    pub from: u64,
    /// Entries, in order.
    pub entries: Vec<Entry>,
    /// The index after the run's last entry: here if this is the last part.
    pub end: u64,
}

/// A local timestamp that another group has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelayedLocal {
    /// Where the message stands in the sender's `T`.
    pub index: u64,
    /// The message.
    pub id: MessageId,
    /// Which group.
    pub group: GroupId,
    /// Its timestamp.
    pub ts: Timestamp,
}

/// A final timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelayedFinal {
    /// Where the message stands in the sender's `T`.
    pub index: u64,
    /// The message.
    pub id: MessageId,
    /// Its timestamp.
    pub ts: Timestamp,
    /// Whether the sender has delivered it.
    pub delivered: bool,
}

/// What a process has said in [`Message::Stable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StableOf {
    /// Which process.
    pub process: ProcessId,
    /// As in [`Message::Stable`].
    pub delivered: Rank,
    /// As in [`Message::Stable`].
    pub except: Arc<[MessageId]>,
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// START: from the sender; to the primary from a follower that was sent it; to the other groups
    /// from one that misses their timestamps.
    Start(Arc<Start>),
    /// The primary's ACKs, to a follower: its proposals, in the order of `T`.
    Append {
        /// The primary's epoch.
        epoch: Epoch,
        /// The index of the first entry.
        from: u64,
        /// Entries, in order.
        entries: Arc<[Entry]>,
        /// No entry after these has a timestamp at or below this one.
        clock: Timestamp,
        /// Whether the primary needs the ACK at once.
        prompt: bool,
    },
    /// ACK, cumulative, inside a group: all of `T` up to `len` is durable here. With an unchanged `len`
    /// it is a BUMP, from the primary also its heartbeat.
    Ack {
        /// The epoch followed.
        epoch: Epoch,
        /// The length of `T`.
        len: u64,
        /// The clock.
        clock: Timestamp,
    },
    /// BUMP, from a process that follows no primary.
    Bump {
        /// The epoch promised to.
        epoch: Epoch,
        /// The clock.
        clock: Timestamp,
    },
    /// Several STARTs from one sender.
    Starts(Vec<Arc<Start>>),
    /// The primary's ACKs, to a process of another group: what of its `T` is addressed to that group.
    RemoteAppend {
        /// The primary's epoch.
        epoch: Epoch,
        /// Whether this is all of `T` that the receiver may not have delivered: the receiver forgets what it
        /// had. Otherwise it continues what was sent before.
        whole: bool,
        /// From this index of `T`,
        from: u64,
        /// up to this one.
        upto: u64,
        /// The entries between that are addressed to the receiver's group.
        entries: Arc<[RemoteEntry]>,
        /// Whether the sender speaks for its group: then it alone is told what concerns the group.
        speaks: bool,
    },
    /// ACK, cumulative, to a process of another group: all of `T` up to `len` is durable here.
    RemoteAck {
        /// The epoch followed.
        epoch: Epoch,
        /// The length of `T`.
        len: u64,
        /// The clock; it counts in the linearizable order only.
        clock: Timestamp,
    },
    /// The same for a whole group, from a primary that speaks for it: a quorum holds all of `T` up to `len`.
    RemoteDecided {
        /// The primary's epoch.
        epoch: Epoch,
        /// The length of `T`.
        len: u64,
    },
    /// From a primary that speaks for its group, to its followers: what it has heard of other groups.
    Relayed {
        /// The primary's epoch.
        epoch: Epoch,
        /// The length of its `T`.
        len: u64,
        /// No entry after those has a timestamp at or below this one.
        clock: Timestamp,
        /// Local timestamps that other groups have decided; not in the linearizable order.
        locals: Arc<[RelayedLocal]>,
        /// Final timestamps: in the linearizable order of what it has delivered, otherwise of messages of which the receiver
        /// may have missed the local ones.
        finals: Arc<[RelayedFinal]>,
    },
    /// From a primary that speaks for its group, to its followers: the groups that cannot be reached.
    Cut(Dest),
    /// Send me the whole: something is missing in your `T` as I know it.
    RemoteWanted,
    /// From a primary, for the linearizable order: see [`crate::stable`].
    Stability {
        /// How far its group is, and then what it knows of others.
        shown: Arc<[Shown]>,
        /// Up to where the receiver may take its group for closed, once so many of its clocks are there.
        closed: Timestamp,
        /// If it speaks for its group: what a quorum of clocks has reached.
        clock: Timestamp,
    },
    /// At the sender, the primary of a group, nothing that conflicts with these is before them any more. Said of messages
    /// that pass others, here or at another group, in the linearizable order.
    Ready(Vec<MessageId>),
    /// A configuration of the sender's group.
    Config(Arc<Config>),
    /// The lives that the sender knows of, its own among them; the first of its messages on a link that is new.
    Lives {
        /// Process and incarnation.
        lives: Vec<(ProcessId, u64)>,
        /// Whether the sender wants to know the same, and all that the receiver would say after a restart.
        wanted: bool,
    },
    /// I have lost my memory, and am in this incarnation now.
    Recover {
        /// Counts the lives of the sender.
        incarnation: u64,
    },
    /// The answer: what you said before counts no more, and this is where I am.
    Recovered {
        /// The incarnation that asked.
        incarnation: u64,
        /// As in [`Message::Lives`].
        lives: Vec<(ProcessId, u64)>,
        /// `E_prom`.
        e_prom: Epoch,
        /// The epoch that the sender is the primary of.
        primary_of: Option<Epoch>,
        /// The clock.
        clock: Timestamp,
    },
    /// A process has lost its memory: what it said in earlier incarnations counts no more
    /// together with what the sender says from now on.
    Reborn {
        /// Who.
        member: ProcessId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// The message has this final timestamp.
    Final {
        /// Which message.
        id: MessageId,
        /// Its final timestamp.
        ts: Timestamp,
        /// Whether the sender has delivered it.
        delivered: bool,
    },
    /// To a process of the sender's group whose `T` contains the sender's: these were delivered with these final
    /// timestamps, so it may deliver them, too.
    Vouched(Vec<(MessageId, Timestamp)>),
    /// Send me START for this message: your group acknowledged it and I do not know it.
    Pull(MessageId),
    /// I heard nothing of the primary: and you?
    Suspect {
        /// The epoch in question.
        epoch: Epoch,
    },
    /// I neither.
    Suspected {
        /// The epoch in question.
        epoch: Epoch,
    },
    /// NEW-EPOCH.
    NewEpoch {
        /// The new epoch; its leader asks.
        epoch: Epoch,
    },
    /// PROMISE.
    Promise {
        /// The epoch promised to.
        epoch: Epoch,
        /// The clock.
        clock: Timestamp,
        /// What stands for `E_cur` and `T`.
        progress: Progress,
    },
    /// The candidate asks the most advanced promiser for what it lacks of its `T`.
    Fetch {
        /// The candidate's epoch.
        epoch: Epoch,
        /// From this index.
        from: u64,
    },
    /// The answer.
    Fetched {
        /// The candidate's epoch.
        epoch: Epoch,
        /// A part of what was asked for.
        part: Part,
    },
    /// NEW-STATE: `T` is what you have up to `part.start`, and then this.
    NewState {
        /// The new epoch.
        epoch: Epoch,
        /// The clock to start from.
        clock: Timestamp,
        /// A part of what differs.
        part: Part,
    },
    /// ACCEPT.
    Accept {
        /// The epoch accepted.
        epoch: Epoch,
        /// The clock: without it a clock raised by NEW-STATE would never be shown.
        clock: Timestamp,
    },
    /// A follower lacks entries (it restarted, or the link was reset): send again from here.
    Resend {
        /// The epoch followed.
        epoch: Epoch,
        /// From this index.
        from: u64,
    },
    /// All messages with a final rank up to this one are durably delivered here, and applied, but for some: see
    /// `truncation`.
    Stable {
        /// The rank of the last of them.
        delivered: Rank,
        /// Those that are not.
        except: Arc<[MessageId]>,
    },
    /// The same, to the primary that speaks for the sender's group: it passes it on to these groups, and its own.
    StableFor {
        /// The other groups that need to know.
        groups: Dest,
        /// As in [`Message::Stable`].
        delivered: Rank,
        /// As in [`Message::Stable`].
        except: Arc<[MessageId]>,
    },
    /// What others have said in [`Message::Stable`], passed on.
    Stables(Arc<[StableOf]>),
    /// Which are? From one that keeps an entry for the receiver, which may never have held it.
    StableWanted,
    /// What you lack I no longer hold: ask for a snapshot.
    Behind,
    /// Send the snapshot from this byte on.
    SnapshotRequest {
        /// Which snapshot, 0 for a new one.
        snapshot: u64,
        /// From this byte.
        offset: u64,
    },
    /// A part of a snapshot.
    SnapshotPart {
        /// Which snapshot.
        snapshot: u64,
        /// Where the part starts.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
        /// The length of the whole.
        total: u64,
    },
}

/// What the owner asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// A-MULTICAST: this process is the sender, and tells all destinations. Its own group need not be
    /// among them.
    Multicast(Start),
    /// START of a sender elsewhere that tells each destination group itself.
    Start(Start),
    /// The answer to [`Output::SnapshotWanted`].
    Snapshot {
        /// Who wanted it.
        to: ProcessId,
        /// How many deliveries the application's state contains; the offer is dropped unless it is all.
        position: Position,
        /// The application's state.
        application: Bytes,
    },
}

/// What the owner is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Output {
    /// A-DELIVER.
    Deliver(Delivery),
    /// A message that was asked for again has been delivered before.
    Duplicate(MessageId),
    /// All replicas of all destinations have delivered these multi-group messages for good: what was
    /// kept for one of them that would come back may go.
    Settled(Vec<MessageId>),
    /// A peer cannot be brought up from the log: give [`Command::Snapshot`] for it.
    SnapshotWanted {
        /// Who.
        to: ProcessId,
    },
    /// A message that this process multicast to other groups only was delivered there.
    Ended {
        /// Which message.
        id: MessageId,
        /// Its final timestamp.
        ts: Timestamp,
    },
    /// The message was not multicast, and will not be: this group cannot be reached.
    Refused {
        /// Which message.
        id: MessageId,
        /// Which of its groups.
        group: GroupId,
    },
    /// The application's state is to be replaced by this.
    Install {
        /// How many deliveries it contains.
        position: Position,
        /// What another's owner gave in [`Command::Snapshot`].
        application: Bytes,
    },
}

/// A message delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Delivery {
    /// The message.
    pub start: Arc<Start>,
    /// Its final timestamp.
    pub ts: Timestamp,
    /// How many were delivered, with this one.
    pub position: Position,
}

/// What is made durable. When, and why then, is in the crate's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// `E_prom`: before PROMISE and NEW-EPOCH.
    Promised(Epoch),
    /// Entries appended to `T`: before the ACK.
    Append {
        /// The index of the first.
        from: u64,
        /// Entries, in order.
        entries: Arc<[Entry]>,
    },
    /// `T` from `from` on is replaced, `E_cur` changes: before ACCEPT.
    NewState {
        /// The new `E_cur`.
        epoch: Epoch,
        /// The index at which `T` is cut.
        from: u64,
        /// What follows.
        entries: Vec<Entry>,
    },
    /// No clock above this is shown before another such record: before the first that would be.
    Ceiling(Timestamp),
    /// Delivered, in this order.
    Delivered {
        /// Which.
        id: MessageId,
        /// With which final timestamp.
        ts: Timestamp,
    },
    /// Changes nothing: what was noted before it is durable with it.
    Mark,
    /// The whole state: a checkpoint, or a snapshot that was installed.
    State(Box<crate::snapshot::State>),
    /// A configuration of the group that was not delivered here, but learned from another.
    Config(Arc<Config>),
}
