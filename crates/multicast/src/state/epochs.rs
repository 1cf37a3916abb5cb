//! The epochs of a process, its failure detector, and the state of an epoch change.

use crate::message::{Entry, Epoch, Progress, Timestamp};
use meridian_core::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long without a word of the primary before a process stands for primary. Heartbeats come four
/// times a second; a busy machine or a slow link must not look like a dead one.
pub const ELECTION_TIMEOUT: Duration = Duration::from_millis(1500);

/// How much longer each next process waits, in the order of the group after the primary: so that
/// one stands at a time.
pub(crate) const STAGGER: Duration = Duration::from_millis(400);

/// The thesis's `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Proposes timestamps for its group.
    Primary,
    /// Follows the primary of `E_cur`.
    Follower,
    /// Has promised to `E_prom`, or has restarted: waits to learn that its epoch stands.
    Promised,
    /// Opens the epoch `E_prom`.
    Candidate,
}

/// The epochs, the failure detector, and the state of an epoch change.
///
/// Invariant P1: `cur <= prom`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Epochs {
    /// `E_cur`.
    pub cur: Epoch,
    /// `E_prom`.
    pub prom: Epoch,
    /// The thesis's `state`.
    pub role: Role,
    /// When the leader of `E_prom` was last heard of, acting as such.
    pub heard: Time,
    /// When each member was last heard of.
    pub alive: BTreeMap<NodeId, Time>,
    /// Who misses the leader of that epoch too, and when we asked.
    pub suspects: Option<(Epoch, Time, BTreeSet<NodeId>)>,
    /// The highest epoch that each member is known to have accepted.
    pub accepts: BTreeMap<NodeId, Epoch>,
    /// As candidate: since when, what was promised until a `T` is chosen, and whom we fetch from.
    pub since: Time,
    pub promises: BTreeMap<NodeId, (Timestamp, Progress)>,
    pub chosen: bool,
    /// From which index.
    pub fetching: Option<(NodeId, u64)>,
    /// The parts of a `T` that have arrived: from the most advanced promiser, or NEW-STATE.
    pub incoming: Option<IncomingState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IncomingState {
    pub epoch: Epoch,
    pub start: u64,
    pub entries: Vec<Entry>,
}

impl Epochs {
    /// Of a process that has been in no epoch; `first` is before the first one.
    pub fn new(first: Epoch) -> Epochs {
        Epochs {
            cur: first,
            prom: first,
            role: Role::Promised,
            heard: Time(0),
            alive: BTreeMap::new(),
            suspects: None,
            accepts: BTreeMap::new(),
            since: Time(0),
            promises: BTreeMap::new(),
            chosen: false,
            fetching: None,
            incoming: None,
        }
    }

    /// Whether the process acts as primary or follower.
    pub fn stands(&self) -> bool {
        matches!(self.role, Role::Primary | Role::Follower)
    }

    pub fn accepted(&mut self, node: NodeId, epoch: Epoch) {
        let known = self.accepts.entry(node).or_insert(epoch);
        *known = epoch.max(*known);
    }

    /// What `node` said does not count any more.
    pub fn forget(&mut self, node: NodeId) {
        self.accepts.remove(&node);
        self.promises.remove(&node);
        if let Some((_, _, who)) = &mut self.suspects {
            who.remove(&node);
        }
    }

    pub fn reset(&mut self, now: Time) {
        self.heard = now;
        self.suspects = None;
        self.promises.clear();
        self.chosen = false;
        self.fetching = None;
        self.incoming = None;
    }
}
