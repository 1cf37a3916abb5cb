//! Recovery of a process that keeps nothing on disk.
//!
//! It comes back under a new incarnation and has forgotten what it promised, acknowledged and
//! showed. Before it takes part again it asks the others of its group; once as many as a quorum
//! have answered, the primary of the highest epoch among them, it goes on from that epoch, from the
//! greatest of their clocks and from a snapshot of that primary. So it knows again:
//!
//! - the entries that it acknowledged in that epoch: its primary holds them;
//! - an epoch at least as high as any that it promised to and that can come to stand, and a clock
//!   at least as high as any of its own that others rely on. For both, what it said before must not
//!   be put together with what others say after their answer.
//!
//! That last rule is kept as by crash vectors ("Recovering Shared Objects Without Stable Storage").
//! Each process knows the latest *incarnations* of all others; when it learns of a new one it
//! forgets what the earlier one said, and tells all others before it says anything else. So, links
//! being FIFO:
//!
//! - M1: who hears what a process said after it answered has forgotten before what the old
//!   incarnation said;
//! - M2: nothing of an incarnation before the latest that is known counts, though it may still be
//!   under way: a link gives what is of the incarnation that was told on it last;
//! - M3: a link that was reset, or is new, may have lost such news. What comes on it counts only
//!   after the incarnations that its sender knows, which both ends say first ([`Incarnations`]);
//! - M4: an answer holds as long as its sender runs. Who recovers drops those of earlier
//!   incarnations, and each answer tells the incarnations that its sender knows: so of two that
//!   recover at the same time one knows of the other.
//!
//! All processes of a cluster are such ones, or none. A group of which more than a minority has
//! lost its memory at once has lost messages: it never stands again, and says so by not recovering.
//! A group of one does not recover.

use crate::message::{Incarnations, Message, NewIncarnation, Recover, Recovered, RecoveryMessage};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::state::clocks::quorum;
use crate::state::epochs::Role;
use crate::state::memory::Answer;
use crate::state::retransmission::RETRY;
use meridian_core::{Outbox, ProcessId, Time};

impl PrimCast {
    /// The same process, which keeps nothing on disk: in its first incarnation (`incarnation` 1) or
    /// a later one, in which it takes part only once the others have told it where they are.
    pub fn in_memory(mut self, incarnation: u64) -> PrimCast {
        self.recovery.memory.incarnation = incarnation;
        self.recovery.memory.lost = incarnation > 1 && !self.planted.is(Mutation::RejoinsAtOnce);
        self
    }

    /// Whether it has lost its memory, and waits for the others of its group.
    pub fn is_recovering(&self) -> bool {
        self.recovery.memory.lost
    }

    pub(crate) fn keeps_nothing(&self) -> bool {
        self.recovery.memory.incarnation > 0
    }

    fn incarnation_of(&self, process: ProcessId) -> u64 {
        self.recovery.memory.known.get(&process).copied().unwrap_or(1)
    }

    fn incarnations(&self) -> Vec<(ProcessId, u64)> {
        let own = [(self.me, self.recovery.memory.incarnation.max(1))];
        let known = self.recovery.memory.known.iter().map(|(process, number)| (*process, *number));
        known.chain(own).collect()
    }

    pub(crate) fn say_incarnations(&self, to: ProcessId, wanted: bool, out: &mut Outbox<Self>) {
        out.send(to, Message::from(Incarnations { known: self.incarnations(), wanted }));
    }

    /// M3: we have started, and nothing was heard yet.
    pub(crate) fn on_links_new(&mut self) {
        if self.keeps_nothing() {
            let all = self.members.groups().flat_map(|group| self.processes(group));
            self.recovery.memory.reset = all.filter(|process| *process != self.me).collect();
        }
    }

    /// M3: the link to `peer` was reset.
    pub(crate) fn on_link_reset(&mut self, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.keeps_nothing() {
            self.recovery.memory.reset.insert(peer);
            self.say_incarnations(peer, true, out);
        }
    }

    /// The other end of a link has said which incarnations it knows of, which was noted. What it
    /// wants is all that we would say after a restart of it: it has dropped what we said meanwhile.
    pub(crate) fn on_incarnations(
        &mut self,
        now: Time,
        from: ProcessId,
        wanted: bool,
        out: &mut Outbox<Self>,
    ) {
        if wanted {
            self.say_incarnations(from, false, out);
            self.say_again(now, from, out);
        }
    }

