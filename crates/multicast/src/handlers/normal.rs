//! Algorithm 2: proposing, acknowledging, delivering.

use crate::handlers::dissemination::is_alone;
use crate::message::{
    Ack, Append, Bump, Entry, Epoch, Final, Message, Output, RecoveryMessage, Resend, Start,
    Timestamp,
};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::clocks::quorum_th;
use crate::state::done::Known;
use crate::state::epochs::Role;
use crate::state::log::cost;
use crate::state::retransmission::RETRY;
use crate::state::stream::Stream;
use meridian_core::{GroupId, MessageId, NodeId, Outbox, ProcessId, Time};
use std::sync::Arc;

impl PrimCast {
    /// Lines 31-32. START goes to the process of each group that is its primary as far as we know;
    /// who is not passes it on, and who misses a group's timestamp tells all of that group.
    pub(crate) fn multicast(&mut self, now: Time, start: Arc<Start>, out: &mut Outbox<Self>) {
        if self.refuses(&start, out) {
            return;
        }
        for group in start.dest.iter().filter(|group| **group != self.me.group) {
            let epoch = self.remote.known(*group).and_then(|learner| learner.epoch);
            let members = self.members.of(*group);
            let leader = epoch.map(|epoch| epoch.leader).filter(|node| members.contains(node));
            if let Some(node) = leader.or_else(|| members.first().copied()) {
                let to = ProcessId { group: *group, node };
                self.starts.outgoing.entry(to).or_default().push(start.clone());
            }
        }
        if start.dest.contains(&self.me.group) {
            self.on_start(now, None, start, out);
        } else {
            self.retransmission.sent.insert(start.id, (start, now));
        }
    }

    /// Lines 33-34. `from` is `None` if the owner was asked to multicast.
    pub(crate) fn on_start(
        &mut self,
        now: Time,
        from: Option<ProcessId>,
        start: Arc<Start>,
        out: &mut Outbox<Self>,
    ) {
        let known_group = |group: &GroupId| self.members.has(*group);
        let ascending = start.dest.windows(2).all(|pair| pair[0] < pair[1]);
        if !start.dest.contains(&self.me.group) || !ascending || !start.dest.iter().all(known_group)
        {
            return; // Not for us: a sender's mistake.
        }
        self.relay.awaited |= from.is_some_and(|from| from.group == self.me.group);
        if !self.planted.is(Mutation::ForgetsDone)
            && let known @ (Known::Delivered(_) | Known::Ended) = self.known(start.id)
        {
            self.answer_known(from, start.id, known, out);
        } else if let Some(slot) = self.log.slot(start.id) {
            let Some(from) = from else { return };
            if let Some(ts) = slot.entry.final_ts {
                out.send(
                    from,
                    Message::from(Final { id: start.id, ts, delivered: slot.delivered }),
                );
            } else if from.group != self.me.group {
                self.outbound.stream_to.insert(from);
            }
        } else if self.epochs.role == Role::Primary {
            self.propose(now, start, out); // It travels with what comes until we are idle.
        } else {
            self.starts.hold(start);
        }
    }

    /// A message that was delivered here is asked for again.
    fn answer_known(
        &mut self,
        from: Option<ProcessId>,
        id: MessageId,
        known: Known,
        out: &mut Outbox<Self>,
    ) {
        match (from, known) {
            (None, _) => out.output(Output::Duplicate(id)),
            (Some(from), Known::Delivered(ts)) => {
                out.send(from, Message::from(Final { id, ts, delivered: true }))
            }
            // A peer lacks what all others have forgotten.
            (Some(from), _) if from.group == self.me.group => {
                out.send(from, Message::Recovery(RecoveryMessage::Behind))
            }
            (Some(_), _) => {}
        }
    }

    /// Lines 37-38, with sections 4.4.1 and 4.4.2.
    pub(crate) fn propose(&mut self, now: Time, start: Arc<Start>, out: &mut Outbox<Self>) {
        self.acknowledge_before_more(out);
        let ts = Timestamp(self.clock.now.max(start.after).0 + 1).max(self.time(now));
        self.raise_clock(ts, out);
        let entry = Entry { epoch: self.epochs.cur, ts, start, final_ts: None };
        self.append(entry, now, out);
    }

