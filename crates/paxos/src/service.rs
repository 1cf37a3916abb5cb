//! What is replicated: a deterministic service of the user's own (report, section 4.1.2).

use bytes::Bytes;

/// How much the replica would like a snapshot now (report, section 5.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// Not at all.
    Fine,
    /// To replay the log takes longer than to read a snapshot, as far as the replica can tell
    /// ("askForSnapshot").
    Ask,
    /// The log is much too long ("forceSnapshot"). Who does not listen for long stops the service:
    /// at [`crate::Options::log_bytes_max`] no more requests are taken.
    Force,
}

/// A deterministic service: equal requests in equal order give equal replies and equal states at
/// all replicas. It must not look at clocks, random numbers, or the order of a hash map.
pub trait Service: Clone + Send + 'static {
    /// Executes a request and gives the reply. Called once for each request, at each replica.
    fn execute(&mut self, request: &Bytes) -> Bytes;

    /// Answers a question that changes nothing. Called at one replica, outside of the order of
    /// requests.
    fn query(&self, question: &[u8]) -> Bytes;

    /// The whole state. Called on the replica's thread: clone what is shared, do not wait.
    fn snapshot(&self) -> Bytes;

    /// Puts the state that another replica's (or an earlier) [`Service::snapshot`] gave in the
    /// place of this one.
    ///
    /// # Errors
    /// If it is no snapshot of this service; the replica then stops and tells why.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// Whether to make a snapshot now, after the last request executed: the service decides
    /// (report, section 5.4.2). By default it does what it is asked.
    fn wants_snapshot(&mut self, hint: Hint) -> bool {
        hint >= Hint::Ask
    }

    /// A digest of the state, compared between replicas at intervals beside the digest of all
    /// replies, which the replica keeps itself. Must be cheap; by default there is none.
    fn digest(&self) -> u64 {
        0
    }
}
