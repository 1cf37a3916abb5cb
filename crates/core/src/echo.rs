//! How long it takes to a peer and back, measured on the connection that messages take.
//!
//! Once in [`EVERY`] an end asks, with a time of its own clock, and the other end returns that
//! time. What the peer needs until it answers counts, too: that is what a message meets.

use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How often an end asks. It wakes both ends: once a second cost an idle cluster of nine nodes a
/// quarter of all its time.
pub const EVERY: Duration = Duration::from_secs(5);
/// What is known weighs so much more than one answer in the mean.
const WEIGHT: u32 = 3;

/// What ends say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Echo {
    /// The sender asks, at this time of its clock.
    Ask(Time),
    /// The sender was asked with this time.
    Return(Time),
}

/// One end, while a connection lasts.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// When to ask next.
    due: Time,
    /// What the other end waits for.
    owed: Option<Time>,
    /// When this end asked last, unless it was answered.
    asked: Option<Time>,
    mean: Option<Duration>,
}

impl RoundTrip {
    /// A connection opens: this end asks at once.
    pub fn new(now: Time) -> RoundTrip {
        RoundTrip { due: now, owed: None, asked: None, mean: None }
    }

    /// How long it takes in the mean; `None` before the first answer.
    pub fn mean(&self) -> Option<Duration> {
        self.mean
    }

    /// When there is something to say though nothing has come.
    pub fn due(&self) -> Time {
        self.due
    }

    /// What to say now.
    pub fn poll(&mut self, now: Time) -> Option<Echo> {
        if let Some(time) = self.owed.take() {
            return Some(Echo::Return(time));
        }
        if now < self.due {
            return None;
        }
        (self.asked, self.due) = (Some(now), now + EVERY);
        Some(Echo::Ask(now))
    }

    /// Takes what the other end says. An answer to what was not asked last tells nothing.
    pub fn on_echo(&mut self, now: Time, echo: Echo) {
        match echo {
            Echo::Ask(time) => self.owed = Some(time),
            Echo::Return(time) if self.asked == Some(time) => {
                self.asked = None;
                let took = now.since(time);
                let mean = self.mean.unwrap_or(took);
                self.mean = Some((mean * WEIGHT + took) / (WEIGHT + 1));
            }
            Echo::Return(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_mean_follows_what_is_measured() {
        let (mut here, mut there) = (RoundTrip::new(Time(0)), RoundTrip::new(Time(77 * MS)));
        let mut now = Time(5 * MS);
        for way in [80, 80, 160, 160] {
            let ask = here.poll(now).unwrap();
            assert_eq!(ask, Echo::Ask(now), "by its own clock");
            assert_eq!(here.poll(now), None, "once in a while");
            there.on_echo(Time(3), ask);
            let back = there.poll(Time(3)).unwrap();
            assert_eq!(there.poll(Time(3)), None, "once");
            here.on_echo(now + Duration::from_millis(way), back);
            now = here.due();
        }
        // 80, 80, 100, 115
        assert_eq!(here.mean(), Some(Duration::from_millis(115)));
        assert_eq!(there.mean(), None);
    }

    #[test]
    fn an_answer_to_nothing_tells_nothing() {
        let mut here = RoundTrip::new(Time(0));
        here.on_echo(Time(9), Echo::Return(Time(0)));
        assert_eq!(here.mean(), None);
        assert_eq!(here.poll(Time(10)), Some(Echo::Ask(Time(10))));
        here.on_echo(Time(20), Echo::Return(Time(9)));
        assert_eq!(here.mean(), None);
        here.on_echo(Time(20), Echo::Return(Time(10)));
        here.on_echo(Time(99), Echo::Return(Time(10)));
        assert_eq!(here.mean(), Some(Duration::from_nanos(10)), "the second is no answer");
    }
}
