//! What nodes say to each other, what their owners ask and are told, what is kept on disk.

use super::change::Change;
use super::regions::Regions;
use bytes::Bytes;
use meridian_core::{RegionId, Time};
use meridian_eunomia::{self as eunomia, Order, Role, Seen, Timestamp, Vector, Word, receiver};
use meridian_hermes::{self as hermes, Action, Refusal};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Of the replica of Hermes, within a region.
    Replica(hermes::Message),
    /// Of Eunomia.
    Eunomia {
        /// What the sender is.
        from: Role,
        /// What the receiver is.
        to: Role,
        /// What it says.
        message: eunomia::Message,
    },
    /// The region of both has applied all that was made in others up to here.
    SiteTimes(Vector),
    /// A node of a region that joins to one of another: keys, from this place on.
    AskPage {
        /// The start of the other node of which the place is, if any: places differ from one start
        /// to the next.
        run: Option<Timestamp>,
        /// Where the last page ended.
        place: u32,
    },
    /// The answer.
    Page {
        /// The start of the sender.
        run: Timestamp,
        /// Where this begins; from the beginning if the place was of another start.
        place: u32,
        /// What keys hold.
        updates: Vec<eunomia::Update>,
        /// Where the next one begins, if this is not the last.
        next: Option<u32>,
    },
    /// The region of both, which joins, has copied the keys of another; they depend on this.
    Copied(Vector),
    /// All regions but their own have applied what was made in each up to here.
    Everywhere(Vector),
    /// A node to one of another region that stays: what that region has applied of a lost one,
    /// behind this point.
    AskKept {
        /// Which.
        lost: RegionId,
        /// The round in which is agreed on what is kept of it.
        round: u64,
        /// Where the last page ended.
        after: Timestamp,
    },
    /// The answer.
    Kept {
        /// See [`Message::AskKept`].
        lost: RegionId,
        /// The same.
        round: u64,
        /// The same.
        after: Timestamp,
        /// In the order of their timestamps.
        updates: Vec<eunomia::Update>,
        /// Where this page ends, if it is not the last.
        next: Option<Timestamp>,
    },
    /// The region of both has applied all that is kept of a lost one in this round.
    Settled {
        /// Which.
        lost: RegionId,
        /// The round.
        round: u64,
    },
}

/// An update that a session asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Update<M> {
    /// To be given back.
    pub token: u64,
    /// Of this key.
    pub key: Bytes,
    /// What is done with it.
    pub action: Action<M>,
    /// What the session has seen.
    pub seen: Seen,
}

/// What a key has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found {
    /// `None` if there is no such key.
    pub value: Option<Bytes>,
    /// What the session has seen with it.
    pub seen: Seen,
    /// The place of the last update among those of the key.
    pub order: Order,
}

/// What a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<M> {
    /// Of the replica: what the membership says, and keys of this region only.
    Replica(hermes::Command<Change<M>>),
    /// The value of a causal key.
    Read {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
    },
    /// The values of several causal keys, as they were at one moment: what one of them depends on
    /// is in the others.
    ReadAll {
        /// To be given back.
        token: u64,
        /// Which.
        keys: Vec<Bytes>,
    },
    /// An update of a causal key.
    Update(Update<M>),
    /// The update of this key that has this place has expired.
    Lapse {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
        /// Its place.
        order: Order,
    },
    /// A session that has seen this wants to go on in this region.
    Await {
        /// To be given back.
        token: u64,
        /// What it has seen.
        seen: Vector,
    },
    /// It does not want to any more.
    Forget {
        /// Of [`Command::Await`].
        token: u64,
    },
    /// Other nodes take part than before, or regions join and leave.
    Configure(Arc<Regions>),
}

/// What its owner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Of the replica, but for answers about causal keys.
    Replica(hermes::Output),
    /// What was read.
    Value {
        /// Of the question.
        token: u64,
        /// What the key has.
        found: Found,
        /// As in [`hermes::Answer::Value`].
        until: Time,
    },
    /// What was read, at one moment.
    Values {
        /// Of the question.
        token: u64,
        /// What the keys have, in their order.
        found: Vec<Found>,
        /// As in [`hermes::Answer::Value`].
        until: Time,
    },
    /// No value of an update that has expired is shown any more, or another had taken its place.
    Lapsed {
        /// Of the request.
        token: u64,
    },
    /// The update has happened.
    Updated {
        /// Of the request.
        token: u64,
        /// What an RMW answers.
        answer: Bytes,
        /// What the session has seen now.
        seen: Seen,
    },
    /// The RMW has changed nothing.
    Kept {
        /// Of the request.
        token: u64,
        /// What it answers.
        answer: Bytes,
        /// What the session has seen with it.
        seen: Seen,
        /// As in [`Answer::Kept`].
        until: Time,
    },
    /// Nothing has happened: others were faster each time.
    Aborted {
        /// Of the request.
        token: u64,
    },
    /// Nothing has happened.
    Refused {
        /// Of the request.
        token: u64,
        /// Why.
        refusal: Refusal,
    },
    /// Nothing has happened, and the session has to go on elsewhere, or begin anew.
    Denied {
        /// Of the request.
        token: u64,
        /// Why.
        why: eunomia::Refusal,
    },
    /// It may have happened.
    Unknown {
        /// Of the request.
        token: u64,
    },
    /// This region has all that the session has seen.
    Reached {
        /// Of the request.
        token: u64,
    },
    /// An update of another region is applied.
    Applied {
        /// Where it was made.
        origin: RegionId,
        /// Its timestamp there.
        ts: Timestamp,
        /// Whether the key has changed: not if it held the same, or something later.
        changed: bool,
    },
    /// How far this node is with the regions that join and leave; it is said again while they do.
    Word(Word),
}

/// What is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Of the replica of Hermes.
    Replica(hermes::Record),
    /// Of the receiver.
    Receiver(receiver::Record),
    /// The source may promise this much, or have begun updates up to there.
    Reserved(Timestamp),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the replica of Hermes.
    Replica(hermes::Timer),
    /// To send labels and promises, and to ask for data.
    Source(eunomia::Timer),
    /// Of the replica of the service.
    Service(eunomia::Timer),
    /// Of the receiver.
    Receiver(eunomia::Timer),
}
