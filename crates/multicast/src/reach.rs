//! Which other groups can be reached (design, section 4.5).
//!
//! Nobody asks a group how it is: only the sender and the destinations of a message take steps. A group is cut
//! off, as far as this process knows, when a message waits for its timestamp and no quorum of it has been heard
//! since. New messages to it are refused until it is heard again: the one that waits is asked about
//! all the time.

use crate::clocks::quorum;
use crate::message::{Output, Start};
use crate::process::PrimCast;
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
}

impl Reach {
    /// A process of another group said something.
    pub fn heard(&mut self, from: ProcessId, now: Time) {
        self.heard.insert(from, now);
    }
}

impl PrimCast {
    /// The groups that cannot be reached, as far as this process knows.
    pub fn unreachable(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.reach.cut.iter().copied()
    }

    /// Looks which groups are cut off, and which are no more.
    pub(crate) fn watch_groups(&mut self, now: Time) {
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
            let count = self.members.of(*group).len();
            let heard = self.processes(*group).filter(|process| !silent(process)).count();
            heard < quorum(count)
        });
        self.reach.cut = waited_for;
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
