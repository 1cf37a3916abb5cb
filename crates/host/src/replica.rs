//! One group's replica on one node: the multicast's process, the partition that it orders, and the
//! clients that wait here.
//!
//! Invariants:
//! - R1: the partition has been delivered exactly what the multicast has delivered.
//! - R2: a read is answered only once the partition has applied what its client has seen, and all that
//!   was acknowledged before this node started.

use crate::api::{Refusal, ReplicaStatus, ReplyBody};
use crate::sessions::{Outcome, Sessions};
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Position, ProcessId, Time, Topology};
use meridian_fs::partition::Effect;
use meridian_fs::vote::Vote;
use meridian_fs::{FsError, Operation, Partition, Query, Timestamp, Update, Vector};
use meridian_multicast::{Delivery, PrimCast, Role, Start};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a client may hold locks and files without a name without saying that it lives.
pub const LEASE: Duration = Duration::from_secs(30);

/// Updates and reads that may wait at a replica; more are refused.
const WAITING_MAX: usize = 100_000;

/// The longest payload of an update, in bytes: the largest that a client makes sets an extended attribute.
const PAYLOAD_MAX: usize = 256 << 10;

/// While the multicast's log takes so many bytes, no update of a client is taken on.
const LOG_BYTES_MAX: usize = 256 << 20;

/// After how long a missing vote is asked for.
const VOTE_RETRY: Duration = Duration::from_millis(500);

/// A client's connection, named by the server's shell; not used again while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Waiter {
    /// On which connection.
    pub connection: ConnectionId,
    /// To which request of it.
    pub request: u64,
}

/// One group's replica on one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    group: GroupId,
    /// The multicast's process.
    pub multicast: PrimCast,
    partition: Partition,
    sessions: Sessions,
    /// Whom to answer when an update is decided.
    updates: BTreeMap<MessageId, Vec<Waiter>>,
    /// Reads that wait for a position.
    reads: BTreeMap<Position, Vec<(Waiter, Query)>>,
    reads_waiting: usize,
    /// Reads that came before the replica had caught up after a start.
    early: Vec<(Waiter, Vector, Query)>,
    /// When the renewals of a lease were last seen to change.
    leases: BTreeMap<ClientId, (u64, Time)>,
    /// Since when votes have been missing, and when they were last asked for.
    votes_asked: Time,
    leases_seen: Time,
}

/// What a replica wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Answer a client.
    Reply(Waiter, ReplyBody),
    /// Give a vote to the replicas of other groups.
    Vote {
        /// The groups.
        to: Vec<GroupId>,
        /// For which message.
        id: MessageId,
        /// The vote.
        vote: Vote,
    },
    /// Ask the replicas of these groups for their votes.
    AskVotes {
        /// For which message.
        id: MessageId,
        /// The groups.
        of: Vec<GroupId>,
    },
    /// Multicast this in the replica's own group.
    Multicast(Start),
}

impl Replica {
    /// The replica of `group` on `me`, with nothing delivered.
    pub fn new(topology: &Topology, group: GroupId, me: NodeId) -> Replica {
        let groups = topology.group_ids().map(|id| (id, topology.group(id).members.clone()));
        let multicast =
            PrimCast::new(ProcessId { group, node: me }, std::sync::Arc::new(groups.collect()));
        Replica {
            group,
            multicast,
            partition: Partition::new(topology, group),
            sessions: Sessions::default(),
            updates: BTreeMap::new(),
            reads: BTreeMap::new(),
            reads_waiting: 0,
            early: Vec::new(),
            leases: BTreeMap::new(),
            votes_asked: Time(0),
            leases_seen: Time(0),
        }
    }

