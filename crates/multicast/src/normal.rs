//! Algorithm 2: proposing, acknowledging, delivering.

use crate::done::Known;
use crate::message::{Entry, Epoch, Message, Output, Record, RemoteAck, Start, Timestamp};
use crate::process::{CatchUp, Held, Mutation, PrimCast, Role};
use meridian_core::{GroupId, MessageId, Outbox, ProcessId, Time};
use std::collections::BTreeMap;

/// STARTs held for the primary, at most; more are dropped, and their senders send them again.
const STARTS_MAX: usize = 10_000;

/// How many entries a follower may be sent before it acknowledges the first of them.
const WINDOW: u64 = 4096;

impl PrimCast {
    /// Lines 31-32: to all groups' first processes that it knows nothing against; who is not the primary
    /// passes it on.
    pub(crate) fn multicast(&mut self, start: Start, out: &mut Outbox<Self>) {
        for group in start.dest.iter().filter(|group| **group != self.me.group) {
            if let Some(process) = self.processes(*group).next() {
                out.send(process, Message::Start(start.clone()));
            }
        }
        if start.dest.contains(&self.me.group) {
            self.on_start(None, start, out);
        }
    }

    /// Lines 33-34. `from` is `None` if the owner was asked to multicast.
    pub(crate) fn on_start(
        &mut self,
        from: Option<ProcessId>,
        start: Start,
        out: &mut Outbox<Self>,
    ) {
        let known_group = |group: &GroupId| self.groups.contains_key(group);
        let ascending = start.dest.windows(2).all(|pair| pair[0] < pair[1]);
        if !start.dest.contains(&self.me.group) || !ascending || !start.dest.iter().all(known_group)
        {
            return; // Not for us: a sender's mistake.
        }
        if self.mutation != Mutation::ForgetsDone
            && let known @ (Known::Delivered(_) | Known::Ended) = self.done.known(start.id)
        {
            self.answer_known(from, start.id, known, out);
        } else if let Some(slot) = self.log.slot(start.id) {
            let Some(from) = from else { return };
            if let Some(ts) = slot.entry.final_ts {
                out.send(from, Message::Final { id: start.id, ts });
            } else if from.group != self.me.group && self.stands() {
                let ack = RemoteAck { id: start.id, epoch: slot.entry.epoch, ts: slot.entry.ts };
                out.send(from, Message::RemoteAcks(vec![ack]));
            }
        } else if self.starts.len() < STARTS_MAX {
            self.starts.entry(start.id).or_insert(Held { start, passed_on: None });
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
            (Some(from), Known::Delivered(ts)) => out.send(from, Message::Final { id, ts }),
            // A peer lacks what all others have forgotten.
            (Some(from), _) if from.group == self.me.group => out.send(from, Message::Behind),
            (Some(_), _) => {}
        }
    }

    /// Lines 35-39, for all that came since the last time; and what was held back to travel together.
    pub(crate) fn on_idle(&mut self, now: Time, out: &mut Outbox<Self>) {
        match self.role {
            Role::Primary => {
                let first = self.log.len();
                self.propose(now, out);
                self.stream(out);
                for part in self.log.parts(first).into_iter().filter(|part| part.from < part.end) {
                    out.persist(Record::Append { from: part.from, entries: part.entries });
                }
            }
            Role::Follower => self.pass_on_starts(now, out),
            Role::Promised | Role::Candidate => {}
        }
        self.show(out);
        self.acknowledge_to_others(out);
        self.count();
        self.deliver_all(out);
        self.catch_up();
    }

    /// What was delivered anywhere before we started is in the `T` of the primary of that time (Lemma 3).
    /// A quorum that has acknowledged in its epoch since we started tells that it was not deposed.
    fn catch_up(&mut self) {
        if self.catch_up == CatchUp::Unknown && self.stands() {
            let here = self.acked.values().filter(|(epoch, _)| *epoch == self.e_cur);
            if here.count() >= crate::clocks::quorum(self.members().len())
                && let Some((epoch, len)) = self.acked.get(&self.e_cur.leader)
                && *epoch == self.e_cur
            {
                self.catch_up = CatchUp::To(*len);
            }
        }
        if let CatchUp::To(len) = self.catch_up
            && self.log.waiting().all(|(index, _)| index >= len)
        {
            self.catch_up = CatchUp::Done;
        }
    }

