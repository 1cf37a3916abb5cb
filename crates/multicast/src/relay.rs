//! A group whose primary speaks for it: [`Speakers::Primary`].
//!
//! By the thesis all processes of a group speak with all of another, so that each of them can decide by itself: three
//! steps to a delivery anywhere, for as many messages as both groups have pairs of processes. Where the members of a
//! group are near each other a step costs next to nothing, and messages are what costs. Then the primaries speak
//! alone:
//!
//! - A primary streams its entries to the other group's primary, as ever, and says what of them a quorum of its group
//!   holds ([`Message::RemoteDecided`]) when it knows: nobody else acknowledges to other groups. That is what the other
//!   group's processes would have counted, one step inside a group later.
//! - It relays the local timestamps that other groups have decided to its followers ([`Message::Relayed`]). So all
//!   know what they would have known otherwise, and deliver by the same rules.
//! - Its followers learn its clock, not those of other groups. They keep their own clocks ahead of it ([`AHEAD`]),
//!   which any process may do at any time: only a primary's clock is proposed from. So the primary finds a quorum
//!   ahead when a timestamp of another group raises its clock, and need not wait for one.
//! - Only as many followers as make a quorum with it are asked to acknowledge at once; the others do within
//!   [`ACK_DELAY`], and one that is further than one that was asked is asked in its place.
//! - What is stable (see `truncation`) goes by way of the primaries, too, if there are disks.
//!
//! Primaries deliver in four steps then, followers in five. What is decided is decided for ever, so it does not matter
//! by whom it was heard, or in which epoch. What is relayed may be lost with a primary, a link or a restart; then the
//! next primary streams all that matters to all processes of the other groups once, learns from theirs what they have
//! decided, and relays all of that. A process that waits for long all the same asks for itself, and is answered.
//!
//! Each group chooses for itself: a primary says with its stream whether it speaks for its group.

use crate::clocks::quorum;
use crate::done::Known;
use crate::message::{Dest, Epoch, Message, Rank, RelayedFinal, RelayedLocal, StableOf, Timestamp};
use crate::others::ENTRIES_MAX;
use crate::process::{ClockSource, Mutation, PrimCast, Role, Speakers};
use meridian_core::{GroupId, MessageId, NodeId, Outbox, ProcessId, Table, Time, Token};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How far a follower keeps its clock ahead of its primary's. A new primary starts from there.
pub(crate) const AHEAD: u64 = 1024;

/// The same for hybrid clocks, in microseconds: further than they move between two times that they are shown.
const AHEAD_US: u64 = 20_000;

/// How long a follower that is not asked to be prompt waits before it acknowledges: many round trips, and no time
/// to whoever waits when a prompt one has died.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(2);
const ACK_TOKEN: Token = Token(1);

/// What a primary that speaks for its group, or its follower, still has to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Relay {
    /// The length of our `T` that other groups were told is decided.
    told: u64,
    /// Who of them is to be told again.
    told_again: BTreeSet<ProcessId>,
    /// Decided by other groups, and not relayed yet.
    locals: Vec<RelayedLocal>,
    /// Final here.
    finals: Vec<RelayedFinal>,
    /// As a follower: final timestamps of messages that our `T` does not hold yet, and whether they were delivered.
    early: Table<MessageId, (Timestamp, bool)>,
    /// Which followers may have missed what was relayed.
    all_to: BTreeSet<ProcessId>,
    /// Which followers were asked for prompt ACKs.
    prompt: SmallVec<[NodeId; 4]>,
    /// Whose word of what is stable is to be passed on, by group that needs to know.
    stables: BTreeMap<GroupId, BTreeSet<ProcessId>>,
    /// As a follower: when what was appended is acknowledged, if nobody waits for it.
    later: Option<Time>,
}

impl Relay {
    /// Whether our ACK has time.
    pub fn acknowledges_later(&self) -> bool {
        self.later.is_some()
    }

    /// Whether other groups were told that the entry at `index` is decided.
    pub fn is_told(&self, index: u64) -> bool {
        index < self.told
    }

    /// A timer has come.
    pub fn acknowledge_due(&mut self, now: Time) {
        self.later.take_if(|at| now >= *at);
    }
}

impl PrimCast {
    /// Whether this process is a primary that speaks for its group.
    pub(crate) fn speaks(&self) -> bool {
        self.role == Role::Primary && self.options.speakers == Speakers::Primary
    }

    /// Whom of another group what concerns it is told.
    pub(crate) fn listeners(&self, group: GroupId) -> SmallVec<[ProcessId; 4]> {
        let speaker = self.remote.known(group).filter(|learner| learner.speaks);
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
        if self.speaks() {
            self.relay.all_to = self.peers().collect();
        }
    }

