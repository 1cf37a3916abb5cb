//! A snapshot of all groups at one timestamp: how it is taken, and who keeps it (decision 95).
//!
//! All nodes are asked to keep the states of their replicas. Then one message goes to all groups,
//! which changes nothing; its timestamp is that of the snapshot. It was proposed after all that is
//! kept was delivered, so mostly nothing that is kept comes after it, and what does tells so. Each
//! replica then takes in what it has held back up to there, and says when all of that has come.
//!
//! A message is before the timestamp in all groups or in none, so it is in the snapshot whole or
//! not at all. Timestamps alone do not tell what caused what: of two groups one may be ahead, so
//! that a client sees something there and then changes something in the other with a lesser
//! timestamp. So each state tells what whoever sees it must have seen, and a timestamp does only if
//! that is not beyond it anywhere; else there is another message, which finds the clocks closer.
//!
//! Invariants:
//! - K1: what is taken is whole at one replica of each group at least, at one timestamp.
//! - K2: it has all that any state in it had seen, and all that was acknowledged before it began.

use crate::mutation::Mutation;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId, Stamp};
use meridian_fs::Vector;
use meridian_host::api::{SnapshotStand, SnapshotStep};
use std::collections::{BTreeMap, BTreeSet};

/// So many messages are sent at most: each finds the clocks of the groups as close as a message
/// takes between them.
const MARKS_MAX: u32 = 32;
/// So often replicas are asked again that wait for something before the timestamp.
const PAUSES_MAX: u32 = 400;
/// So often they are asked again once one of each group is whole: the others could step in for it.
const SPARE_PAUSES: u32 = 10;
/// So often one is asked again that does not answer.
const SILENCES: u32 = 2;

/// A question to one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// At this node.
    pub node: NodeId,
    /// Its replica of this group.
    pub group: GroupId,
    /// What.
    pub step: SnapshotStep,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask all these, and tell what each answered ([`Taking::on_answer`]).
    Ask(Vec<Ask>),
    /// Have [`meridian_fs::Update::Mark`] ordered by these groups, and tell its timestamp
    /// ([`Taking::on_mark`]).
    Mark(BTreeSet<GroupId>),
    /// Wait for a twentieth of a second.
    Pause,
    /// It is taken.
    Taken(Taken),
    /// It cannot be taken now.
    Failed(Failure),
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its timestamp.
    pub at: Stamp,
    /// Who has it, of each group: one at least.
    pub keepers: BTreeMap<GroupId, Vec<NodeId>>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No replica of a group keeps it, or keeps it still.
    NoKeeper(GroupId),
    /// A message before its timestamp is not decided: it waits for a region that is cut off.
    Waits(GroupId),
    /// Changes that follow from each other came faster in one group than another's clock.
    Outrun(GroupId),
}

/// How it stands with one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keeper {
    Asked,
    Kept,
    Passed,
    Waiting,
    Whole(Vector),
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Keeping,
    Marking,
    Cutting(Stamp),
    Judging(Stamp),
}

/// See the module. The caller does what [`Taking::turn`] says, tells what came of it, and asks
/// again.
#[derive(Clone, Debug)]
pub struct Taking {
    keepers: BTreeMap<(GroupId, NodeId), Keeper>,
    stage: Stage,
    marks: u32,
    pauses: u32,
    mutation: Mutation,
}

impl Taking {
    /// Of all groups of the cluster.
    pub fn new(topology: &Topology) -> Taking {
        let members = |group| topology.group(group).members.iter().map(move |node| (group, *node));
        let begun = topology.group_ids().filter(|group| topology.has_begun(*group));
        let all = begun.flat_map(members);
        Taking {
            keepers: all.map(|keeper| (keeper, Keeper::Asked)).collect(),
            stage: Stage::Begun,
            marks: 0,
            pauses: 0,
            mutation: Mutation::Correct,
        }
    }

    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Taking {
        Taking { mutation, ..self }
    }

    /// What a replica has answered, if it has.
    pub fn on_answer(&mut self, ask: &Ask, answer: Option<&SnapshotStand>) {
        let keeper = match answer {
            Some(SnapshotStand::Kept) => Keeper::Kept,
            Some(SnapshotStand::Passed) => Keeper::Passed,
            Some(SnapshotStand::Waiting) => Keeper::Waiting,
            Some(SnapshotStand::Whole(vector)) => Keeper::Whole(vector.clone()),
            Some(SnapshotStand::Unknown | SnapshotStand::Answers(_)) => Keeper::Lost,
            // It may keep it all the same. Whoever does not answer the first question is not asked
            // again, nor is who stays silent: each time costs as long as one waits for an answer.
            None if ask.step == SnapshotStep::Keep => Keeper::Lost,
            None if self.pauses >= SILENCES => Keeper::Lost,
            None => Keeper::Waiting,
        };
        self.keepers.insert((ask.group, ask.node), keeper);
    }

