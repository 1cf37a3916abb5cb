//! Whom a replica suspects, and whom it has promised a lease.
//!
//! `detector.rs` beside this folder has the handlers.

use crate::options::{Leases, Options};
use meridian_core::{NodeId, Time};
use std::collections::BTreeSet;

/// Whom a replica suspects, and whom it has promised a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Detector {
    /// When the leader was last heard; `None` if not since the start, or if he is known to be none.
    pub heard: Option<Time>,
    /// Nobody is suspected that was given less time than since then.
    pub since: Time,
    /// When this replica, as leader, last spoke to all.
    pub spoke: Time,
    /// Counts the questions of [`Message::PreVote`], and when the last was asked.
    pub round: u64,
    pub asked: Option<Time>,
    pub votes: BTreeSet<NodeId>,
    /// No other leader is promised before.
    pub lease_until: Time,
}

impl Detector {
    /// The replica starts; `promised` if it may have promised a lease before and not remember.
    pub fn start(&mut self, now: Time, promised: bool, options: &Options) {
        self.since = now;
        if let (Leases::For(span), true) = (options.leases, promised) {
            self.lease_until = now + span;
        }
    }

    pub fn heard(&mut self, now: Time) {
        self.heard = Some(now);
        self.since = now;
        self.votes.clear();
    }

    pub fn waits_since(&mut self, now: Time) {
        self.since = now;
        self.votes.clear();
    }

    /// The leader is known to be none.
    pub fn suspect(&mut self) {
        self.heard = None;
        self.since = Time(0);
    }
}
