//! Bringing up a process that the log cannot bring up, by the state of another.
//!
//! The state is the application's, given by the owner, with the protocol's at the same position: the
//! last delivery, and all that is held of `T`, delivered or not, stragglers too (timestamps and indexes
//! are in different orders, so one number does not tell what was delivered).

use crate::done::{Done, Known};
use crate::log::{Log, Slot, common_prefix};
use crate::members::Members;
use crate::message::{Epoch, Message, Output, Rank, Record, Timestamp};
use crate::process::{PrimCast, Role};
use crate::upkeep::RETRY;
use bytes::Bytes;
use meridian_core::{MessageId, Outbox, Position, ProcessId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How much of a snapshot travels in one message, in bytes.
const SNAPSHOT_PART: usize = 512 << 10;

/// After how long without progress a transfer is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// All that a process needs to go on from a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    pub(crate) e_cur: Epoch,
    pub(crate) e_prom: Epoch,
    pub(crate) log: Log,
    pub(crate) decided: u64,
    pub(crate) delivered: Position,
    pub(crate) last: Option<Rank>,
    pub(crate) done: Done,
    pub(crate) clock: Timestamp,
    pub(crate) ceiling: Timestamp,
    pub(crate) members: Members,
    /// The application's state, if it came from another process.
    pub(crate) application: Option<Bytes>,
}

