//! What other groups proposed: `local-ts(m, h)` for `h` not our own group (Algorithm 1, line 9).
//!
//! The primary of another group streams to each process of ours the entries of its `T` that are addressed to
//! our group; all members acknowledge their `T` cumulatively. An entry is decided once a quorum has acknowledged
//! `T` past it *in the epoch whose stream it is of*: entries of earlier epochs too, as a `T` of an epoch
//! contains all that was decided before it (Lemma 3).
//!
//! Invariants:
//! - R1: `undecided` holds all entries for us, not decided, of the `T` of `epoch` up to `upto`, in order.

use crate::clocks::{Clocks, quorum_th};
use crate::log::Locals;
use crate::message::{Epoch, Timestamp};
use meridian_core::{GroupId, MessageId, NodeId, Table, Time};
use std::collections::{BTreeMap, VecDeque};

/// An entry of another group's `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Proposal {
    index: u64,
    id: MessageId,
    ts: Timestamp,
}

/// What one other group said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Learner {
    /// The epoch whose stream is followed.
    pub epoch: Option<Epoch>,
    upto: u64,
    undecided: VecDeque<Proposal>,
    acked: BTreeMap<NodeId, (Epoch, u64)>,
    /// The clocks of its members, for the linearizable order.
    pub clocks: Clocks,
    /// When the stream was last asked for anew.
    asked: Option<Time>,
}

/// What is known of a message that our `T` does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Early {
    /// The group that proposed it first, as far as we know.
    pub by: GroupId,
    /// Its decided local timestamps.
    pub locals: Locals,
}

/// So many of those that came early stay in the list when they have been proposed.
const PROPOSED_MAX: usize = 1024;

/// The proposals of all other groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    groups: BTreeMap<GroupId, Learner>,
    early: Table<MessageId, Early>,
    /// Those that came early, in the order in which they did; some have been proposed meanwhile.
    came: VecDeque<(Time, MessageId)>,
}

/// How a part of a stream fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// It continues what we have.
    Yes,
    /// It is of an epoch that is over.
    Old,
    /// Something before it is missing.
    Gap,
}

impl Remote {
    /// What `group` said.
    pub fn group(&mut self, group: GroupId) -> &mut Learner {
        self.groups.entry(group).or_default()
    }

    /// The same, if it said anything.
    pub fn known(&self, group: GroupId) -> Option<&Learner> {
        self.groups.get(&group)
    }

    /// A message that our `T` does not hold was proposed by `by`.
    pub fn come(&mut self, id: MessageId, by: GroupId, now: Time) {
        if self.early.insert_new(id, || Early { by, locals: Locals::new() }) {
            self.came.push_back((now, id));
            if self.came.len() > PROPOSED_MAX + 2 * self.early.len() {
                let early = &self.early;
                self.came.retain(|(_, id)| early.contains(id));
            }
        }
    }

    /// A local timestamp of such a message is decided.
    pub fn early_local(&mut self, id: MessageId, group: GroupId, ts: Timestamp) {
        if let Some(early) = self.early.get_mut(&id)
            && early.locals.iter().all(|(of, _)| *of != group)
        {
            early.locals.push((group, ts));
        }
    }

    /// The message goes back from `T` to those that it does not hold.
    pub fn put_back(&mut self, id: MessageId, locals: Locals, by: GroupId, now: Time) {
        self.come(id, by, now);
        for (group, ts) in locals {
            self.early_local(id, group, ts);
        }
    }

    /// `T` holds the message now; what was known of it.
    pub fn take(&mut self, id: MessageId) -> Option<Early> {
        self.early.remove(&id)
    }

    /// Messages that `T` does not hold and that came before `before`, with who proposed them; the first ones.
    pub fn unknown(&mut self, before: Time, most: usize) -> Vec<(MessageId, GroupId)> {
        while let Some((_, id)) = self.came.front()
            && !self.early.contains(id)
        {
            self.came.pop_front();
        }
        let old = self.came.iter().take_while(|(since, _)| *since < before);
        let known = old.filter_map(|(_, id)| Some((*id, self.early.get(id)?.by)));
        known.take(most).collect()
    }
}

impl Learner {
    /// The primary of `epoch` says what its `T` has for us from `first` on; all of what concerns us if `whole`.
    pub fn on_stream(&mut self, epoch: Epoch, whole: bool, first: u64) -> Fits {
        if self.epoch.is_some_and(|known| epoch < known) {
            return Fits::Old;
        }
        if whole {
            self.epoch = Some(epoch);
            self.upto = first;
            self.undecided.clear();
            self.asked = None;
            self.clocks.advance(epoch);
            return Fits::Yes;
        }
        if self.epoch == Some(epoch) && first <= self.upto { Fits::Yes } else { Fits::Gap }
    }

