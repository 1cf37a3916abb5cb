//! The groups that are shown our clock as time goes by: the state of hybrid clocks.

use meridian_core::{GroupId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often partners are shown the clock: little of a step between groups that are far from each
/// other.
pub(crate) const SHOW_DELAY: Duration = Duration::from_millis(10);

/// How long those stay partners that share no undelivered message any more.
pub(crate) const PARTNERS_FOR: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Partners {
    /// When we last found an undelivered message that they share with us; `None`: there was one
    /// since.
    pub last: BTreeMap<GroupId, Option<Time>>,
    /// When they are shown our clock next.
    pub next: Option<Time>,
    /// Whether they are in this step.
    pub due: bool,
}

impl Partners {
    /// A message goes to `group`, too.
    pub fn share(&mut self, group: GroupId) {
        self.last.insert(group, None);
    }

    /// Who they are.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.last.keys().copied()
    }

    /// Whether they are shown our clock in this step.
    pub fn are_shown(&self) -> bool {
        self.due
    }
}
