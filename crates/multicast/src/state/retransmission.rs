//! When what was repeated last.

use crate::message::Start;
use crate::options::Dissemination;
use meridian_core::{MessageId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a process looks whether something is due.
pub(crate) const TICK: Duration = Duration::from_millis(125);

/// What a timer of a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// To look whether something is due: heartbeats, repeats, elections.
    Tick,
    /// To acknowledge, as a follower, what was not to be acknowledged promptly.
    Acknowledge,
    /// To tell other groups which messages are stable.
    Stability,
    /// To show the hybrid clock to partners.
    Clock,
}

/// After how long of silence the primary shows its clock again.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(250);

/// After how long what seems lost is asked for again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// How many stuck messages are asked about at a time, and about how many bytes of them are sent:
/// the first ones hold up all others. When a primary dies, thousands may be stuck that were on
/// their way to it.
pub(crate) const STUCK_AT_ONCE: usize = 1024;
pub(crate) const STUCK_BYTES: usize = 4 << 20;

/// When what was done last, and what is to be said again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Retransmission {
    /// When it is looked next whether something is due.
    pub tick_at: Time,
    /// When the clock was last shown, seen at the first tick after it.
    pub shown_at: Option<Time>,
    /// When missing entries were last asked for.
    pub asked: Option<Time>,
    /// When the stuck were last asked about.
    pub stuck_at: Time,
    /// When deliveries were last told to the others.
    pub stable_at: Time,
    /// What we multicast to other groups only, and when it was sent last.
    pub sent: BTreeMap<MessageId, (Arc<Start>, Time)>,
    /// With so many deliveries unreported, they are reported.
    pub report_at: usize,
    /// How many bytes of messages others were given that asked for them, since the stuck were last
    /// asked about.
    pub given: usize,
}

impl Default for Retransmission {
    fn default() -> Retransmission {
        Retransmission {
            tick_at: Time(0),
            shown_at: None,
            asked: None,
            stuck_at: Time(0),
            stable_at: Time(0),
            sent: BTreeMap::new(),
            report_at: Dissemination::AllToAll.report_after(),
            given: 0,
        }
    }
}