    fn propose(&mut self, now: Time, out: &mut Outbox<Self>) {
        // All of it: to hold some back could make groups wait for each other.
        while let Some((_, held)) = self.starts.pop_first() {
            let after = self.clock.max(held.start.after);
            self.raise_clock(Timestamp(after.0 + 1), out);
            let entry =
                Entry { epoch: self.e_cur, ts: self.clock, start: held.start, final_ts: None };
            self.append(entry, now);
        }
    }

    /// Appends to `T`, with what is known of the message from other groups.
    pub(crate) fn append(&mut self, entry: Entry, now: Time) {
        let (id, index) = (entry.start.id, self.log.len());
        self.starts.remove(&id);
        self.log.append(entry, now);
        if let Some(bound) = self.remote.bound(id) {
            self.log.raise(index, bound);
        }
        self.decide(index);
    }

    /// Sends followers what they do not have, as far as their windows allow.
    pub(crate) fn stream(&mut self, out: &mut Outbox<Self>) {
        for peer in self.peers() {
            // Who has not been sent NEW-STATE will promise first, or ask.
            let Some(stream) = self.streams.get_mut(&peer.node) else { continue };
            while stream.next < self.log.len() && stream.next < stream.acked + WINDOW {
                if stream.next < self.log.base() {
                    out.send(peer, Message::Behind);
                    stream.next = self.log.len(); // Until it asks again.
                    stream.acked = stream.next;
                    break;
                }
                let entries = self.log.batch(stream.next);
                let from = stream.next;
                stream.next += entries.len() as u64;
                let last = entries.last().map(|entry| entry.ts);
                let clock = if stream.next == self.log.len() { Some(self.clock) } else { last };
                let clock = clock.unwrap_or_default();
                out.send(peer, Message::Append { epoch: self.e_cur, from, entries, clock });
            }
        }
    }

    fn pass_on_starts(&mut self, now: Time, out: &mut Outbox<Self>) {
        let (epoch, leader) = (self.e_cur, self.leader_of(self.e_cur));
        for held in self.starts.values_mut() {
            if held.passed_on.is_none_or(|(to, _)| to != epoch) {
                held.passed_on = Some((epoch, now));
                out.send(leader, Message::Start(held.start.clone()));
            }
        }
    }

    /// Tells the group length and clock if they changed: ACK and BUMP in one.
    fn show(&mut self, out: &mut Outbox<Self>) {
        let now = (self.e_prom, self.log.len(), self.clock);
        if self.shown == Some(now) {
            return;
        }
        self.shown = Some(now);
        self.upkeep.shown_at = None;
        let message = self.clock_message();
        self.peers().for_each(|peer| out.send(peer, message.clone()));
    }

    /// What shows this process's clock, and its length of `T` if it follows a primary.
    pub(crate) fn clock_message(&self) -> Message {
        if self.stands() || (self.mutation == Mutation::ResumesEpoch && self.e_cur == self.e_prom) {
            Message::Ack { epoch: self.e_cur, len: self.log.len(), clock: self.clock }
        } else {
            Message::Bump { epoch: self.e_prom, clock: self.clock }
        }
    }

    /// Lines 39, 45, 80: ACKs to the other destinations, in `T`'s order.
    fn acknowledge_to_others(&mut self, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        let mut acks: BTreeMap<GroupId, Vec<RemoteAck>> = BTreeMap::new();
        for (_, slot) in self.log.iter_from(self.remote_acked) {
            let Entry { epoch, ts, start, .. } = &slot.entry;
            let ack = RemoteAck { id: start.id, epoch: *epoch, ts: *ts };
            for group in start.dest.iter().filter(|group| **group != self.me.group) {
                acks.entry(*group).or_default().push(ack);
            }
        }
        self.remote_acked = self.log.len();
        for (group, acks) in acks {
            for process in self.processes(group) {
                out.send(process, Message::RemoteAcks(acks.clone()));
            }
        }
    }

