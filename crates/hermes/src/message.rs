//! What replicas say, what the owner asks, and what it is told.

use crate::batch::Numbers;
use crate::members::{Epoch, Membership};
use crate::timestamp::Timestamp;
use bytes::Bytes;
use meridian_core::{ClientId, Key, MessageId, NodeId, Time, Value};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// Which rule an update follows (Hermes, `RMW_flag`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// It is acknowledged by all, whatever they hold.
    Write,
    /// It is acknowledged only by who holds nothing later.
    Rmw,
}

/// The request that an update comes from, and its answer: so a replay makes it known, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Completed {
    /// Its name.
    pub id: MessageId,
    /// What the client is answered.
    pub answer: Bytes,
}

/// All of an update that others need to apply, and to replay it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Update {
    /// Of this key.
    pub key: Key,
    /// Its place.
    pub ts: Timestamp,
    /// That of what its coordinator held, Valid, when it began.
    pub base: Timestamp,
    /// Its rule.
    pub kind: Kind,
    /// The new value; `None` deletes the key.
    pub value: Option<Value>,
    /// Who asked for it.
    pub request: Option<Box<Completed>>,
}

impl Update {
    /// How many bytes its value has.
    pub(crate) fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// How far a shadow replica has asked its donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cursor {
    /// The donor's entries from this place on.
    Entries(u32),
    /// What clients after this one were answered last.
    Clients(Option<ClientId>),
    /// What this one was answered last, whose RMW the donor did not know to be committed.
    Client(ClientId),
}

/// What a replica knows of the last request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Completion {
    /// The client's number for it.
    pub sequence: u64,
    /// The place of the update that it led to.
    pub ts: Timestamp,
    /// Its rule.
    pub kind: Kind,
    /// Its answer.
    pub answer: Bytes,
    /// Whether it is known to be committed: an RMW may still be aborted.
    pub committed: bool,
}

/// Some of what a donor holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// The question.
    pub cursor: Cursor,
    /// Entries, and whether each is Valid.
    pub entries: Vec<(Update, bool)>,
    /// What clients were answered.
    pub clients: Vec<(ClientId, Completion)>,
    /// From where on there is more.
    pub next: Option<Cursor>,
}

/// A message between replicas. Who is in another epoch drops it, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Of the sender.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What a message says. INV, ACK and VAL are the paper's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// The key is invalid until this update is known to be committed. Also in answer to an RMW that
    /// is too early: this came later.
    Inv(Update),
    /// The sender holds this update, or a later one.
    Ack {
        /// Of this key.
        key: Key,
        /// That of the INV.
        ts: Timestamp,
    },
    /// The update is committed. It is heard in any epoch: what is committed stays so.
    Val {
        /// Of this key.
        key: Key,
        /// Its place.
        ts: Timestamp,
    },
    /// INVs of a batch: those of updates that the sender coordinates, with successive numbers.
    Invs {
        /// The number of the first.
        first: u64,
        /// Of those before this one no more is said by number.
        ended: u64,
        /// The updates.
        updates: Arc<Vec<Update>>,
    },
    /// ACKs of a batch, by the receiver's numbers.
    Acks(Numbers),
    /// VALs of a batch, by the sender's numbers.
    Vals(Numbers),
    /// What has become of the update that you sent me? (M6)
    Probe {
        /// Of this key.
        key: Key,
        /// Its place.
        ts: Timestamp,
    },
    /// The sender is in this epoch; heard in any.
    Installed {
        /// It wants to know how the receiver is.
        asks: bool,
        /// It has nothing more to replay of who was removed.
        settled: bool,
    },
    /// Is the receiver in this epoch? The membership check of the paper's section 8.
    Check {
        /// Tells the sender's checks apart.
        round: u64,
    },
    /// It is.
    CheckOk {
        /// Of the question.
        round: u64,
    },
    /// A shadow replica asks for what there is.
    Fetch(Cursor),
    /// Some of it.
    Chunk(Chunk),
}

/// What an RMW makes of what it finds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Modified {
    /// A new value; `None` deletes the key.
    Change {
        /// Which.
        value: Option<Bytes>,
        /// What the client is answered.
        answer: Bytes,
    },
    /// Nothing, as a compare-and-swap that fails: it was a read (M8).
    Keep {
        /// What the client is answered.
        answer: Bytes,
    },
}

/// A read-modify-write: equal ones do the same to equal values. It may be asked several times,
/// each time that it has lost against another update; the last time counts.
pub trait Modify: Clone + Debug + Eq + Hash {
    /// What it makes of the value, or of a key that is not there.
    fn modify(&self, found: Option<&Bytes>) -> Modified;

    /// How many bytes it carries; they count towards [`crate::Options::under_way_bytes`].
    fn bytes(&self) -> usize {
        0
    }
}

