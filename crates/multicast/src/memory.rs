//! Recovery of a process that keeps nothing on disk.
//!
//! It comes back under a new incarnation and has forgotten what it promised, acknowledged and showed. Before it
//! takes part again it asks the others of its group; once as many as a quorum have answered, the primary of the
//! highest epoch among them, it goes on from that epoch, from the greatest of their clocks and from a
//! snapshot of that primary. So it knows again:
//!
//! - the entries that it acknowledged in that epoch: its primary holds them;
//! - an epoch at least as high as any that it promised to and that can come to stand, and a clock at least as high
//!   as any of its own that others rely on. For both, what it said before must not be put together with what
//!   others say after their answer.
//!
//! That last rule is kept as by crash vectors ("Recovering Shared Objects Without Stable Storage"). Each process
//! knows the latest *lives* of all others; when it learns of a new one it forgets what the earlier one said, and
//! tells all others before it says anything else. So, links being FIFO:
//!
//! - M1: who hears what a process said after it answered has forgotten before what the old incarnation said;
//! - M2: nothing of a life before the latest that is known counts, though it may still be under way: a link gives
//!   what is of the life that was told on it last;
//! - M3: a link that was reset, or is new, may have lost such news. What comes on it counts only after the lives
//!   that its sender knows, which both ends say first ([`Message::Lives`]);
//! - M4: an answer holds as long as its sender lives. Who recovers drops those of earlier lives, and each answer
//!   tells the lives that its sender knows: so of two that recover at the same time one knows of the other.
//!
//! All processes of a cluster are such ones, or none. A group of which more than a minority has lost its memory at
//! once has lost messages: it never stands again, and says so by not recovering. A group of one does not recover.

use crate::clocks::quorum;
use crate::message::{Epoch, Message, Timestamp};
use crate::process::{Mutation, Of, PrimCast, Role};
use crate::upkeep::RETRY;
use meridian_core::{NodeId, Outbox, ProcessId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// What is kept of a recovery, and of the incarnations of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    /// Our incarnation, from 1; 0 if all is durable.
    pub incarnation: u64,
    /// Whether we have lost our memory and have not recovered it.
    pub lost: bool,
    asked: Option<Time>,
    answers: BTreeMap<NodeId, Answer>,
    /// The latest incarnations that we know of, but for the first ones.
    known: BTreeMap<ProcessId, u64>,
    /// The incarnations that our links lead to, as their other ends said, but for the first ones.
    linked: BTreeMap<ProcessId, u64>,
    /// Links that were reset, whose other ends have not said yet which lives they know of.
    reset: BTreeSet<ProcessId>,
    /// When we last asked for that.
    lives_wanted: BTreeMap<ProcessId, Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    e_prom: Epoch,
    /// The epoch that it is the primary of.
    primary_of: Option<Epoch>,
    clock: Timestamp,
}

impl PrimCast {
    /// The same process, which keeps nothing on disk: in its first life (`incarnation` 1) or a later one, in which it
    /// takes part only once the others have told it where they are.
    pub fn in_memory(mut self, incarnation: u64) -> PrimCast {
        self.memory.incarnation = incarnation;
        self.memory.lost = incarnation > 1 && self.mutation != Mutation::RejoinsAtOnce;
        self
    }

    /// Whether it has lost its memory, and waits for the others of its group.
    pub fn is_recovering(&self) -> bool {
        self.memory.lost
    }

    pub(crate) fn keeps_nothing(&self) -> bool {
        self.memory.incarnation > 0
    }

    fn life_of(&self, process: ProcessId) -> u64 {
        self.memory.known.get(&process).copied().unwrap_or(1)
    }

    fn lives(&self) -> Vec<(ProcessId, u64)> {
        let own = [(self.me, self.memory.incarnation.max(1))];
        let known = self.memory.known.iter().map(|(process, life)| (*process, *life));
        known.chain(own).collect()
    }

    pub(crate) fn say_lives(&self, to: ProcessId, wanted: bool, out: &mut Outbox<Self>) {
        out.send(to, Message::Lives { lives: self.lives(), wanted });
    }

    /// M3: we have started, and nothing was heard yet.
    pub(crate) fn on_links_new(&mut self) {
        if self.keeps_nothing() {
            let all = self.members.groups().flat_map(|group| self.processes(group));
            self.memory.reset = all.filter(|process| *process != self.me).collect();
        }
    }

    /// M3: the link to `peer` was reset.
    pub(crate) fn on_link_reset(&mut self, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.keeps_nothing() {
            self.memory.reset.insert(peer);
            self.say_lives(peer, true, out);
        }
    }

    /// The other end of a link has said which lives it knows of, which was noted. What it wants is all that we would
    /// say after a restart of it: it has dropped what we said meanwhile.
    pub(crate) fn on_lives(
        &mut self,
        now: Time,
        from: ProcessId,
        wanted: bool,
        out: &mut Outbox<Self>,
    ) {
        if wanted {
            self.say_lives(from, false, out);
            self.say_again(now, from, out);
        }
    }