    /// Appends to `T`, with what is known of the message from other groups.
    pub(crate) fn append(&mut self, entry: Entry, now: Time, out: &mut Outbox<Self>) {
        let (id, index, several) = (entry.start.id, self.log.len(), entry.start.dest.len() > 1);
        let ts = entry.ts;
        self.starts.remove(id);
        self.log.append(entry, now);
        if several {
            for (group, ts) in self.remote.take(id).into_iter().flat_map(|early| early.locals) {
                self.log.local_ts(index, group, ts);
                self.relay_local(index, group, ts);
            }
            self.share_from(index);
            self.notify_later(index, ts);
            self.finish_early(id, index, out);
        }
    }

    /// Sends followers what they do not have, as far as their windows allow.
    pub(crate) fn stream(&mut self, out: &mut Outbox<Self>) {
        let mut last: Option<(u64, Arc<[Entry]>)> = None; // Most followers are sent the same.
        let len = self.log.len();
        if self.replication.streams.values().all(|stream| stream.next() >= len) {
            return;
        }
        let prompt = self.ask_prompt();
        for peer in self.peers_in_turn() {
            // Who has not been sent NEW-STATE will promise first, or ask.
            let Some(stream) = self.replication.streams.get_mut(&peer.node) else { continue };
            while stream.next() < self.log.len() && stream.has_room() {
                if stream.next() < self.log.base() {
                    out.send(peer, Message::Recovery(RecoveryMessage::Behind));
                    *stream = Stream::from(self.log.len()); // Until it asks again.
                    break;
                }
                let from = stream.next();
                let entries = match &last {
                    Some((at, entries)) if *at == from => Arc::clone(entries),
                    _ => self.log.batch(from),
                };
                last = Some((from, Arc::clone(&entries)));
                stream.sent(from + entries.len() as u64, entries.iter().map(cost).sum());
                let shown = entries.last().map(|entry| entry.ts);
                let clock =
                    if stream.next() == self.log.len() { Some(self.clock.now) } else { shown };
                let clock = clock.unwrap_or_default();
                let (epoch, prompt) = (self.epochs.cur, prompt.contains(&peer.node));
                out.send(peer, Message::from(Append { epoch, from, entries, clock, prompt }));
            }
        }
    }

    pub(crate) fn pass_on_starts(&mut self, now: Time) {
        let to = self.leader_of(self.epochs.cur);
        self.starts.pass_on(now, to);
    }

    /// Tells the group length and clock if they changed: ACK and BUMP in one.
    pub(crate) fn advertise(&mut self, out: &mut Outbox<Self>) {
        let now = (self.epochs.prom, self.log.len(), self.clock.now);
        if self.replication.advertised == Some(now)
            || self.relay.acknowledges_later()
            || self.is_clock_reached()
        {
            return;
        }
        self.persist_noted(out);
        self.replication.advertised = Some(now);
        self.retransmission.shown_at = None;
        let message = self.clock_message();
        let leader = self.leader_of(self.epochs.cur);
        // In a group of up to three the primary and the receiver are a quorum, without the primary
        // nothing is: a follower has no use for what another acknowledges or shows.
        let peers = self.peers_in_turn(); // What is proposed goes the same way with it.
        let few = self.epochs.role == Role::Follower && peers.len() <= 2;
        let peers = peers.into_iter().filter(|peer| !few || *peer == leader);
        peers.for_each(|peer| out.send(peer, message.clone()));
    }

    /// What shows this process's clock, and its length of `T` if it follows a primary.
    pub(crate) fn clock_message(&self) -> Message {
        if self.planted.is(Mutation::HidesRaisedClock)
            && let Some((_, len, clock)) = self.replication.advertised
            && self.stands()
            && len == self.log.len()
            && clock >= self.clock.now
        {
            return Message::from(Ack { epoch: self.epochs.cur, len, clock: Timestamp(0) });
        }
        if self.stands()
            || (self.planted.is(Mutation::ResumesEpoch) && self.epochs.cur == self.epochs.prom)
        {
            Message::from(Ack {
                epoch: self.epochs.cur,
                len: self.log.len(),
                clock: self.clock.now,
            })
        } else {
            Message::from(Bump { epoch: self.epochs.prom, clock: self.clock.now })
        }
    }

