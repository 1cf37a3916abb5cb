//! Time as the processes see it: an argument, never a question.

use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::time::Duration;

/// A point in time, in nanoseconds. It never goes back.
///
/// A server gives its processes the time of day, so those of different nodes agree as well as the
/// clocks of their machines. No decision may depend on that.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Time(pub u64);

impl Time {
    /// How long `earlier` was ago; zero if it is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, after: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}
