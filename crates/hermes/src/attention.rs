//! When a replica of the reliable membership may doze (decision 34).
//!
//! A replica is *active* while its owner uses it, and while it has to ask the registry for
//! something. Who is active says so in each [`Ask`](crate::reliable::Message::Ask), and who hears
//! that stays awake for [`Doze::after`], without being active itself: so nobody is kept awake by
//! those who are awake only for others.
//!
//! Invariants:
//! - W1: silence counts only from when this replica began to hear of activity, without a long gap
//!   since then. Until then the others had no reason to speak.
//! - W2: the gap is half of [`Options::suspect_after`]. So whoever was active is not suspected for
//!   having gone to sleep, and words that come late, in a burst shorter than that, make nobody
//!   suspected.

use crate::reliable::Options;
use meridian_core::Time;
use std::time::Duration;

/// When replicas doze, and how lightly.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Doze {
    /// A replica is active for so long after its owner had use of it, and others are awake for as
    /// long again: some leases at least, or each pause of a client would cost the next request a
    /// round trip.
    pub after: Duration,
    /// How often who dozes lets the registry's replica look for what it has missed.
    pub beat: Duration,
}

/// Of what activity a replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Attention {
    /// When the owner had use of the replica.
    used: Option<Time>,
    /// When it last knew that some replica was active, and since when without a long gap.
    stirred: Option<Time>,
    since: Time,
    pub dozes: bool,
}

impl Attention {
    pub fn use_at(&mut self, now: Time) {
        self.used = Some(now);
    }

    /// Whether the owner has had use of it lately.
    pub fn is_used(&self, now: Time, options: &Options) -> bool {
        let span = options.doze.as_ref().map(|doze| doze.after);
        span.is_none_or(|span| self.used.is_some_and(|used| now.since(used) < span))
    }

    /// Whether it must be told of the next use.
    pub fn wants_use(&self, now: Time, options: &Options) -> bool {
        let span = options.doze.as_ref().map(|doze| doze.after / 4);
        let lately = |span| self.used.is_some_and(|used| now.since(used) < span);
        self.dozes || !span.is_none_or(lately)
    }

    /// Some replica is active.
    pub fn stir(&mut self, now: Time, options: &Options) {
        if self.stirred.is_none_or(|stirred| now.since(stirred) > gap(options)) {
            self.since = now;
        }
        self.stirred = Some(now);
    }

    /// For how long it may doze now, if nobody is active any more.
    pub fn may_doze(&self, now: Time, options: &Options) -> Option<Duration> {
        let doze = options.doze.as_ref()?;
        let awake = self.stirred.is_some_and(|stirred| now.since(stirred) < doze.after);
        (!awake).then_some(doze.beat)
    }

    /// Since when silence counts, if it does now (W1).
    pub fn since(&self, now: Time, options: &Options) -> Option<Time> {
        let stirred = self.stirred.filter(|stirred| now.since(*stirred) <= gap(options));
        stirred.map(|_| self.since)
    }
}

/// So long may nobody be known to be active before silence counts anew (W2).
fn gap(options: &Options) -> Duration {
    options.suspect_after / 2
}