    /// Whether the entry at `index` has not come yet.
    pub fn is_new(&self, index: u64) -> bool {
        index >= self.upto
    }

    /// One entry of the stream, which is new.
    pub fn push(&mut self, index: u64, id: MessageId, ts: Timestamp) {
        self.upto = index + 1;
        self.undecided.push_back(Proposal { index, id, ts });
    }

    /// The part of the stream ends there.
    pub fn reach(&mut self, upto: u64) {
        self.upto = self.upto.max(upto);
    }

    /// Whether to ask for the stream anew: not too often.
    pub fn asks(&mut self, now: Time, every: std::time::Duration) -> bool {
        let asks = self.asked.is_none_or(|at| now.since(at) > every);
        if asks {
            self.asked = Some(now);
        }
        asks
    }

    /// A member holds `T` of `epoch` up to `len`.
    pub fn on_ack(&mut self, from: NodeId, epoch: Epoch, len: u64) {
        let acked = self.acked.entry(from).or_insert((epoch, len));
        *acked = (epoch, len).max(*acked);
    }

    /// What a member acknowledged before a restart that lost it does not count.
    pub fn forget(&mut self, member: NodeId) {
        self.acked.remove(&member);
        self.clocks.forget(member);
    }

    /// The entries that are decided now, given the members of the group in that epoch. With `mixed`, a planted
    /// bug, ACKs of any epoch count.
    pub fn decided(
        &mut self,
        members: &[NodeId],
        mixed: bool,
    ) -> impl Iterator<Item = (MessageId, Timestamp)> + use<> {
        let epoch = self.epoch;
        let acked = |node: &NodeId| match self.acked.get(node) {
            Some((of, len)) if mixed || Some(*of) == epoch => *len,
            _ => 0,
        };
        let held = quorum_th(members.iter().map(acked).collect());
        let count = self.undecided.partition_point(|proposal| proposal.index < held);
        let decided: Vec<_> = self.undecided.drain(..count).collect();
        decided.into_iter().map(|proposal| (proposal.id, proposal.ts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::ClientId;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
    const fn epoch(number: u64) -> Epoch {
        Epoch { config: 0, number, leader: NodeId(0) }
    }
    const fn id(sequence: u64) -> MessageId {
        MessageId { client: ClientId(1), sequence }
    }

    fn decided(learner: &mut Learner) -> Vec<u64> {
        learner.decided(&NODES, false).map(|(id, _)| id.sequence).collect()
    }

    /// Line 10: the quorum must be of one epoch; acknowledgements of two epochs do not add up.
    #[test]
    fn mixed_epochs_do_not_add_up() {
        let mut learner = Learner::default();
        assert_eq!(learner.on_stream(epoch(1), true, 0), Fits::Yes);
        learner.push(0, id(1), Timestamp(5));
        learner.on_ack(NODES[0], epoch(1), 1);
        learner.on_ack(NODES[1], epoch(2), 1);
        assert!(decided(&mut learner).is_empty());
        assert_eq!(learner.on_stream(epoch(2), true, 0), Fits::Yes);
        learner.push(0, id(1), Timestamp(5));
        assert!(decided(&mut learner).is_empty(), "one ACK of epoch 2");
        learner.on_ack(NODES[2], epoch(2), 1);
        assert_eq!(decided(&mut learner), [1]);
    }

    #[test]
    fn a_gap_is_noticed_and_what_is_known_is_not_new() {
        let mut learner = Learner::default();
        assert_eq!(learner.on_stream(epoch(1), false, 0), Fits::Gap, "nothing of this epoch yet");
        assert_eq!(learner.on_stream(epoch(1), true, 0), Fits::Yes);
        learner.push(0, id(1), Timestamp(5));
        learner.push(3, id(2), Timestamp(8));
        learner.reach(6);
        assert_eq!(learner.on_stream(epoch(1), false, 7), Fits::Gap);
        assert_eq!(learner.on_stream(epoch(1), false, 2), Fits::Yes);
        assert!(!learner.is_new(3) && learner.is_new(6));
        assert_eq!(learner.on_stream(epoch(0), true, 0), Fits::Old);
        for node in &NODES[..2] {
            learner.on_ack(*node, epoch(1), 3);
        }
        assert_eq!(decided(&mut learner), [1], "acknowledged up to 3, not with it");
    }
}
