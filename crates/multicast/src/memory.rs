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
//!   others say after its return: an answer makes void what the old incarnation said, here and, as links are FIFO,
//!   wherever this process says something later (after the crash vectors of "Recovering Shared Objects Without
//!   Stable Storage"; `tests/memory.rs` and the simulator try it).
//!
//! A group of which more than a minority has lost its memory at once has lost messages: it never stands
//! again, and says so by not recovering. A group of one does not recover at all.

use crate::clocks::quorum;
use crate::message::{Epoch, Message, Timestamp};
use crate::process::{Of, PrimCast, Role};
use meridian_core::{NodeId, Outbox, ProcessId, Time};
use std::collections::BTreeMap;

/// What is kept of a recovery, and of the incarnations of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    /// Our incarnation, from 1; 0 if all is durable.
    pub incarnation: u64,
    /// Whether we have lost our memory and have not recovered it.
    pub lost: bool,
    asked: Option<Time>,
    answers: BTreeMap<NodeId, Answer>,
    /// The latest incarnations of the members of all groups that we know of.
    known: BTreeMap<ProcessId, u64>,
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
        self.memory.lost = incarnation > 1;
        self
    }

    /// Whether it has lost its memory, and waits for the others of its group.
    pub fn is_recovering(&self) -> bool {
        self.memory.lost
    }

    /// Asks, now and again, until a snapshot is on its way.
    pub(crate) fn recover_memory(&mut self, now: Time, out: &mut Outbox<Self>) {
        let every = crate::upkeep::RETRY;
        if self.memory.asked.is_some_and(|at| now.since(at) < every) {
            return;
        }
        self.memory.asked = Some(now);
        self.memory.answers.clear();
        let incarnation = self.memory.incarnation;
        self.peers().for_each(|peer| out.send(peer, Message::Recover { incarnation }));
    }

    /// A member has lost its memory: what it said before counts no more.
    pub(crate) fn on_recover(&mut self, from: ProcessId, incarnation: u64, out: &mut Outbox<Self>) {
        self.on_reborn(from, incarnation, out);
        if self.memory.lost || self.memory.known.get(&from) != Some(&incarnation) {
            return;
        }
        let primary_of = (self.role == Role::Primary).then_some(self.e_cur);
        let (e_prom, clock) = (self.e_prom, self.clock);
        out.send(from, Message::Recovered { incarnation, e_prom, primary_of, clock });
    }

    /// `member`, of any group, is in this incarnation. Who did not know tells all whom it may concern.
    pub(crate) fn on_reborn(
        &mut self,
        member: ProcessId,
        incarnation: u64,
        out: &mut Outbox<Self>,
    ) {
        let known = self.memory.known.entry(member).or_insert(1);
        if *known >= incarnation {
            return;
        }
        *known = incarnation;
        self.forget_said(member);
        if member.group != self.me.group {
            return;
        }
        let others = self.members.groups().filter(|group| *group != self.me.group);
        let linked: Vec<_> = others.filter(|group| self.shares_with(*group)).collect();
        let processes = linked.into_iter().flat_map(|group| self.processes(group));
        let to: Vec<_> = self.peers().filter(|peer| *peer != member).chain(processes).collect();
        for to in to {
            out.send(to, Message::Reborn { member, incarnation });
        }
    }

    fn forget_said(&mut self, member: ProcessId) {
        if member.group == self.me.group {
            self.clocks.forget(member.node);
            self.acked.remove(&member.node);
            self.election.forget(member.node);
        } else {
            self.remote.group(member.group).forget(member.node);
        }
    }

    /// Whether messages not yet dropped go to `group` too.
    fn shares_with(&self, group: meridian_core::GroupId) -> bool {
        self.log.iter_from(self.log.base()).any(|(_, slot)| slot.entry.start.dest.contains(&group))
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
        let answers = self.memory.answers.values();
        let highest = answers.clone().map(|answer| answer.e_prom).max();
        let primary = self
            .memory
            .answers
            .iter()
            .find(|(_, answer)| answer.primary_of.is_some() && answer.primary_of == highest);
        let (Some((primary, _)), Some(highest)) = (primary, highest) else { return };
        if self.memory.answers.len() < quorum(self.members.of(self.me.group).len()) {
            return;
        }
        let primary = self.me.group.of(*primary);
        let clock = answers.map(|answer| answer.clock).max().unwrap_or_default();
        self.e_prom = highest.max(self.e_prom);
        self.raise_clock(clock, out);
        self.request_snapshot(now, primary, out);
    }
}