    /// The message was ordered with that timestamp.
    pub fn on_mark(&mut self, at: Stamp) {
        self.stage = Stage::Cutting(at);
        self.pauses = 0;
        for keeper in self.keepers.values_mut().filter(|keeper| **keeper != Keeper::Lost) {
            *keeper = Keeper::Kept;
        }
    }

    /// What is to be done now, when all that was said before is done.
    pub fn turn(&mut self) -> Next {
        match self.stage {
            Stage::Begun => {
                self.stage = Stage::Keeping;
                self.ask(&SnapshotStep::Keep)
            }
            Stage::Keeping | Stage::Marking => self.mark(),
            Stage::Cutting(at) => {
                self.stage = Stage::Judging(at);
                self.ask(&SnapshotStep::Cut(at))
            }
            Stage::Judging(at) => self.judge(at),
        }
    }

    /// Who may keep something of it: to be told when it is not wanted any more.
    pub fn all(&self) -> impl Iterator<Item = (GroupId, NodeId)> + '_ {
        self.keepers.keys().copied()
    }

    fn groups(&self) -> BTreeSet<GroupId> {
        self.keepers.keys().map(|(group, _)| *group).collect()
    }

    fn of(&self, group: GroupId) -> impl Iterator<Item = (NodeId, &Keeper)> {
        let all = self.keepers.iter().filter(move |((of, _), _)| *of == group);
        all.map(|((_, node), keeper)| (*node, keeper))
    }

    fn ask(&self, step: &SnapshotStep) -> Next {
        let open =
            |keeper: &Keeper| matches!(keeper, Keeper::Asked | Keeper::Kept | Keeper::Waiting);
        let asked = self.keepers.iter().filter(|(_, keeper)| open(keeper));
        let ask = |((group, node), _): (&(GroupId, NodeId), &Keeper)| Ask {
            node: *node,
            group: *group,
            step: step.clone(),
        };
        Next::Ask(asked.map(ask).collect())
    }

    fn mark(&mut self) -> Next {
        let lost = |group: &GroupId| self.of(*group).all(|(_, keeper)| *keeper == Keeper::Lost);
        if let Some(group) = self.groups().into_iter().find(lost) {
            return Next::Failed(Failure::NoKeeper(group));
        }
        self.marks += 1;
        self.stage = Stage::Marking;
        Next::Mark(self.groups())
    }

    fn judge(&mut self, at: Stamp) -> Next {
        let mut waits = None;
        for group in self.groups() {
            let any = |of: fn(&Keeper) -> bool| self.of(group).any(|(_, keeper)| of(keeper));
            if any(|keeper| matches!(keeper, Keeper::Whole(_))) {
                continue;
            }
            if any(|keeper| matches!(keeper, Keeper::Waiting)) {
                waits = waits.or(Some(group));
            } else {
                return self.again(group); // All are beyond it, or lost.
            }
        }
        let spare = self.keepers.values().any(|keeper| *keeper == Keeper::Waiting);
        let most = if waits.is_some() { PAUSES_MAX } else { SPARE_PAUSES };
        if spare && self.pauses < most {
            self.pauses += 1;
            self.stage = Stage::Cutting(at);
            return Next::Pause;
        }
        if let Some(group) = waits {
            return Next::Failed(Failure::Waits(group));
        }
        match self.outrun(at) {
            Some(group) => self.again(group),
            None => Next::Taken(Taken { at, keepers: self.whole() }),
        }
    }

    /// Another timestamp is tried.
    fn again(&mut self, group: GroupId) -> Next {
        match self.marks < MARKS_MAX {
            true => self.mark(),
            false => Next::Failed(Failure::Outrun(group)),
        }
    }

    /// A group of which a state of another had seen more than up to there (K2).
    fn outrun(&self, at: Stamp) -> Option<GroupId> {
        if self.mutation.is(Mutation::IgnoresCauses) {
            return None;
        }
        let vectors = self.keepers.values().filter_map(|keeper| match keeper {
            Keeper::Whole(vector) => Some(vector),
            _ => None,
        });
        let mut seen = vectors.flat_map(|vector| &vector.0);
        seen.find(|(_, seen)| **seen > at).map(|(group, _)| *group)
    }

    fn whole(&self) -> BTreeMap<GroupId, Vec<NodeId>> {
        let mut all: BTreeMap<GroupId, Vec<NodeId>> = BTreeMap::new();
        for ((group, node), keeper) in &self.keepers {
            if matches!(keeper, Keeper::Whole(_)) {
                all.entry(*group).or_default().push(*node);
            }
        }
        all
    }
}

#[cfg(test)]
#[path = "taking_tests.rs"]
mod tests;
