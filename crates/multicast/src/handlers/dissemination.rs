//! Dissemination via the leader: a group whose primary relays ([`Dissemination::ViaLeader`]).
//!
//! By the thesis all processes of a group speak with all of another, so that each of them can
//! decide by itself: three steps to a delivery anywhere, for as many messages as both groups have
//! pairs of processes. Where the members of a group are near each other a step costs next to
//! nothing, and messages are what costs. Then the primaries speak alone:
//!
//! - A primary streams its entries to the other group's primary, as ever, and says what of them a
//!   quorum of its group holds ([`RemoteDecided`]) when it knows: nobody else acknowledges to other
//!   groups. That is what the other group's processes would have counted, one step inside a group
//!   later.
//! - It relays the local timestamps that other groups have decided to its followers ([`Relayed`]).
//!   So all know what they would have known otherwise, and deliver by the same rules.
//! - Its followers learn its clock, not those of other groups. They keep their own clocks ahead of
//!   it ([`AHEAD`]), which any process may do at any time: only a primary's clock is proposed from.
//!   So the primary finds a quorum ahead when a timestamp of another group raises its clock, and
//!   need not wait for one.
//! - Only as many followers as make a quorum with it are asked to acknowledge at once; the others
//!   do within [`ACK_DELAY`], and one that is further than one that was asked is asked in its
//!   place.
//! - Where nobody waits for followers, they hear with what is sent next, or after as long, that a
//!   message which concerns their group alone is decided ([`Notice::WithNext`]).
//! - What is stable (see `truncation`) goes by way of the primaries, too, if there are disks.
//!
//! Primaries deliver in four steps then, followers in five. What is decided is decided for ever, so
//! it does not matter by whom it was heard, or in which epoch. What is relayed may be lost with a
//! primary, a link or a restart; then the next primary streams all that matters to all processes of
//! the other groups once, learns from theirs what they have decided, and relays all of that. A
//! process that waits for long all the same asks for itself, and is answered.
//!
//! Each group chooses for itself: a primary says with its stream whether it relays for its group.

use crate::message::{
    Dest, Message, Relayed, RelayedFinal, RelayedLocal, RemoteDecided, StabilityMessage, Stable,
    StableFor, StableOf, Start, Timestamp,
};
use crate::mutation::Mutation;
use crate::options::{ClockSource, Notice};
use crate::process::PrimCast;
use crate::state::clocks::quorum;
use crate::state::done::Known;
use crate::state::epochs::Role;
use crate::state::outbound::ENTRIES_MAX;
use crate::state::relay::{ACK_DELAY, AHEAD, AHEAD_US, Relay};
use crate::state::retransmission::Timer;
use meridian_core::{GroupId, MessageId, NodeId, Outbox, ProcessId, Time};
use smallvec::SmallVec;
use std::cmp::Reverse;

impl PrimCast {
    /// Whether this process is a primary that relays for its group.
    pub(crate) fn relays(&self) -> bool {
        self.options.dissemination.relays(self.epochs.role)
    }

    /// Whom of another group what concerns it is told.
    pub(crate) fn listeners(&self, group: GroupId) -> SmallVec<[ProcessId; 4]> {
        let speaker = self.remote.known(group).filter(|learner| learner.relays);
        let speaker = speaker.and_then(|learner| learner.epoch).map(|epoch| epoch.leader);
        let all: SmallVec<[ProcessId; 4]> = self.processes(group).collect();
        match all.iter().find(|process| Some(process.node) == speaker) {
            Some(process) => SmallVec::from_slice(&[*process]),
            None => all,
        }
    }

    /// A new epoch: all is to be told again.
    pub(crate) fn start_relay(&mut self) {
        let stables = std::mem::take(&mut self.relay.stables);
        self.relay = Relay { stables, ..Relay::default() };
        if self.relays() {
            self.relay.all_to = self.peers().collect();
        }
    }