    /// Lines 40-45 with the primary's ACKs.
    pub(crate) fn on_append(
        &mut self,
        now: Time,
        from: ProcessId,
        append: Append,
        out: &mut Outbox<Self>,
    ) {
        let Append { epoch, from: index, entries, clock, prompt } = append;
        if !self.follow(now, from, epoch, out) {
            return;
        }
        if index > self.log.len() && !self.planted.is(Mutation::DropsEarlyAppend) {
            self.ask_for_entries(now, out);
            return;
        }
        let index = index.min(self.log.len());
        let known = usize::try_from(self.log.len() - index).unwrap_or(usize::MAX);
        let fresh = if known == 0 { entries } else { entries.get(known..).unwrap_or(&[]).into() };
        let fresh = match self.fences.may_tell_all(from) {
            true => fresh,
            false => self.without_hearsay(from, fresh.iter().cloned()).collect(),
        };
        if let Some(last) = fresh.last() {
            self.raise_clock(last.ts, out);
            self.stay_ahead(last.ts.max(clock), self.ahead() / 2, out);
            let first = self.log.len();
            fresh.iter().for_each(|entry| self.append(entry.clone(), now, out));
            self.record_entries(first, fresh, prompt, out);
        }
        self.note_counted(from, epoch, clock);
    }

    /// As a follower: entries become durable, at once or before they are acknowledged. No more can
    /// be put off than what nobody waits for.
    fn record_entries(
        &mut self,
        from: u64,
        entries: Arc<[Entry]>,
        prompt: bool,
        out: &mut Outbox<Self>,
    ) {
        let record = Record::Append { from, entries: Arc::clone(&entries) };
        if prompt || !self.has_time() || !entries.iter().all(|entry| is_alone(&entry.start)) {
            out.persist(record);
            self.replication.noted = None;
        } else {
            out.note(record);
            self.replication.noted.get_or_insert(from);
        }
    }

    /// What was noted only is durable before what follows.
    pub(crate) fn persist_noted(&mut self, out: &mut Outbox<Self>) {
        let noted = self.replication.noted.take().is_some();
        if noted && !self.planted.is(Mutation::AcknowledgesNoted) {
            out.persist(Record::Mark);
        }
    }

    /// The primary of `epoch` spoke. Returns whether we follow it.
    pub(crate) fn follow(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) -> bool {
        if epoch.leader != from.node {
            return false;
        }
        if epoch < self.epochs.prom {
            // Deposed, and does not know it.
            if epoch.config < self.members.number(self.me.group) {
                self.tell_config(from, out);
            }
            out.send(from, Message::from(Bump { epoch: self.epochs.prom, clock: self.clock.now }));
            return false;
        }
        if epoch > self.epochs.prom {
            self.promise(now, epoch, out);
            return false;
        }
        self.epochs.heard = now;
        if self.epochs.cur != epoch {
            return false; // NEW-STATE is under way.
        }
        if self.planted.is(Mutation::DropsEarlyAppend) && self.epochs.role == Role::Promised {
            return false;
        }
        self.on_standing(out);
        self.epochs.role == Role::Follower
    }

    /// Something is missing before what the primary sent: it restarted, we did, or the link was
    /// reset.
    pub(crate) fn ask_for_entries(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.retransmission.asked.is_none_or(|at| now.since(at) > RETRY) {
            self.retransmission.asked = Some(now);
            let message = Message::from(Resend { epoch: self.epochs.cur, from: self.log.len() });
            out.send(self.leader_of(self.epochs.cur), message);
        }
    }

    pub(crate) fn on_resend(&mut self, from: ProcessId, resend: Resend, out: &mut Outbox<Self>) {
        let Resend { epoch, from: index } = resend;
        if self.epochs.role == Role::Primary && epoch == self.epochs.cur {
            self.replication.streams.insert(from.node, Stream::from(index));
            self.relay_again(from);
        }
        out.send(from, self.clock_message());
    }

