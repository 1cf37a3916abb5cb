//! Who replicates, and from which instance on.
//!
//! Not in the report; after Lamport's "The part-time parliament": the members of instance *j* are
//! what the decisions of all instances up to *j* - [`ALPHA`] say. A leader proposes no instance
//! before it knows its members, which is what the window demands anyway. Each instance so has one
//! configuration, the same for all, and is an ordinary instance of Paxos among them.

use crate::view::Instance;
use meridian_core::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change is in force so many instances after the one that decided it; no window is longer.
pub const ALPHA: u64 = 64;

/// The replicas, and where each listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Configuration {
    /// By identity; an identity is never given to another replica.
    pub members: BTreeMap<NodeId, String>,
}

impl Configuration {
    /// How many make a majority.
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Whether a majority of the members satisfies `is`.
    pub fn has_quorum(&self, mut is: impl FnMut(NodeId) -> bool) -> bool {
        self.members.keys().filter(|node| is(**node)).count() >= self.majority()
    }

    /// Whether it is a member.
    pub fn contains(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }
}

/// A change of the members, asked for as a request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Change {
    /// A replica comes.
    Add {
        /// Its identity, which no replica has had before.
        node: NodeId,
        /// Where it listens.
        address: String,
    },
    /// A replica goes. It must not be the last.
    Remove {
        /// Which.
        node: NodeId,
    },
    /// One comes in the place of another.
    Replace {
        /// Which goes.
        old: NodeId,
        /// The identity of the one that comes.
        new: NodeId,
        /// Where it listens.
        address: String,
    },
}

/// What a change led to: the reply to its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Changed {
    /// These are the members soon.
    Now(Configuration),
    /// It is not possible.
    Refused(String),
}

/// The configurations of the instances known, and who was ever a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Configurations {
    /// From which instance on which, ascending; the first is that of the oldest instance of
    /// interest.
    from: Vec<(Instance, Configuration)>,
    /// Identities that must not come again.
    gone: std::collections::BTreeSet<NodeId>,
}

impl Configurations {
    pub fn new(first: Configuration) -> Configurations {
        Configurations { from: vec![(Instance(0), first)], gone: Default::default() }
    }

    /// That of an instance less than [`ALPHA`] after the first that is not executed.
    pub fn of(&self, instance: Instance) -> &Configuration {
        let at = self.from.partition_point(|(from, _)| *from <= instance);
        &self.from[at.saturating_sub(1)].1
    }

    /// The last one, in force soon or already.
    pub fn last(&self) -> &Configuration {
        &self.from.last().expect("never empty").1
    }

    /// Since which instance the last is in force.
    pub fn last_from(&self) -> Instance {
        self.from.last().expect("never empty").0
    }

    /// All that matter from `instance` on: who is a member of any of them is spoken with.
    pub fn since(&self, instance: Instance) -> impl Iterator<Item = &Configuration> + '_ {
        let at = self.from.partition_point(|(from, _)| *from <= instance).saturating_sub(1);
        self.from[at..].iter().map(|(_, configuration)| configuration)
    }

    /// Whether it was a member and never will be again, once all decided changes are in force.
    pub fn is_gone(&self, node: NodeId) -> bool {
        self.gone.contains(&node) && self.from.iter().all(|(_, members)| !members.contains(node))
    }

    /// Forgets what no instance from `instance` on needs; tells whether anything changed.
    pub fn forget_before(&mut self, instance: Instance) -> bool {
        let at = self.from.partition_point(|(from, _)| *from <= instance).saturating_sub(1);
        self.from.drain(..at).count() > 0
    }

    /// Executes a change that `instance` decided.
    pub fn change(&mut self, instance: Instance, change: &Change) -> Changed {
        let mut next = self.last().clone();
        let (comes, goes) = match change {
            Change::Add { node, address } => (Some((*node, address)), None),
            Change::Remove { node } => (None, Some(*node)),
            Change::Replace { old, new, address } => (Some((*new, address)), Some(*old)),
        };
        let refused = |text: String| Changed::Refused(text);
        if let Some(node) = goes
            && next.members.remove(&node).is_none()
        {
            return refused(format!("n{} is not a member", node.0));
        }
        if let Some((node, address)) = comes {
            if self.gone.contains(&node) || self.last().contains(node) {
                return refused(format!("n{} is or was a member: take a new identity", node.0));
            }
            next.members.insert(node, address.clone());
        }
        if next.members.is_empty() {
            return refused("the last member cannot go".into());
        }
        self.gone.extend(goes);
        let from = Instance(instance.0 + ALPHA);
        match self.from.last_mut() {
            Some((last, configuration)) if *last == from => *configuration = next.clone(),
            _ => self.from.push((from, next.clone())),
        }
        Changed::Now(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Configurations {
        let members = (0..3).map(|node| (NodeId(node), format!("a{node}"))).collect();
        Configurations::new(Configuration { members })
    }

    fn nodes(configuration: &Configuration) -> Vec<u16> {
        configuration.members.keys().map(|node| node.0).collect()
    }

    #[test]
    fn a_change_is_in_force_alpha_instances_later() {
        let mut all = three();
        let add = Change::Add { node: NodeId(7), address: "a7".into() };
        assert!(matches!(all.change(Instance(5), &add), Changed::Now(_)));
        assert_eq!(nodes(all.of(Instance(5 + ALPHA - 1))), [0, 1, 2]);
        assert_eq!(nodes(all.of(Instance(5 + ALPHA))), [0, 1, 2, 7]);
        let remove = Change::Remove { node: NodeId(0) };
        assert!(matches!(all.change(Instance(5), &remove), Changed::Now(_)));
        assert_eq!(nodes(all.last()), [1, 2, 7]);
        assert_eq!(all.since(Instance(0)).count(), 2);
        assert!(all.forget_before(Instance(5 + ALPHA)));
        assert_eq!(nodes(all.of(Instance(5 + ALPHA))), [1, 2, 7]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut all = three();
        let mut refused = |change: Change| match all.change(Instance(0), &change) {
            Changed::Refused(why) => why,
            Changed::Now(_) => String::new(),
        };
        let add = |node| Change::Add { node: NodeId(node), address: String::new() };
        let remove = |node| Change::Remove { node: NodeId(node) };
        assert!(refused(add(1)).contains("new identity"));
        assert!(refused(remove(9)).contains("not a member"));
        assert_eq!(refused(remove(1)), "");
        assert!(refused(add(1)).contains("new identity"), "it may have voted");
        assert_eq!(refused(remove(0)), "");
        assert!(refused(remove(2)).contains("last member"));
    }
}
