//! Bringing up a process that the log cannot bring up, by the state of another.
//!
//! The state is the application's, given by the owner, with the protocol's at the same position:
//! the last delivery, and all that is held of `T`, delivered or not, retained gaps too (timestamps
//! and indexes are in different orders, so one number does not tell what was delivered).

use crate::message::{Message, Output, RecoveryMessage, SnapshotPart, SnapshotRequest, Timestamp};
use crate::process::PrimCast;
use crate::record::{Record, State};
use crate::state::done::Known;
use crate::state::epochs::Role;
use crate::state::log::Slot;
use crate::state::retransmission::RETRY;
use crate::state::transfer::{Content, Incoming, Outgoing, PATIENCE};
use bytes::Bytes;
use meridian_core::{MessageId, Outbox, Position, ProcessId, Time};

impl PrimCast {
    /// Takes over `state`; returns its position and the application's part.
    pub(crate) fn restore(&mut self, mut state: State) -> (Position, Option<Bytes>) {
        self.epochs.prom = self.epochs.prom.max(state.e_prom).max(state.e_cur);
        self.epochs.cur = state.e_cur;
        self.log = state.log;
        self.log.restamp(Time(0));
        self.deliveries.count = state.delivered;
        self.deliveries.last = state.last;
        self.deliveries.unreported =
            self.deliveries.last.map(|last| (self.deliveries.count, last)).into_iter().collect();
        self.stability.let_go();
        self.deliveries.done = state.done;
        state.members.lost = state.lost;
        self.members.merge(&state.members);
        self.fences.seals = state.fences;
        self.fences.inheritance.take_if(|_| state.e_cur.number > 0);
        self.share_again();
        self.clock.ceiling = self.clock.ceiling.max(state.ceiling);
        self.clock.now = self.clock.ceiling;
        (self.deliveries.count, state.application)
    }

    /// The log cannot bring us up: `from` has what we lack.
    pub(crate) fn on_behind(&mut self, now: Time, from: ProcessId, out: &mut Outbox<Self>) {
        self.request_snapshot(now, from, out);
    }

    pub(crate) fn request_snapshot(&mut self, now: Time, from: ProcessId, out: &mut Outbox<Self>) {
        if self.recovery.transfers.incoming.is_none() && from != self.me {
            let incoming = Incoming { from, snapshot: 0, bytes: Vec::new(), progress: now };
            self.recovery.transfers.incoming = Some(incoming);
            out.send(from, Message::from(SnapshotRequest { snapshot: 0, offset: 0 }));
        }
    }

    /// The owner needs another's state: first the primary is asked, then one member after the
    /// other, since any of them may lack the same.
    pub(crate) fn fetch_state(&mut self, now: Time, out: &mut Outbox<Self>) {
        let leader = self.leader_of(self.epochs.cur);
        let mut peers: Vec<_> = self.peers().collect();
        peers.sort_by_key(|peer| (*peer != leader, *peer));
        let transfers = &mut self.recovery.transfers;
        if transfers.incoming.is_none() && !peers.is_empty() && !self.recovery.memory.lost {
            transfers.needed = true;
            let from = peers[transfers.fetches % peers.len()];
            transfers.fetches += 1;
            self.request_snapshot(now, from, out);
        }
    }

