//! One process of one group: its state, and which handler takes which event.
//!
//! Invariants, beside those of the parts:
//! - P1: `e_cur <= e_prom`.
//! - P2: `clock <= ceiling`, and the ceiling is durable before a greater clock is shown.
//! - P3: deliveries that conflict ascend in (final timestamp, id).

use crate::clocks::Clocks;
use crate::done::{Done, Known};
use crate::epoch::Election;
use crate::hybrid::Partners;
use crate::log::Log;
use crate::members::{Config, Members};
use crate::memory::Memory;
use crate::message::{
    Command, Delivery, Epoch, Message, Output, Progress, Rank, Record, Start, Timestamp, Touches,
};
pub use crate::mutation::Mutation;
use crate::reach::Reach;
use crate::relay::Relay;
use crate::remote::Remote;
use crate::snapshot::{State, Transfers};
use crate::stable::Stable;
use crate::starts::Starts;
use crate::stream::Stream;
use crate::truncation::{Limits, Truncation};
use crate::upkeep::{TICK, TICK_TOKEN, Upkeep};
use meridian_core::{
    Event, GroupId, MessageId, NodeId, Outbox, Position, Process, ProcessId, Time,
};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How far ahead of the clock its ceiling is set: so many messages are proposed between two records
/// of it, and so much the clock jumps after a restart.
const CEILING_STEP: u64 = 1 << 16;

/// The same for hybrid clocks, in microseconds.
const CEILING_STEP_US: u64 = 1_000_000;

/// No name is less.
const LEAST: MessageId = MessageId { client: meridian_core::ClientId(0), sequence: 0 };

/// The members of each group, in order; the same at all processes.
pub type Groups = Arc<BTreeMap<GroupId, Vec<NodeId>>>;

/// The thesis's `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Proposes timestamps for its group.
    Primary,
    /// Follows the primary of `E_cur`.
    Follower,
    /// Has promised to `E_prom`, or has restarted: waits to learn that its epoch stands.
    Promised,
    /// Opens the epoch `E_prom`.
    Candidate,
}

/// Which order deliveries have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Acyclic over all processes (thesis, section 2.2.1).
    #[default]
    Sequential,
    /// Beside that a message multicast after the delivery of another one, in real time, is not ordered
    /// before it, not even by a chain of others (thesis, section 5.2.2; corrected). Where groups are far from each other
    /// [`ClockSource::Hybrid`] saves a third of its latency.
    Linearizable,
}

/// Where a primary's timestamps come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClockSource {
    /// They count.
    #[default]
    Logical,
    /// Microseconds of the clock that steps are given, or more (thesis, section 4.4.1; see `hybrid`). Skew costs
    /// latency only.
    Hybrid,
}

/// Who of a group speaks with other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Speakers {
    /// All its processes: a delivery takes three steps (thesis, section 4.2). For groups whose members are
    /// far from each other.
    #[default]
    All,
    /// Its primary, which relays to the others what it hears: see `relay`. For groups whose members are near
    /// each other, so that a step costs less than a message.
    Primary,
}

/// How a deployment uses PrimCast; the first two the same at all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// The order of deliveries.
    pub order: Order,
    /// The source of timestamps.
    pub clock: ClockSource,
    /// Who speaks with other groups; the same in a group.
    pub speakers: Speakers,
}

