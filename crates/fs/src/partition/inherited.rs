//! The partition of a group that was lost, as its heirs go on with it (decision 107).
//!
//! Nothing of the tree is left, so no inode of it is there any more. But updates of several
//! partitions may have been decided elsewhere with a vote of the lost group. The heirs know each
//! such vote: whoever relies on one has made it durable before, and reports it. They vote the same
//! again. Of what nobody had heard a vote they decide as a partition that has nothing: what leads
//! to it can be removed, all else is refused.
//!
//! Invariants:
//! - I1: a heir's vote is that of the lost group if anybody had heard that, and else follows from
//!   the update alone: all heirs vote the same.
//! - I2: nothing of the state follows from what came of an update. A heir that is told that all
//!   others have ended one, and have forgotten their votes, ends it without them.

use super::{Effect, Ending, Partition};
use crate::FsError;
use crate::apply::placed;
use crate::operation::{Done, Operation, Update};
use crate::tree::Tree;
use crate::types::{Rank, Timestamp};
use crate::vote::{Conclusion, Evidence, Vote};
use imbl::OrdMap;
use meridian_core::{GroupId, MessageId};

impl Partition {
    /// The group was lost, and these of its votes are known: nothing else is left of it. Called
    /// before anything is delivered.
    pub fn inherit(&mut self, votes: impl IntoIterator<Item = (MessageId, Vote)>) {
        let mutation = self.tree.mutation;
        self.tree = Tree::new(self.tree.group);
        self.tree.mutation = mutation;
        self.inherited = Some(votes.into_iter().collect());
    }

    /// The votes of the lost group that are known, if this is the partition of one.
    pub fn inherited(&self) -> Option<&OrdMap<MessageId, Vote>> {
        self.inherited.as_ref()
    }

    /// Takes over what [`Partition::inherited`] gave: it is not written with the rest.
    pub fn set_inherited(&mut self, votes: Option<OrdMap<MessageId, Vote>>) {
        self.inherited = votes;
    }

    /// Whether the lost group had voted on the message, as far as is known.
    pub fn has_inherited(&self, id: MessageId) -> bool {
        self.inherited.as_ref().is_some_and(|votes| votes.contains_key(&id))
    }

    /// I1: the vote on an update of several partitions, if this is the partition of a lost group.
    pub(super) fn inherited_vote(&self, id: MessageId, update: &Update) -> Option<Vote> {
        let known = self.inherited.as_ref()?.get(&id).cloned();
        let result = || look_at_nothing(update, self.tree.group);
        Some(known.unwrap_or_else(|| Vote { result: result(), held: false }))
    }

    /// Decides and applies an update that concerns this partition only. Nobody needs to look again
    /// where something is that is nowhere any more.
    pub(super) fn decide_alone(
        &mut self,
        operation: Operation,
        rank: Rank,
        out: &mut Vec<Effect>,
    ) -> Result<Done, FsError> {
        let result = self.execute_alone(operation, rank, out);
        result.map_err(|error| match (error, &self.inherited) {
            (FsError::Stale, Some(_)) => FsError::Gone,
            (error, _) => error,
        })
    }

    /// I2: all others have ended the message, and their votes are forgotten: it ends here, too, if
    /// it waits.
    pub fn end_inherited(&mut self, id: MessageId, out: &mut Vec<Effect>) {
        let waits = self.pending.rank_of(id).filter(|_| self.inherited.is_some());
        let Some(rank) = waits else { return };
        let (waiting, next) = self.pending.remove(rank);
        if let Some(vote) = self.inherited_vote(id, &waiting.operation.update) {
            self.own_votes.insert(id, vote);
        }
        waiting.others.iter().for_each(|other| self.vector.raise(*other, rank.0));
        self.finish(rank, Ending::of(&waiting.keys, Err(FsError::Expired)), out);
        next.into_iter().for_each(|rank| self.advance(rank, out));
    }
}

/// A vote of the partition `group`, in which nothing is left.
fn look_at_nothing(update: &Update, group: GroupId) -> Result<Evidence, FsError> {
    match update {
        Update::Unlink { parent, child, .. } | Update::Rmdir { parent, child, .. }
            if child.partition == group && parent.partition != group && !child.ino.is_top() =>
        {
            Ok(Evidence::default())
        }
        Update::RemoveRegion { .. } | Update::Mark { .. } => Ok(Evidence::default()),
        _ => Err(FsError::Gone),
    }
}

/// What is told of an update that all have agreed on: as where something is left of it.
pub(super) fn done(update: &Update, conclusion: Conclusion, time: Timestamp) -> Done {
    match (update, conclusion) {
        (_, Conclusion::Link(attributes)) => Done::Attributes(attributes),
        (Update::PlaceDirectory { child, to, .. }, Conclusion::Place(directory)) => {
            Done::Attributes(placed(&directory, *child, *to, time))
        }
        (_, _) => Done::Nothing,
    }
}