    /// M2 and M3: whether a message counts. Notes what it tells of lives.
    pub(crate) fn is_of_this_life(
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
            Message::Lives { lives, .. } | Message::Recovered { lives, .. } => {
                for (process, life) in lives {
                    self.on_reborn(*process, *life, out);
                    if *process == from {
                        self.memory.linked.insert(from, *life);
                    }
                }
                self.memory.reset.remove(&from);
            }
            Message::Recover { incarnation } => {
                self.on_reborn(from, *incarnation, out);
                self.memory.linked.insert(from, *incarnation);
                self.memory.reset.remove(&from); // It knows of nothing.
            }
            _ => {}
        }
        let linked = self.memory.linked.get(&from).copied().unwrap_or(1);
        let dead = linked < self.life_of(from);
        if !dead && !self.memory.reset.contains(&from) {
            return true;
        }
        if self.mutation == Mutation::CountsTheDead {
            return true;
        }
        let wanted = self.memory.lives_wanted.get(&from);
        if wanted.is_none_or(|at| now.since(*at) >= RETRY) {
            self.memory.lives_wanted.insert(from, now);
            self.say_lives(from, true, out);
        }
        false
    }

    /// Asks, now and again, until a snapshot is on its way.
    pub(crate) fn recover_memory(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.memory.asked.is_some_and(|at| now.since(at) < RETRY) {
            return;
        }
        self.memory.asked = Some(now);
        let incarnation = self.memory.incarnation;
        self.peers().for_each(|peer| out.send(peer, Message::Recover { incarnation }));
    }

    /// A member has lost its memory, and asks where we are.
    pub(crate) fn on_recover(&mut self, from: ProcessId, incarnation: u64, out: &mut Outbox<Self>) {
        if self.memory.lost || self.life_of(from) != incarnation {
            return;
        }
        self.tell_config(from, out);
        let primary_of = (self.role == Role::Primary).then_some(self.e_cur);
        let (e_prom, clock, lives) = (self.e_prom, self.clock, self.lives());
        out.send(from, Message::Recovered { incarnation, lives, e_prom, primary_of, clock });
    }

    /// `member`, of any group, is in this incarnation: what it said before counts no more. Who did not know tells all
    /// others, before anything else that it says (M1).
    pub(crate) fn on_reborn(
        &mut self,
        member: ProcessId,
        incarnation: u64,
        out: &mut Outbox<Self>,
    ) {
        if member == self.me || self.life_of(member) >= incarnation {
            return;
        }
        self.memory.known.insert(member, incarnation);
        if self.mutation != Mutation::CountsTheDead {
            self.forget_said(member);
        }
        let groups: Vec<_> =
            self.members.groups().filter(|group| *group != self.me.group).collect();
        let others = groups.into_iter().flat_map(|group| self.processes(group));
        let to: Vec<_> = self.peers().chain(others).filter(|to| *to != member).collect();
        for to in to {
            out.send(to, Message::Reborn { member, incarnation });
        }
    }

    fn forget_said(&mut self, member: ProcessId) {
        if member.group == self.me.group {
            self.keep_reached(); // With it, as long as that could be.
            self.clocks.forget(member.node);
            self.acked.remove(&member.node);
            self.election.forget(member.node);
            self.memory.answers.remove(&member.node); // M4
            self.streams.remove(&member.node);
        } else {
            self.remote.group(member.group).forget(member.node);
            self.followers.remove(&member);
        }
        self.forget_transfers(member);
        self.truncation.forget(member);
    }

    /// An answer; with those of a quorum, one of them the primary of the highest epoch, goes on.
    pub(crate) fn on_recovered(
        &mut self,
        now: Time,
        from: ProcessId,
        incarnation: u64,
        (e_prom, primary_of, clock): (Epoch, Option<Epoch>, Timestamp),
        out: &mut Outbox<Self>,
    ) {
        if !self.memory.lost || incarnation != self.memory.incarnation {
            return;
        }
        self.memory.answers.insert(from.node, Answer { e_prom, primary_of, clock });
        let answers = &self.memory.answers;
        let Some(highest) = answers.values().map(|answer| answer.e_prom).max() else { return };
        let leads = answers.get(&highest.leader).and_then(|answer| answer.primary_of);
        let members = self.members.in_config(self.me.group, highest.config).unwrap_or(&[]);
        let answered = members.iter().filter(|node| answers.contains_key(*node)).count();
        if leads != Some(highest) || answered < quorum(members.len()) {
            return;
        }
        let clock = answers.values().map(|answer| answer.clock).max().unwrap_or_default();
        self.e_prom = highest.max(self.e_prom);
        self.raise_clock(clock, out);
        self.request_snapshot(now, self.me.group.of(highest.leader), out);
    }

    /// Whether what was answered still is: a snapshot brings us back then.
    pub(crate) fn may_recover(&self) -> bool {
        let config = self.e_prom.config;
        let members = self.members.in_config(self.me.group, config).unwrap_or(&[]);
        let answered = members.iter().filter(|node| self.memory.answers.contains_key(*node));
        answered.count() >= quorum(members.len())
    }
}