/// A process of PrimCast. Fields are the thesis's variables where they have its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrimCast {
    pub(crate) me: ProcessId,
    pub(crate) members: Members,
    pub(crate) options: Options,
    pub(crate) mutation: Mutation,
    /// `T`.
    pub(crate) log: Log,
    pub(crate) clock: Timestamp,
    pub(crate) ceiling: Timestamp,
    pub(crate) e_cur: Epoch,
    pub(crate) e_prom: Epoch,
    pub(crate) role: Role,
    pub(crate) clocks: Clocks,
    pub(crate) remote: Remote,
    pub(crate) done: Done,
    /// `M`, as far as it holds STARTs not in `T`.
    pub(crate) starts: Starts,
    /// For each member the latest epoch in which it acknowledged, and which length of `T`: what comes
    /// before NEW-STATE counts after it.
    pub(crate) acked: BTreeMap<NodeId, (Epoch, u64)>,
    /// The length of `T` that is decided.
    pub(crate) decided: u64,
    pub(crate) delivered: Position,
    /// SAFE-TS when the process was idle last.
    pub(crate) safe: Timestamp,
    /// The greatest one delivered.
    pub(crate) last: Option<Rank>,
    /// Those delivered since the others were last told what is stable here.
    pub(crate) untold: VecDeque<(Position, Rank)>,
    pub(crate) truncation: Truncation,
    pub(crate) limits: Limits,
    /// What the group was last shown: epoch, length, clock.
    pub(crate) shown: Option<(Epoch, u64, Timestamp)>,
    /// The length of `T` up to which other groups were sent ACKs, and up to which, as primary, entries.
    pub(crate) remote_acked: u64,
    pub(crate) remote_streamed: u64,
    /// As primary, the length of `T` up to which our proposals were recorded.
    pub(crate) recorded: u64,
    /// Who of other groups has the stream of this epoch, up to which index.
    pub(crate) followers: BTreeMap<ProcessId, u64>,
    /// STARTs on their way out.
    pub(crate) outgoing: BTreeMap<ProcessId, Vec<Arc<Start>>>,
    /// The number of our group's configuration that all other groups were told.
    pub(crate) config_told: u64,
    /// Which other groups can be reached.
    pub(crate) reach: Reach,
    /// What others have reached, in the linearizable order.
    pub(crate) stable: Stable,
    /// Who is shown our clock as time goes by.
    pub(crate) partners: Partners,
    /// What is on its way where a primary speaks for its group.
    pub(crate) relay: Relay,
    pub(crate) streams: BTreeMap<NodeId, Stream>,
    pub(crate) election: Election,
    pub(crate) upkeep: Upkeep,
    /// See [`PrimCast::floor`].
    pub(crate) floor: Option<Timestamp>,
    pub(crate) transfers: Transfers,
    pub(crate) memory: Memory,
}

impl PrimCast {
    /// The process `me`, with nothing delivered.
    ///
    /// # Panics
    /// If `me` is not a member of its group.
    pub fn new(me: ProcessId, groups: Groups) -> PrimCast {
        PrimCast::of(me, Members::new(&groups, 0))
    }

    /// The process `me`, with nothing delivered, of a group that has had other members, or of a new one: with the
    /// configurations that another knows who has delivered the last of them ([`PrimCast::members`]).
    ///
    /// # Panics
    /// If `me` is not a member of its group in the latest of them.
    pub fn joining(me: ProcessId, configs: impl IntoIterator<Item = Config>) -> PrimCast {
        let mut members = Members::default();
        for config in configs {
            members.learn(&config);
        }
        PrimCast::of(me, members)
    }

    fn of(me: ProcessId, members: Members) -> PrimCast {
        let latest = members.of(me.group);
        assert!(latest.contains(&me.node), "{me} is not in its group");
        // Of configuration 0 also for who joins later: it has not been in any epoch.
        let e_first = Epoch { config: 0, number: 0, leader: latest[0] };
        PrimCast {
            me,
            members,
            options: Options::default(),
            mutation: Mutation::Correct,
            log: Log::default(),
            clock: Timestamp(0),
            ceiling: Timestamp(0),
            e_cur: e_first,
            e_prom: e_first,
            role: Role::Promised,
            clocks: Clocks::default(),
            remote: Remote::default(),
            done: Done::default(),
            starts: Starts::default(),
            acked: BTreeMap::new(),
            decided: 0,
            delivered: Position(0),
            safe: Timestamp(0),
            last: None,
            untold: VecDeque::new(),
            truncation: Truncation::default(),
            limits: Limits::default(),
            shown: None,
            remote_acked: 0,
            remote_streamed: 0,
            recorded: 0,
            followers: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            config_told: 0,
            reach: Reach::default(),
            stable: Stable::default(),
            partners: Partners::default(),
            relay: Relay::default(),
            streams: BTreeMap::new(),
            election: Election::default(),
            upkeep: Upkeep::default(),
            floor: None,
            transfers: Transfers::default(),
            memory: Memory::default(),
        }
    }

