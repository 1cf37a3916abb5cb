//! What replicas say to each other, what they keep, and what their owner asks and is told.

use crate::batch::{Batch, Kind, Request};
use crate::configuration::Configuration;
use crate::options::Recovery;
use crate::view::{Instance, View};
use bytes::Bytes;
use meridian_core::{ClientId, NodeId, Position, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often each replica has started ([`Recovery::EpochSs`]; report, section 7.5).
pub type Epochs = BTreeMap<NodeId, u64>;

/// The last value that a replica accepted for an instance, and in which view; or the decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Vote {
    /// For which instance.
    pub instance: Instance,
    /// In which view it was accepted.
    pub view: View,
    /// The value.
    pub batch: Batch,
    /// Whether this is known to be the decision.
    pub decided: bool,
}

/// A digest of all replies up to some instance, and of the service's state after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest {
    /// All instances below this are executed.
    pub instance: Instance,
    /// So many requests.
    pub position: Position,
    /// The digest.
    pub value: u64,
}

/// What a leader says of itself with all that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// When it was sent, by the leader's clock; given back, it shows that the leader was one at
    /// that time.
    pub sent: Time,
    /// All instances below this are decided.
    pub decided: Instance,
    /// Its last digest.
    pub digest: Digest,
}

/// What a replica tells one that has lost its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Told {
    /// Its view.
    pub view: View,
    /// The members of all instances that are open.
    pub members: Vec<Configuration>,
    /// If it leads that view: all below this are decided, and what was or may have been accepted
    /// from there on.
    pub leader: Option<(Instance, Vec<Vote>)>,
}

/// A list of instances (report, section 5.3.5): the missing ones, and `after`, the first of whose
/// existence the asker does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// Runs of two and more: the first and the last.
    pub ranges: Vec<(Instance, Instance)>,
    /// Single ones.
    pub singles: Vec<Instance>,
    /// All decided from here on, too.
    pub after: Instance,
}

/// Which part of a snapshot is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Of the snapshot of this position; if it is not there any more, the last.
    pub position: Position,
    /// From this byte on.
    pub offset: u64,
}

/// Phase 1a for all instances from `from` on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prepare {
    /// The new view.
    pub view: View,
    /// The first that its leader does not know to be decided.
    pub from: Instance,
}

/// Phase 1b.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PrepareOk {
    /// Of this view.
    pub view: View,
    /// The sender's epochs, its own among them.
    pub epochs: Epochs,
    /// All below this are decided, and can be had by catch-up.
    pub decided: Instance,
    /// What it accepted from there on.
    pub votes: Vec<Vote>,
}

/// Phase 2a, and the leader's 2b.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Propose {
    /// In this view.
    pub view: View,
    /// For this instance.
    pub instance: Instance,
    /// The value.
    pub batch: Batch,
    /// Of the leader.
    pub beat: Beat,
}

/// Phase 2b, without the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accept {
    /// In this view.
    pub view: View,
    /// For this instance.
    pub instance: Instance,
    /// The [`Beat::sent`] of what it answers.
    pub echo: Time,
}

/// The leader has nothing else to say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Alive {
    /// In this view.
    pub view: View,
    /// No instance from here on has been started.
    pub highest: Instance,
    /// Of the leader.
    pub beat: Beat,
}

/// Answers [`Message::Alive`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AliveOk {
    /// In this view.
    pub view: View,
    /// Its [`Beat::sent`].
    pub echo: Time,
}

/// Would you follow me, in a view after yours? Changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreVote {
    /// The asker's view.
    pub view: View,
    /// Tells its questions apart.
    pub round: u64,
}

/// Which of these are decided?
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatchUpQuery {
    /// Which.
    pub missing: Missing,
    /// Only to be sure: nothing is known to be missing.
    pub periodic: bool,
    /// A snapshot instead.
    pub snapshot: Option<Part>,
}

/// Those of them that the sender knows, or the first of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatchUpResponse {
    /// Instances and their decisions.
    pub decided: Vec<(Instance, Batch)>,
    /// Answers a periodic question.
    pub periodic: bool,
    /// The log does not reach as far back: ask for the snapshot.
    pub snapshot_only: bool,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatchUpSnapshot {
    /// Of which snapshot, and from which byte on.
    pub part: Part,
    /// How long the whole is.
    pub total: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// The sender has lost its memory, and asks for it (report, sections 7.5 and 7.6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecoveryQuery {
    /// Its epoch.
    pub epoch: u64,
    /// Its view on disk.
    pub view: View,
    /// Tells its starts apart.
    pub nonce: u64,
}

/// Answers [`Message::Recovery`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecoveryAnswer {
    /// Of the question.
    pub nonce: u64,
    /// The sender's epochs.
    pub epochs: Epochs,
    /// What it knows.
    pub told: Told,
}

