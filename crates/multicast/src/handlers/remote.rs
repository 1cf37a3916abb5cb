//! What passes between groups: lines 39, 45-50 and 80 of Algorithms 2 and 3.
//!
//! A primary streams to the processes of each group what of its `T` is addressed to them; all
//! members acknowledge cumulatively. So the cost of ACKs does not grow with the number of messages
//! that travel together, and no message causes anything at a group that it does not go to.

use crate::message::{
    Dest, Epoch, Message, RemoteAck, RemoteAppend, RemoteEntry, RemoteMessage, Timestamp,
};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::state::done::Known;
use crate::state::epochs::Role;
use crate::state::outbound::ENTRIES_MAX;
use crate::state::remote::{Fits, Proposal};
use crate::state::retransmission::RETRY;
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

impl PrimCast {
    /// Lines 39 and 80, as primary: our entries, to those whom they are addressed to.
    pub(crate) fn stream_to_others(&mut self, out: &mut Outbox<Self>) {
        for process in std::mem::take(&mut self.outbound.stream_to) {
            self.stream_whole(process, out);
        }
        let mut news: BTreeMap<GroupId, Vec<RemoteEntry>> = BTreeMap::new();
        for (index, slot) in self.log.iter_from(self.outbound.streamed) {
            let dest = &slot.entry.start.dest;
            let entry = RemoteEntry { index, id: slot.entry.start.id, ts: slot.entry.ts };
            for group in dest.iter().filter(|group| **group != self.me.group) {
                news.entry(*group).or_default().push(entry);
            }
        }
        let upto = self.log.len();
        self.outbound.streamed = upto;
        for (group, entries) in news {
            self.linearizable.speaks_to(group);
            let entries: Arc<[RemoteEntry]> = entries.into();
            let (relays, listeners) = (self.relays(), self.listeners(group));
            for process in self.processes(group) {
                match self.outbound.followers.get_mut(&process) {
                    Some(_) if !listeners.contains(&process) => {}
                    Some(sent) if entries.len() <= ENTRIES_MAX => {
                        let (epoch, from, entries) = (self.epochs.cur, *sent, entries.clone());
                        *sent = upto;
                        let whole = false;
                        let message = Message::from(RemoteAppend {
                            epoch,
                            whole,
                            from,
                            upto,
                            entries,
                            relays,
                        });
                        out.send(process, message);
                    }
                    // Each hears once in an epoch who leads it.
                    Some(_) | None => self.stream_whole(process, out),
                }
            }
        }
    }

    /// All of our `T` that `to`, of another group, may not have delivered, and our ACK.
    pub(crate) fn stream_whole(&mut self, to: ProcessId, out: &mut Outbox<Self>) {
        if !self.stands() {
            return; // It follows when we enter an epoch.
        }
        if self.epochs.role == Role::Primary {
            self.tell_config(to, out);
            let unsettled = self.log.iter_from(0).filter(|(_, slot)| {
                let rank = (slot.bound, slot.entry.start.id);
                slot.entry.start.dest.contains(&to.group)
                    && !(slot.delivered && self.stability.has(to, rank))
            });
            let entries: Vec<_> = unsettled
                .map(|(index, slot)| RemoteEntry {
                    index,
                    id: slot.entry.start.id,
                    ts: slot.entry.ts,
                })
                .collect();
            let (epoch, mut from, mut whole) = (self.epochs.cur, self.log.first(), true);
            let mut parts = entries.chunks(ENTRIES_MAX).peekable();
            loop {
                let entries = parts.next().unwrap_or_default();
                let last = parts.peek().is_none();
                let end = entries.last().map(|entry| entry.index + 1).filter(|_| !last);
                let upto = end.unwrap_or(self.log.len());
                let entries = entries.into();
                let relays = self.relays();
                out.send(
                    to,
                    Message::from(RemoteAppend { epoch, whole, from, upto, entries, relays }),
                );
                (from, whole) = (upto, false);
                if last {
                    break;
                }
            }
            self.outbound.followers.insert(to, self.log.len());
            self.tell_horizons_again(to, out);
            self.tell_decided_again(to);
        }
        // Our vote counts with what is durable: later, by the gate.
        self.outbound.ack_to.insert(to);
    }