    /// The same process, used in another way.
    pub fn with_options(mut self, options: Options) -> PrimCast {
        self.options = options;
        self
    }

    /// How it is used.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The same process with a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> PrimCast {
        self.mutation = mutation;
        self
    }

    /// The members of all groups that this process knows of.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Which process this is.
    pub fn me(&self) -> ProcessId {
        self.me
    }

    /// Its state in the protocol.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The epoch that it is in; its leader is the primary if the epoch stands.
    pub fn epoch(&self) -> Epoch {
        self.e_cur
    }

    /// How many messages it has delivered.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// Its clock.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// No less than the timestamps of all that any process of the group had delivered before this one started:
    /// `None` while that is not known. A state in which [`PrimCast::reached`] says so of this timestamp lacks
    /// nothing that others acknowledged then.
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// SAFE-TS (thesis, section 4.4.2): all messages with a lower timestamp have been delivered here.
    pub fn safe_ts(&self) -> Timestamp {
        self.safe
    }

    /// Nothing up to `clock` can come any more. What was safe is safe for ever, though a new primary has shown no clock
    /// yet.
    pub(crate) fn raise_safe_ts(&mut self, clock: Timestamp) {
        if self.stands() {
            let first = self.log.queue().first().map(|((bound, _), _)| bound);
            let safe = first.unwrap_or(Timestamp(u64::MAX)).min(Timestamp(clock.0 + 1));
            self.safe = self.safe.max(safe);
        }
    }

    /// Whether all messages that conflict with `touches` and have a timestamp up to `ts` have been
    /// delivered here.
    pub fn reached(&self, touches: &Touches, ts: Timestamp) -> bool {
        let clock = self.clocks.min_clock(self.e_cur.leader);
        let clock = clock.min(self.clocks.quorum_clock(self.voters()));
        ts <= clock && self.log.queue().is_free((Timestamp(ts.0 + 1), LEAST), touches)
    }

    /// The final timestamp of a message that was delivered here, or to whoever gave the state that this process
    /// goes on from; `None` also if its client waits for it no more.
    pub fn delivered_at(&self, id: MessageId) -> Option<Timestamp> {
        match self.known(id) {
            Known::Delivered(ts) => Some(ts),
            Known::No | Known::Ended => None,
        }
    }

    /// How many messages are proposed and not delivered.
    pub fn pending(&self) -> usize {
        self.log.pending()
    }

    /// How long the first message in the order of deliveries has waited; the others wait for it.
    pub fn head_since(&self) -> Option<Time> {
        self.log.waiting().next().map(|(_, slot)| slot.since)
    }

    /// How much memory the entries of `T` take, in bytes.
    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// How many entries of `T` are held, and how many more are set aside.
    pub fn log_entries(&self) -> (usize, usize) {
        (self.log.in_line().0, self.log.aside().0)
    }

    /// Rebuilds what `record` says. Returns what the owner is to be told again: deliveries and
    /// installed snapshots, in the order in which it was told them first.
    ///
    /// # Panics
    /// If the records contradict each other.
    pub fn recover(&mut self, record: Record) -> Option<Output> {
        match record {
            Record::Promised(epoch) => self.e_prom = epoch.max(self.e_prom),
            Record::Append { from, entries } => {
                let known = self.log.len().saturating_sub(from);
                assert!(from <= self.log.len(), "entries from {from} after {}", self.log.len());
                let fresh = entries.iter().skip(usize::try_from(known).unwrap_or(usize::MAX));
                fresh.for_each(|entry| self.log.append(entry.clone(), Time(0)));
            }
            Record::NewState { epoch, from, entries } => {
                self.log.cut(from);
                entries.into_iter().for_each(|entry| self.log.append(entry, Time(0)));
                self.e_cur = epoch;
                self.e_prom = epoch.max(self.e_prom);
            }
            Record::Ceiling(ceiling) => {
                self.ceiling = ceiling;
                self.clock = ceiling;
                if self.mutation == Mutation::NoCeiling {
                    self.clock = Timestamp(0);
                }
            }
            Record::Delivered { id, ts } => {
                let index = self.log.find(id).expect("what was delivered was in T before");
                self.log.decide(index, ts);
                return Some(Output::Deliver(self.deliver(index, ts)));
            }
            Record::Mark => {}
            Record::Config(config) => {
                self.members.learn(&config);
            }
            Record::State(state) => {
                let (position, application) = self.restore(*state);
                return application.map(|application| Output::Install { position, application });
            }
        }
        None
    }

    /// What is known here of `id`.
    pub(crate) fn known(&self, id: MessageId) -> Known {
        match self.log.slot(id) {
            Some(slot) if slot.delivered => Known::Delivered(slot.bound),
            Some(_) => Known::No,
            None => self.done.known(id),
        }
    }

    /// What can be made durable of this process, without the application's state.
    pub fn state(&self) -> State {
        State {
            e_cur: self.e_cur,
            e_prom: self.e_prom,
            log: self.log.clone(),
            decided: self.decided,
            delivered: self.delivered,
            last: self.last,
            done: self.done.clone(),
            clock: self.clock,
            ceiling: self.ceiling,
            members: self.members.clone(),
            application: None,
        }
    }

    /// Checks what must hold between steps, walking the whole state.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        assert!(self.e_cur <= self.e_prom, "P1: {:?} {:?}", self.e_cur, self.e_prom);
        assert!(self.clock <= self.ceiling, "P2: {:?} {:?}", self.clock, self.ceiling);
        assert!(self.decided <= self.log.len(), "decided {} of {}", self.decided, self.log.len());
        let queued: Vec<_> = self.log.waiting().map(|(index, _)| index).collect();
        let waiting = self.log.iter_from(0).filter(|(_, slot)| !slot.delivered);
        let mut held: Vec<_> = waiting.map(|(index, _)| index).collect();
        held.sort_unstable();
        let mut sorted = queued.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, held, "L3");
        for (index, slot) in self.log.stragglers() {
            let safe = slot.delivered || index < self.decided;
            assert!(safe, "L2: {} is set aside at {index}", slot.entry.start.id);
        }
        for (_, slot) in self.log.iter_from(0) {
            let id = slot.entry.start.id;
            assert!(!self.starts.contains(id), "{id} is in T and still to be proposed");
        }
    }

    /// The members of the group in the configuration of `E_cur`; none if that is not known: then nothing is a quorum.
    pub(crate) fn voters(&self) -> &[NodeId] {
        self.members.in_config(self.me.group, self.e_cur.config).unwrap_or(&[])
    }

    /// The other processes of the group, in the configuration in force and in those to come.
    pub(crate) fn peers(&self) -> impl ExactSizeIterator<Item = ProcessId> + use<> {
        let me = self.me;
        let mut peers: SmallVec<[ProcessId; 4]> = SmallVec::new();
        let from = self.e_cur.config.min(self.members.number(me.group));
        for node in self.members.lists(me.group, from).flatten() {
            let peer = me.group.of(*node);
            if peer != me && !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        peers.into_iter()
    }

    /// The processes of `group`; none if there is no such group.
    pub(crate) fn processes(&self, group: GroupId) -> impl Iterator<Item = ProcessId> + use<> {
        let nodes = self.members.of(group).iter();
        let processes: SmallVec<[ProcessId; 4]> = nodes.map(|node| group.of(*node)).collect();
        processes.into_iter()
    }

    pub(crate) fn leads(&self, epoch: Epoch) -> bool {
        epoch.leader == self.me.node
    }

    pub(crate) fn leader_of(&self, epoch: Epoch) -> ProcessId {
        self.me.group.of(epoch.leader)
    }

    pub(crate) fn stands(&self) -> bool {
        matches!(self.role, Role::Primary | Role::Follower)
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            e_cur: self.e_cur,
            len: self.log.len(),
            base: self.log.base(),
            runs: self.log.runs().clone(),
        }
    }

    /// Moves the clock up to `to`, its ceiling first if need be.
    pub(crate) fn raise_clock(&mut self, to: Timestamp, out: &mut Outbox<Self>) {
        if to <= self.clock {
            return;
        }
        if to > self.ceiling {
            let step = match self.options.clock {
                ClockSource::Logical => CEILING_STEP,
                ClockSource::Hybrid => CEILING_STEP_US,
            };
            self.ceiling = Timestamp(to.0.saturating_add(step));
            if self.mutation != Mutation::IgnoresCeiling {
                out.persist(Record::Ceiling(self.ceiling));
            }
        }
        self.clock = to;
    }

    /// Marks the entry at `index` as delivered. Its final timestamp may have come from another process: then a quorum
    /// holds it, and all before it, though we have not counted that.
    pub(crate) fn deliver(&mut self, index: u64, ts: Timestamp) -> Delivery {
        self.decide_up_to(index + 1);
        let entry = &self.log.get(index).expect("the caller found it").entry;
        let (start, epoch) = (entry.start.clone(), entry.epoch);
        let rank = (ts, start.id);
        self.log.deliver(index);
        self.done.ended_below(start.id.client, start.low);
        if let Some(config) = &start.config {
            self.learn_delivered(epoch, &start.touches, config);
        }
        if self.is_linearizable() && start.dest.len() > 1 {
            self.stable.delivered(start.id, rank);
            self.owe_others(index, ts);
        }
        self.delivered = Position(self.delivered.0 + 1);
        self.last = self.last.max(Some(rank));
        self.untold.push_back((self.delivered, rank));
        for group in start.dest.iter().filter(|group| **group != self.me.group) {
            self.truncation.keep_for(*group, self.delivered);
        }
        Delivery { start, ts, position: self.delivered }
    }
}