    /// `peer` may have missed what was relayed.
    pub(crate) fn relay_again(&mut self, peer: ProcessId) {
        if self.relays() {
            self.relay.all_to.insert(peer);
        }
    }

    /// `to`, of another group, is told anew what is decided.
    pub(crate) fn tell_decided_again(&mut self, to: ProcessId) {
        if self.relays() {
            self.relay.told_again.insert(to);
        }
    }

    /// The local timestamp of the entry at `index` in another group is decided. In the linearizable
    /// order followers cannot tell by themselves when it may be delivered: they need not know
    /// before it is.
    pub(crate) fn relay_local(&mut self, index: u64, group: GroupId, ts: Timestamp) {
        if self.relays()
            && self.options.order.relays_what_was_heard()
            && let Some(slot) = self.log.get(index)
        {
            let id = slot.entry.start.id;
            self.relay.locals.push(RelayedLocal { index, id, group, ts });
        }
    }

    /// A final timestamp is known that did not come from local ones.
    pub(crate) fn relay_final(&mut self, index: u64, id: MessageId, ts: Timestamp) {
        if self.relays() && self.options.order.relays_what_was_heard() {
            self.relay.finals.push(RelayedFinal { index, id, ts, delivered: false });
        }
    }

    /// The entry at `index` is delivered here.
    pub(crate) fn relay_delivered(&mut self, index: u64, ts: Timestamp) {
        if self.options.order.relays_what_was_delivered()
            && self.relays()
            && let Some(slot) = self.log.get(index)
            && slot.entry.start.dest.len() > 1
        {
            let id = slot.entry.start.id;
            self.relay.finals.push(RelayedFinal { index, id, ts, delivered: true });
        }
    }

    /// Tells followers what came from other groups.
    pub(crate) fn relay_heard(&mut self, out: &mut Outbox<Self>) {
        if !self.relays() {
            return;
        }
        self.tell_stables(out);
        for peer in std::mem::take(&mut self.relay.all_to) {
            self.relay_all(peer, out);
        }
        let Relay { locals, finals, .. } = &mut self.relay;
        if locals.is_empty() && finals.is_empty() {
            return;
        }
        let (locals, finals) = (std::mem::take(locals).into(), std::mem::take(finals).into());
        let (epoch, len, clock) = (self.epochs.cur, self.log.len(), self.clock.now);
        let message = Message::from(Relayed { epoch, len, clock, locals, finals });
        self.peers().for_each(|peer| out.send(peer, message.clone()));
    }

    /// The same of all followers.
    pub(crate) fn relay_again_to_all(&mut self) {
        self.peers().for_each(|peer| self.relay_again(peer));
    }

    /// All that is known of messages that `peer` may not have delivered.
    fn relay_all(&self, peer: ProcessId, out: &mut Outbox<Self>) {
        let (mut locals, mut finals) = (Vec::new(), Vec::new());
        for (index, slot) in self.log.iter_from(0) {
            let (id, rank) = (slot.entry.start.id, (slot.bound, slot.entry.start.id));
            if slot.delivered && self.stability.has(peer, rank) {
                continue;
            }
            match slot.entry.final_ts {
                Some(ts) => finals.push(RelayedFinal { index, id, ts, delivered: slot.delivered }),
                None => {
                    let others = slot.locals.iter().filter(|(group, _)| *group != self.me.group);
                    let of =
                        |&(group, ts): &(GroupId, Timestamp)| RelayedLocal { index, id, group, ts };
                    locals.extend(others.map(of));
                }
            }
        }
        let (epoch, len, clock) = (self.epochs.cur, self.log.len(), self.clock.now);
        for locals in locals.chunks(ENTRIES_MAX) {
            let (locals, finals) = (locals.into(), [].into());
            out.send(peer, Message::from(Relayed { epoch, len, clock, locals, finals }));
        }
        for finals in finals.chunks(ENTRIES_MAX) {
            let (locals, finals) = ([].into(), finals.into());
            out.send(peer, Message::from(Relayed { epoch, len, clock, locals, finals }));
        }
    }