    /// Lines 40-45 with the primary's ACKs.
    #[allow(clippy::too_many_arguments)] // One message's fields.
    pub(crate) fn on_append(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        index: u64,
        entries: Vec<Entry>,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        if !self.follow(now, from, epoch, out) {
            return;
        }
        if index > self.log.len() {
            self.ask_for_entries(now, out);
            return;
        }
        let known = usize::try_from(self.log.len() - index).unwrap_or(usize::MAX);
        let fresh: Vec<_> = entries.into_iter().skip(known).collect();
        if let Some(last) = fresh.last() {
            self.raise_clock(last.ts, out);
            let first = self.log.len();
            fresh.iter().for_each(|entry| self.append(entry.clone(), now));
            out.persist(Record::Append { from: first, entries: fresh });
        }
        self.clocks.note(from.node, epoch, clock, self.e_cur);
    }

    /// The primary of `epoch` spoke. Returns whether we follow it.
    fn follow(&mut self, now: Time, from: ProcessId, epoch: Epoch, out: &mut Outbox<Self>) -> bool {
        if epoch.leader != from.node {
            return false;
        }
        if epoch < self.e_prom {
            // Deposed, and does not know it.
            out.send(from, Message::Bump { epoch: self.e_prom, clock: self.clock });
            return false;
        }
        if epoch > self.e_prom {
            self.promise(now, epoch, out);
            return false;
        }
        self.election.heard = now;
        if self.e_cur != epoch {
            return false; // NEW-STATE is under way.
        }
        self.on_standing(out);
        self.role == Role::Follower
    }

    /// Something is missing before what the primary sent: it restarted, we did, or the link was reset.
    fn ask_for_entries(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.upkeep.asked.is_none_or(|at| now.since(at) > crate::upkeep::RETRY) {
            self.upkeep.asked = Some(now);
            let message = Message::Resend { epoch: self.e_cur, from: self.log.len() };
            out.send(self.leader_of(self.e_cur), message);
        }
    }

    pub(crate) fn on_resend(
        &mut self,
        from: ProcessId,
        epoch: Epoch,
        index: u64,
        out: &mut Outbox<Self>,
    ) {
        if self.role == Role::Primary && epoch == self.e_cur {
            let stream = self.streams.entry(from.node).or_default();
            stream.next = index;
            stream.acked = index;
        }
        out.send(from, self.clock_message());
    }