    pub(crate) fn on_snapshot_request(
        &mut self,
        from: ProcessId,
        SnapshotRequest { snapshot, offset }: SnapshotRequest,
        out: &mut Outbox<Self>,
    ) {
        if snapshot == 0 {
            self.recovery.transfers.wanted.insert(from, ());
            out.output(Output::SnapshotWanted { to: from });
        } else {
            self.send_parts(from, snapshot, offset, out);
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
        if position != self.deliveries.count || self.recovery.transfers.wanted.remove(&to).is_none()
        {
            return; // Not of this moment: the peer asks again.
        }
        let content = Content::new(&self.state(), application);
        self.recovery.transfers.numbered += 1;
        // Numbers of an earlier incarnation must not match: the clock begins above them.
        let snapshot = self.clock.now.0 + self.recovery.transfers.numbered + 1;
        let len = self.log.len();
        let outgoing = Outgoing { snapshot, content, sent: 0, len, asked: None };
        self.recovery.transfers.outgoing.insert(to, outgoing);
        self.send_parts(to, snapshot, 0, out);
    }

    /// `to` holds the snapshot up to `offset`: it is sent what may be under way beyond that.
    fn send_parts(&mut self, to: ProcessId, snapshot: u64, offset: u64, out: &mut Outbox<Self>) {
        let outgoing = self.recovery.transfers.outgoing.get_mut(&to);
        let Some(outgoing) = outgoing.filter(|outgoing| outgoing.snapshot == snapshot) else {
            return; // Given up here: it will be given up there, and asked for anew.
        };
        outgoing.asked = None;
        let total = outgoing.content.len() as u64;
        for (offset, bytes) in outgoing.next_parts(offset) {
            out.send(to, SnapshotPart { snapshot, offset, bytes, total }.into());
        }
    }

    pub(crate) fn on_snapshot_part(
        &mut self,
        now: Time,
        from: ProcessId,
        part: &SnapshotPart,
        out: &mut Outbox<Self>,
    ) {
        let SnapshotPart { snapshot, offset, bytes, total } = part;
        let (snapshot, offset, total) = (*snapshot, *offset, *total);
        let Some(incoming) = &mut self.recovery.transfers.incoming else { return };
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
            out.send(from, Message::from(SnapshotRequest { snapshot, offset }));
            return;
        }
        let whole = self.recovery.transfers.incoming.take().map(|incoming| incoming.bytes);
        let state = whole.and_then(|whole| Content::decode(whole.into()));
        if !state.is_some_and(|state| self.install_snapshot(now, from, state, out)) {
            self.recovery.transfers.refused = Some(now);
        }
    }