/// What is done with a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<M> {
    /// It has this value then; `None` deletes it.
    Write(Option<Bytes>),
    /// It is read and changed at once.
    Modify(M),
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request<M> {
    /// To be given back.
    pub token: u64,
    /// On this key.
    pub key: Bytes,
    /// Its name, if it may be asked again; see [`crate::completions`].
    pub id: Option<MessageId>,
    /// What is asked.
    pub action: Action<M>,
}

impl<M: Modify> Request<M> {
    /// How many bytes it carries beside its key.
    pub(crate) fn bytes(&self) -> usize {
        match &self.action {
            Action::Write(value) => value.as_ref().map_or(0, Bytes::len),
            Action::Modify(modify) => modify.bytes(),
        }
    }
}

/// What the owner asks of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command<M> {
    /// A read through the protocol. Where [`crate::Hermes::read`] answers, it need not be asked.
    Read {
        /// To be given back.
        token: u64,
        /// Of this key.
        key: Bytes,
    },
    /// A write or an RMW.
    Update(Request<M>),
    /// The membership has changed (Hermes, m-update).
    Install(Membership),
    /// This replica may serve until then, by its own clock.
    Lease {
        /// When it ends.
        until: Time,
    },
    /// The client will not ask again. Each replica must be told.
    Forget(ClientId),
    /// All clients before this one will not ask again.
    ForgetBefore(ClientId),
    /// From now on the owner is told of each key that has changed, or no more.
    Watch(bool),
}

impl<M> Command<M> {
    /// Whom to answer; `None` if nobody is.
    pub fn token(&self) -> Option<u64> {
        match self {
            Command::Read { token, .. } => Some(*token),
            Command::Update(request) => Some(request.token),
            Command::Install(_)
            | Command::Lease { .. }
            | Command::Forget(_)
            | Command::ForgetBefore(_)
            | Command::Watch(_) => None,
        }
    }
}

/// Why a request was not taken. Nothing of it has happened, nor will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// The replica has no lease, is a shadow replica, or is none.
    #[error("this replica does not serve")]
    NotServing,
    /// Too many requests wait.
    #[error("too many requests wait")]
    Full,
    /// The client has asked for something later already.
    #[error("the client has gone on")]
    Old,
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// What was read; `None` if there is no such key.
    Value {
        /// Which.
        value: Option<Bytes>,
        /// When the lease ended by which it was read: see [`crate::Hermes::read`].
        until: Time,
    },
    /// The write is done.
    Written,
    /// The RMW has changed the value, and answers this.
    Modified(Bytes),
    /// The RMW has changed nothing, and answers this.
    Kept {
        /// Which.
        answer: Bytes,
        /// As in [`Answer::Value`].
        until: Time,
    },
    /// The RMW has changed nothing, nor will: others were faster each time.
    Aborted,
    /// It was not begun.
    Refused(Refusal),
    /// The replica was removed: whether it has happened or will is for the others to say (M9).
    Unknown,
}

/// What a replica tells its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// To who asked with this token.
    Answer {
        /// Which.
        token: u64,
        /// What.
        answer: Answer,
    },
    /// This shadow replica has everything: the membership may make it live.
    Complete {
        /// The epoch in which it followed.
        epoch: Epoch,
    },
    /// From now on [`Output::Committed`] tells of each change ([`Command::Watch`]).
    Watching,
    /// An update of this key is committed as far as this replica knows, and is what it holds.
    Committed {
        /// Which.
        key: Bytes,
    },
}

/// What the timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// To look at what waits.
    Tick,
}

/// What a replica keeps on disk, if it does ([`crate::Durability::Disk`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// All before is void. From here on the replica takes part, and all that it acknowledges is
    /// recorded.
    Begun,
    /// All before is void, and what follows is not recorded.
    Ended,
    /// The replica holds this update from now on.
    Held {
        /// Which.
        update: Update,
        /// Who sent the INV.
        from: NodeId,
    },
    /// What it holds of this key is committed.
    Valid {
        /// Of this key.
        key: Key,
        /// Its place.
        ts: Timestamp,
    },
    /// The replica replays what it holds of this key.
    Replayed {
        /// Of this key.
        key: Key,
        /// Its place.
        ts: Timestamp,
    },
    /// This was the last request of a client.
    Completed(ClientId, Completion),
    /// The client will not ask again.
    Forgotten(ClientId),
    /// All clients before this one will not ask again.
    ForgottenBefore(ClientId),
    /// In a checkpoint: an update that the replica holds, whose request is recorded apart.
    Entry {
        /// Which.
        update: Update,
        /// Who sent the INV.
        from: NodeId,
        /// Whether it is Valid.
        valid: bool,
    },
}
