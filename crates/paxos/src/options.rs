//! How a replica behaves.

use crate::configuration::ALPHA;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What survives a crash, and what it costs (report, section 7). All replicas of a service have the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Nothing is kept. Any minority may crash; who has crashed never comes back under its
    /// identity, and is refused: replace it ([`crate::Change::Replace`]). Its one write is the mark
    /// that says it has run.
    CrashStop,
    /// Each vote is on disk before it counts (Algorithm 3). All may crash at once; with a majority
    /// back nothing is lost.
    FullSs,
    /// One write for each start (Algorithm 4). Any minority may crash and come back, again and
    /// again; it gets its state from the others, of which a majority must be up with their memory
    /// whole. If a majority has lost it, no replica comes back: refused, not forgotten.
    EpochSs,
    /// One write for each view (Algorithm 5); otherwise as [`Recovery::EpochSs`].
    ViewSs,
}

impl Recovery {
    /// All of them.
    pub const ALL: [Recovery; 4] =
        [Recovery::CrashStop, Recovery::FullSs, Recovery::EpochSs, Recovery::ViewSs];

    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Recovery::CrashStop => "crash-stop",
            Recovery::FullSs => "full-ss",
            Recovery::EpochSs => "epoch-ss",
            Recovery::ViewSs => "view-ss",
        }
    }
}

impl std::str::FromStr for Recovery {
    type Err = OptionsError;

    fn from_str(name: &str) -> Result<Recovery, OptionsError> {
        let found = Recovery::ALL.into_iter().find(|recovery| recovery.name() == name);
        let names = || Recovery::ALL.map(Recovery::name).join(", ");
        found.ok_or_else(|| OptionsError(format!("there are {}", names())))
    }
}

/// How clients get their identities (report, section 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClientIds {
    /// Counted by the replica. In [`Recovery::EpochSs`] with its epoch, in [`Recovery::FullSs`] the
    /// count is on disk; [`Recovery::ViewSs`] has nothing that survives, and refuses it.
    Counted,
    /// Made from the time of the replica's start. Assumes that its clock is not set back between
    /// two starts.
    Time,
}

/// What a replica does with requests when it is not the leader (report, section 4.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Routing {
    /// It names the leader to the client.
    Redirect,
    /// It forwards them to the leader, again if need be, and answers the client itself.
    Forward,
}

/// Who vouches that a read sees all that was written before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leases {
    /// A majority is asked for each group of reads (read index). Needs no clocks.
    Off,
    /// A majority has promised the leader not to follow another for so long. The leader counts a
    /// tenth less, so clocks may differ in speed by up to 10 %; if one is worse, a read may be
    /// stale.
    For(Duration),
}

