//! One process of one group: its state, and which handler takes which event.
//!
//! Invariants, beside those of the parts:
//! - P3: deliveries that conflict ascend in (final timestamp, id).

use crate::handlers::obstacles::missing;
use crate::message::{
    Command, Delivery, Epoch, Message, NormalMessage, Output, Progress, Start, Timestamp, Touches,
};
use crate::mutation::{Mutation, Planted};
use crate::options::{ClockSource, Groups, Options};
use crate::record::{Record, State};
use crate::state::clock::Clock;
use crate::state::deliveries::Deliveries;
use crate::state::done::Known;
use crate::state::epochs::{Epochs, Role};
use crate::state::fences::Fences;
use crate::state::linearizable::Linearizable;
use crate::state::log::{Log, Slot};
use crate::state::members::{Config, Members};
use crate::state::outbound::Outbound;
use crate::state::recovery::Recovery;
use crate::state::relay::Relay;
use crate::state::remote::Remote;
use crate::state::replication::Replication;
use crate::state::retransmission::{Retransmission, TICK, Timer};
use crate::state::stability::Stability;
use crate::state::starts::Starts;
use meridian_core::{
    Aside, Effect, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, ProcessId, Time,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// How far ahead of the clock its ceiling is set: so many messages are proposed between two records
/// of it, and so much the clock jumps after a restart.
const CEILING_STEP: u64 = 1 << 16;

/// The same for hybrid clocks, in microseconds.
const CEILING_STEP_US: u64 = 1_000_000;

/// No name is less.
const LEAST: MessageId = MessageId { client: meridian_core::ClientId(0), sequence: 0 };

/// A process of PrimCast. Each part of its state has one owner; the thesis's variables keep their
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrimCast {
    pub(crate) me: ProcessId,
    pub(crate) members: Members,
    pub(crate) options: Options,
    pub(crate) planted: Planted,
    /// `T`.
    pub(crate) log: Log,
    /// `clock`, and the clocks of the group.
    pub(crate) clock: Clock,
    /// `E_cur`, `E_prom`, `state`, and a change of epoch.
    pub(crate) epochs: Epochs,
    /// What passes between the primary and its followers.
    pub(crate) replication: Replication,
    /// `M`, as far as it holds STARTs not in `T`.
    pub(crate) starts: Starts,
    /// `D`, and the order of deliveries.
    pub(crate) deliveries: Deliveries,
    /// What other groups proposed.
    pub(crate) remote: Remote,
    /// What other groups were sent.
    pub(crate) outbound: Outbound,
    /// What is on its way where a primary relays for its group.
    pub(crate) relay: Relay,
    /// What others have reached, in the linearizable order.
    pub(crate) linearizable: Linearizable,
    /// What is delivered for good.
    pub(crate) stability: Stability,
    /// What was repeated when.
    pub(crate) retransmission: Retransmission,
    /// Snapshots and incarnations.
    pub(crate) recovery: Recovery,
    /// Groups that were lost.
    pub(crate) fences: Fences,
}

impl PrimCast {
    /// The process `me`, with nothing delivered.
    ///
    /// # Panics
    /// If `me` is not a member of its group.
    pub fn new(me: ProcessId, groups: Groups) -> PrimCast {
        PrimCast::of(me, Members::new(&groups, 0))
    }

    /// The process `me`, with nothing delivered, of a group that has had other members, or of a new
    /// one: with the configurations that another knows who has delivered the last of them
    /// ([`PrimCast::members`]).
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
            planted: Planted::NONE,
            log: Log::default(),
            clock: Clock::default(),
            epochs: Epochs::new(e_first),
            replication: Replication::default(),
            starts: Starts::default(),
            deliveries: Deliveries::default(),
            remote: Remote::default(),
            outbound: Outbound::default(),
            relay: Relay::default(),
            linearizable: Linearizable::default(),
            stability: Stability::default(),
            retransmission: Retransmission::default(),
            recovery: Recovery::default(),
            fences: Fences::default(),
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
    ///
    /// # Panics
    /// If this build has no planted bugs: see [`crate::mutation::PLANTED`].
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> PrimCast {
        self.planted = Planted::new(mutation);
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
        self.epochs.role
    }

    /// The epoch that it is in; its leader is the primary if the epoch stands.
    pub fn epoch(&self) -> Epoch {
        self.epochs.cur
    }

    /// How many messages it has delivered.
    pub fn delivered(&self) -> Position {
        self.deliveries.count
    }

    /// Its clock.
    pub fn clock(&self) -> Timestamp {
        self.clock.now
    }

    /// No less than the timestamps of all that any process of the group had delivered before this
    /// one started: `None` while that is not known. A state in which [`PrimCast::reached`] says so
    /// of this timestamp lacks nothing that others acknowledged then.
    pub fn floor(&self) -> Option<Timestamp> {
        self.deliveries.floor
    }

    /// SAFE-TS (thesis, section 4.4.2): all messages with a lower timestamp have been delivered
    /// here.
    pub fn safe_ts(&self) -> Timestamp {
        self.deliveries.safe
    }

    /// Nothing up to `clock` can come any more. What was safe is safe for ever, though a new
    /// primary has shown no clock yet.
    pub(crate) fn raise_safe_ts(&mut self, clock: Timestamp) {
        if self.stands() {
            let first = self.log.queue().first().map(|((bound, _), _)| bound);
            let safe = first.unwrap_or(Timestamp(u64::MAX)).min(Timestamp(clock.0 + 1));
            self.deliveries.safe = self.deliveries.safe.max(safe);
        }
    }

    /// Whether all messages that conflict with `touches` and have a timestamp up to `ts` have been
    /// delivered here.
    pub fn reached(&self, touches: &Touches, ts: Timestamp) -> bool {
        let clock = self.clock.members.min_clock(self.epochs.cur.leader);
        let clock = clock.min(self.clock.members.quorum_clock(self.voters()));
        ts <= clock && self.log.queue().is_free((Timestamp(ts.0 + 1), LEAST), touches)
    }

    /// Whether no message that touches something of this is known here and not delivered.
    pub fn is_idle(&self, touches: &Touches) -> bool {
        self.log.queue().is_free((Timestamp(u64::MAX), LEAST), touches)
    }

    /// The final timestamp of a message that was delivered here, or to whoever gave the state that
    /// this process goes on from; `None` also if its client waits for it no more.
    pub fn delivered_at(&self, id: MessageId) -> Option<Timestamp> {
        match self.known(id) {
            Known::Delivered(ts) => Some(ts),
            Known::No | Known::Ended => None,
        }
    }

    /// Whether the message was delivered here, or ended, and `T` holds it no more: all members of
    /// its destinations have applied it, or at least a quorum of each.
    pub fn has_dropped(&self, id: MessageId) -> bool {
        self.log.find(id).is_none() && self.deliveries.done.known(id) != Known::No
    }

    /// How many messages are proposed and not delivered.
    pub fn pending(&self) -> usize {
        self.log.pending()
    }

    /// How long the first message in the order of deliveries has waited; the others wait for it.
    pub fn head_since(&self) -> Option<Time> {
        self.log.waiting().next().map(|(_, slot)| slot.since)
    }

    /// The first message in the order of deliveries, and the groups whose timestamps are missing
    /// for it; none if it only waits for clocks, or its turn. What is before it is safe.
    pub fn head(&self) -> Option<(MessageId, Vec<GroupId>)> {
        self.undelivered().next().map(|(start, missing)| (start.id, missing))
    }

    /// The messages that are proposed and not delivered, in the order of deliveries, each with the
    /// groups whose timestamps are missing for it.
    pub fn undelivered(&self) -> impl Iterator<Item = (&Start, Vec<GroupId>)> {
        self.log.waiting().map(|(_, slot)| (&*slot.entry.start, missing(slot)))
    }

    /// When the final timestamp of a message was known here, if it is, and `T` holds the message.
    pub fn final_at(&self, id: MessageId) -> Option<Time> {
        self.log.slot(id).and_then(Slot::final_at)
    }

    /// How much memory the entries of `T` take, in bytes.
    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// How many entries of `T` are held, and how many more are retained gaps.
    pub fn log_entries(&self) -> (usize, usize) {
        (self.log.in_line().entries, self.log.retained().entries)
    }

    /// Rebuilds what `record` says. Returns what the owner is to be told again: deliveries and
    /// installed snapshots, in the order in which it was told them first.
    ///
    /// # Panics
    /// If the records contradict each other.
    pub fn recover(&mut self, record: Record) -> Option<Output> {
        match record {
            Record::Promised(epoch) => self.epochs.prom = epoch.max(self.epochs.prom),
            Record::Append { from, entries } => {
                let known = self.log.len().saturating_sub(from);
                assert!(from <= self.log.len(), "entries from {from} after {}", self.log.len());
                let fresh = entries.iter().skip(usize::try_from(known).unwrap_or(usize::MAX));
                fresh.for_each(|entry| self.log.append(entry.clone(), Time(0)));
            }
            Record::NewState { epoch, from, entries } => {
                self.log.cut(from);
                entries.into_iter().for_each(|entry| self.log.append(entry, Time(0)));
                self.epochs.cur = epoch;
                self.epochs.prom = epoch.max(self.epochs.prom);
            }
            Record::Ceiling(ceiling) => {
                self.clock.ceiling = ceiling;
                self.clock.now = ceiling;
                if self.planted.is(Mutation::NoCeiling) {
                    self.clock.now = Timestamp(0);
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
            Record::Fence { fence, report } => {
                self.fenced_by(&fence, report);
                self.recall_report(fence.config.group);
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
            None => self.deliveries.done.known(id),
        }
    }

    /// What can be made durable of this process, without the application's state.
    pub fn state(&self) -> State {
        State {
            e_cur: self.epochs.cur,
            e_prom: self.epochs.prom,
            log: self.log.clone(),
            delivered: self.deliveries.count,
            last: self.deliveries.last,
            done: self.deliveries.done.clone(),
            clock: self.clock.now,
            ceiling: self.clock.ceiling,
            members: self.members.clone(),
            application: None,
            fences: self.fences.seals.clone(),
            lost: self.members.lost.clone(),
        }
    }

    /// Checks what must hold between steps, walking the whole state.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        assert!(
            self.epochs.cur <= self.epochs.prom,
            "P1: {:?} {:?}",
            self.epochs.cur,
            self.epochs.prom
        );
        assert!(
            self.clock.now <= self.clock.ceiling,
            "P2: {:?} {:?}",
            self.clock.now,
            self.clock.ceiling
        );
        assert!(
            self.log.decided <= self.log.len(),
            "decided {} of {}",
            self.log.decided,
            self.log.len()
        );
        let queued: Vec<_> = self.log.waiting().map(|(index, _)| index).collect();
        let waiting = self.log.iter_from(0).filter(|(_, slot)| !slot.delivered);
        let mut held: Vec<_> = waiting.map(|(index, _)| index).collect();
        held.sort_unstable();
        let mut sorted = queued.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, held, "L3");
        for (index, slot) in self.log.gaps() {
            let safe = slot.delivered || index < self.log.decided;
            assert!(safe, "L2: {} is a gap at {index}", slot.entry.start.id);
        }
        for (_, slot) in self.log.iter_from(0) {
            let id = slot.entry.start.id;
            assert!(!self.starts.contains(id), "{id} is in T and still to be proposed");
        }
    }

    /// The members of the group in the configuration of `E_cur`; none if that is not known: then
    /// nothing is a quorum.
    pub(crate) fn voters(&self) -> &[NodeId] {
        self.members.in_config(self.me.group, self.epochs.cur.config).unwrap_or(&[])
    }

    /// The other processes of the group, in the configuration in force and in those to come.
    pub(crate) fn peers(&self) -> impl ExactSizeIterator<Item = ProcessId> + use<> {
        let me = self.me;
        let mut peers: SmallVec<[ProcessId; 4]> = SmallVec::new();
        let from = self.epochs.cur.config.min(self.members.number(me.group));
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
        self.epochs.stands()
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            e_cur: self.epochs.cur,
            len: self.log.len(),
            base: self.log.base(),
            runs: self.log.runs().clone(),
        }
    }

    /// Moves the clock up to `to`, its ceiling first if need be.
    pub(crate) fn raise_clock(&mut self, to: Timestamp, out: &mut Outbox<Self>) {
        if to <= self.clock.now {
            return;
        }
        if to > self.clock.ceiling {
            let step = match self.options.clock {
                ClockSource::Logical => CEILING_STEP,
                ClockSource::Hybrid => CEILING_STEP_US,
            };
            self.clock.ceiling = Timestamp(to.0.saturating_add(step));
            if !self.planted.is(Mutation::IgnoresCeiling) {
                out.persist(Record::Ceiling(self.clock.ceiling));
            }
        }
        self.clock.now = to;
    }

    /// Marks the entry at `index` as delivered. Its final timestamp may have come from another
    /// process: then a quorum holds it, and all before it, though we have not counted that.
    pub(crate) fn deliver(&mut self, index: u64, ts: Timestamp) -> Delivery {
        self.decide_up_to(index + 1);
        let entry = &self.log.get(index).expect("the caller found it").entry;
        let (start, epoch) = (entry.start.clone(), entry.epoch);
        let rank = (ts, start.id);
        self.log.deliver(index);
        self.deliveries.done.ended_below(start.id.client, start.low);
        if let Some(config) = &start.config {
            self.learn_delivered(epoch, &start.touches, config);
        }
        if self.options.order.waits_for_others() && start.dest.len() > 1 {
            self.linearizable.delivered(start.id, rank);
            self.notify_later(index, ts);
        }
        self.deliveries.add(rank);
        for group in start.dest.iter().filter(|group| **group != self.me.group) {
            self.stability.keep_for(*group, self.deliveries.count);
        }
        Delivery { start, ts, position: self.deliveries.count }
    }
}