    /// Lines 39, 45, 80: the ACKs of all members, cumulative, to those whom what they cover is
    /// addressed to.
    pub(crate) fn acknowledge_to_others(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        for process in std::mem::take(&mut self.outbound.stream_to) {
            self.stream_whole(process, out); // Asked while we were no primary: our ACK.
        }
        let (epoch, len, clock) = (self.epochs.cur, self.log.len(), self.clock.now);
        let message = Message::from(RemoteAck { epoch, len, clock });
        let mut groups = Dest::new();
        let all = self.options.dissemination.all_acknowledge();
        let from = if all { self.outbound.acked } else { len };
        for (_, slot) in self.log.iter_from(from) {
            for group in &slot.entry.start.dest {
                if *group != self.me.group && !groups.contains(group) {
                    groups.push(*group);
                }
            }
        }
        self.outbound.acked = len;
        for group in &groups {
            for process in self.listeners(*group) {
                self.outbound.ack_to.remove(&process);
                out.send(process, message.clone());
            }
        }
        for process in std::mem::take(&mut self.outbound.ack_to) {
            out.send(process, message.clone());
        }
        if self.options.order.shows_clocks_to_others() && all {
            groups.iter().for_each(|group| self.linearizable.speaks_to(*group));
            for group in self.groups_to_show(now, clock, &groups) {
                self.linearizable.speaks_to(group);
                self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
            }
        }
    }

    /// Lines 46-50.
    pub(crate) fn on_remote_append(
        &mut self,
        now: Time,
        from: ProcessId,
        append: RemoteAppend,
        out: &mut Outbox<Self>,
    ) {
        let RemoteAppend { epoch, whole, from: first, upto, entries, relays } = append;
        if epoch.leader != from.node {
            return;
        }
        let learner = self.remote.group(from.group);
        let before = learner.epoch.map(|epoch| epoch.leader);
        match learner.on_stream(epoch, whole, first) {
            Fits::Yes => {
                learner.relays = relays;
                self.fences.succeeded(from.group, epoch.config);
                if relays && before.is_some_and(|before| before != from.node) {
                    self.outbound.stream_to.insert(from); // What we said was for another.
                }
            }
            Fits::Old => return,
            Fits::Gap => {
                if learner.asks(now, RETRY) {
                    out.send(from, Message::Remote(RemoteMessage::RemoteWanted));
                }
                return;
            }
        }
        let known = entries.partition_point(|entry| !learner.is_new(entry.index));
        let new = &entries[known..];
        let places: Vec<_> = new.iter().map(|entry| self.log.find(entry.id)).collect();
        let mut highest = Timestamp(0);
        // If not, slots that are long out of the cache are not looked at.
        let notifies = self.gives_notices();
        for (RemoteEntry { index, id, ts }, ours) in new.iter().copied().zip(places) {
            highest = highest.max(ts);
            let exceeds = |index: &u64| self.log.get(*index).is_some_and(|slot| slot.entry.ts < ts);
            if notifies && let Some(index) = ours.filter(exceeds) {
                self.notify_later(index, ts);
            }
            self.remote.group(from.group).push(Proposal { index, id, ts, ours });
            if ours.is_none() && self.deliveries.done.known(id) == Known::No {
                self.remote.come(id, from.group, now);
            }
        }
        self.remote.group(from.group).reach(upto);
        if !self.planted.is(Mutation::ForgetsBump) {
            self.raise_clock(highest, out); // Horizon to the group when idle: the BUMP of line 50.
        }
        self.remote.heard(from.group);
    }

    /// Line 47, cumulative.
    pub(crate) fn on_remote_ack(&mut self, from: ProcessId, ack: RemoteAck) {
        let RemoteAck { epoch, len, clock } = ack;
        let shows_clocks = self.options.order.shows_clocks_to_others();
        let learner = self.remote.group(from.group);
        learner.on_ack(from.node, epoch, len);
        if shows_clocks {
            let current =
                learner.epoch.unwrap_or(Epoch { config: 0, number: 0, leader: from.node });
            learner.clocks.note(from.node, epoch, clock, current);
        }
        self.remote.heard(from.group);
    }

    /// Lines 9-10 for another group.
    pub(crate) fn decide_remote(&mut self, group: GroupId) {
        let learner = self.remote.group(group);
        let config = learner.epoch.map_or(0, |epoch| epoch.config);
        let Some(members) = self.members.in_config(group, config) else { return };
        let mixed = self.planted.is(Mutation::MixesEpochs);
        let decided = learner.decided(members, mixed);
        self.log.prefetch(decided.iter().filter_map(|proposal| proposal.ours));
        for Proposal { id, ts, ours, .. } in decided {
            match self.log.find_near(id, ours) {
                Some(index) => {
                    self.log.local_ts(index, group, ts);
                    self.relay_local(index, group, ts);
                }
                None => self.remote.early_local(id, group, ts),
            }
        }
        // What a primary says for its group comes with its word of that.
        let waits = self.options.order.waits_for_others();
        if waits && !self.remote.group(group).relays {
            self.evaluate_stable(group);
        }
    }
}
