//! What happened in a trial.

/// What happened, for tests that want to know whether anything did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    /// Linearizable reads that were answered.
    pub reads: u64,
    /// Stale reads that were answered.
    pub stale: u64,
    /// How often a client was sent elsewhere.
    pub redirects: u64,
    /// How often one was told that it is forgotten.
    pub forgotten: u64,
    /// How often a request was too long.
    pub too_long: u64,
    /// How often a known answer was given again.
    pub repeated: u64,
    /// How often a replica was too busy, or had no memory.
    pub busy: u64,
    /// Changes of the members that were made.
    pub changes: u64,
    /// How often a replica crashed.
    pub crashes: u64,
    /// How often one had its memory back that had lost it.
    pub recovered: u64,
    /// How often one refused to run since it had lost its memory.
    pub refused: u64,
    /// How many replicas were told that they were removed.
    pub removed: u64,
    /// How often a replica became leader.
    pub leaders: u64,
    /// How many parts of snapshots came to a replica that was behind.
    pub snapshots: u64,
}

impl Counts {
    /// What happened in another trial happened, too.
    pub fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.reads += other.reads;
        self.stale += other.stale;
        self.redirects += other.redirects;
        self.forgotten += other.forgotten;
        self.too_long += other.too_long;
        self.repeated += other.repeated;
        self.busy += other.busy;
        self.changes += other.changes;
        self.crashes += other.crashes;
        self.recovered += other.recovered;
        self.refused += other.refused;
        self.removed += other.removed;
        self.leaders += other.leaders;
        self.snapshots += other.snapshots;
    }
}
