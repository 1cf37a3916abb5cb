//! What a replica has as the leader of its view.
//!
//! `proposer.rs` beside this folder has the handlers.

use crate::message::{Epochs, Vote};
use crate::mutation::Mutation;
use crate::view::Instance;
use meridian_core::{NodeId, Time};
use std::collections::BTreeMap;

/// What a replica has as the leader of its view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Proposer {
    /// Who has promised the view, and in which epoch.
    pub oks: BTreeMap<NodeId, u64>,
    /// All below this are decided, as those have said.
    pub decided: Instance,
    /// What those have accepted in the highest view, of instances that are not proposed yet.
    pub found: BTreeMap<Instance, Vote>,
    /// The next to be proposed.
    pub next: Instance,
    /// Whether Phase 1 is finished.
    pub prepared: bool,
    /// When PREPARE was sent last, and first.
    pub asked: Time,
    pub since: Time,
    /// The greatest time of its own that each follower has given back: it led then.
    pub echoes: BTreeMap<NodeId, Time>,
}

impl Proposer {
    /// All that was or may have been proposed before now is below this.
    pub fn read_index(&self) -> Instance {
        let found = self.found.last_key_value().map_or(Instance(0), |(last, _)| last.next());
        self.next.max(found).max(self.decided)
    }

    /// What may have been accepted before its view and is not proposed again yet.
    pub fn found(&self) -> impl Iterator<Item = Vote> + '_ {
        self.found.values().cloned()
    }

    /// Drops the promises of those who have forgotten them.
    pub fn drop_promises(&mut self, epochs: &Epochs) {
        if !self.prepared {
            self.oks.retain(|node, epoch| epochs.get(node).is_none_or(|now| *epoch >= *now));
        }
    }

    /// A decision stands above all votes: whoever learned it from another voted for it in no view.
    pub fn find(&mut self, vote: Vote, mutation: Mutation) {
        let rank = |vote: &Vote| (vote.decided, vote.view);
        let better = match self.found.get(&vote.instance) {
            Some(before) => rank(before) < rank(&vote) && !mutation.is(Mutation::TakesAnyVote),
            None => true,
        };
        if better && vote.instance >= self.next {
            self.found.insert(vote.instance, vote);
        }
    }
}