    /// `peer` may have missed what was relayed.
    pub(crate) fn relay_again(&mut self, peer: ProcessId) {
        if self.speaks() {
            self.relay.all_to.insert(peer);
        }
    }

    /// `to`, of another group, is told anew what is decided.
    pub(crate) fn tell_decided_again(&mut self, to: ProcessId) {
        if self.speaks() {
            self.relay.told_again.insert(to);
        }
    }

    /// The local timestamp of the entry at `index` in another group is decided. In the linearizable order followers cannot
    /// tell by themselves when it may be delivered: they need not know before it is.
    pub(crate) fn relay_local(&mut self, index: u64, group: GroupId, ts: Timestamp) {
        if self.speaks()
            && !self.is_linearizable()
            && let Some(slot) = self.log.get(index)
        {
            let id = slot.entry.start.id;
            self.relay.locals.push(RelayedLocal { index, id, group, ts });
        }
    }

    /// A final timestamp is known that did not come from local ones.
    pub(crate) fn relay_final(&mut self, index: u64, id: MessageId, ts: Timestamp) {
        if self.speaks() && !self.is_linearizable() {
            self.relay.finals.push(RelayedFinal { index, id, ts, delivered: false });
        }
    }

    /// The entry at `index` is delivered here.
    pub(crate) fn relay_delivered(&mut self, index: u64, ts: Timestamp) {
        if self.is_linearizable()
            && self.speaks()
            && let Some(slot) = self.log.get(index)
            && slot.entry.start.dest.len() > 1
        {
            let id = slot.entry.start.id;
            self.relay.finals.push(RelayedFinal { index, id, ts, delivered: true });
        }
    }