    /// The primary of our group has heard this.
    pub(crate) fn on_relayed(
        &mut self,
        now: Time,
        from: ProcessId,
        relayed: &Relayed,
        out: &mut Outbox<Self>,
    ) {
        let Relayed { epoch, len, clock, locals, finals } = relayed;
        let (epoch, len, clock) = (*epoch, *len, *clock);
        if self.follow(now, from, epoch, out) {
            if len > self.log.len() {
                self.ask_for_entries(now, out); // Its clock may be past those.
            } else {
                self.note_counted(from, epoch, clock);
                self.stay_ahead(clock, 0, out);
            }
        }
        let indexes = locals.iter().map(|local| local.index);
        self.log.prefetch(indexes.chain(finals.iter().map(|last| last.index)));
        let of_all = self.fences.may_tell_all(from);
        for RelayedLocal { index, id, group, ts } in locals.iter().copied() {
            if !self.may_tell(from, &[group]) {
                continue;
            }
            if let Some(index) = self.log.find_near(id, Some(index)) {
                self.log.local_ts(index, group, ts);
            } else if self.deliveries.done.known(id) == Known::No {
                self.remote.come(id, group, now);
                self.remote.early_local(id, group, ts);
            }
        }
        for RelayedFinal { index, id, ts, delivered } in finals.iter().copied() {
            if let Some(index) = self.log.find_near(id, Some(index)) {
                if of_all || self.may_tell_of(from, index) {
                    self.finish(index, ts, delivered, out);
                }
            } else if of_all && self.deliveries.done.known(id) == Known::No {
                self.relay.early.insert(id, (ts, delivered));
            }
        }
    }

    /// The message at `index` has come to our `T`: what was relayed of it counts.
    pub(crate) fn finish_early(&mut self, id: MessageId, index: u64, out: &mut Outbox<Self>) {
        if let Some((ts, delivered)) = self.relay.early.remove(&id) {
            self.finish(index, ts, delivered, out);
        }
    }

    /// Says what is stable here by way of the primary that relays for our group; whether there is
    /// such a way. Not without disks: what is passed on does not tell from which incarnation it is.
    pub(crate) fn tells_through_primary(
        &mut self,
        stable: &Stable,
        groups: &[GroupId],
        out: &mut Outbox<Self>,
    ) -> bool {
        if !self.options.dissemination.is_via_leader() || !self.stands() || self.keeps_nothing() {
            return false;
        }
        let groups: Dest = groups.iter().copied().filter(|group| *group != self.me.group).collect();
        if self.epochs.role == Role::Primary {
            self.forward_stable(self.me, &groups);
        } else {
            let message = Message::from(StableFor { groups, stable: stable.clone() });
            out.send(self.leader_of(self.epochs.cur), message);
        }
        true
    }

    /// A member of our group has said what is stable there.
    pub(crate) fn forward_stable(&mut self, whose: ProcessId, groups: &[GroupId]) {
        if self.relays() {
            for group in groups.iter().chain([&self.me.group]) {
                self.relay.stables.entry(*group).or_default().insert(whose);
            }
        }
    }

    /// A primary has passed on what members of its group have said, or, to its followers, what
    /// anybody has.
    pub(crate) fn on_forwarded_stable(&mut self, from: ProcessId, stables: &[StableOf]) {
        for StableOf { process, stable } in stables {
            let known = self.members.contains(process.group, process.node);
            let may_say = process.group == from.group || from.group == self.me.group;
            if *process != self.me && known && may_say {
                self.on_stable(*process, stable);
                if from.group != self.me.group {
                    self.forward_stable(*process, &[]);
                }
            }
        }
    }

