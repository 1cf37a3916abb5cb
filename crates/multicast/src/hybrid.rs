//! Hybrid clocks (thesis, section 4.4.1): timestamps that are the time, in microseconds, or more.
//!
//! In the linearizable order they do more than the thesis asks of them. There a message waits for the clocks of groups
//! that know nothing of it (see [`crate::stable`]): of those that share an undelivered message with one of its destinations, and
//! so on. A logical clock moves when others' clocks are shown to it, so word goes to each of these groups and
//! back. But a clock that is the time is past a message's timestamp by itself, as soon as the message is there: all that is left is
//! that its group says so, without being asked.
//!
//! So a process keeps a list of the groups that its group shares messages with, its *partners*. As long as there are any it moves its
//! clock up to the time and shows it to them every [`SHOW_DELAY`]. They stay on the list for [`PARTNERS_FOR`] after
//! the last such message is delivered, for who has just shared a message will share another one: then the first of
//! those, too, finds what it waits for under way. Nothing is said by, or to, a group that no message goes to. (Groups that share none
//! with each other hear of each other by those between them: that takes the steps that it takes with logical clocks.)
//!
//! A process may raise its clock at any time, and skew costs latency only: what is proposed is greater than any clock that was
//! shown, as ever.

use crate::message::Timestamp;
use crate::process::{ClockSource, PrimCast};
use meridian_core::{GroupId, Outbox, Time, Token};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often partners are shown the clock: little of a step between groups that are far from each other.
pub(crate) const SHOW_DELAY: Duration = Duration::from_millis(10);
pub(crate) const SHOW_TOKEN: Token = Token(3);

/// How long those stay partners that share no undelivered message any more.
pub(crate) const PARTNERS_FOR: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Partners {
    /// When we last found an undelivered message that they share with us; `None`: there was one since.
    last: BTreeMap<GroupId, Option<Time>>,
    /// When they are shown our clock next.
    next: Option<Time>,
    /// Whether they are in this step.
    due: bool,
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

impl PrimCast {
    /// The least timestamp that may be proposed at `now`, but for the clock.
    pub(crate) fn time(&self, now: Time) -> Timestamp {
        match self.options.clock {
            ClockSource::Logical => Timestamp(0),
            ClockSource::Hybrid => Timestamp(now.0 / 1000),
        }
    }

    /// Moves the clock up to the time if partners are to be shown it.
    pub(crate) fn follow_time(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.partners.due = self.partners.next.take_if(|at| now >= *at).is_some();
        if self.partners.last.is_empty() || !self.stands() {
            return;
        }
        if self.partners.due {
            let links = self.links();
            for (group, last) in &mut self.partners.last {
                if last.is_none() || links.iter().any(|(linked, _)| linked == group) {
                    *last = Some(now);
                }
            }
            let recent =
                |last: &mut Option<Time>| last.is_none_or(|last| now.since(last) < PARTNERS_FOR);
            self.partners.last.retain(|_, last| recent(last));
            self.raise_clock(self.time(now), out);
        }
        if self.partners.next.is_none() && !self.partners.last.is_empty() {
            let at = now + SHOW_DELAY;
            self.partners.next = Some(at);
            out.timer(at, SHOW_TOKEN);
        }
    }
}
