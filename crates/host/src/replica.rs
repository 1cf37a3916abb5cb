//! One group's replica on one node: the multicast's process, the partition that it orders, and the
//! clients that wait here.
//!
//! Invariants:
//! - R1: the partition has been delivered exactly what the multicast has delivered.
//! - R2: a read is answered only once the partition has applied, of what its client has seen and
//!   what was acknowledged before this node started, all that touches what the answer needs. One
//!   exception: attributes of a directory may in the end lack what only changes its entries.
//! - R3: the multicast holds the messages of several groups that were delivered and are not
//!   decided: others keep their votes for them.

use crate::api::{Refusal, ReplyBody};
use crate::reads::{Read, Reads};
use crate::sessions::{Admission, Sessions};
use crate::update::Payload;
use caps::{Asked, Caps};
use meridian_cluster::Topology;
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{
    BlockId, ClientId, GroupId, MessageId, NodeId, Position, ProcessId, Stamp, Time,
};
use meridian_fs::partition::Effect;
use meridian_fs::types::Rank;
use meridian_fs::vote::Vote;
use meridian_fs::{Answer, Ino, Partition, Query, Rights, Timestamp, Vector};
use meridian_multicast::{
    self as multicast, ClockSource, Config, Delivery, Dissemination, Fence, Notice, Options, Order,
    PrimCast, Start, Touches,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

mod along;
mod application;
mod caps;
mod counting;
mod doubtful;
mod leases;
mod locks;
mod members;
mod nameless;
mod regions;
mod snapshots;
mod space;
mod status;
mod votes;

pub use along::Looks;
pub use application::Frozen;
pub use caps::{CAP_LEASE, POLL_MAX};
use counting::Counted;
pub use doubtful::{Doubtful, Stage};
use leases::Vigil;
pub use locks::PARKED_MAX;
use nameless::Nameless;
use regions::RegionsSaid;
pub use snapshots::SNAPSHOT_LEASE;
use snapshots::{Heard, Snapshots};
use votes::Votes;
pub(crate) use votes::{decode as votes_of_report, encode as report_of_votes};

/// How long a client may hold locks and files without a name without saying that it lives.
pub const LEASE: Duration = Duration::from_secs(30);

/// Updates and reads that may wait at a replica; more are refused.
const WAITING_MAX: usize = 100_000;

/// While the multicast's log takes so many bytes, no update of a client is taken on.
const LOG_BYTES_MAX: usize = 256 << 20;

/// After how long a missing vote is asked for.
const VOTE_RETRY: Duration = Duration::from_millis(500);

/// How many inodes are named in one message that ends a lease.
const EXPIRED_MAX: usize = 4096;

/// How many waiting reads are looked at with each tick though nothing has happened that they wait
/// for.
const LOOKS_MAX: usize = 256;

/// How long a read waits at most. A client asks another node long before: what is left has been
/// given up, and its client has forgotten it or waits for a group that cannot answer.
const READ_MAX: Duration = Duration::from_secs(10);

/// How long attributes of a directory wait for updates that only change its entries: longer than a
/// vote takes from any region on earth, shorter than a person notices in a path.
const DIRECTORY_PATIENCE: Duration = Duration::from_millis(400);

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
    updates: BTreeMap<MessageId, Asked>,
    /// What waits for holders of capabilities, and holders that wait.
    caps: Caps,
    reads: Reads,
    /// Leases, as they were last renewed.
    leases: Vigil<ClientId, Rank>,
    votes: Votes,
    /// When missing votes were last asked for.
    votes_asked: Time,
    /// Blocks that no file lies in any more.
    released: Vec<BlockId>,
    nameless: Nameless,
    counted: Counted,
    snapshots: Snapshots,
    regions: RegionsSaid,
    /// When it last looked at what waits.
    ticked: Time,
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
    /// Multicast this, in the replica's own group and maybe others.
    Multicast(Start),
    /// Note that this was executed, or refused.
    Applied(MessageId),
}