    fn tell_stables(&mut self, out: &mut Outbox<Self>) {
        for (group, whose) in std::mem::take(&mut self.relay.stables) {
            let said = whose.into_iter().filter_map(|process| {
                let stable = self.stability.reported_by(process, self.me)?;
                Some(StableOf { process, stable })
            });
            let message = Message::from(StabilityMessage::Forwarded(said.collect()));
            if group == self.me.group {
                self.peers().for_each(|peer| out.send(peer, message.clone()));
            } else {
                self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
            }
        }
    }

    /// As a follower of a primary that relays for us, which has reached `clock`: ours is ahead of
    /// it by `least`, or by far.
    pub(crate) fn stay_ahead(&mut self, clock: Timestamp, least: u64, out: &mut Outbox<Self>) {
        let via_leader = self.options.dissemination.is_via_leader();
        let follows = self.epochs.role == Role::Follower && via_leader;
        if follows && clock.0 + least > self.clock.now.0 {
            self.raise_clock(Timestamp(clock.0 + self.ahead()), out);
        }
    }

    pub(crate) fn ahead(&self) -> u64 {
        match self.options.clock {
            ClockSource::Logical => AHEAD,
            ClockSource::Hybrid => AHEAD_US,
        }
    }

    /// The followers whose ACKs are needed at once: with ours a quorum.
    pub(crate) fn prompt(&self) -> SmallVec<[NodeId; 4]> {
        let peers = self.peers().map(|peer| peer.node);
        if !self.relays() {
            return peers.collect();
        }
        let needed = quorum(self.voters().len()) - 1;
        let chosen = self.relay.prompt.iter().copied().filter(|node| self.voters().contains(node));
        let mut prompt: SmallVec<[NodeId; 4]> = chosen.take(needed).collect();
        if prompt.len() < needed {
            let others =
                peers.filter(|node| self.voters().contains(node) && !prompt.contains(node));
            let mut others: SmallVec<[NodeId; 8]> = others.collect();
            others.sort_by_key(|node| Reverse(self.acked_here(*node))); // Who is gone is not first.
            others.truncate(needed - prompt.len());
            prompt.extend(others);
        }
        prompt
    }

    /// The same: they are asked now.
    pub(crate) fn ask_prompt(&mut self) -> SmallVec<[NodeId; 4]> {
        let prompt = self.prompt();
        if self.relays() {
            self.relay.prompt.clone_from(&prompt);
        }
        prompt
    }

    /// All peers, those first that are waited for: to send to one may take as long as another acts.
    pub(crate) fn peers_in_turn(&self) -> SmallVec<[ProcessId; 4]> {
        let prompt = self.prompt();
        let mut peers: SmallVec<[_; 4]> = self.peers().collect();
        peers.sort_by_key(|peer| !prompt.contains(&peer.node));
        peers
    }

    /// `node` has acknowledged up to `len`: if it is further than one that was asked to be prompt,
    /// it is asked instead.
    pub(crate) fn choose_prompt(&mut self, node: NodeId, len: u64) {
        if !self.relays() || self.relay.prompt.is_empty() || self.relay.prompt.contains(&node) {
            return; // Or nobody was asked yet.
        }
        let mut prompt = self.prompt();
        let behind = |other: &&mut NodeId| self.acked_here(**other) < Some(len);
        if !prompt.contains(&node)
            && let Some(slow) = prompt.iter_mut().find(behind)
        {
            *slow = node;
            self.relay.prompt = prompt;
        }
    }

    /// As a follower that was sent entries: acknowledges them at once, or soon.
    pub(crate) fn acknowledge_later(&mut self, now: Time, prompt: bool, out: &mut Outbox<Self>) {
        if prompt || self.epochs.role != Role::Follower {
            self.relay.later = None;
        } else if self.relay.later.is_none() {
            self.put_off(now, out);
        }
    }

    fn put_off(&mut self, now: Time, out: &mut Outbox<Self>) {
        let at = now + ACK_DELAY;
        if self.relay.put_off_until(at) {
            out.timer(at, Timer::Acknowledge);
        }
    }