    /// Whether it is of use.
    pub(crate) fn install_snapshot(
        &mut self,
        now: Time,
        from: ProcessId,
        mut state: State,
        out: &mut Outbox<Self>,
    ) -> bool {
        let (theirs, ours) = ((state.e_cur, state.log.len()), (self.epochs.cur, self.log.len()));
        // With the same deliveries it may hold more: retained gaps of its sender were not sent to
        // us. And its application may be further where ours lacks what no other group keeps.
        let needed = std::mem::take(&mut self.recovery.transfers.needed);
        let further = theirs > ours || state.delivered > self.deliveries.count;
        let new = further || self.recovery.memory.lost || needed;
        if !new || theirs < ours || !self.fences.are_those_of(&state.fences) {
            return false;
        }
        state.fences = self.fences.seals.clone(); // Our reports are ours.
        let lacks = self.delivered_before(&state);
        if !lacks.is_empty() {
            out.send(
                from,
                Message::from(RecoveryMessage::ForwardedFinals(
                    lacks.into_iter().flatten().collect(),
                )),
            );
            return false; // It would take us back.
        }
        if self.recovery.memory.lost && !self.may_recover() {
            return false; // Who answered has lost its own memory meanwhile.
        }
        self.recovery.memory.lost = false;
        state.e_prom = self.epochs.prom.max(state.e_cur);
        state.ceiling = self.clock.ceiling.max(state.ceiling);
        state.clock = state.clock.max(self.clock.now);
        let candidate = self.epochs.role == Role::Candidate && state.e_prom == self.epochs.prom;
        let ours: Vec<_> = self.log.iter_from(0).map(|(_, slot)| slot.entry.clone()).collect();
        out.persist(Record::State(Box::new(state.clone())));
        self.replication.noted = None;
        self.keep_reached();
        let (position, application) = self.restore(state);
        self.clock.members.advance(self.epochs.cur);
        self.replication.advertised = None;
        ours.into_iter().for_each(|entry| self.starts.hold_always(entry.start));
        let (log, done) = (&self.log, &self.deliveries.done);
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
            self.epochs.fetching = None;
            self.choose(now, out);
        } else {
            self.on_started(now, out);
        }
        true
    }

    /// What was delivered here and waits in `state`, whose `T` contains ours; with the final
    /// timestamps, as far as they are still known. Both `T`s hold, or held, it where they are equal
    /// (L1, L2); what is held no more was delivered.
    fn delivered_before(&self, state: &State) -> Vec<Option<(MessageId, Timestamp)>> {
        let common = self.log.runs().common(state.log.runs());
        let waiting = state.log.waiting().filter(|(index, _)| *index < common);
        let here = waiting.map(|(index, slot)| (self.log.get(index), &slot.entry));
        let delivered = here.filter(|(slot, _)| slot.is_none_or(|slot| slot.delivered));
        let with_final = delivered.map(|(slot, entry)| {
            let known = match self.deliveries.done.known(entry.start.id) {
                Known::Delivered(ts) => Some(ts),
                Known::No | Known::Ended => slot.map(|slot| slot.bound),
            };
            let alone = (entry.start.dest.len() == 1).then_some(entry.ts);
            known.or(alone).map(|ts| (entry.start.id, ts))
        });
        with_final.collect()
    }

    /// Another of our group cannot use our state, because it has delivered what waits here. Neither
    /// might go on without the other: so we deliver it as well, in whatever role. All that
    /// conflicts with it and precedes it was delivered there, hence proposed there, hence is in our
    /// `T`: it is delivered here, or waits and holds it up, or is named, too.
    pub(crate) fn on_forwarded_finals(
        &mut self,
        from: ProcessId,
        mut finals: Vec<(MessageId, Timestamp)>,
        out: &mut Outbox<Self>,
    ) {
        finals.sort_unstable_by_key(|(id, ts)| (*ts, *id));
        for (id, ts) in finals {
            let waits = |slot: &&Slot| !slot.delivered && slot.entry.ts <= ts;
            let Some(slot) = self.log.slot(id).filter(waits) else { continue };
            let touches = slot.entry.start.touches.clone();
            let found = self.log.find(id).filter(|index| self.may_tell_of(from, *index));
            let Some(index) = found else { continue };
            self.raise_clock(ts, out);
            self.log.decide(index, ts);
            if self.log.queue().is_free((ts, id), &touches) {
                self.hand_up(index, ts, out);
            }
        }
    }

    /// The link to `peer` was reset: what was asked of it is asked anew.
    pub(crate) fn restart_transfer(&mut self, now: Time, peer: ProcessId) {
        self.recovery.transfers.outgoing.remove(&peer);
        if let Some(incoming) = &mut self.recovery.transfers.incoming
            && incoming.from == peer
        {
            incoming.progress = Time(now.0.saturating_sub(PATIENCE.as_nanos() as u64));
        }
    }

    /// `peer` has lost its memory: it knows of no transfer.
    pub(crate) fn forget_transfers(&mut self, peer: ProcessId) {
        self.recovery.transfers.outgoing.remove(&peer);
        self.recovery.transfers.wanted.remove(&peer);
        self.recovery.transfers.incoming.take_if(|incoming| incoming.from == peer);
    }

    pub(crate) fn is_fetching_snapshot(&self) -> bool {
        self.recovery.transfers.incoming.is_some()
    }

    /// Gives up what makes no progress.
    pub(crate) fn transfers_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.recovery
            .transfers
            .outgoing
            .retain(|_, outgoing| now.since(*outgoing.asked.get_or_insert(now)) < PATIENCE * 2);
        if self.recovery.transfers.refused.take_if(|at| now.since(*at) >= RETRY).is_some() {
            // It is tried again. (A follower asks for entries anyway.)
            match self.epochs.role {
                Role::Candidate => self.choose(now, out),
                Role::Promised if self.epochs.cur < self.epochs.prom => self.send_promise(out),
                Role::Promised | Role::Primary | Role::Follower => {}
            }
        }
        let stuck = |incoming: &Incoming| now.since(incoming.progress) >= PATIENCE;
        if let Some(incoming) = self.recovery.transfers.incoming.take_if(|incoming| stuck(incoming))
            && !self.recovery.memory.lost
        {
            // Not of the same one for ever: it may have left. (Who has lost its memory asks all
            // anew.)
            let leader = self.leader_of(self.epochs.prom);
            match self.epochs.role {
                Role::Candidate => self.choose(now, out),
                _ if leader == self.me => self.request_snapshot(now, incoming.from, out),
                _ => self.request_snapshot(now, leader, out),
            }
        }
    }
}