    /// Tells followers what came from other groups.
    pub(crate) fn relay_heard(&mut self, out: &mut Outbox<Self>) {
        if !self.speaks() {
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
        let (epoch, len, clock) = (self.e_cur, self.log.len(), self.clock);
        let message = Message::Relayed { epoch, len, clock, locals, finals };
        self.peers().for_each(|peer| out.send(peer, message.clone()));
    }

    /// All that is known of messages that `peer` may not have delivered.
    fn relay_all(&self, peer: ProcessId, out: &mut Outbox<Self>) {
        let (mut locals, mut finals) = (Vec::new(), Vec::new());
        for (index, slot) in self.log.iter_from(0) {
            let (id, rank) = (slot.entry.start.id, (slot.bound, slot.entry.start.id));
            if slot.delivered && self.truncation.has(peer, rank) {
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
        let (epoch, len, clock) = (self.e_cur, self.log.len(), self.clock);
        for locals in locals.chunks(ENTRIES_MAX) {
            let (locals, finals) = (locals.into(), [].into());
            out.send(peer, Message::Relayed { epoch, len, clock, locals, finals });
        }
        for finals in finals.chunks(ENTRIES_MAX) {
            let (locals, finals) = ([].into(), finals.into());
            out.send(peer, Message::Relayed { epoch, len, clock, locals, finals });
        }
    }

    /// The primary of our group has heard this.
    pub(crate) fn on_relayed(
        &mut self,
        now: Time,
        from: ProcessId,
        (epoch, len, clock): (Epoch, u64, Timestamp),
        locals: &[RelayedLocal],
        finals: &[RelayedFinal],
        out: &mut Outbox<Self>,
    ) {
        if self.follow(now, from, epoch, out) {
            if len > self.log.len() {
                self.ask_for_entries(now, out); // Its clock may be past those.
            } else {
                self.note_counted(from, epoch, clock);
                self.stay_ahead(clock, 0, out);
            }
        }
        let indexes = locals.iter().map(|local| local.index);
        self.log.load(indexes.chain(finals.iter().map(|last| last.index)));
        for RelayedLocal { index, id, group, ts } in locals.iter().copied() {
            if let Some(index) = self.log.find_near(id, Some(index)) {
                self.log.local_ts(index, group, ts);
            } else if self.done.known(id) == Known::No {
                self.remote.come(id, group, now);
                self.remote.early_local(id, group, ts);
            }
        }
        for RelayedFinal { index, id, ts, delivered } in finals.iter().copied() {
            if let Some(index) = self.log.find_near(id, Some(index)) {
                self.finish(index, ts, delivered, out);
            } else if self.done.known(id) == Known::No {
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

    /// Says what is stable here by way of the primary that speaks for our group; whether there is such a way. Not without
    /// disks: what is passed on does not tell from which life it is.
    pub(crate) fn tells_through_primary(
        &mut self,
        (delivered, except): (Rank, &Arc<[MessageId]>),
        groups: &[GroupId],
        out: &mut Outbox<Self>,
    ) -> bool {
        if self.options.speakers == Speakers::All || !self.stands() || self.keeps_nothing() {
            return false;
        }
        let groups: Dest = groups.iter().copied().filter(|group| *group != self.me.group).collect();
        if self.role == Role::Primary {
            self.pass_on_stable(self.me, &groups);
        } else {
            let message = Message::StableFor { groups, delivered, except: except.clone() };
            out.send(self.leader_of(self.e_cur), message);
        }
        true
    }

    /// A member of our group has said what is stable there.
    pub(crate) fn pass_on_stable(&mut self, whose: ProcessId, groups: &[GroupId]) {
        if self.speaks() {
            for group in groups.iter().chain([&self.me.group]) {
                self.relay.stables.entry(*group).or_default().insert(whose);
            }
        }
    }

    /// A primary has passed on what members of its group have said, or, to its followers, what anybody has.
    pub(crate) fn on_stables(&mut self, from: ProcessId, stables: &[StableOf]) {
        for StableOf { process, delivered, except } in stables {
            let known = self.members.contains(process.group, process.node);
            let may_say = process.group == from.group || from.group == self.me.group;
            if *process != self.me && known && may_say {
                self.on_stable(*process, *delivered, except);
                if from.group != self.me.group {
                    self.pass_on_stable(*process, &[]);
                }
            }
        }
    }

    fn tell_stables(&mut self, out: &mut Outbox<Self>) {
        for (group, whose) in std::mem::take(&mut self.relay.stables) {
            let said = whose.into_iter().filter_map(|process| {
                let (delivered, except) = self.truncation.said_by(process, self.me)?;
                Some(StableOf { process, delivered, except })
            });
            let message = Message::Stables(said.collect());
            if group == self.me.group {
                self.peers().for_each(|peer| out.send(peer, message.clone()));
            } else {
                self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
            }
        }
    }

    /// As a follower of a primary that speaks for us, which has reached `clock`: ours is ahead of it by `least`, or by
    /// far.
    pub(crate) fn stay_ahead(&mut self, clock: Timestamp, least: u64, out: &mut Outbox<Self>) {
        let follows = self.role == Role::Follower && self.options.speakers == Speakers::Primary;
        if follows && clock.0 + least > self.clock.0 {
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
        if !self.speaks() {
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
        if self.speaks() {
            self.relay.prompt.clone_from(&prompt);
        }
        prompt
    }

    /// `node` has acknowledged up to `len`: if it is further than one that was asked to be prompt, it is asked instead.
    pub(crate) fn choose_prompt(&mut self, node: NodeId, len: u64) {
        if !self.speaks() || self.relay.prompt.is_empty() || self.relay.prompt.contains(&node) {
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
        if prompt || self.role != Role::Follower {
            self.relay.later = None;
        } else if self.relay.later.is_none() {
            let at = now + ACK_DELAY;
            self.relay.later = Some(at);
            out.timer(at, ACK_TOKEN);
        }
    }

    /// Whether followers need not hear of our clock yet: a quorum is past it, and with the next that is relayed to
    /// them they hear of it.
    pub(crate) fn is_clock_reached(&self) -> bool {
        let len = self.shown.and_then(|(epoch, len, _)| (epoch == self.e_prom).then_some(len));
        self.speaks()
            && len == Some(self.log.len())
            && self.clocks.quorum_clock(self.voters()) >= self.clock
    }

    /// Tells other groups what a quorum of ours holds.
    pub(crate) fn tell_decided(&mut self, out: &mut Outbox<Self>) {
        if !self.speaks() {
            return;
        }
        let again = std::mem::take(&mut self.relay.told_again);
        let mut groups: SmallVec<[GroupId; 4]> = SmallVec::new();
        let len = match self.mutation {
            Mutation::DecidesAlone => self.log.len(),
            _ => self.decided,
        };
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
        self.owe_decided(self.relay.told);
        let message = Message::RemoteDecided { epoch: self.e_cur, len: self.relay.told };
        for group in groups {
            self.stable.speaks_to(group);
            for process in self.listeners(group) {
                if !again.contains(&process) {
                    out.send(process, message.clone());
                }
            }
        }
        again.into_iter().for_each(|process| out.send(process, message.clone()));
    }

    /// The primary of another group says what is decided there.
    pub(crate) fn on_remote_decided(&mut self, from: ProcessId, epoch: Epoch, len: u64) {
        if epoch.leader != from.node {
            return;
        }
        let learner = self.remote.group(from.group);
        learner.on_decided(epoch, len);
        self.remote.heard(from.group);
    }
}
