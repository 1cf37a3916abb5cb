//! Hybrid clocks (thesis, section 4.4.1): timestamps that are the time, in microseconds, or more.
//!
//! In the linearizable order they do more than the thesis asks of them. There a message waits for
//! the clocks of groups that know nothing of it (see `linearizable`): of those that share an
//! undelivered message with one of its destinations, and so on. A logical clock moves when others'
//! clocks are shown to it, so word goes to each of these groups and back. But a clock that is the
//! time is past a message's timestamp by itself, as soon as the message is there: all that is left
//! is that its group says so, without being asked.
//!
//! So a process keeps a list of the groups that its group shares messages with, its *partners*. As
//! long as there are any it moves its clock up to the time and shows it to them every
//! [`SHOW_DELAY`]. They stay on the list for [`PARTNERS_FOR`] after the last such message is
//! delivered, for who has just shared a message will share another one: then the first of those,
//! too, finds what it waits for under way. Nothing is said by, or to, a group that no message goes
//! to. (Groups that share none with each other hear of each other by those between them: that takes
//! the steps that it takes with logical clocks.)
//!
//! A process may raise its clock at any time, and skew costs latency only: what is proposed is
//! greater than any clock that was shown, as ever.

use crate::message::Timestamp;
use crate::options::ClockSource;
use crate::process::PrimCast;
use crate::state::partners::{PARTNERS_FOR, SHOW_DELAY};
use crate::state::retransmission::Timer;
use meridian_core::{Outbox, Time};

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
        self.clock.partners.due = self.clock.partners.next.take_if(|at| now >= *at).is_some();
        if self.clock.partners.last.is_empty() || !self.stands() {
            return;
        }
        if self.clock.partners.due {
            let links = self.links();
            for (group, last) in &mut self.clock.partners.last {
                if last.is_none() || links.iter().any(|(linked, _)| linked == group) {
                    *last = Some(now);
                }
            }
            let recent =
                |last: &mut Option<Time>| last.is_none_or(|last| now.since(last) < PARTNERS_FOR);
            self.clock.partners.last.retain(|_, last| recent(last));
            self.raise_clock(self.time(now), out);
        }
        if self.clock.partners.next.is_none() && !self.clock.partners.last.is_empty() {
            let at = now + SHOW_DELAY;
            self.clock.partners.next = Some(at);
            out.timer(at, Timer::Clock);
        }
    }
}