    /// Lines 40-41, cumulative; line 52 if only the clock is new.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        len: u64,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        self.election.accepted(from.node, epoch);
        if epoch.leader == from.node {
            if !self.follow(now, from, epoch, out) {
                return;
            }
            if len > self.log.len() {
                // Its clock may be past proposals that we do not hold: it does not count.
                self.ask_for_entries(now, out);
                return;
            }
        } else if epoch > self.e_prom {
            self.promise(now, epoch, out);
        }
        self.election.alive.insert(from.node, now);
        self.clocks.note(from.node, epoch, clock, self.e_cur);
        let acked = self.acked.entry(from.node).or_insert((epoch, len));
        *acked = (epoch, len).max(*acked);
        if epoch == self.e_cur {
            if self.e_cur == self.e_prom {
                self.on_standing(out);
            }
            if let Some(stream) = self.streams.get_mut(&from.node) {
                stream.acked = len.max(stream.acked);
            }
        }
    }

    /// Line 52.
    pub(crate) fn on_bump(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        if epoch > self.e_prom && epoch.leader != self.me.node {
            self.promise(now, epoch, out);
        } else if epoch > self.e_prom {
            // An epoch of ours from before a restart: open a later one.
            self.e_prom = epoch;
            out.persist(Record::Promised(epoch));
            self.role = Role::Promised;
        }
        self.election.alive.insert(from.node, now);
        self.note_clock(from, epoch, clock);
    }

    /// A clock shown without a length of `T`. Of an epoch's own leader it does not count in that epoch: it
    /// may be past proposals that we do not hold (a primary that has restarted shows its ceiling).
    pub(crate) fn note_clock(&mut self, from: ProcessId, epoch: Epoch, clock: Timestamp) {
        if epoch.leader != from.node {
            self.clocks.note(from.node, epoch, clock, self.e_cur);
        }
    }

    /// Lines 46-50.
    pub(crate) fn on_remote_acks(
        &mut self,
        now: Time,
        from: ProcessId,
        acks: &[RemoteAck],
        out: &mut Outbox<Self>,
    ) {
        let members = self.groups[&from.group].len();
        for ack in acks {
            if self.done.known(ack.id) != Known::No {
                continue;
            }
            self.raise_clock(ack.ts, out); // Shown to the group when idle: the BUMP of line 50.
            if let Some(ts) = self.remote.ack(from, *ack, members, now)
                && let Some(index) = self.log.find(ack.id)
            {
                self.log.raise(index, ts);
                self.decide(index);
            }
        }
    }

    /// Another has the final timestamp of a message that we may still wait for.
    pub(crate) fn on_final(&mut self, id: MessageId, ts: Timestamp, out: &mut Outbox<Self>) {
        // Below our proposal it is the final timestamp of another one, of a later epoch: ours will be cut.
        if let Some(index) = self.log.find(id)
            && self.log.get(index).is_some_and(|slot| !slot.delivered && slot.entry.ts <= ts)
        {
            self.raise_clock(ts, out);
            self.log.decide(index, ts);
        }
    }

    pub(crate) fn on_pull(&mut self, from: ProcessId, id: MessageId, out: &mut Outbox<Self>) {
        let start = self.log.slot(id).map(|slot| &slot.entry.start);
        let start = start.or_else(|| self.starts.get(&id).map(|held| &held.start));
        if let Some(start) = start.filter(|start| start.dest.contains(&from.group)) {
            out.send(from, Message::Start(start.clone()));
        }
    }

    /// Lines 9-10 for our own group: what a quorum holds in `E_cur` is decided. Our own vote counts at once:
    /// what follows from it leaves this process only after our record, by the durability rule.
    fn count(&mut self) {
        if !self.stands() {
            return;
        }
        self.acked.insert(self.me.node, (self.e_cur, self.log.len()));
        let acked = |node| match self.acked.get(node) {
            Some((epoch, len)) if *epoch == self.e_cur => *len,
            _ => 0,
        };
        let held = crate::clocks::quorum_th(self.members().iter().map(acked).collect());
        let decided = held.min(self.log.len());
        while self.decided < decided {
            let index = self.decided;
            self.decided += 1;
            if index >= self.log.base() {
                self.decide(index);
            }
        }
    }

    /// Lines 12-14: the entry at `index` is final once all destinations have decided.
    fn decide(&mut self, index: u64) {
        let Some(slot) = self.log.get(index).filter(|slot| slot.entry.final_ts.is_none()) else {
            return;
        };
        if index >= self.decided {
            return;
        }
        let mut ts = slot.entry.ts;
        for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
            match self.remote.decided(slot.entry.start.id, *group) {
                Some(local) => ts = ts.max(local),
                None => return,
            }
        }
        self.log.decide(index, ts);
    }

    /// Lines 26-30 and 53-56. The queue's first has the least possible final timestamp of all in `T`
    /// (line 30); lines 22 and 23 cannot be what fails it once lines 28 and 29 hold.
    fn deliver_all(&mut self, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        self.clocks.note(self.me.node, self.e_cur, self.clock, self.e_cur);
        let mut leader = self.clocks.min_clock(self.e_cur.leader);
        let mut quorum = self.clocks.quorum_clock(self.members());
        match self.mutation {
            Mutation::NoLeaderClock => leader = Timestamp(u64::MAX),
            Mutation::NoQuorumClock => quorum = Timestamp(u64::MAX),
            _ => {}
        }
        loop {
            let mut waiting = self.log.waiting();
            let first = match self.mutation {
                Mutation::NoOrder => waiting.find(|(_, slot)| slot.entry.final_ts.is_some()),
                _ => waiting.next(),
            };
            let Some((index, slot)) = first else { return };
            let Some(ts) = slot.entry.final_ts else { return };
            if ts > leader || ts > quorum {
                return;
            }
            drop(waiting);
            let delivery = self.deliver(index, ts);
            let id = delivery.start.id;
            out.output(Output::Deliver(delivery));
            out.note(Record::Delivered { id, ts });
        }
    }
}