/// How a replica behaves. All replicas of a service should have the same, and must have the same
/// [`Recovery`] and [`Leases`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// What survives a crash.
    pub recovery: Recovery,
    /// WND: how many instances are under way at most, 1 to [`ALPHA`].
    pub window: u64,
    /// BSZ: a batch gets no longer than so many bytes, unless one request is.
    pub batch_bytes: usize,
    /// Δ_B: how long a batch waits to get full. Zero: what is there goes as soon as the window has
    /// room, which is fastest both at low and at high load.
    pub batch_delay: Duration,
    /// The longest request, in bytes.
    pub request_bytes_max: usize,
    /// So many bytes of requests wait in one replica at most; then clients are not read
    /// ([`crate::Paxos::is_full`]).
    pub queue_bytes_max: usize,
    /// τ: how often the leader says that it is alive, if it has nothing else to say.
    pub heartbeat: Duration,
    /// η: how long without a word of the leader before it is suspected; at least three times τ.
    pub suspect_after: Duration,
    /// After how long what was not answered is sent again.
    pub retransmit: Duration,
    /// Whether reads ask a majority.
    pub leases: Leases,
    /// What is done with requests at a follower.
    pub routing: Routing,
    /// How clients get their identities.
    pub client_ids: ClientIds,
    /// A log shorter than this is not worth a snapshot, in bytes.
    pub snapshot_bytes_min: usize,
    /// A snapshot is asked for when the log is so many times as long as the last snapshot, in
    /// percent.
    pub ask_percent: u64,
    /// As `ask_percent`, for a snapshot that is forced.
    pub force_percent: u64,
    /// The log gets no longer: requests are refused until the service makes a snapshot. In bytes.
    pub log_bytes_max: usize,
    /// The replies to so many clients are kept: those that were heard of last. A client beyond that
    /// is told that it is forgotten rather than served twice.
    pub clients_max: usize,
    /// State digests are compared every so many instances.
    pub digest_every: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            recovery: Recovery::FullSs,
            window: 10,
            batch_bytes: 64 << 10,
            batch_delay: Duration::ZERO,
            request_bytes_max: 1 << 20,
            queue_bytes_max: 16 << 20,
            heartbeat: Duration::from_millis(100),
            suspect_after: Duration::from_millis(500),
            retransmit: Duration::from_millis(200),
            leases: Leases::Off,
            routing: Routing::Redirect,
            client_ids: ClientIds::Time,
            snapshot_bytes_min: 4 << 20,
            ask_percent: 100,
            force_percent: 400,
            log_bytes_max: 256 << 20,
            clients_max: 100_000,
            digest_every: 256,
        }
    }
}

/// Why options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(String);

impl Options {
    /// Looks for contradictions.
    ///
    /// # Errors
    /// Names the first, and what to do about it.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: String| Err(OptionsError(text));
        if self.window == 0 || self.window > ALPHA {
            return wrong(format!("a window of {} instances: from 1 to {ALPHA}", self.window));
        }
        if self.request_bytes_max > 16 << 20 {
            return wrong(format!("requests of {} bytes: at most 16 MiB", self.request_bytes_max));
        }
        if self.batch_bytes > 16 << 20 {
            return wrong(format!("batches of {} bytes: at most 16 MiB", self.batch_bytes));
        }
        if self.heartbeat.is_zero() || self.suspect_after < self.heartbeat * 3 {
            let (suspect, heartbeat) = (self.suspect_after, self.heartbeat);
            return wrong(format!(
                "a leader suspected after {suspect:?} that speaks every {heartbeat:?}: at least three times"
            ));
        }
        if let Leases::For(span) = self.leases
            && (span > self.suspect_after || span < self.heartbeat * 2)
        {
            return wrong(format!(
                "a lease of {span:?}: from two heartbeats ({:?}) to {:?}, when the leader is suspected",
                self.heartbeat * 2,
                self.suspect_after
            ));
        }
        if self.recovery == Recovery::ViewSs && self.client_ids == ClientIds::Counted {
            return wrong(
                "counted client identities with view-ss: the count would be lost; take Time".into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_named() {
        let parsed = Recovery::ALL.map(|recovery| recovery.name().parse());
        assert_eq!(parsed, Recovery::ALL.map(Ok));
        let why = "memory".parse::<Recovery>().unwrap_err().to_string();
        assert_eq!(why, "there are crash-stop, full-ss, epoch-ss, view-ss");
    }

    #[test]
    fn contradictions_are_named() {
        assert_eq!(Options::default().validate(), Ok(()));
        let wrong = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.validate().unwrap_err().to_string()
        };
        assert!(wrong(|o| o.window = 0).contains("from 1 to 64"));
        assert!(wrong(|o| o.window = ALPHA + 1).contains("window of 65"));
        assert!(wrong(|o| o.request_bytes_max = 1 << 30).contains("16 MiB"));
        assert!(wrong(|o| o.heartbeat = Duration::from_secs(1)).contains("three times"));
        assert!(wrong(|o| o.leases = Leases::For(Duration::from_secs(9))).contains("lease of 9s"));
        let counted = |o: &mut Options| {
            (o.recovery, o.client_ids) = (Recovery::ViewSs, ClientIds::Counted);
        };
        assert!(wrong(counted).contains("take Time"));
    }
}
