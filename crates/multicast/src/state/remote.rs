//! What other groups proposed: `local-ts(m, h)` for `h` not our own group (Algorithm 1, line 9).
//!
//! The primary of another group streams to each process of ours the entries of its `T` that are
//! addressed to our group; all members acknowledge their `T` cumulatively. An entry is decided once
//! a quorum has acknowledged `T` past it *in the epoch whose stream it is of*: entries of earlier
//! epochs too, as a `T` of an epoch contains all that was decided before it (Lemma 3).
//!
//! Invariants:
//! - R1: `undecided` holds all entries for us, not decided, of the `T` of `epoch` up to `upto`, in
//!   order.

use crate::message::{Epoch, Timestamp};
use crate::state::clocks::{Clocks, quorum_th};
use crate::state::log::{Locals, add_local};
use meridian_core::room::Room;
use meridian_core::{GroupId, MessageId, NodeId, Table, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// So many names are kept of messages that have been proposed meanwhile, beside as many as have
/// not: they are looked through in one go.
const CAME_SPARE: usize = 4096;

/// An entry of another group's `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Its index there.
    pub index: u64,
    /// Its message.
    pub id: MessageId,
    /// The timestamp proposed for it.
    pub ts: Timestamp,
    /// Where the message stood in our `T` when we heard of the proposal, if it did.
    pub ours: Option<u64>,
}

/// What one other group said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Learner {
    /// The epoch whose stream is followed.
    pub epoch: Option<Epoch>,
    /// Whether the primary of that epoch relays for its group.
    pub relays: bool,
    upto: u64,
    undecided: VecDeque<Proposal>,
    acked: BTreeMap<NodeId, (Epoch, u64)>,
    /// Up to where `T` is decided, by the word of a primary.
    decided: Option<(Epoch, u64)>,
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

/// The proposals of all other groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    groups: BTreeMap<GroupId, Learner>,
    early: Table<MessageId, Early>,
    /// Those that came early, in the order in which they did; some have been proposed meanwhile.
    came: VecDeque<(Time, MessageId)>,
    /// The groups that said something since it was last looked what of theirs is decided.
    heard: SmallVec<[GroupId; 4]>,
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

    /// `group` was lost: what it said counts no more, but for what `T` holds of it.
    pub fn forget(&mut self, group: GroupId) {
        self.groups.remove(&group);
        self.heard.retain(|heard| *heard != group);
        let Remote { early, came, .. } = self;
        for (_, id) in came {
            let Some(known) = early.get_mut(id) else { continue };
            known.locals.retain(|(of, _)| *of != group);
            match known.locals.first() {
                _ if known.by != group => {}
                Some((of, _)) => known.by = *of,
                None => drop(early.remove(id)), // Nobody has its START, perhaps.
            }
        }
    }

    /// `group` said something that may decide its proposals.
    pub fn heard(&mut self, group: GroupId) {
        if !self.heard.contains(&group) {
            self.heard.push(group);
        }
    }

    /// The groups that did so since this was last asked.
    pub fn take_heard(&mut self) -> impl Iterator<Item = GroupId> + use<> {
        std::mem::take(&mut self.heard).into_iter()
    }

    /// A message that our `T` does not hold was proposed by `by`.
    pub fn come(&mut self, id: MessageId, by: GroupId, now: Time) {
        if self.early.insert_new(id, || Early { by, locals: Locals::new() }) {
            self.came.push_back((now, id));
            // Only a primary asks what is unknown, and what it waits for long may stand first.
            if self.came.len() > 2 * self.early.len() + CAME_SPARE {
                let Remote { came, early, .. } = self;
                came.retain(|(_, id)| early.contains(id));
            }
        }
    }

    /// A local timestamp of such a message is decided.
    pub fn early_local(&mut self, id: MessageId, group: GroupId, ts: Timestamp) {
        if let Some(early) = self.early.get_mut(&id)
            && early.locals.iter().all(|(of, _)| *of != group)
        {
            add_local(&mut early.locals, group, ts);
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
        self.came.pop_front_if(|(_, first)| *first == id);
        self.early.remove(&id)
    }

    /// Messages that `T` does not hold and that came before `before`, with who proposed them; the
    /// first ones.
    pub fn unknown(&mut self, before: Time, most: usize) -> Vec<(MessageId, GroupId)> {
        while self.came.pop_front_if(|(_, id)| !self.early.contains(id)).is_some() {}
        let old = self.came.iter().take_while(|(since, _)| *since < before);
        let known = old.filter_map(|(_, id)| Some((*id, self.early.get(id)?.by)));
        known.take(most).collect()
    }
}