/// A message between replicas, named as in the report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Phase 1a for all instances from `from` on.
    Prepare(Prepare),
    /// Phase 1b.
    PrepareOk(PrepareOk),
    /// Phase 2a, and the leader's 2b.
    Propose(Propose),
    /// Phase 2b, without the value.
    Accept(Accept),
    /// The leader has nothing else to say.
    Alive(Alive),
    /// Answers [`Message::Alive`].
    AliveOk(AliveOk),
    /// The sender is in this view, later than that of what it answers.
    Higher {
        /// Which.
        view: View,
    },
    /// Would you follow me, in a view after yours? Changes nothing.
    PreVote(PreVote),
    /// Yes.
    PreVoteOk {
        /// Of the question.
        round: u64,
    },
    /// Which of these are decided?
    CatchUpQuery(CatchUpQuery),
    /// Those of them that the sender knows, or the first of them.
    CatchUpResponse(CatchUpResponse),
    /// A part of a snapshot.
    CatchUpSnapshot(CatchUpSnapshot),
    /// The sender has lost its memory, and asks for it (report, sections 7.5 and 7.6).
    Recovery(RecoveryQuery),
    /// Answers [`Message::Recovery`].
    RecoveryAnswer(RecoveryAnswer),
    /// Requests of the sender's clients, for the leader.
    Forward(Vec<Request>),
    /// From which instance on may a read be answered that was asked now?
    ReadIndex {
        /// Of the sender's.
        id: u64,
    },
    /// When all below this are executed.
    ReadIndexOk {
        /// Of the question.
        id: u64,
        /// Which.
        index: Instance,
    },
    /// You are not a member any more.
    Gone,
}

/// What is kept on disk. Which of these, and whether anything waits for it, depends on
/// [`Recovery`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// This replica has run: who, with what recovery.
    Started {
        /// Which replica.
        node: NodeId,
        /// Its mode.
        recovery: Recovery,
    },
    /// Its epoch.
    Epoch(u64),
    /// Its view.
    View(View),
    /// It has accepted this, or learned the decision.
    Accepted(Vote),
    /// All below this are decided as accepted here.
    Decided(Instance),
    /// This takes the place of all decided before it.
    Snapshot(Bytes),
    /// Identities of clients below this may have been given.
    Clients(u64),
}

/// How fresh the answer to a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Consistency {
    /// All that was answered anywhere before the read was asked is seen.
    Linearizable,
    /// Whatever the replica has executed: at once, and maybe old.
    Stale,
}

/// What the owner asks of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// An identity for a new client.
    Connect {
        /// To be given back.
        token: u64,
    },
    /// A client's request. Asked again with the same sequence it is executed once.
    Request(Request),
    /// A read that does not go through the log.
    Read {
        /// To be given back.
        token: u64,
        /// For [`crate::Service::query`].
        question: Bytes,
        /// How fresh.
        consistency: Consistency,
    },
    /// This client went away: its answer is not wanted any more.
    Disconnected(ClientId),
}

impl Command {
    /// The request that the service executes `payload`.
    pub fn execute(client: ClientId, sequence: u64, payload: impl Into<Bytes>) -> Command {
        let (kind, payload) = (Kind::Execute, payload.into());
        Command::Request(Request { client, sequence, kind, payload })
    }
}

/// What came of a request or a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// The service's reply; to a change of the members a [`crate::Changed`].
    Done(Bytes),
    /// Ask this replica, or any other if none is named. Nothing happened here.
    Redirect(Option<NodeId>),
    /// This client was forgotten, as too many others came after it: whether the request was
    /// executed is not known. Take a new identity.
    Forgotten,
    /// Not executed, and never will be: it is longer than this, in bytes.
    TooLong(usize),
    /// The replica takes nothing now: it is full, or has no memory yet. Ask another, or again.
    Busy,
}

/// Why a replica serves no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stopped {
    /// The service is not deterministic, or memory was corrupted.
    #[error(
        "this replica and the leader differ after position {} (instance {}): digests {ours:016x} and {leaders:016x}; \
         the service is not deterministic, or a machine is faulty",
        position.0, instance.0
    )]
    Diverged {
        /// After so many requests.
        position: Position,
        /// Before this instance.
        instance: Instance,
        /// The digest here.
        ours: u64,
        /// The leader's.
        leaders: u64,
    },
    /// It ran before, and has kept nothing of what it promised.
    #[error(
        "this replica has run before, and in the mode crash-stop it has lost what it promised: \
         replace it by one with a new identity"
    )]
    LostMemory,
    /// The directory is not its own.
    #[error("the data is of replica n{} with {}, not of n{} with {}", found.0.0, found.1.name(), wanted.0.0, wanted.1.name())]
    Foreign {
        /// Whose it is.
        found: (NodeId, Recovery),
        /// Whose it should be.
        wanted: (NodeId, Recovery),
    },
    /// Another has taken its place, or it was not needed any more. Keep it running until the others
    /// have executed as far: they may have to ask it what was decided while it was a member.
    #[error("this replica was removed from the members")]
    Removed,
    /// The service does not take a snapshot.
    #[error("the service does not take a snapshot: {0}")]
    Snapshot(String),
}

/// What a replica tells its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Answers [`Command::Connect`].
    Connected {
        /// As asked.
        token: u64,
        /// The identity.
        client: ClientId,
    },
    /// Answers [`Command::Request`].
    Reply {
        /// Whose.
        client: ClientId,
        /// Which.
        sequence: u64,
        /// What came of it.
        answer: Answer,
    },
    /// Answers [`Command::Read`].
    Read {
        /// As asked.
        token: u64,
        /// What came of it.
        answer: Answer,
    },
    /// These are to be spoken with, the replica itself maybe among them: the members of all
    /// instances that are open.
    Members(BTreeMap<NodeId, String>),
    /// It is in this view; `leading` if it leads it and has finished Phase 1.
    View {
        /// Which.
        view: View,
        /// Whether it leads.
        leading: bool,
    },
    /// It has its memory back, or has one for the first time, and takes part.
    Recovered,
    /// It serves no more.
    Stopped(Stopped),
}

/// What a timer of a replica is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// To look whether something is due; comes again and again.
    Tick,
    /// To send a batch that has waited long enough.
    Batch,
}
