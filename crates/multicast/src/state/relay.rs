//! What a primary relays, and what its followers hold back: dissemination via the leader.

use crate::message::{RelayedFinal, RelayedLocal, Timestamp};
use meridian_core::{GroupId, MessageId, NodeId, ProcessId, Table, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How far a follower keeps its clock ahead of its primary's. A new primary starts from there.
pub(crate) const AHEAD: u64 = 1024;

/// The same for hybrid clocks, in microseconds: further than they move between two times that they
/// are shown.
pub(crate) const AHEAD_US: u64 = 20_000;

/// How long a follower that is not asked to be prompt waits before it acknowledges: many round
/// trips, and no time to whoever waits when a prompt one has died.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(2);

/// What a primary that relays for its group, or its follower, still has to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Relay {
    /// The length of our `T` that other groups were told is decided.
    pub told: u64,
    /// Who of them is to be told again.
    pub told_again: BTreeSet<ProcessId>,
    /// Decided by other groups, and not relayed yet.
    pub locals: Vec<RelayedLocal>,
    /// Final here.
    pub finals: Vec<RelayedFinal>,
    /// As a follower: final timestamps of messages that our `T` does not hold yet, and whether they
    /// were delivered.
    pub early: Table<MessageId, (Timestamp, bool)>,
    /// Which followers may have missed what was relayed.
    pub all_to: BTreeSet<ProcessId>,
    /// Which followers were asked for prompt ACKs.
    pub prompt: SmallVec<[NodeId; 4]>,
    /// Whose word of what is stable is to be passed on, by group that needs to know.
    pub stables: BTreeMap<GroupId, BTreeSet<ProcessId>>,
    /// When what was appended is acknowledged, if nobody waits for it: by a follower to its
    /// primary, by a primary to its followers.
    pub later: Option<Time>,
    /// As primary: the length of `T` up to which that was put off.
    pub put_off: u64,
    /// As primary: a message has come by a follower, which waits for our ACK.
    pub awaited: bool,
    /// When the timer comes that was set for that, at the earliest.
    pub alarm: Option<Time>,
}

impl Relay {
    /// Whether our ACK has time.
    pub fn acknowledges_later(&self) -> bool {
        self.later.is_some()
    }

    /// Whether other groups were told that the entry at `index` is decided.
    pub fn is_told(&self, index: u64) -> bool {
        index < self.told
    }

    /// Whatever was put off has time until `at`; whether a timer must be set for that.
    pub fn put_off_until(&mut self, at: Time) -> bool {
        self.later = Some(at);
        let is_set = self.alarm.is_some();
        self.alarm.get_or_insert(at);
        !is_set
    }

    /// A timer has come; when it must come again, if what waits now was put off after it was set.
    pub fn acknowledge_due(&mut self, now: Time) -> Option<Time> {
        self.later.take_if(|at| now >= *at);
        self.alarm.take_if(|at| now >= *at)?;
        self.alarm = self.later;
        self.alarm
    }
}