    /// As primary, before it proposes more: followers hear of what was put off together with that.
    /// Not after it: the clock would then be past proposals that they do not hold.
    pub(crate) fn acknowledge_before_more(&mut self, out: &mut Outbox<Self>) {
        let len = self.log.len();
        let put_off = |shown: u64| shown < len && len == self.relay.put_off;
        if self.relays() && self.shown_here().is_some_and(put_off) {
            self.relay.later = None;
            self.advertise(out);
        }
    }

    /// As primary that has proposed: its followers need not hear at once that this is decided, if
    /// it concerns their group alone and none of them waits for it ([`Notice::WithNext`]).
    pub(crate) fn acknowledge_with_next(&mut self, now: Time, out: &mut Outbox<Self>) {
        let awaited = std::mem::take(&mut self.relay.awaited);
        if !self.has_time() || !self.relays() {
            return;
        }
        let len = self.log.len();
        let Some(shown) = self.shown_here().filter(|shown| *shown < len) else { return };
        if awaited || !self.log.iter_from(shown).all(|(_, slot)| is_alone(&slot.entry.start)) {
            self.relay.later = None;
        } else if len > self.relay.put_off {
            self.relay.put_off = len;
            self.put_off(now, out);
        }
    }

    /// Whether nobody waits for what followers deliver ([`Notice::WithNext`]).
    pub(crate) fn has_time(&self) -> bool {
        self.options.dissemination.is_via_leader() && self.options.notice == Notice::WithNext
    }

    /// The length of `T` that the group was shown last in this epoch.
    fn shown_here(&self) -> Option<u64> {
        let (epoch, shown, _) = self.replication.advertised?;
        (epoch == self.epochs.cur).then_some(shown)
    }

    /// Whether followers need not hear of our clock yet: a quorum is past it, and with the next
    /// that is relayed to them they hear of it.
    pub(crate) fn is_clock_reached(&self) -> bool {
        let len = self
            .replication
            .advertised
            .and_then(|(epoch, len, _)| (epoch == self.epochs.prom).then_some(len));
        self.relays()
            && len == Some(self.log.len())
            && self.clock.members.quorum_clock(self.voters()) >= self.clock.now
    }

    /// Tells other groups what a quorum of ours holds.
    pub(crate) fn tell_decided(&mut self, out: &mut Outbox<Self>) {
        if !self.relays() {
            return;
        }
        let again = std::mem::take(&mut self.relay.told_again);
        let mut groups: SmallVec<[GroupId; 4]> = SmallVec::new();
        let alone = self.planted.is(Mutation::DecidesAlone);
        let len = if alone { self.log.len() } else { self.log.decided };
        if len <= self.relay.told && again.is_empty() {
            return;
        }
        let news = self.log.iter_from(self.relay.told).take_while(|(index, _)| *index < len);
        for group in news.flat_map(|(_, slot)| &slot.entry.start.dest) {
            if *group != self.me.group && !groups.contains(group) {
                groups.push(*group);
            }
        }
        self.relay.told = len.max(self.relay.told);
        self.notify_decided(self.relay.told);
        let message = Message::from(RemoteDecided { epoch: self.epochs.cur, len: self.relay.told });
        for group in groups {
            self.linearizable.speaks_to(group);
            for process in self.listeners(group) {
                if !again.contains(&process) {
                    out.send(process, message.clone());
                }
            }
        }
        again.into_iter().for_each(|process| out.send(process, message.clone()));
    }

    /// The primary of another group says what is decided there.
    pub(crate) fn on_remote_decided(&mut self, from: ProcessId, decided: RemoteDecided) {
        let RemoteDecided { epoch, len } = decided;
        if epoch.leader != from.node {
            return;
        }
        let learner = self.remote.group(from.group);
        learner.on_decided(epoch, len);
        self.remote.heard(from.group);
    }
}

/// Whether a message concerns one group, and none of its members more than another.
pub(crate) fn is_alone(start: &Start) -> bool {
    start.dest.len() == 1 && start.config.is_none()
}
