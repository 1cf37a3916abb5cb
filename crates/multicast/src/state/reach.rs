//! Which other groups can be reached, as far as this process knows.

use meridian_core::{GroupId, ProcessId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a message waits for a silent group before others to that group are refused: longer than
/// a change of its primary and some round trips around the world, which must not count.
pub const CUT_TIMEOUT: Duration = Duration::from_secs(3);

/// So many of the first messages that wait are looked at: those hold up the others.
pub(crate) const LOOKED_AT: usize = 16;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reach {
    pub heard: BTreeMap<ProcessId, Time>,
    pub cut: BTreeSet<GroupId>,
    /// What followers were told last.
    pub told: Option<BTreeSet<GroupId>>,
}

impl Reach {
    /// A process of another group said something.
    pub fn heard(&mut self, from: ProcessId, now: Time) {
        self.heard.insert(from, now);
    }

    /// A new epoch: followers are told again. What this process knew as a primary that relays, or
    /// from one, counts no more: as a follower it would not find out that a group is heard again.
    pub fn start_epoch(&mut self) {
        self.told = None;
        self.cut.clear();
    }
}