impl Replica {
    /// The replica of `group` on `me`, with nothing delivered.
    pub fn new(topology: &Topology, group: GroupId, me: NodeId) -> Replica {
        let known = topology.group_ids().filter(|id| *id == group || topology.has_begun(*id));
        let configs = known.flat_map(|id| configs_of(topology, id, id == group, me));
        let multicast = PrimCast::joining(ProcessId { group, node: me }, configs);
        let mut replica = Replica::with(topology, group, multicast);
        if topology.has_lost(group) && !topology.is_lost(me) {
            replica.partition.inherit([]); // Another member gives the rest.
        }
        replica
    }

    /// The replica of a group that `me` has left, to be rebuilt from its records and read: these
    /// say who the members were, as far as that counts.
    pub(crate) fn former(topology: &Topology, group: GroupId, me: NodeId) -> Replica {
        let known = topology.group_ids().filter(|id| *id != group && topology.has_begun(*id));
        let configs = known.flat_map(|id| configs_of(topology, id, false, me));
        let own = Config { group, number: 0, members: vec![me] };
        let multicast = PrimCast::joining(group.of(me), configs.chain([own]));
        Replica::with(topology, group, multicast)
    }

    /// The replica of an heir, with these votes of the lost group.
    pub(crate) fn inheriting(
        topology: &Topology,
        me: NodeId,
        fence: Fence,
        votes: BTreeMap<MessageId, Vote>,
    ) -> Replica {
        let group = fence.config.group;
        let known = topology.group_ids().filter(|id| *id != group && topology.has_begun(*id));
        let configs: Vec<_> = known.flat_map(|id| configs_of(topology, id, false, me)).collect();
        let multicast = PrimCast::inheriting(group.of(me), fence, configs);
        let mut replica = Replica::with(topology, group, multicast);
        replica.partition.inherit(votes);
        replica
    }

    fn with(topology: &Topology, group: GroupId, multicast: PrimCast) -> Replica {
        // In the linearizable order a logical clock would make messages wait for groups that know
        // nothing of them.
        // The first directories were made with the cluster.
        let region = topology.region_of_group(group);
        let made_ms = region.and_then(|region| region.added_ms).unwrap_or(topology.created_ms);
        let made = Timestamp::from_millis(made_ms);
        let (order, clock) = match topology.order {
            DeliveryOrder::Sequential => (Order::Sequential, ClockSource::Logical),
            DeliveryOrder::Linearizable => (Order::Linearizable, ClockSource::Hybrid),
        };
        // Those of a region's own group are near each other; the global one's are not.
        let dissemination = match group {
            GroupId::GLOBAL => Dissemination::AllToAll,
            _ => Dissemination::ViaLeader,
        };
        // Clients ask the first node that answers, which is mostly the primary.
        let notice = Notice::WithNext;
        let options = Options { order, clock, dissemination, notice, ..Options::default() };
        let mut multicast = multicast.with_options(options);
        multicast.handled(Position(0));
        Replica {
            group,
            multicast,
            partition: Partition::new(group, topology.first_regions(), made),
            sessions: Sessions::default(),
            updates: BTreeMap::new(),
            caps: Caps::default(),
            reads: Reads::default(),
            leases: Vigil::default(),
            votes: Votes::default(),
            votes_asked: Time(0),
            released: Vec::new(),
            nameless: Nameless::default(),
            counted: Counted::default(),
            snapshots: Snapshots::default(),
            regions: RegionsSaid::default(),
            ticked: Time(0),
        }
    }

    /// The partition, for checks.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// A client asks for an update. Returns whether it must be multicast: otherwise it is answered.
    pub fn on_update(
        &mut self,
        waiter: Waiter,
        (start, looks): (&Start, Looks),
        is_full: bool,
        out: &mut Vec<Wish>,
    ) -> bool {
        if let Some(outcome) = self.sessions.outcome(start.id).cloned() {
            let asked = Asked::known(waiter, start, self.group).with(looks);
            self.tell(start.id, asked, outcome, None, out);
            return false;
        }
        let mut payload = None;
        let refusal = if self.sessions.has_ended(start.id) {
            Refusal::Bad(format!("{} has ended, its outcome is forgotten", start.id))
        } else if let Err(refusal) = self.admit(start, is_full).map(|of| payload = Some(of)) {
            refusal
        } else if self.multicast.log_bytes() >= LOG_BYTES_MAX || self.waiting() >= WAITING_MAX {
            Refusal::Overloaded
        } else {
            let asked = || Asked::new(start, payload.as_ref(), self.group).with(looks);
            self.updates.entry(start.id).or_insert_with(asked).waiters.push(waiter);
            return true;
        };
        out.push(Wish::Reply(waiter, ReplyBody::Refused(refusal)));
        false
    }