impl Process for PrimCast {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let marks = !self.planted.is(Mutation::AcknowledgesNoted);
        if self.replication.noted.is_none() || !marks {
            return self.on_event(now, event, out); // Who notes something sends nothing after it.
        }
        let notes_more = matches!(
            event,
            Event::Message { message: Message::Normal(NormalMessage::Append(_)), .. }
        );
        let (mut effects, mut is_first) = (Outbox::new(), true);
        self.on_event(now, event, &mut effects);
        for effect in effects.drain() {
            match effect {
                Effect::Persist(_) => is_first = false,
                Effect::Send { .. } if is_first => {
                    is_first = false;
                    out.persist(Record::Mark);
                    self.replication.noted.take_if(|_| !notes_more);
                }
                _ => {}
            }
            out.extend([effect]);
        }
    }

    fn replay(&mut self, record: Record) {
        self.recover(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        Box::new(std::iter::once(Record::State(Box::new(self.state()))))
    }
}

impl PrimCast {
    fn on_event(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        self.log.now = Aside(now);
        if self.is_lost() {
            return;
        }
        match event {
            Event::Started => {
                self.on_links_new();
                self.on_started(now, out);
                out.timer(now + TICK, Timer::Tick);
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
            Event::Command(Command::Learn(config)) => self.learn_from_owner(config, out),
            Event::Command(Command::Fence(fence)) => self.seal(&Arc::new(fence), out),
            Event::Command(Command::FetchState) => self.fetch_state(now, out),
            Event::Command(Command::Snapshot { to, position, application }) => {
                self.on_snapshot(to, position, application, out);
            }
            Event::Timer(Timer::Acknowledge) => {
                let again = self.relay.acknowledge_due(now);
                again.into_iter().for_each(|at| out.timer(at, Timer::Acknowledge));
            }
            // What is due then follows every batch of events.
            Event::Timer(Timer::Stability | Timer::Clock) => {}
            Event::Timer(Timer::Tick) => {
                if now >= self.retransmission.tick_at {
                    self.retransmission.tick_at = now + TICK;
                    self.on_tick(now, out);
                    out.timer(now + TICK, Timer::Tick);
                }
            }
            Event::Restarted(peer) => self.on_restarted(now, peer, out),
            Event::Idle => self.on_idle(now, out),
        }
    }
}