    /// M2 and M3: whether a message counts. Notes what it tells of incarnations.
    pub(crate) fn is_of_this_incarnation(
        &mut self,
        now: Time,
        from: ProcessId,
        message: &Message,
        out: &mut Outbox<Self>,
    ) -> bool {
        if !self.keeps_nothing() {
            return true;
        }
        match message {
            Message::Recovery(
                RecoveryMessage::Incarnations(Incarnations { known, .. })
                | RecoveryMessage::Recovered(Recovered { known, .. }),
            ) => {
                for (process, incarnation) in known {
                    self.learn_incarnation(*process, *incarnation, out);
                    if *process == from {
                        self.recovery.memory.linked.insert(from, *incarnation);
                    }
                }
                self.recovery.memory.reset.remove(&from);
            }
            Message::Recovery(RecoveryMessage::Recover(Recover { incarnation })) => {
                self.learn_incarnation(from, *incarnation, out);
                self.recovery.memory.linked.insert(from, *incarnation);
                self.recovery.memory.reset.remove(&from); // It knows of nothing.
            }
            _ => {}
        }
        let linked = self.recovery.memory.linked.get(&from).copied().unwrap_or(1);
        let dead = linked < self.incarnation_of(from);
        if !dead && !self.recovery.memory.reset.contains(&from) {
            return true;
        }
        if self.planted.is(Mutation::CountsTheDead) {
            return true;
        }
        let wanted = self.recovery.memory.asked_at.get(&from);
        if wanted.is_none_or(|at| now.since(*at) >= RETRY) {
            self.recovery.memory.asked_at.insert(from, now);
            self.say_incarnations(from, true, out);
        }
        false
    }

    /// Asks, now and again, until a snapshot is on its way.
    pub(crate) fn recover_memory(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.recovery.memory.asked.is_some_and(|at| now.since(at) < RETRY) {
            return;
        }
        self.recovery.memory.asked = Some(now);
        let incarnation = self.recovery.memory.incarnation;
        self.peers().for_each(|peer| out.send(peer, Message::from(Recover { incarnation })));
    }

    /// A member has lost its memory, and asks where we are.
    pub(crate) fn on_recover(&mut self, from: ProcessId, ask: Recover, out: &mut Outbox<Self>) {
        let Recover { incarnation } = ask;
        if self.recovery.memory.lost || self.incarnation_of(from) != incarnation {
            return;
        }
        self.tell_config(from, out);
        let primary_of = (self.epochs.role == Role::Primary).then_some(self.epochs.cur);
        let (e_prom, clock, known) = (self.epochs.prom, self.clock.now, self.incarnations());
        out.send(from, Message::from(Recovered { incarnation, known, e_prom, primary_of, clock }));
    }

    /// Another process says so of a third.
    pub(crate) fn on_new_incarnation(&mut self, news: NewIncarnation, out: &mut Outbox<Self>) {
        self.learn_incarnation(news.member, news.incarnation, out);
    }

    /// `member`, of any group, is in this incarnation: what it said before counts no more. Who did
    /// not know tells all others, before anything else that it says (M1).
    fn learn_incarnation(&mut self, member: ProcessId, incarnation: u64, out: &mut Outbox<Self>) {
        if member == self.me || self.incarnation_of(member) >= incarnation {
            return;
        }
        self.recovery.memory.known.insert(member, incarnation);
        if !self.planted.is(Mutation::CountsTheDead) {
            self.forget_said(member);
        }
        let groups: Vec<_> =
            self.members.groups().filter(|group| *group != self.me.group).collect();
        let others = groups.into_iter().flat_map(|group| self.processes(group));
        let to: Vec<_> = self.peers().chain(others).filter(|to| *to != member).collect();
        for to in to {
            out.send(to, Message::from(NewIncarnation { member, incarnation }));
        }
    }

    fn forget_said(&mut self, member: ProcessId) {
        if member.group == self.me.group {
            self.keep_reached(); // With it, as long as that could be.
            self.clock.members.forget(member.node);
            self.replication.forget(member.node);
            self.epochs.forget(member.node);
            self.recovery.memory.answers.remove(&member.node); // M4
        } else {
            self.remote.group(member.group).forget(member.node);
            self.outbound.followers.remove(&member);
        }
        self.forget_transfers(member);
        self.stability.forget(member);
    }

    /// An answer; with those of a quorum, one of them the primary of the highest epoch, goes on.
    pub(crate) fn on_recovered(
        &mut self,
        now: Time,
        from: ProcessId,
        answer: Recovered,
        out: &mut Outbox<Self>,
    ) {
        let Recovered { incarnation, e_prom, primary_of, clock, known: _ } = answer;
        if !self.recovery.memory.lost || incarnation != self.recovery.memory.incarnation {
            return;
        }
        self.recovery.memory.answers.insert(from.node, Answer { e_prom, primary_of, clock });
        let answers = &self.recovery.memory.answers;
        let Some(highest) = answers.values().map(|answer| answer.e_prom).max() else { return };
        let leads = answers.get(&highest.leader).and_then(|answer| answer.primary_of);
        let members = self.members.in_config(self.me.group, highest.config).unwrap_or(&[]);
        let answered = members.iter().filter(|node| answers.contains_key(*node)).count();
        if leads != Some(highest) || answered < quorum(members.len()) {
            return;
        }
        let clock = answers.values().map(|answer| answer.clock).max().unwrap_or_default();
        self.epochs.prom = highest.max(self.epochs.prom);
        self.raise_clock(clock, out);
        self.request_snapshot(now, self.me.group.of(highest.leader), out);
    }

    /// Whether what was answered still is: a snapshot brings us back then.
    pub(crate) fn may_recover(&self) -> bool {
        let config = self.epochs.prom.config;
        let members = self.members.in_config(self.me.group, config).unwrap_or(&[]);
        let answered =
            members.iter().filter(|node| self.recovery.memory.answers.contains_key(*node));
        answered.count() >= quorum(members.len())
    }
}