/// Names the process of a group on a node.
pub(crate) trait Of {
    fn of(self, node: NodeId) -> ProcessId;
}

impl Of for GroupId {
    fn of(self, node: NodeId) -> ProcessId {
        ProcessId { group: self, node }
    }
}

impl Process for PrimCast {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.on_links_new();
                self.on_started(now, out);
                out.timer(now + TICK, TICK_TOKEN);
            }
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(Command::Start(start)) => {
                if !self.refuses(&start, out) {
                    self.on_start(now, None, Arc::new(start), out);
                }
            }
            Event::Command(Command::Multicast(start)) => {
                self.multicast(now, Arc::new(start), out);
            }
            Event::Command(Command::Snapshot { to, position, application }) => {
                self.on_snapshot(to, position, application, out);
            }
            Event::Timer(_) => {
                self.relay.acknowledge_due(now);
                if now >= self.upkeep.tick_at {
                    self.upkeep.tick_at = now + TICK;
                    self.on_tick(now, out);
                    out.timer(now + TICK, TICK_TOKEN);
                }
            }
            Event::Restarted(peer) => self.on_restarted(now, peer, out),
            Event::Idle => self.on_idle(now, out),
        }
    }

    fn replay(&mut self, record: Record) {
        self.recover(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        Box::new(std::iter::once(Record::State(Box::new(self.state()))))
    }
}
