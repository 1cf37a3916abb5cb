//! Views and instances (report, sections 3.2 and 5.2.1).

use meridian_core::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A view: a period with one leader. Its leader's identity is in its number, so that no two
/// replicas ever own the same view, also while the members change; with 65,536 possible identities
/// this is the report's rule "view modulo n". 0 is before all views and has no leader.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct View(pub u64);

impl View {
    /// Before the first.
    pub const NONE: View = View(0);

    /// How often there was a new view.
    pub fn round(self) -> u64 {
        self.0 >> 16
    }

    /// Who leads it.
    pub fn leader(self) -> Option<NodeId> {
        (self.round() > 0).then_some(NodeId(self.0 as u16))
    }

    /// The first after this that `node` leads and that is in a later round.
    pub fn next(self, node: NodeId) -> View {
        View(((self.round() + 1) << 16) | u64::from(node.0))
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.round(), self.0 & 0xffff)
    }
}

/// An instance of consensus: a place in the log, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Instance(pub u64);

impl Instance {
    /// The one after it.
    pub fn next(self) -> Instance {
        Instance(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_names_its_leader_and_views_of_later_rounds_are_later() {
        assert_eq!(View::NONE.leader(), None);
        let first = View::NONE.next(NodeId(0));
        assert_eq!((first.leader(), first.round()), (Some(NodeId(0)), 1));
        let next = first.next(NodeId(u16::MAX));
        assert!(next > first && next.next(NodeId(0)) > next);
        assert_eq!(next.leader(), Some(NodeId(u16::MAX)));
    }
}
