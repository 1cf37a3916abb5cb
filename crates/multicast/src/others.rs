//! What passes between groups: lines 39, 45-50 and 80 of Algorithms 2 and 3.
//!
//! A primary streams to the processes of each group what of its `T` is addressed to them; all members
//! acknowledge cumulatively. So the cost of ACKs does not grow with the number of messages that travel
//! together, and no message causes anything at a group that it does not go to.

use crate::done::Known;
use crate::message::{Dest, Epoch, Message, RemoteEntry, Timestamp};
use crate::process::{Mutation, PrimCast, Role, Speakers};
use crate::remote::{Fits, Proposal};
use crate::upkeep::RETRY;
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// So many entries are in one message at most.
pub(crate) const ENTRIES_MAX: usize = 4096;

impl PrimCast {
    /// Lines 39 and 80, as primary: our entries, to those whom they are addressed to.
    pub(crate) fn stream_to_others(&mut self, out: &mut Outbox<Self>) {
        for process in std::mem::take(&mut self.upkeep.again) {
            self.stream_whole(process, out);
        }
        let mut news: BTreeMap<GroupId, Vec<RemoteEntry>> = BTreeMap::new();
        for (index, slot) in self.log.iter_from(self.remote_streamed) {
            let dest = &slot.entry.start.dest;
            let entry = RemoteEntry { index, id: slot.entry.start.id, ts: slot.entry.ts };
            for group in dest.iter().filter(|group| **group != self.me.group) {
                news.entry(*group).or_default().push(entry);
            }
        }
        let upto = self.log.len();
        self.remote_streamed = upto;
        for (group, entries) in news {
            self.stable.speaks_to(group);
            let entries: Arc<[RemoteEntry]> = entries.into();
            let (speaks, listeners) = (self.speaks(), self.listeners(group));
            for process in self.processes(group) {
                match self.followers.get_mut(&process) {
                    Some(_) if !listeners.contains(&process) => {}
                    Some(sent) if entries.len() <= ENTRIES_MAX => {
                        let (epoch, from, entries) = (self.e_cur, *sent, entries.clone());
                        *sent = upto;
                        let whole = false;
                        let message =
                            Message::RemoteAppend { epoch, whole, from, upto, entries, speaks };
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
        if self.role == Role::Primary {
            self.tell_config(to, out);
            let unsettled = self.log.iter_from(0).filter(|(_, slot)| {
                let rank = (slot.bound, slot.entry.start.id);
                slot.entry.start.dest.contains(&to.group)
                    && !(slot.delivered && self.truncation.has(to, rank))
            });
            let entries: Vec<_> = unsettled
                .map(|(index, slot)| RemoteEntry {
                    index,
                    id: slot.entry.start.id,
                    ts: slot.entry.ts,
                })
                .collect();
            let (epoch, mut from, mut whole) = (self.e_cur, self.log.first(), true);
            let mut parts = entries.chunks(ENTRIES_MAX).peekable();
            loop {
                let entries = parts.next().unwrap_or_default();
                let last = parts.peek().is_none();
                let end = entries.last().map(|entry| entry.index + 1).filter(|_| !last);
                let upto = end.unwrap_or(self.log.len());
                let entries = entries.into();
                let speaks = self.speaks();
                out.send(to, Message::RemoteAppend { epoch, whole, from, upto, entries, speaks });
                (from, whole) = (upto, false);
                if last {
                    break;
                }
            }
            self.followers.insert(to, self.log.len());
            self.tell_stability_again(to, out);
            self.tell_decided_again(to);
        }
        // Our vote counts with what is durable: later, by the gate.
        self.upkeep.ack_again.insert(to);
    }

    /// Lines 39, 45, 80: the ACKs of all members, cumulative, to those whom what they cover is addressed to.
    pub(crate) fn acknowledge_to_others(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.stands() {
            return;
        }
        for process in std::mem::take(&mut self.upkeep.again) {
            self.stream_whole(process, out); // Asked while we were no primary: our ACK.
        }
        let (epoch, len, clock) = (self.e_cur, self.log.len(), self.clock);
        let message = Message::RemoteAck { epoch, len, clock };
        let mut groups = Dest::new();
        let all = self.options.speakers == Speakers::All;
        let from = if all { self.remote_acked } else { len };
        for (_, slot) in self.log.iter_from(from) {
            for group in &slot.entry.start.dest {
                if *group != self.me.group && !groups.contains(group) {
                    groups.push(*group);
                }
            }
        }
        self.remote_acked = len;
        for group in &groups {
            for process in self.listeners(*group) {
                self.upkeep.ack_again.remove(&process);
                out.send(process, message.clone());
            }
        }
        for process in std::mem::take(&mut self.upkeep.ack_again) {
            out.send(process, message.clone());
        }
        if self.is_linearizable() && all {
            groups.iter().for_each(|group| self.stable.speaks_to(*group));
            for group in self.groups_to_show(now, clock, &groups) {
                self.stable.speaks_to(group);
                self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
            }
        }
    }

    /// Lines 46-50.
    #[allow(clippy::too_many_arguments)] // One message's fields.
    pub(crate) fn on_remote_append(
        &mut self,
        now: Time,
        from: ProcessId,
        (epoch, whole, speaks): (Epoch, bool, bool),
        (first, upto): (u64, u64),
        entries: &[RemoteEntry],
        out: &mut Outbox<Self>,
    ) {
        if epoch.leader != from.node {
            return;
        }
        let learner = self.remote.group(from.group);
        let before = learner.epoch.map(|epoch| epoch.leader);
        match learner.on_stream(epoch, whole, first) {
            Fits::Yes => {
                learner.speaks = speaks;
                if speaks && before.is_some_and(|before| before != from.node) {
                    self.upkeep.again.insert(from); // What we said was for another.
                }
            }
            Fits::Old => return,
            Fits::Gap => {
                if learner.asks(now, RETRY) {
                    out.send(from, Message::RemoteWanted);
                }
                return;
            }
        }
        let known = entries.partition_point(|entry| !learner.is_new(entry.index));
        let new = &entries[known..];
        let places: Vec<_> = new.iter().map(|entry| self.log.find(entry.id)).collect();
        let mut highest = Timestamp(0);
        let owes = self.owes(); // If not, slots that are long out of the cache are not looked at.
        for (RemoteEntry { index, id, ts }, ours) in new.iter().copied().zip(places) {
            highest = highest.max(ts);
            let exceeds = |index: &u64| self.log.get(*index).is_some_and(|slot| slot.entry.ts < ts);
            if owes && let Some(index) = ours.filter(exceeds) {
                self.owe_others(index, ts);
            }
            self.remote.group(from.group).push(Proposal { index, id, ts, ours });
            if ours.is_none() && self.done.known(id) == Known::No {
                self.remote.come(id, from.group, now);
            }
        }
        self.remote.group(from.group).reach(upto);
        if self.mutation != Mutation::ForgetsBump {
            self.raise_clock(highest, out); // Shown to the group when idle: the BUMP of line 50.
        }
        self.remote.heard(from.group);
    }

    /// Line 47, cumulative.
    pub(crate) fn on_remote_ack(
        &mut self,
        from: ProcessId,
        epoch: Epoch,
        len: u64,
        clock: Timestamp,
    ) {
        let linearizable = self.is_linearizable();
        let learner = self.remote.group(from.group);
        learner.on_ack(from.node, epoch, len);
        if linearizable {
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
        let mixed = self.mutation == Mutation::MixesEpochs;
        let decided = learner.decided(members, mixed);
        self.log.load(decided.iter().filter_map(|proposal| proposal.ours));
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
        if self.is_linearizable() && !self.remote.group(group).speaks {
            self.evaluate_stable(group);
        }
    }
}
