//! How a replica is.

use super::Replica;
use crate::api::{HeldUp, ReplicaStatus};
use meridian_core::Time;
use meridian_multicast::Role;

impl Replica {
    /// How it is.
    pub fn status(&self, now: Time) -> ReplicaStatus {
        let role = match self.multicast.role() {
            Role::Primary => "primary",
            Role::Follower => "follower",
            Role::Promised => "promised",
            Role::Candidate => "candidate",
        };
        let head = self.multicast.head_since().map(|since| now.since(since));
        ReplicaStatus {
            group: self.group,
            role: role.into(),
            epoch: self.multicast.epoch(),
            primary: self.multicast.epoch().leader,
            delivered: self.partition.delivered(),
            applied: self.partition.applied(),
            clock: self.multicast.clock(),
            pending: self.multicast.pending() as u64,
            head_age_ms: head.map_or(0, |age| age.as_millis().try_into().unwrap_or(u64::MAX)),
            held_up: self.held_up(),
            holdings: self.partition.holdings(),
            state_hash: self.partition.state_hash(),
        }
    }

    /// What was delivered first waits for votes, if anything does; else the head of the queue.
    fn held_up(&self) -> Option<HeldUp> {
        if let Some((message, by)) = self.partition.waiting().into_iter().next() {
            return Some(HeldUp { message, votes: true, by });
        }
        let (message, by) = self.multicast.head()?;
        Some(HeldUp { message, votes: false, by })
    }
}