    /// A client asks a question; `along`: entries of the directory that it shows are to come along,
    /// and of those below it.
    pub fn on_read(
        &mut self,
        waiter: Waiter,
        (by, vector): (ClientId, &Vector),
        (query, rights): (Query, Option<Rights>),
        along: bool,
        out: &mut Vec<Wish>,
    ) {
        let (seen, since) = (vector.get(self.group), self.ticked);
        let read = Read { waiter, by, query, along, rights, seen, since };
        if self.may_answer() && self.is_ready(&read) {
            self.answer(&read, true, out);
        } else if self.reads.len() >= WAITING_MAX {
            out.push(Wish::Reply(waiter, ReplyBody::Refused(Refusal::Overloaded)));
        } else {
            self.reads.add(read);
            self.answer_reads(out);
        }
    }

    /// Answers what could not be answered when it came and can be now.
    pub fn answer_reads(&mut self, out: &mut Vec<Wish>) {
        if self.reads.len() == 0 || !self.may_answer() {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        // What touches nothing waits for the clocks alone.
        let passed = |ts| self.is_reached([], self.wanted(ts));
        for read in reads.take_ready(passed, |read| self.is_ready(read)) {
            self.answer(&read, true, out);
        }
        self.reads = reads;
    }

    /// Whether the state here may be shown. Not before it is known what others had acknowledged
    /// before this replica started: a client that has seen nothing yet must not miss it. And not
    /// while the multicast has told of deliveries that are still to be handed over.
    fn may_answer(&self) -> bool {
        self.multicast.floor().is_some() && self.partition.delivered() == self.multicast.delivered()
    }

    /// Up to where a state must reach that is shown to a client which has seen this (R2).
    fn wanted(&self, seen: Stamp) -> Stamp {
        seen.max(Stamp(self.multicast.floor().unwrap_or_default().0))
    }

    fn is_ready(&self, read: &Read) -> bool {
        self.can_show(&read.query, read.seen) && !self.is_parked(read)
    }

    /// Whether all is applied that an answer needs for a client that has seen this (R2).
    fn can_show(&self, query: &Query, seen: Stamp) -> bool {
        let wanted = self.wanted(seen);
        self.is_reached(query.keys(), wanted) && self.partition.can_answer(query, wanted)
    }

    /// Whether a read of a directory's attributes has waited for so long that it is answered
    /// without what only changes its entries. The kernel needs the attributes for each path through
    /// it.
    fn is_ready_in_part(&self, read: &Read, now: Time) -> bool {
        let wanted = self.wanted(read.seen);
        now.since(read.since) >= DIRECTORY_PATIENCE
            && read.query.least_key().is_some_and(|key| self.is_reached([key], wanted))
            && self.partition.can_answer_in_part(&read.query, wanted)
    }

    /// Whether all messages with these keys and timestamps up to `ts` have been delivered here.
    fn is_reached(&self, keys: impl IntoIterator<Item = u64>, ts: Stamp) -> bool {
        self.multicast.reached(&Touches::keys(keys), multicast::Timestamp(ts.0))
    }

    /// A connection is gone: nobody waits there any more.
    pub fn on_closed(&mut self, connection: ConnectionId) {
        self.updates.retain(|_, waiters| {
            waiters.waiters.retain(|waiter| waiter.connection != connection);
            !waiters.waiters.is_empty()
        });
        self.reads.close(connection);
        self.caps.close(connection);
    }

    fn answer(&self, read: &Read, whole: bool, out: &mut Vec<Wish>) {
        let mut result = self.partition.read_as(&read.query, read.by, read.rights.as_ref());
        if let Ok(answer) = &mut result {
            self.leave_out(answer, self.wanted(read.seen));
        }
        let vector = self.partition.vector().clone();
        let recalled = self.partition.recalled(read.by).collect();
        let along = result.as_ref().ok().and_then(|answer| self.entries_along(read, answer));
        let answer = match along {
            Some(along) => ReplyBody::AnswerAlong { vector, recalled, whole, result, along },
            None => ReplyBody::Answer { vector, recalled, whole, result },
        };
        out.push(Wish::Reply(read.waiter, answer));
    }

    /// Leaves out attributes of entries that may be older than `wanted`: the client asks for them
    /// then.
    fn leave_out(&self, answer: &mut Answer, wanted: Stamp) {
        let mut shown = answer.attributes_beside();
        shown.retain(|attributes| attributes.is_some());
        let ino = |attributes: &Option<meridian_fs::Attributes>| attributes.map(|of| of.place.ino);
        let inos: Vec<Ino> = shown.iter().filter_map(|attributes| ino(attributes)).collect();
        let settled = |ino: Ino| self.partition.is_settled(ino, wanted);
        if self.is_reached(inos.iter().map(|ino| ino.key()), wanted)
            && inos.iter().all(|ino| settled(*ino))
        {
            return;
        }
        for (attributes, ino) in shown.into_iter().zip(inos) {
            if !self.is_reached([ino.key()], wanted) || !settled(ino) {
                *attributes = None;
            }
        }
    }

    /// A message was delivered.
    ///
    /// # Panics
    /// R1: if it is not the next one.
    pub fn on_delivery(&mut self, delivery: Delivery, out: &mut Vec<Wish>) {
        let Delivery { start, position, ts } = delivery;
        let next = Position(self.partition.delivered().0 + 1);
        assert!(position == next, "R1: delivered {position:?}, expected {next:?}");
        let (id, ts) = (start.id, Stamp(ts.0));
        // Its votes may have come already, and have seemed too late.
        let doubtful = self.is_decided(id);
        let mut effects = Vec::new();
        match Payload::read(&start) {
            Ok(payload) => self.deliver(id, ts, start.low, payload, &mut effects),
            // A client's mistake, the same at all replicas: it counts and changes nothing.
            Err(_) => self.skip(id, ts, &mut effects),
        }
        self.carry_out(effects, out);
        if start.dest.len() > 1 && self.partition.is_waiting(id) {
            self.multicast.hold((multicast::Timestamp(ts.0), id));
        }
        self.multicast.handled(position);
        let missing = self.partition.missing(id);
        if doubtful && !missing.is_empty() {
            out.push(Wish::AskVotes { id, of: missing });
        }
    }

    fn deliver(
        &mut self,
        id: MessageId,
        ts: Stamp,
        low: u64,
        payload: Payload,
        effects: &mut Vec<Effect>,
    ) {
        let seen = payload.vector.get(self.group);
        let admission = self.sessions.admit(id, ts, low, seen, &payload.cancels);
        let Some(operation) = payload.into_operation() else {
            return self.skip(id, ts, effects); // It has cancelled what it should.
        };
        match admission {
            // The lost group had it executed, as far as others have heard.
            Admission::Refuse if !self.partition.has_inherited(id) => {
                self.snapshots.hear(|| Heard::Refuse(id, ts, operation.update.clone()));
                self.partition.refuse(id, ts, &operation.update, effects);
            }
            Admission::Execute | Admission::Refuse => {
                let operation = self.planted(operation);
                self.snapshots.hear(|| Heard::Execute(id, ts, operation.clone()));
                self.partition.deliver(id, ts, operation, effects);
            }
            Admission::Repeat => {
                self.skip(id, ts, effects);
                effects.clear(); // Whoever waits is answered by what came of it the first time.
            }
        }
    }

    fn skip(&mut self, id: MessageId, ts: Stamp, effects: &mut Vec<Effect>) {
        self.snapshots.hear(|| Heard::Skip(id, ts));
        self.partition.skip(id, ts, effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, out: &mut Vec<Wish>) {
        for effect in effects {
            match effect {
                Effect::Vote { to, id, vote } => out.push(Wish::Vote { to, id, vote }),
                Effect::Released(blocks) => self.released.extend(blocks),
                Effect::Recalled(clients) => self.on_recalled(&clients, out),
                Effect::LetGo => self.on_let_go(out),
                Effect::Done { id, ts, result, touched, held } => {
                    out.push(Wish::Applied(id));
                    self.reads.touch(&touched);
                    self.multicast.release((multicast::Timestamp(ts.0), id));
                    self.sessions.decided(id, (ts, result.clone()));
                    if let Some(asked) = self.updates.remove(&id) {
                        // What was cancelled before it came has an outcome already, and who asks
                        // later is told that.
                        let outcome = self.sessions.outcome(id).cloned().unwrap_or((ts, result));
                        self.tell(id, asked, outcome, Some(held), out);
                    }
                }
            }
        }
        self.answer_reads(out);
    }

    /// The multicast does not take on `id`, because `group` cannot be reached.
    pub fn on_refused(&mut self, id: MessageId, group: GroupId, out: &mut Vec<Wish>) {
        for waiter in self.updates.remove(&id).into_iter().flat_map(|asked| asked.waiters) {
            let reply = ReplyBody::Refused(Refusal::OutOfReach(group));
            out.push(Wish::Reply(waiter, reply));
        }
    }

    /// A message was asked for that had been delivered: answered if it is decided, else when it is.
    pub fn on_duplicate(&mut self, id: MessageId, out: &mut Vec<Wish>) {
        if self.partition.is_waiting(id) || self.sessions.is_pending(id) {
            return;
        }
        let Some(asked) = self.updates.remove(&id) else { return };
        if let Some(outcome) = self.sessions.outcome(id).cloned() {
            return self.tell(id, asked, outcome, None, out);
        }
        for waiter in asked.waiters {
            let refusal = Refusal::Bad(format!("message {id} has ended"));
            out.push(Wish::Reply(waiter, ReplyBody::Refused(refusal)));
        }
    }

    /// Looks whether votes are missing or leases ran out. Returns how much time counts that has
    /// passed since the last tick.
    pub fn on_tick(&mut self, now: Time, out: &mut Vec<Wish>) -> Duration {
        let counted = leases::counted(self.ticked, now);
        self.ticked = now;
        if self.may_answer() {
            let mut reads = std::mem::take(&mut self.reads);
            let ready = |read: &Read| self.is_ready(read) || self.is_ready_in_part(read, now);
            for read in reads.take_ready_of_next(LOOKS_MAX, ready) {
                self.answer(&read, self.is_ready(&read), out);
            }
            self.reads = reads;
        }
        for read in self.reads.take_old(now, READ_MAX) {
            out.push(Wish::Reply(read.waiter, ReplyBody::Refused(Refusal::Overloaded)));
        }
        self.on_votes_tick(now, out);
        self.snapshots.age(counted);
        self.on_caps_tick(now, counted, out);
        self.expire_leases(counted, out);
        counted
    }

    /// Checks what must hold between steps.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        self.multicast.check_invariants();
        assert_eq!(self.partition.delivered(), self.multicast.delivered(), "R1");
        let waiting: Vec<_> = self.partition.waiting_for_others().collect();
        let held = self.multicast.held().map(|(ts, id)| (Stamp(ts.0), id));
        assert!(held.eq(waiting), "R3");
        self.reads.check_invariants();
        self.sessions.check_invariants();
    }

    /// How many sessions are remembered here, and how many outcomes of their messages.
    pub fn remembered(&self) -> (usize, usize) {
        self.sessions.len()
    }
}

/// What a process is to know of the members of a group when it starts: those that count and those
/// before; and in its own group those to come, if it comes with them.
fn configs_of(topology: &Topology, id: GroupId, own: bool, me: NodeId) -> Vec<Config> {
    let group = topology.group(id);
    let config =
        |number, members: &Vec<NodeId>| Config { group: id, number, members: members.clone() };
    let before =
        group.before.as_ref().map(|members| config(group.number.saturating_sub(1), members));
    let next = group.next.as_ref().filter(|_| own && !group.members.contains(&me));
    let next = next.map(|members| config(group.number + 1, members));
    before.into_iter().chain([config(group.number, &group.members)]).chain(next).collect()
}
