//! What a message waits for at a process: the conditions of its delivery, one by one, for who asks
//! why it was not delivered earlier. Nothing is decided here; `deliver` does.

use crate::message::{Epoch, Horizon, Rank, Timestamp, conflicts};
use crate::process::PrimCast;
use crate::state::log::Slot;
use meridian_core::{GroupId, MessageId};
use std::collections::BTreeMap;

/// What stands between a message and its delivery at a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacles {
    /// Where it stands in `T`.
    pub index: u64,
    /// What its group proposed, and in which epoch.
    pub proposed: (Epoch, Timestamp),
    /// Whether it is known here that a quorum of the group holds that.
    pub decided: bool,
    /// The groups whose timestamps are not known here (lines 22 and 23).
    pub missing: Vec<GroupId>,
    /// Its final timestamp, if it is known here.
    pub final_ts: Option<Timestamp>,
    /// Whether the process follows a primary, or is one.
    pub stands: bool,
    /// Up to where the primary's clock is (line 28).
    pub leader_clock: Timestamp,
    /// Up to where the clocks of a quorum are (line 29).
    pub quorum_clock: Timestamp,
    /// The messages that conflict with it and may be before it, in order (line 30).
    pub before: Vec<Rank>,
    /// In the linearizable order, the groups that are not closed up to it. Of a primary that
    /// relays, a follower only hears when there is none any more.
    pub open: Vec<GroupId>,
}

impl PrimCast {
    /// What a message waits for here, or waited for when it was delivered; `None` if `T` does not
    /// hold it.
    pub fn obstacles(&self, id: MessageId) -> Option<Obstacles> {
        let index = self.log.find(id)?;
        let slot = self.log.get(index)?;
        let leader_clock = self.clock.members.min_clock(self.epochs.cur.leader);
        let quorum_clock = self.clock.members.quorum_clock(self.voters());
        let rank = (slot.bound, id);
        let earlier = self.log.waiting().map(|(_, slot)| slot);
        let earlier = earlier.take_while(|other| (other.bound, other.entry.start.id) < rank);
        let (before, passed): (Vec<_>, Vec<_>) = earlier
            .partition(|other| conflicts(&other.entry.start.touches, &slot.entry.start.touches));
        let clock = leader_clock.min(quorum_clock);
        Some(Obstacles {
            index,
            proposed: (slot.entry.epoch, slot.entry.ts),
            decided: index < self.log.decided,
            missing: missing(slot),
            final_ts: slot.entry.final_ts,
            stands: self.stands(),
            leader_clock,
            quorum_clock,
            before: before.iter().map(|other| (other.bound, other.entry.start.id)).collect(),
            open: self.open_groups(slot, clock, !passed.is_empty()),
        })
    }

    /// The groups that are not closed up to a message, as `is_settled` and `is_settled_passing`
    /// look at them.
    fn open_groups(&self, slot: &Slot, clock: Timestamp, passes: bool) -> Vec<GroupId> {
        let (ts, start) = (slot.bound, &slot.entry.start);
        let waits = self.options.order.waits_for_others() && start.dest.len() > 1;
        if !waits || slot.settled || slot.delivered {
            return Vec::new();
        }
        let closure = &self.linearizable.closure;
        let is_closed = |group: GroupId| {
            let best = closure.best(group);
            ts <= closure.closed(group)
                || best.is_some_and(|best| closure.is_closed(best, Some(self.me.group), ts).is_ok())
        };
        let others = start.dest.iter().copied().filter(|group| *group != self.me.group);
        let unready = others.filter(|group| !self.is_ready(start.id, *group));
        let hears = self.options.dissemination.hears_others(self.epochs.role);
        let mut open: Vec<_> = unready.clone().filter(|of| !hears || !is_closed(*of)).collect();
        if passes && unready.count() > 0 && closure.is_closed(&self.own(clock), None, ts).is_err() {
            open.push(self.me.group);
        }
        open
    }

    /// How far the own group is, when nothing new comes up to `clock`.
    fn own(&self, clock: Timestamp) -> Horizon {
        let mut links: BTreeMap<GroupId, Timestamp> = BTreeMap::new();
        for (_, slot) in self.log.waiting() {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                let link = links.entry(*group).or_insert(slot.entry.ts);
                *link = slot.entry.ts.min(*link);
            }
        }
        let (group, version) = (self.me.group, (self.epochs.cur, 0));
        Horizon { group, version, stable: clock, links: links.into_iter().collect() }
    }
}

/// The groups whose timestamps for the message in a slot are not known.
pub(crate) fn missing(slot: &Slot) -> Vec<GroupId> {
    let known = |group: &GroupId| slot.locals.iter().any(|(of, _)| of == group);
    match slot.entry.final_ts {
        Some(_) => Vec::new(),
        None => slot.entry.start.dest.iter().copied().filter(|of| !known(of)).collect(),
    }
}