/// Snapshots under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Transfers {
    outgoing: BTreeMap<ProcessId, Outgoing>,
    incoming: Option<Incoming>,
    numbered: u64,
    /// Who wanted one before the owner gave it.
    wanted: BTreeMap<ProcessId, ()>,
    /// One came that was of no use, and when: its sender had not delivered something that we have.
    refused: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Outgoing {
    snapshot: u64,
    bytes: Bytes,
    /// Asked for since the last tick; `None` before the first tick.
    asked: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Incoming {
    from: ProcessId,
    snapshot: u64,
    bytes: Vec<u8>,
    progress: Time,
}

impl State {
    /// The same with the application's state, which whoever replays it is told to install.
    pub fn with_application(self, application: Bytes) -> State {
        State { application: Some(application), ..self }
    }
}

impl PrimCast {
    /// Takes over `state`; returns its position and the application's part.
    pub(crate) fn restore(&mut self, state: State) -> (Position, Option<Bytes>) {
        self.e_prom = self.e_prom.max(state.e_prom).max(state.e_cur);
        self.e_cur = state.e_cur;
        self.log = state.log;
        self.log.restamp(Time(0));
        self.decided = state.decided;
        self.delivered = state.delivered;
        self.last = state.last;
        self.untold = self.last.map(|last| (self.delivered, last)).into_iter().collect();
        self.truncation.let_go();
        self.done = state.done;
        self.members.merge(&state.members);
        self.share_again();
        self.ceiling = self.ceiling.max(state.ceiling);
        self.clock = self.ceiling;
        (self.delivered, state.application)
    }

    /// The log cannot bring us up: `from` has what we lack.
    pub(crate) fn on_behind(&mut self, now: Time, from: ProcessId, out: &mut Outbox<Self>) {
        self.request_snapshot(now, from, out);
    }

    pub(crate) fn request_snapshot(&mut self, now: Time, from: ProcessId, out: &mut Outbox<Self>) {
        if self.transfers.incoming.is_none() && from != self.me {
            let incoming = Incoming { from, snapshot: 0, bytes: Vec::new(), progress: now };
            self.transfers.incoming = Some(incoming);
            out.send(from, Message::SnapshotRequest { snapshot: 0, offset: 0 });
        }
    }

    pub(crate) fn on_snapshot_request(
        &mut self,
        from: ProcessId,
        snapshot: u64,
        offset: u64,
        out: &mut Outbox<Self>,
    ) {
        if snapshot == 0 {
            self.transfers.wanted.insert(from, ());
            out.output(Output::SnapshotWanted { to: from });
        } else {
            self.send_part(from, snapshot, offset, out);
        }
    }

    /// The owner gives the application's state for `to`.
    pub(crate) fn on_snapshot(
        &mut self,
        to: ProcessId,
        position: Position,
        application: Bytes,
        out: &mut Outbox<Self>,
    ) {
        if position != self.delivered || self.transfers.wanted.remove(&to).is_none() {
            return; // Not of this moment: the peer asks again.
        }
        let state = State { application: Some(application), ..self.state() };
        let bytes = postcard::to_stdvec(&state).expect("a state can be encoded");
        self.transfers.numbered += 1;
        // Numbers of an earlier incarnation must not match: the clock begins above them.
        let snapshot = self.clock.0 + self.transfers.numbered + 1;
        let outgoing = Outgoing { snapshot, bytes: bytes.into(), asked: None };
        self.transfers.outgoing.insert(to, outgoing);
        self.send_part(to, snapshot, 0, out);
    }

    fn send_part(&mut self, to: ProcessId, snapshot: u64, offset: u64, out: &mut Outbox<Self>) {
        let outgoing = self.transfers.outgoing.get_mut(&to);
        let Some(outgoing) = outgoing.filter(|outgoing| outgoing.snapshot == snapshot) else {
            return; // Given up here: it will be given up there, and asked for anew.
        };
        outgoing.asked = None;
        let total = outgoing.bytes.len();
        let start = usize::try_from(offset).unwrap_or(total).min(total);
        let bytes = outgoing.bytes.slice(start..total.min(start + SNAPSHOT_PART));
        let total = total as u64;
        out.send(to, Message::SnapshotPart { snapshot, offset, bytes, total });
    }

    #[allow(clippy::too_many_arguments)] // One message's fields.
    pub(crate) fn on_snapshot_part(
        &mut self,
        now: Time,
        from: ProcessId,
        snapshot: u64,
        offset: u64,
        bytes: &Bytes,
        total: u64,
        out: &mut Outbox<Self>,
    ) {
        let Some(incoming) = &mut self.transfers.incoming else { return };
        let fresh = offset == 0 && incoming.bytes.is_empty();
        let next = snapshot == incoming.snapshot && offset == incoming.bytes.len() as u64;
        if incoming.from != from || !(fresh || next) {
            return;
        }
        incoming.snapshot = snapshot;
        incoming.bytes.extend_from_slice(bytes);
        incoming.progress = now;
        let offset = incoming.bytes.len() as u64;
        if offset < total {
            out.send(from, Message::SnapshotRequest { snapshot, offset });
            return;
        }
        let whole = self.transfers.incoming.take().map(|incoming| incoming.bytes);
        let state = postcard::from_bytes::<State>(&whole.unwrap_or_default()).ok();
        if !state.is_some_and(|state| self.install_snapshot(now, from, state, out)) {
            self.transfers.refused = Some(now);
        }
    }

    /// Whether it is of use.
    fn install_snapshot(
        &mut self,
        now: Time,
        from: ProcessId,
        mut state: State,
        out: &mut Outbox<Self>,
    ) -> bool {
        let (theirs, ours) = ((state.e_cur, state.log.len()), (self.e_cur, self.log.len()));
        // With the same deliveries it may hold more: what was set aside there was not sent to us.
        let new = theirs > ours || state.delivered > self.delivered || self.memory.lost;
        if !new || theirs < ours {
            return false;
        }
        let lacks = self.delivered_before(&state);
        if !lacks.is_empty() {
            out.send(from, Message::Vouched(lacks.into_iter().flatten().collect()));
            return false; // It would take us back.
        }
        if self.memory.lost && !self.may_recover() {
            return false; // Who answered has lost its own memory meanwhile.
        }
        self.memory.lost = false;
        state.e_prom = self.e_prom.max(state.e_cur);
        state.ceiling = self.ceiling.max(state.ceiling);
        state.clock = state.clock.max(self.clock);
        let candidate = self.role == Role::Candidate && state.e_prom == self.e_prom;
        let ours: Vec<_> = self.log.iter_from(0).map(|(_, slot)| slot.entry.clone()).collect();
        out.persist(Record::State(Box::new(state.clone())));
        self.keep_reached();
        let (position, application) = self.restore(state);
        self.clocks.advance(self.e_cur);
        self.shown = None;
        ours.into_iter().for_each(|entry| self.starts.hold_always(entry.start));
        let (log, done) = (&self.log, &self.done);
        let unknown = |id| log.find(id).is_none() && done.known(id) == Known::No;
        self.starts.retain(unknown);
        let waiting: Vec<_> =
            self.log.waiting().map(|(index, slot)| (index, slot.entry.start.id)).collect();
        for (index, id) in waiting {
            for (group, ts) in self.remote.take(id).into_iter().flat_map(|early| early.locals) {
                self.log.local_ts(index, group, ts);
            }
        }
        if let Some(application) = application {
            out.output(Output::Install { position, application });
        }
        if candidate {
            self.election.fetching = None;
            self.choose(now, out);
        } else {
            self.on_started(now, out);
        }
        true
    }

    /// What was delivered here and waits in `state`, whose `T` contains ours; with the final timestamps, as far as they
    /// are still known. Both `T`s hold, or held, it where they are equal (L1, L2); what is held no more was delivered.
    fn delivered_before(&self, state: &State) -> Vec<Option<(MessageId, Timestamp)>> {
        let common = common_prefix(self.log.runs(), state.log.runs());
        let waiting = state.log.waiting().filter(|(index, _)| *index < common);
        let here = waiting.map(|(index, slot)| (self.log.get(index), &slot.entry));
        let delivered = here.filter(|(slot, _)| slot.is_none_or(|slot| slot.delivered));
        let with_final = delivered.map(|(slot, entry)| {
            let known = match self.done.known(entry.start.id) {
                Known::Delivered(ts) => Some(ts),
                Known::No | Known::Ended => slot.map(|slot| slot.bound),
            };
            let alone = (entry.start.dest.len() == 1).then_some(entry.ts);
            known.or(alone).map(|ts| (entry.start.id, ts))
        });
        with_final.collect()
    }

    /// Another of our group cannot use our state, because it has delivered what waits here. Neither might go on without
    /// the other: so we deliver it as well, in whatever role. All that conflicts with it and precedes it was
    /// delivered there, hence proposed there, hence is in our `T`: it is delivered here, or waits and holds it up,
    /// or is named, too.
    pub(crate) fn on_vouched(
        &mut self,
        mut finals: Vec<(MessageId, Timestamp)>,
        out: &mut Outbox<Self>,
    ) {
        finals.sort_unstable_by_key(|(id, ts)| (*ts, *id));
        for (id, ts) in finals {
            let waits = |slot: &&Slot| !slot.delivered && slot.entry.ts <= ts;
            let Some(slot) = self.log.slot(id).filter(waits) else { continue };
            let touches = slot.entry.start.touches.clone();
            let Some(index) = self.log.find(id) else { continue };
            self.raise_clock(ts, out);
            self.log.decide(index, ts);
            if self.log.queue().is_free((ts, id), &touches) {
                self.hand_up(index, ts, out);
            }
        }
    }

    /// The link to `peer` was reset: what was asked of it is asked anew.
    pub(crate) fn restart_transfer(&mut self, now: Time, peer: ProcessId) {
        self.transfers.outgoing.remove(&peer);
        if let Some(incoming) = &mut self.transfers.incoming
            && incoming.from == peer
        {
            incoming.progress = Time(now.0.saturating_sub(PATIENCE.as_nanos() as u64));
        }
    }

    /// `peer` has lost its memory: it knows of no transfer.
    pub(crate) fn forget_transfers(&mut self, peer: ProcessId) {
        self.transfers.outgoing.remove(&peer);
        self.transfers.wanted.remove(&peer);
        self.transfers.incoming.take_if(|incoming| incoming.from == peer);
    }

    pub(crate) fn is_fetching_snapshot(&self) -> bool {
        self.transfers.incoming.is_some()
    }

    /// Gives up what makes no progress.
    pub(crate) fn transfers_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.transfers
            .outgoing
            .retain(|_, outgoing| now.since(*outgoing.asked.get_or_insert(now)) < PATIENCE * 2);
        if self.transfers.refused.take_if(|at| now.since(*at) >= RETRY).is_some() {
            // It is tried again. (A follower asks for entries anyway.)
            match self.role {
                Role::Candidate => self.choose(now, out),
                Role::Promised if self.e_cur < self.e_prom => self.send_promise(out),
                Role::Promised | Role::Primary | Role::Follower => {}
            }
        }
        let stuck = |incoming: &Incoming| now.since(incoming.progress) >= PATIENCE;
        if let Some(incoming) = self.transfers.incoming.take_if(|incoming| stuck(incoming))
            && !self.memory.lost
        {
            // Not of the same one for ever: it may have left. (Who has lost its memory asks all anew.)
            let leader = self.leader_of(self.e_prom);
            match self.role {
                Role::Candidate => self.choose(now, out),
                _ if leader == self.me => self.request_snapshot(now, incoming.from, out),
                _ => self.request_snapshot(now, leader, out),
            }
        }
    }
}
