//! Which other groups can be reached.
//!
//! Nobody asks a group how it is: only the sender and the destinations of a message take steps. A
//! group is cut off, as far as this process knows, when a message waits for its timestamp and no
//! quorum of it has been heard since. New messages to it are refused until it is heard again: the
//! one that waits is asked about all the time.
//!
//! Of a group whose primary relays, that primary is heard, and its followers hear nobody:
//! they are told.

use crate::message::{Message, NormalMessage, Output, Start};
use crate::process::PrimCast;
use crate::state::clocks::quorum;
use crate::state::epochs::Role;
use crate::state::reach::{CUT_TIMEOUT, LOOKED_AT};
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use std::collections::BTreeSet;

impl PrimCast {
    /// The groups that cannot be reached, as far as this process knows.
    pub fn unreachable(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.outbound.reach.cut.iter().copied()
    }

    /// Looks which groups are cut off, and which are no more.
    pub(crate) fn watch_groups(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.options.dissemination.hears_others(self.epochs.role) {
            return;
        }
        let late = |since: Time| now.since(since) > CUT_TIMEOUT;
        let mut waited_for: BTreeSet<GroupId> = BTreeSet::new();
        let waiting = self.log.waiting().map(|(_, slot)| slot);
        for slot in waiting.filter(|slot| slot.entry.final_ts.is_none()).take(LOOKED_AT) {
            if late(slot.since) {
                let decided = |group| slot.locals.iter().any(|(of, _)| of == group);
                waited_for.extend(slot.entry.start.dest.iter().filter(|group| !decided(*group)));
            }
        }
        waited_for.remove(&self.me.group);
        waited_for.retain(|group| {
            let silent = |process: &ProcessId| {
                self.outbound.reach.heard.get(process).is_none_or(|heard| late(*heard))
            };
            let speaker = self.remote.known(*group).filter(|learner| learner.relays);
            if let Some(epoch) = speaker.and_then(|learner| learner.epoch)
                && !silent(&ProcessId { group: *group, node: epoch.leader })
            {
                return false;
            }
            let count = self.members.of(*group).len();
            let heard = self.processes(*group).filter(|process| !silent(process)).count();
            heard < quorum(count)
        });
        self.outbound.reach.cut = waited_for;
        if self.relays() && self.outbound.reach.told.as_ref() != Some(&self.outbound.reach.cut) {
            self.outbound.reach.told = Some(self.outbound.reach.cut.clone());
            self.peers().for_each(|peer| self.tell_unreachable(peer, out));
        }
    }

    /// Tells a follower that hears nobody of other groups which of them are cut off.
    pub(crate) fn tell_unreachable(&self, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.relays() {
            out.send(
                peer,
                Message::from(NormalMessage::Unreachable(
                    self.outbound.reach.cut.iter().copied().collect(),
                )),
            );
        }
    }

    /// The primary of our group knows of these.
    pub(crate) fn on_unreachable(&mut self, from: ProcessId, groups: &[GroupId]) {
        if self.epochs.role == Role::Follower && from == self.leader_of(self.epochs.cur) {
            self.outbound.reach.cut = groups.iter().copied().collect();
        }
    }

    /// Refuses a message of our owner to a group that is cut off; whether it did.
    pub(crate) fn refuses(&self, start: &Start, out: &mut Outbox<Self>) -> bool {
        let cut = start.dest.iter().find(|group| self.outbound.reach.cut.contains(group));
        if let Some(group) = cut {
            out.output(Output::Refused { id: start.id, group: *group });
        }
        cut.is_some()
    }
}
