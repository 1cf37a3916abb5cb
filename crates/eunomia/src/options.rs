//! How processes behave.

use meridian_core::Time;
use std::time::Duration;

/// How processes behave. The defaults are meant for regions some 100 ms apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// So often a source sends a batch of labels with a promise (Eunomia, section 3.3.2, and the
    /// heartbeat interval): see [`Options::next_batch`].
    pub batch: Duration,
    /// A replica of the service looks for what is stable when all sources have spoken; if some have
    /// not, so long after others have (Eunomia, Algorithm 3, theta).
    pub theta: Duration,
    /// So often a receiver tells how far it is, and a replica of the service its sources.
    pub tell: Duration,
    /// What was not answered for so long is asked for again. A round trip between regions: fewer,
    /// and labels travel twice.
    pub retry: Duration,
    /// Who has nothing to do does all of these only so often. What is made after that wakes those
    /// that it waits for; what was lost is noticed so late.
    pub idle: Duration,
    /// A receiver follows another replica when its stream has not gone on for so long.
    pub suspect_after: Duration,
    /// So many labels travel in a message at most.
    pub labels_max: usize,
    /// So many labels are on their way to a receiver, or wait there, at most; the rest waits at
    /// the replica that sends them.
    pub window: usize,
    /// So many updates of a source may be under way to other regions; it takes no more.
    pub outstanding_max: usize,
    /// So many updates whose labels have not come are kept by a shard; others are asked for later.
    pub inbox_max: usize,
    /// How far ahead a source makes durable what it may promise: it flushes for that so often, and
    /// its clock may be so far ahead after a crash.
    pub reserve: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let ms = Duration::from_millis;
        Options {
            batch: ms(5),
            theta: ms(2),
            tell: ms(20),
            retry: ms(200),
            idle: ms(100),
            suspect_after: ms(500),
            labels_max: 16 << 10,
            window: 256 << 10,
            outstanding_max: 1 << 20,
            inbox_max: 256 << 10,
            reserve: ms(1000),
        }
    }
}

impl Options {
    /// When a source sends its next batch. All do at the same moments, as far as their clocks
    /// agree: what is stable is up to the least promise, and so it is known as soon as one of them
    /// has spoken, and not an interval later.
    pub fn next_batch(&self, now: Time) -> Time {
        let interval_ns = self.batch.as_nanos().max(1) as u64;
        Time((now.0 / interval_ns + 1).saturating_mul(interval_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_send_batches_at_the_same_moments() {
        let options = Options { batch: Duration::from_nanos(100), ..Options::default() };
        let next = |now| options.next_batch(Time(now)).0;
        assert_eq!([next(0), next(99), next(100), next(101)], [100, 100, 200, 200]);
        assert_eq!(next(u64::MAX), u64::MAX);
    }
}
