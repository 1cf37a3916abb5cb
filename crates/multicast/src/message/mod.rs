//! What is multicast, and what the processes say to each other about it.
//!
//! The thesis's names: START, ACK, BUMP, NEW-EPOCH, PROMISE, NEW-STATE, ACCEPT. ACKs are
//! cumulative, so they need no message name. Messages come in seven families, one for each part of
//! the protocol; `docs/multicast.md` has the table of all.

mod epoch;
mod fence;
mod normal;
mod order;
mod recovery;
mod remote;
mod stability;

pub use epoch::*;
pub use fence::*;
pub use normal::*;
pub use order::*;
pub use recovery::*;
pub use remote::*;
pub use stability::*;

use crate::state::members::Config;
use bytes::Bytes;
use meridian_core::{GroupId, MessageId, NodeId, Position, ProcessId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// What processes say to each other, by family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// The normal case inside a group.
    Normal(NormalMessage),
    /// The normal case between groups.
    Remote(RemoteMessage),
    /// Changes of primary and of members.
    Epoch(EpochMessage),
    /// What is delivered for good.
    Stability(StabilityMessage),
    /// The linearizable order.
    Order(OrderMessage),
    /// Snapshots, and processes that keep nothing on disk.
    Recovery(RecoveryMessage),
    /// Groups that were lost.
    Fence(FenceMessage),
}

impl Message {
    /// The multicast messages that it is about; none for what names no message, or all of a group's
    /// past.
    pub fn subjects(&self) -> Vec<MessageId> {
        let of = |entries: &[Entry]| entries.iter().map(|entry| entry.start.id).collect();
        match self {
            Message::Normal(NormalMessage::Start(start)) => vec![start.id],
            Message::Normal(NormalMessage::Starts(starts)) => {
                starts.iter().map(|start| start.id).collect()
            }
            Message::Normal(NormalMessage::Append(append)) => of(&append.entries),
            Message::Remote(RemoteMessage::RemoteAppend(append)) => {
                append.entries.iter().map(|entry| entry.id).collect()
            }
            Message::Remote(RemoteMessage::Final(last)) => vec![last.id],
            Message::Remote(RemoteMessage::Pull(pull)) => vec![pull.id],
            Message::Epoch(EpochMessage::Fetched(fetched)) => of(&fetched.part.entries),
            Message::Epoch(EpochMessage::NewState(state)) => of(&state.part.entries),
            Message::Order(OrderMessage::Ready(ids)) => ids.clone(),
            _ => Vec::new(),
        }
    }

    /// Whether groups say it to each other (some of it is also said inside a group).
    pub fn is_between_groups(&self) -> bool {
        let start =
            matches!(self, Message::Normal(NormalMessage::Start(_) | NormalMessage::Starts(_)));
        start || matches!(self, Message::Remote(_) | Message::Order(_))
    }
}

/// A message of a family is a message.
macro_rules! family {
    ($family:ident, $members:ident: $($name:ident),+) => {
        impl From<$members> for Message {
            fn from(message: $members) -> Message {
                Message::$family(message)
            }
        }
        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$family($members::$name(message))
            }
        })+
    };
}

family!(Normal, NormalMessage: Append, Ack, Bump, Resend, Relayed);
family!(Remote, RemoteMessage: RemoteAppend, RemoteAck, RemoteDecided, Final, Pull);
family!(Epoch, EpochMessage: Suspect, Suspected, NewEpoch, Promise, Fetch, Fetched, NewState,
    Accept);
family!(Stability, StabilityMessage: Stable, StableFor);
family!(Order, OrderMessage: Horizons);
family!(Recovery, RecoveryMessage: SnapshotRequest, SnapshotPart, Incarnations, Recover, Recovered,
    NewIncarnation);

impl From<FenceMessage> for Message {
    fn from(message: FenceMessage) -> Message {
        Message::Fence(message)
    }
}

impl From<Arc<Start>> for Message {
    fn from(start: Arc<Start>) -> Message {
        NormalMessage::Start(start).into()
    }
}

impl From<Arc<Config>> for Message {
    fn from(config: Arc<Config>) -> Message {
        EpochMessage::Config(config).into()
    }
}

/// A message to be multicast: the thesis's `m`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Start {
    /// Its name.
    pub id: MessageId,
    /// The lowest sequence number that its client still waits for: what is below has ended in all
    /// groups that it went to, may be forgotten, and is ignored if it comes again.
    pub low: u64,
    /// Its final timestamp is to be greater than this (thesis, section 4.4.2); 0 where it does not
    /// matter.
    pub after: Timestamp,
    /// The groups that it goes to; ascending, at least one.
    pub dest: Dest,
    /// What it must be ordered with.
    pub touches: Touches,
    /// What it says to the application.
    pub payload: Bytes,
    /// What it changes in a group's membership, if it does: see [`crate::state::members`].
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

    /// A change of `group` to these members, ordered in it: its configuration `number`, which must
    /// be one more than that in force when it is proposed; else its delivery has no effect. What
    /// then has to be done is told in [`crate::state::members`].
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

/// What a message touches: says with which others it conflicts (thesis, section 4.4.3). Messages
/// that do not conflict may be delivered in different orders at different processes.
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
    /// The configuration of the group whose quorums count: see [`crate::state::members`].
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

/// What the owner asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// A-MULTICAST: this process is the sender, and tells all destinations. Its own group need not
    /// be among them.
    Multicast(Start),
    /// START of a sender elsewhere that tells each destination group itself.
    Start(Start),
    /// A configuration of another group that this process may not know: the owner has learned of it
    /// elsewhere, where it is agreed on. Of a group that all know nothing else need be said.
    Learn(Config),
    /// A group of which a majority is lost for good goes on with heirs: see `handlers::fence`. It
    /// is said to each reporter at each of its starts until [`crate::PrimCast::fenced`] knows it,
    /// and to each process that is started later.
    Fence(Fence),
    /// The owner lacks what no other group keeps for it any more: another member's state is to
    /// replace its own, even if that contains no more deliveries.
    FetchState,
    /// The answer to [`Output::SnapshotWanted`].
    Snapshot {
        /// Who wanted it.
        to: ProcessId,
        /// How many deliveries the application's state contains; the offer is dropped unless it is
        /// all.
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
    /// All replicas of all destinations have delivered these multi-group messages for good: what
    /// was kept for one of them that would come back may go.
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
