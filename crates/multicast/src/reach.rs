//! Which other groups can be reached (design, section 4.5).
//!
//! Nobody asks a group how it is: only the sender and the destinations of a message take steps. A group is cut
//! off, as far as this process knows, when a message waits for its timestamp and no quorum of it has been heard
//! since. New messages to it are refused until it is heard again: the one that waits is asked about
//! all the time.
//!
//! Of a group whose primary speaks for it that primary is heard, and its followers hear nobody: they are told.

use crate::clocks::quorum;
use crate::message::{Message, Output, Start};
use crate::process::{PrimCast, Role, Speakers};
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a message waits for a silent group before others to that group are refused: longer than a change of
/// its primary and some round trips around the world, which must not count.
pub const CUT_TIMEOUT: Duration = Duration::from_secs(3);

/// So many of the first messages that wait are looked at: those hold up the others.
const LOOKED_AT: usize = 16;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reach {
    heard: BTreeMap<ProcessId, Time>,
    cut: BTreeSet<GroupId>,
    /// What followers were told last.
    told: Option<BTreeSet<GroupId>>,
}

impl Reach {
    /// A process of another group said something.
    pub fn heard(&mut self, from: ProcessId, now: Time) {
        self.heard.insert(from, now);
    }

    /// A new epoch: followers are told again.
    pub fn start_epoch(&mut self) {
        self.told = None;
    }
}

impl PrimCast {
    /// The groups that cannot be reached, as far as this process knows.
    pub fn unreachable(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.reach.cut.iter().copied()
    }

    /// Looks which groups are cut off, and which are no more.
    pub(crate) fn watch_groups(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.options.speakers == Speakers::Primary && self.role != Role::Primary {
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
                self.reach.heard.get(process).is_none_or(|heard| late(*heard))
            };
            let speaker = self.remote.known(*group).filter(|learner| learner.speaks);
            if let Some(epoch) = speaker.and_then(|learner| learner.epoch)
                && !silent(&ProcessId { group: *group, node: epoch.leader })
            {
                return false;
            }
            let count = self.members.of(*group).len();
            let heard = self.processes(*group).filter(|process| !silent(process)).count();
            heard < quorum(count)
        });
        self.reach.cut = waited_for;
        if self.speaks() && self.reach.told.as_ref() != Some(&self.reach.cut) {
            self.reach.told = Some(self.reach.cut.clone());
            self.peers().for_each(|peer| self.tell_cut(peer, out));
        }
    }

    /// Tells a follower that hears nobody of other groups which of them are cut off.
    pub(crate) fn tell_cut(&self, peer: ProcessId, out: &mut Outbox<Self>) {
        if self.speaks() {
            out.send(peer, Message::Cut(self.reach.cut.iter().copied().collect()));
        }
    }

    /// The primary of our group knows of these.
    pub(crate) fn on_cut(&mut self, from: ProcessId, groups: &[GroupId]) {
        if self.role == Role::Follower && from == self.leader_of(self.e_cur) {
            self.reach.cut = groups.iter().copied().collect();
        }
    }

    /// Refuses a message of our owner to a group that is cut off; whether it did.
    pub(crate) fn refuses(&self, start: &Start, out: &mut Outbox<Self>) -> bool {
        let cut = start.dest.iter().find(|group| self.reach.cut.contains(group));
        if let Some(group) = cut {
            out.output(Output::Refused { id: start.id, group: *group });
        }
        cut.is_some()
    }
}