    /// The partition, for checks.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// A client asks for an update. Returns whether it must be multicast: otherwise it is answered.
    pub fn on_update(&mut self, waiter: Waiter, start: &Start, out: &mut Vec<Wish>) -> bool {
        if let Some(outcome) = self.sessions.outcome(start.id) {
            let reply = self.updated(start.id, outcome.clone());
            out.push(Wish::Reply(waiter, reply));
            return false;
        }
        if self.sessions.is_decided(start.id) {
            let text = format!("message {} has ended, its outcome is forgotten", start.id);
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Bad(text))));
            return false;
        }
        if start.payload.len() > PAYLOAD_MAX {
            let text = format!("{} bytes, at most {PAYLOAD_MAX} are allowed", start.payload.len());
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Bad(text))));
            return false;
        }
        let full = self.multicast.log_bytes() >= LOG_BYTES_MAX;
        if full || self.updates.len() >= WAITING_MAX {
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Overloaded)));
            return false;
        }
        let waiters = self.updates.entry(start.id).or_default();
        waiters.push(waiter);
        true
    }

    /// A client asks a question.
    pub fn on_read(&mut self, waiter: Waiter, vector: &Vector, query: Query, out: &mut Vec<Wish>) {
        let needed = vector.get(self.group);
        if self.reads_waiting + self.early.len() >= WAITING_MAX {
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Overloaded)));
        } else if !self.multicast.is_caught_up() {
            self.early.push((waiter, vector.clone(), query));
        } else if needed <= self.partition.applied() {
            self.answer(waiter, &query, out);
        } else {
            self.reads_waiting += 1;
            self.reads.entry(needed).or_default().push((waiter, query));
        }
    }

    /// Answers what came before the replica had caught up, once it has: a client that has seen nothing
    /// yet must not miss what was acknowledged before this node, or all, went down.
    pub fn on_caught_up(&mut self, out: &mut Vec<Wish>) {
        if self.multicast.is_caught_up() {
            for (waiter, vector, query) in std::mem::take(&mut self.early) {
                self.on_read(waiter, &vector, query, out);
            }
        }
    }

    /// A connection is gone: nobody waits there any more.
    pub fn on_closed(&mut self, connection: ConnectionId) {
        self.updates.retain(|_, waiters| {
            waiters.retain(|waiter| waiter.connection != connection);
            !waiters.is_empty()
        });
        self.reads.retain(|_, reads| {
            reads.retain(|(waiter, _)| waiter.connection != connection);
            !reads.is_empty()
        });
        self.reads_waiting = self.reads.values().map(Vec::len).sum();
        self.early.retain(|(waiter, ..)| waiter.connection != connection);
    }

    fn answer(&self, waiter: Waiter, query: &Query, out: &mut Vec<Wish>) {
        let result = self.partition.read(query);
        out.push(Wish::Reply(waiter, ReplyBody::Answer { vector: self.vector(), result }));
    }

    /// What a client has seen that is answered now.
    fn vector(&self) -> Vector {
        let mut vector = self.partition.vector().clone();
        vector.raise(self.group, self.sessions.seen());
        vector
    }

    fn updated(&self, id: MessageId, result: Outcome) -> ReplyBody {
        ReplyBody::Updated { id, vector: self.vector(), result }
    }

    /// A message was delivered.
    ///
    /// # Panics
    /// R1: if it is not the next one.
    pub fn on_delivery(&mut self, delivery: Delivery, out: &mut Vec<Wish>) {
        let Delivery { start, position, .. } = delivery;
        let next = Position(self.partition.delivered().0 + 1);
        assert!(position == next, "R1: delivered {position:?}, expected {next:?}");
        self.sessions.forget_below(start.id.client, start.low);
        self.sessions.delivered(start.id, position);
        let operation = postcard::from_bytes::<Operation>(&start.payload);
        let addressed = |operation: &Operation| {
            operation.update.partitions().iter().copied().eq(start.dest.iter().copied())
        };
        let mut effects = Vec::new();
        match operation {
            Ok(operation) if addressed(&operation) => {
                self.partition.deliver(start.id, operation, &mut effects);
            }
            // A client's mistake, the same at all replicas: it counts and changes nothing.
            _ => {
                self.partition.skip(start.id);
                effects.push(Effect::Done { id: start.id, result: Err(FsError::Invalid) });
            }
        }
        self.carry_out(effects, out);
    }

    /// Another partition's vote.
    pub fn on_vote(&mut self, id: MessageId, from: GroupId, vote: Vote, out: &mut Vec<Wish>) {
        if self.sessions.is_decided(id) {
            return;
        }
        let mut effects = Vec::new();
        self.partition.vote(id, from, vote, &mut effects);
        self.carry_out(effects, out);
    }

    /// Whether a vote for `id` would come too late.
    pub fn is_decided(&self, id: MessageId) -> bool {
        self.sessions.is_decided(id)
    }

    /// Another's replica lacks our vote.
    pub fn own_vote(&self, id: MessageId) -> Option<&Vote> {
        self.partition.own_vote(id)
    }

    /// All replicas of all destinations have applied these.
    pub fn on_settled(&mut self, ids: &[MessageId]) {
        ids.iter().for_each(|id| self.partition.forget_vote(*id));
    }

    fn carry_out(&mut self, effects: Vec<Effect>, out: &mut Vec<Wish>) {
        for effect in effects {
            match effect {
                Effect::Vote { to, id, vote } => out.push(Wish::Vote { to, id, vote }),
                Effect::Done { id, result } => {
                    self.sessions.decided(id, result.clone());
                    for waiter in self.updates.remove(&id).unwrap_or_default() {
                        let reply = self.updated(id, result.clone());
                        out.push(Wish::Reply(waiter, reply));
                    }
                }
            }
        }
        self.answer_reads(out);
    }

    fn answer_reads(&mut self, out: &mut Vec<Wish>) {
        let applied = self.partition.applied();
        while let Some(first) = self.reads.first_entry().filter(|first| *first.key() <= applied) {
            for (waiter, query) in first.remove() {
                self.reads_waiting -= 1;
                self.answer(waiter, &query, out);
            }
        }
    }

    /// A message was asked for that had been delivered: answered if it is decided, else when it is.
    pub fn on_duplicate(&mut self, id: MessageId, out: &mut Vec<Wish>) {
        if self.sessions.is_decided(id) {
            for waiter in self.updates.remove(&id).unwrap_or_default() {
                let reply = match self.sessions.outcome(id) {
                    Some(outcome) => self.updated(id, outcome.clone()),
                    None => ReplyBody::Refused(Refusal::Bad(format!("message {id} has ended"))),
                };
                out.push(Wish::Reply(waiter, reply));
            }
        }
    }

    /// The multicast cannot reach a group that the message goes to.
    pub fn on_refused(&mut self, id: MessageId, out: &mut Vec<Wish>) {
        for waiter in self.updates.remove(&id).unwrap_or_default() {
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Overloaded)));
        }
    }

    /// Looks whether votes are missing or leases ran out.
    pub fn on_tick(&mut self, now: Time, out: &mut Vec<Wish>) {
        self.multicast.hold_stable(self.partition.applied());
        if now.since(self.votes_asked) >= VOTE_RETRY {
            self.votes_asked = now;
            let waiting = self.partition.waiting();
            out.extend(waiting.into_iter().map(|(id, of)| Wish::AskVotes { id, of }));
        }
        if self.multicast.role() == Role::Primary {
            if now.since(self.leases_seen) >= LEASE / 10 {
                self.leases_seen = now;
                self.expire_leases(now, out);
            }
        } else {
            self.leases.clear();
        }
    }

    /// The primary watches the leases by its own clock; what it finds is ordered like all else, and
    /// undone if the client renewed before.
    fn expire_leases(&mut self, now: Time, out: &mut Vec<Wish>) {
        let held: BTreeMap<_, _> = self.partition.leases().collect();
        self.leases.retain(|client, _| held.contains_key(client));
        for (client, renewals) in held {
            let (seen, since) = self.leases.entry(client).or_insert((renewals, now));
            if *seen != renewals {
                (*seen, *since) = (renewals, now);
            } else if now.since(*since) >= LEASE {
                *since = now;
                out.push(Wish::Multicast(self.expiry(client, renewals)));
            }
        }
    }

    /// Named after the client and the position: whichever primary sends it, it is the same message.
    fn expiry(&self, client: ClientId, renewals: u64) -> Start {
        let sequence = self.partition.delivered().0 + 1;
        let update = Update::Expire { client, partition: self.group, renewals };
        let (vector, time) = (Vector::default(), Timestamp::default());
        let operation = Operation { vector, time, update };
        let payload = postcard::to_stdvec(&operation).expect("an operation can be encoded");
        let id = MessageId { client: ClientId(!client.0), sequence };
        Start { low: sequence, ..Start::new(id, [self.group], payload) }
    }

    /// The state of partition and sessions, in bytes.
    pub fn application(&self) -> Bytes {
        encode(&self.partition, &self.sessions)
    }

    /// Copies that can be encoded later, on another thread.
    pub fn frozen(&self) -> (Partition, Sessions) {
        (self.partition.clone(), self.sessions.clone())
    }

    /// Takes over what [`Replica::application`] gave, here or elsewhere.
    ///
    /// # Panics
    /// If the bytes are not that: they passed a checksum, so a program of another version wrote them.
    pub fn install(&mut self, application: &[u8], out: &mut Vec<Wish>) {
        let (partition, sessions) =
            postcard::from_bytes(application).expect("a state of this version");
        self.partition = partition;
        self.sessions = sessions;
        let answered: Vec<_> =
            self.updates.keys().copied().filter(|id| self.sessions.is_decided(*id)).collect();
        answered.into_iter().for_each(|id| self.on_duplicate(id, out));
        self.answer_reads(out);
    }

    /// How it is.
    pub fn status(&self, now: Time) -> ReplicaStatus {
        let role = match self.multicast.role() {
            Role::Primary => "primary",
            Role::Follower => "follower",
            Role::Promised => "promised",
            Role::Candidate => "candidate",
        };
        let head = self.multicast.head_since().map(|since| now.since(since));
        ReplicaStatus {
            group: self.group,
            role: role.into(),
            epoch: self.multicast.epoch(),
            primary: self.multicast.epoch().leader,
            delivered: self.partition.delivered(),
            applied: self.partition.applied(),
            clock: self.multicast.clock(),
            pending: self.multicast.pending() as u64,
            head_age_ms: head.map_or(0, |age| age.as_millis().try_into().unwrap_or(u64::MAX)),
            state_hash: self.partition.state_hash(),
        }
    }

    /// Checks what must hold between steps.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        self.multicast.check_invariants();
        assert_eq!(self.partition.delivered(), self.multicast.delivered(), "R1");
        let applied = self.partition.applied();
        assert!(self.reads.keys().all(|needed| *needed > applied), "R2: a read was forgotten");
    }
}

/// The bytes of a partition and its sessions.
pub fn encode(partition: &Partition, sessions: &Sessions) -> Bytes {
    postcard::to_stdvec(&(partition, sessions)).expect("a state can be encoded").into()
}
