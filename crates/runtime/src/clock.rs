//! The time that steps are given.
//!
//! Nanoseconds since the UNIX epoch as the system's clock said at the start, and from then on the
//! monotonic clock: it never goes back, and members of different machines agree as well as their
//! clocks did. Protocols with hybrid clocks take their timestamps from it.

use meridian_core::Time;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// A member's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// What the clock showed at `start`, in nanoseconds.
    epoch_ns: u64,
}

impl Clock {
    /// One that agrees with the system's.
    pub fn start() -> Clock {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = u64::try_from(epoch.as_nanos()).unwrap_or(u64::MAX);
        Clock { start: Instant::now(), epoch_ns }
    }

    /// One that is ahead of this by `skew_ns` nanoseconds, or behind if that is negative. For tests
    /// of what depends on clocks.
    pub fn skewed(self, skew_ns: i64) -> Clock {
        Clock { epoch_ns: self.epoch_ns.saturating_add_signed(skew_ns), ..self }
    }

    /// What it shows.
    pub fn now(&self) -> Time {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Time(self.epoch_ns.saturating_add(elapsed))
    }

    /// When it shows `time`.
    pub fn instant(&self, time: Time) -> Instant {
        let after = Duration::from_nanos(time.0.saturating_sub(self.epoch_ns));
        // Timers set for the end of time mean never; the system's clock cannot count as far.
        self.start + after.min(Duration::from_secs(1 << 31))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skewed_clock_differs_by_its_skew() {
        let right = Clock::start();
        let (ahead, behind) = (right.skewed(3_600_000_000_000), right.skewed(-1_000_000_000));
        let apart = ahead.now().since(right.now());
        assert!(apart > Duration::from_secs(3590) && apart < Duration::from_secs(3610));
        assert!(behind.now() < right.now());
        let soon = right.now() + Duration::from_secs(5);
        assert!(right.instant(soon) > Instant::now());
        assert!(ahead.instant(soon) <= right.instant(soon));
    }
}
