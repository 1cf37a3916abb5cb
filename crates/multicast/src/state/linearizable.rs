//! What the linearizable order remembers: what is shared with whom, and who was told what.

use crate::message::{Dest, Epoch, Horizon, Rank, Timestamp};
use crate::state::clocks::Clocks;
use crate::state::closure::Closure;
use meridian_core::{GroupId, MessageId, NodeId, Table, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// A list of shared entries up to this length is not looked through.
pub(crate) const SHARED_LEAST: usize = 1024;

/// So many pending notices are kept for a group: the lowest timestamps, and the greatest.
pub(crate) const PENDING_MAX: usize = 1024;

/// What nobody is known to wait for is told after this time: many round trips between near groups,
/// and little of one between far ones.
pub(crate) const TELL_DELAY: Duration = Duration::from_millis(5);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Linearizable {
    /// By other group, the entries of our `T` that go to it too, from the first not delivered on;
    /// with timestamps.
    pub shared: BTreeMap<GroupId, VecDeque<(u64, Timestamp)>>,
    /// How long each of these lists may become before it is looked through for entries that were
    /// delivered though an earlier one was not.
    pub shared_max: BTreeMap<GroupId, usize>,
    /// What primaries of other groups said last of their own group, and up to where that is closed
    /// for us.
    pub direct: BTreeMap<GroupId, (Horizon, Timestamp)>,
    /// What is known of other groups.
    pub(crate) closure: Closure,
    /// For which of them it was looked up to where they are closed since anything new was learned.
    pub looked_at: SmallVec<[GroupId; 8]>,
    pub(crate) dirty: bool,
    /// As primary: what we showed last of our group, to anybody.
    pub own: Option<Horizon>,
    /// What groups were told that we are linked with, or that wait for word of us.
    pub told: BTreeMap<GroupId, Notified>,
    /// Pending notices: timestamps given to messages that go to a group too, which was not told yet
    /// that our group is closed up to them.
    pub pending: BTreeMap<GroupId, BTreeSet<Timestamp>>,
    /// The greatest timestamps given to messages, by their indexes, of which nobody was told yet
    /// that ours are decided.
    pub given: VecDeque<(u64, Timestamp)>,
    /// To which groups something was said since the process was idle last.
    pub spoken_to: SmallVec<[GroupId; 8]>,
    /// When those groups are told, at the latest, that nothing else was said to. `None` if nothing
    /// is to be told; but a time may be set then, too, and has no effect.
    pub later: Option<Time>,
    /// The clock that each group was shown last.
    pub clock_shown: BTreeMap<GroupId, Timestamp>,
    /// Which groups are ready for a message.
    pub(crate) ready: Table<MessageId, Dest>,
    /// Of which messages we said so.
    pub(crate) said: BTreeSet<MessageId>,
    /// Messages that wait for nothing else.
    pub awaiting: BTreeSet<Rank>,
}

/// What a group was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Notified {
    pub version: u64,
    pub closed: Timestamp,
    /// Of third groups: version and stability.
    pub relayed: BTreeMap<GroupId, ((Epoch, u64), Timestamp)>,
    /// Whether anything was learned of third groups since they were passed on, and when that was.
    pub stale: bool,
    pub relayed_at: Time,
}

impl Linearizable {
    /// An entry of `T` goes to another group too.
    pub fn share(&mut self, group: GroupId, index: u64, ts: Timestamp) {
        self.shared.entry(group).or_default().push_back((index, ts));
    }

    /// A group was lost: what its primaries said counts no more, and its heirs were told nothing.
    pub fn forget(&mut self, group: GroupId) {
        self.direct.remove(&group);
        self.closure.forget(group);
        self.ready = Table::default(); // Of the others, it is said again.
        self.told.remove(&group);
        self.clock_shown.remove(&group);
        self.dirty = true;
    }

    /// `T` is cut to `len`.
    pub fn cut(&mut self, len: u64) {
        for shared in self.shared.values_mut() {
            while shared.pop_back_if(|(index, _)| *index >= len).is_some() {}
        }
    }

    /// A message was delivered.
    pub fn delivered(&mut self, id: MessageId, rank: Rank) {
        self.ready.remove(&id);
        self.said.remove(&id);
        self.awaiting.remove(&rank);
        // They may have waited for what it was linked with.
        self.dirty |= !self.awaiting.is_empty();
    }

    /// Whether those that wait are to be looked at again.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A message that goes to `group` too was given this timestamp.
    pub fn add_notice(&mut self, group: GroupId, ts: Timestamp) {
        if self.told.get(&group).is_none_or(|told| told.closed < ts) {
            let pending = self.pending.entry(group).or_default();
            if pending.len() < PENDING_MAX {
                pending.insert(ts);
            } else if pending.last().is_some_and(|last| *last < ts) {
                // A third group has been cut off for long: messages pass what waits for it.
                pending.pop_last();
                pending.insert(ts);
            }
        }
    }

    /// The message at `index` was given this timestamp.
    pub fn give(&mut self, index: u64, ts: Timestamp) {
        match self.given.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => self.given[at].1 = ts.max(self.given[at].1),
            Err(at) => self.given.insert(at, (index, ts)),
        }
    }

    /// Whoever waits for long may have missed what was said.
    pub fn say_again(&mut self) {
        self.said.clear();
        self.dirty = true;
    }

    /// Something is said to `group` in this turn.
    pub fn speaks_to(&mut self, group: GroupId) {
        if !self.spoken_to.contains(&group) {
            self.spoken_to.push(group);
        }
    }

    /// The first entry shared with `group` that is not delivered: the lowest timestamp of such.
    pub fn link(&mut self, group: GroupId, is_open: impl Fn(u64) -> bool) -> Option<Timestamp> {
        let shared = self.shared.get_mut(&group)?;
        while shared.pop_front_if(|(index, _)| !is_open(*index)).is_some() {}
        if shared.len() > SHARED_LEAST {
            let most = self.shared_max.entry(group).or_insert(SHARED_LEAST);
            if shared.len() > *most {
                shared.retain(|(index, _)| is_open(*index));
                *most = SHARED_LEAST.max(2 * shared.len());
            }
        }
        shared.front().map(|(_, ts)| *ts)
    }

    /// Puts together what is known of another group.
    pub fn learn(&mut self, shown: &Horizon, stable: Timestamp) {
        if self.closure.learn(shown, stable) {
            self.dirty = true;
            self.told.values_mut().for_each(|told| told.stale = true);
        }
    }

    /// What is stable of `group` by what its primary said and the clocks of its members.
    pub fn evaluate(
        &mut self,
        group: GroupId,
        followed: Option<Epoch>,
        clocks: &Clocks,
        members: &[NodeId],
    ) {
        let Some((direct, closed)) = self.direct.get(&group).cloned() else { return };
        if Some(direct.version.0) == followed {
            let reached = clocks.quorum_clock(members);
            self.learn(&direct, direct.stable.min(reached));
            self.dirty |= self.closure.learn_closed(group, closed.min(reached));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region is cut off for hours: what is owed to others does not grow with what passes.
    #[test]
    fn what_is_owed_is_bounded() {
        let (mut linearizable, group) = (Linearizable::default(), GroupId(1));
        (1..=100_000).for_each(|ts| linearizable.add_notice(group, Timestamp(ts)));
        let pending = &linearizable.pending[&group];
        assert_eq!(pending.len(), PENDING_MAX);
        let ends = (pending.first().copied(), pending.last().copied());
        assert_eq!(ends, (Some(Timestamp(1)), Some(Timestamp(100_000))));
    }
}