    /// Lines 40-41, cumulative; line 52 if only the clock is new.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        from: ProcessId,
        Ack { epoch, len, clock }: Ack,
        out: &mut Outbox<Self>,
    ) {
        self.epochs.accepted(from.node, epoch);
        if epoch.leader == from.node {
            if !self.follow(now, from, epoch, out) {
                return;
            }
            if len > self.log.len() && !self.planted.is(Mutation::BumpOvertakes) {
                // Its clock may be past proposals that we do not hold: it does not count.
                self.ask_for_entries(now, out);
                return;
            }
        } else if epoch > self.epochs.prom {
            self.promise(now, epoch, out);
        }
        self.epochs.alive.insert(from.node, now);
        self.note_counted(from, epoch, clock);
        if epoch.leader == from.node {
            self.stay_ahead(clock, 0, out);
        }
        if epoch >= self.epochs.cur {
            self.replication.note_ack(from.node, epoch, len);
        }
        if epoch == self.epochs.cur {
            self.choose_prompt(from.node, len);
            if self.epochs.cur == self.epochs.prom {
                self.on_standing(out);
            }
            if let Some(stream) = self.replication.streams.get_mut(&from.node) {
                stream.acknowledged(len);
            }
        }
    }

    /// Line 52.
    pub(crate) fn on_bump(
        &mut self,
        now: Time,
        from: ProcessId,
        Bump { epoch, clock }: Bump,
        out: &mut Outbox<Self>,
    ) {
        if epoch > self.epochs.prom && epoch.leader != self.me.node {
            self.promise(now, epoch, out);
        } else if epoch > self.epochs.prom {
            // An epoch of ours from before a restart: open a later one.
            self.epochs.prom = epoch;
            out.persist(Record::Promised(epoch));
            self.replication.noted = None;
            self.epochs.role = Role::Promised;
        }
        self.epochs.alive.insert(from.node, now);
        self.note_clock(from, epoch, clock);
    }

    /// A clock shown without a length of `T`. Of an epoch's own leader it does not count in that
    /// epoch: it may be past proposals that we do not hold (a primary that has restarted shows its
    /// ceiling).
    pub(crate) fn note_clock(&mut self, from: ProcessId, epoch: Epoch, clock: Timestamp) {
        if epoch.leader != from.node {
            self.note_counted(from, epoch, clock);
        }
    }

    pub(crate) fn note_counted(&mut self, from: ProcessId, epoch: Epoch, clock: Timestamp) {
        let future = self.planted.is(Mutation::CountsFutureClocks);
        let current = if future { epoch.max(self.epochs.cur) } else { self.epochs.cur };
        self.clock.members.note(from.node, epoch, clock, current);
    }

    /// Another has the final timestamp of a message that we may still wait for.
    pub(crate) fn on_final(&mut self, from: ProcessId, last: Final, out: &mut Outbox<Self>) {
        let Final { id, ts, delivered } = last;
        let sent = self.retransmission.sent.get(&id).map(|(start, _)| start);
        if delivered && sent.is_some_and(|start| self.may_tell(from, &start.dest)) {
            self.retransmission.sent.remove(&id);
            out.output(Output::Ended { id, ts });
        }
        if let Some(index) = self.log.find(id)
            && self.may_tell_of(from, index)
        {
            self.finish(index, ts, delivered, out);
        }
    }

    /// The final timestamp of the message at `index` is known by another's word, and whether it was
    /// delivered somewhere.
    pub(crate) fn finish(
        &mut self,
        index: u64,
        ts: Timestamp,
        delivered: bool,
        out: &mut Outbox<Self>,
    ) {
        let Some(slot) = self.log.get(index).filter(|slot| !slot.delivered) else { return };
        let (id, proposed) = (slot.entry.start.id, slot.entry.ts);
        if delivered && self.options.order.waits_for_others() {
            self.log.settle(index);
        }
        // Below our proposal it is the final timestamp of another one, of a later epoch: ours will
        // be cut.
        if proposed <= ts {
            self.raise_clock(ts, out);
            self.log.decide(index, ts);
            self.relay_final(index, id, ts);
        }
    }

    /// Lines 9-10 for the other groups that said something.
    pub(crate) fn decide_heard(&mut self) {
        for group in self.remote.take_heard() {
            self.decide_remote(group);
        }
    }

    /// Lines 9-10 for our own group: what a quorum holds in `E_cur` is decided. Our own vote counts
    /// at once for what was persisted: what follows from it leaves this process only after our
    /// record, by the durability rule.
    pub(crate) fn count(&mut self) {
        if !self.stands() {
            return;
        }
        let len = self.replication.persisted(self.log.len());
        self.replication.acked.insert(self.me.node, (self.epochs.cur, len));
        let acked = |node: &NodeId| self.acked_here(*node).unwrap_or_default();
        let held = quorum_th(self.voters().iter().map(acked));
        self.decide_up_to(held.min(self.log.len()));
    }

    /// Up to where `node` has acknowledged in `E_cur`, if it has.
    pub(crate) fn acked_here(&self, node: NodeId) -> Option<u64> {
        self.replication
            .acked
            .get(&node)
            .filter(|(epoch, _)| *epoch == self.epochs.cur)
            .map(|(_, len)| *len)
    }

    /// All of `T` up to there is decided.
    pub(crate) fn decide_up_to(&mut self, len: u64) {
        while self.log.decided < len {
            let index = self.log.decided;
            self.log.decided += 1;
            if let Some(slot) = self.log.get(index) {
                let ts = slot.entry.ts;
                self.log.local_ts(index, self.me.group, ts);
            }
        }
    }
}
