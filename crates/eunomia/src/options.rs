//! How processes behave.

use std::time::Duration;

/// How processes behave. The defaults are meant for regions some 100 ms apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// So often a source sends a batch of labels with a promise (Eunomia, section 3.3.2, and the
    /// heartbeat interval).
    pub batch: Duration,
    /// So often a replica of the service looks for what is stable (Eunomia, Algorithm 3, theta).
    pub theta: Duration,
    /// So often a receiver tells how far it is.
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
            batch: ms(2),
            theta: ms(2),
            tell: ms(5),
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