impl Learner {
    /// The primary of `epoch` says what its `T` has for us from `first` on; all of what concerns us
    /// if `whole`.
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
    pub fn push(&mut self, proposal: Proposal) {
        self.upto = proposal.index + 1;
        self.undecided.push_back(proposal);
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

    /// The primary of `epoch` says that its `T` is decided up to `len`.
    pub fn on_decided(&mut self, epoch: Epoch, len: u64) {
        self.decided = self.decided.max(Some((epoch, len)));
    }

    /// What a member acknowledged before a restart that lost it does not count.
    pub fn forget(&mut self, member: NodeId) {
        self.acked.remove(&member);
        self.clocks.forget(member);
    }

    /// The entries that are decided now, given the members of the group in that epoch. With
    /// `mixed`, a planted bug, ACKs of any epoch count.
    pub fn decided(&mut self, members: &[NodeId], mixed: bool) -> Vec<Proposal> {
        let epoch = self.epoch;
        let acked = |node: &NodeId| match self.acked.get(node) {
            Some((of, len)) if mixed || Some(*of) == epoch => *len,
            _ => 0,
        };
        let told = self.decided.filter(|(of, _)| Some(*of) == epoch).map_or(0, |(_, len)| len);
        let held = quorum_th(members.iter().map(acked)).max(told);
        let decided = self.undecided.iter().take_while(|proposal| proposal.index < held);
        // Mostly none: a search would look at what is out of the cache.
        let count = decided.count();
        let decided = self.undecided.drain(..count).collect();
        self.undecided.give_back();
        decided
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

    fn proposal(index: u64, sequence: u64, ts: u64) -> Proposal {
        Proposal { index, id: id(sequence), ts: Timestamp(ts), ours: None }
    }

    fn decided(learner: &mut Learner) -> Vec<u64> {
        learner.decided(&NODES, false).iter().map(|proposal| proposal.id.sequence).collect()
    }

    /// Line 10: the quorum must be of one epoch; acknowledgements of two epochs do not add up.
    #[test]
    fn mixed_epochs_do_not_add_up() {
        let mut learner = Learner::default();
        assert_eq!(learner.on_stream(epoch(1), true, 0), Fits::Yes);
        learner.push(proposal(0, 1, 5));
        learner.on_ack(NODES[0], epoch(1), 1);
        learner.on_ack(NODES[1], epoch(2), 1);
        assert!(decided(&mut learner).is_empty());
        assert_eq!(learner.on_stream(epoch(2), true, 0), Fits::Yes);
        learner.push(proposal(0, 1, 5));
        assert!(decided(&mut learner).is_empty(), "one ACK of epoch 2");
        learner.on_ack(NODES[2], epoch(2), 1);
        assert_eq!(decided(&mut learner), [1]);
    }

    #[test]
    fn a_gap_is_noticed_and_what_is_known_is_not_new() {
        let mut learner = Learner::default();
        assert_eq!(learner.on_stream(epoch(1), false, 0), Fits::Gap, "nothing of this epoch yet");
        assert_eq!(learner.on_stream(epoch(1), true, 0), Fits::Yes);
        learner.push(proposal(0, 1, 5));
        learner.push(proposal(3, 2, 8));
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

    #[test]
    fn what_was_proposed_meanwhile_is_forgotten_also_where_nobody_asks() {
        let (mut remote, group) = (Remote::default(), GroupId(1));
        for sequence in 0..100_000 {
            remote.come(id(sequence), group, Time(sequence));
            if sequence >= 10 && sequence != 77 {
                remote.take(id(sequence));
            }
            assert!(remote.came.len() <= CAME_SPARE + 2 * 12, "{}", remote.came.len());
        }
        let unknown: Vec<_> = (0..10).chain([77]).map(|sequence| (id(sequence), group)).collect();
        assert_eq!(remote.unknown(Time(100_000), 100), unknown);
    }
}
