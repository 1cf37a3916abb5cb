//! What a replica without memory has been told.
//!
//! `recovery.rs` beside this folder has the handlers.

use crate::configuration::Configuration;
use crate::message::{Told, Vote};
use crate::view::{Instance, View};
use meridian_core::{NodeId, Time};
use std::collections::BTreeMap;

/// What a replica without memory has been told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Recovering {
    pub asked: Option<Time>,
    pub answers: BTreeMap<NodeId, Told>,
    /// What it may have accepted, and up to where it must execute before it takes part.
    pub found: Option<(Instance, Vec<Vote>)>,
}

impl Recovering {
    /// All below this must be executed first.
    pub fn target(&self) -> Instance {
        self.found.as_ref().map_or(Instance(0), |(target, _)| *target)
    }

    /// The view to join and what its leader told, once enough have answered.
    pub fn result(&self, me: NodeId, at_least: View) -> Option<(View, Instance, Vec<Vote>)> {
        let view = self.answers.values().map(|told| told.view).max()?;
        let told = self.answers.get(&view.leader()?)?;
        let (target, votes) = told.leader.as_ref()?;
        let enough = |members: &Configuration| {
            let others = members.members.keys().filter(|node| **node != me);
            let answered = others.filter(|node| self.answers.contains_key(*node)).count();
            answered >= members.majority()
        };
        let whole = told.view == view && view >= at_least && told.members.iter().all(enough);
        whole.then(|| (view, *target, votes.clone()))
    }
}
