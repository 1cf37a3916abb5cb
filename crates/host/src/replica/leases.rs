//! What a primary waits for by its own clock: that leases run out.
//!
//! It counts its ticks, each for no more than one and a half of one. So a clock that jumps ahead,
//! or a pause of the process, ends nothing early; a clock that goes back only delays.

use super::{EXPIRED_MAX, LEASE, Replica, Wish};
use crate::update::{Payload, expiry_session};
use meridian_core::{ClientId, MessageId, Stamp, Time};
use meridian_fs::types::Rank;
use meridian_fs::{Timestamp, Update, Vector};
use meridian_multicast::{Role, Start};
use std::collections::BTreeMap;
use std::time::Duration;

/// For so much a tick counts at most: one and a half of it (`crate::node`).
const TICK_MAX: Duration = Duration::from_millis(187);

/// How much time counts that has passed since the tick before.
pub(super) fn counted(before: Time, now: Time) -> Duration {
    now.since(before).min(TICK_MAX)
}

/// For how long each of some things has been there unchanged, in counted time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Vigil<K, V> {
    seen: BTreeMap<K, (V, Duration)>,
    /// Counted since the last look.
    passed: Duration,
}

impl<K, V> Default for Vigil<K, V> {
    fn default() -> Self {
        Vigil { seen: BTreeMap::new(), passed: Duration::ZERO }
    }
}

impl<K: Copy + Ord, V: Copy + PartialEq> Vigil<K, V> {
    /// Nothing was seen.
    pub fn clear(&mut self) {
        *self = Vigil::default();
    }

    /// Whether nothing was there at the last look.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// So much time counts; whether that makes `every` since the last look, so that it is time for
    /// the next.
    pub fn is_due(&mut self, counted: Duration, every: Duration) -> bool {
        self.passed += counted;
        self.passed >= every
    }

    /// These are there now. Returns those that have been so, each as it is, for as long as `limit`.
    pub fn look(&mut self, there: impl Iterator<Item = (K, V)>, limit: Duration) -> Vec<(K, V)> {
        let passed = std::mem::take(&mut self.passed);
        let before = std::mem::take(&mut self.seen);
        let mut old = Vec::new();
        for (key, value) in there {
            let same = before.get(&key).filter(|(seen, _)| *seen == value);
            // What was before the look that found it does not count.
            let lasted = same.map_or(Duration::ZERO, |(_, lasted)| *lasted + passed);
            self.seen.insert(key, (value, lasted));
            if lasted >= limit {
                old.push((key, value));
            }
        }
        old
    }
}

impl Replica {
    /// What the primary finds is ordered like all else, and undone if the client renewed before. It
    /// says so until the lease has ended.
    pub(super) fn expire_leases(&mut self, counted: Duration, out: &mut Vec<Wish>) {
        if self.multicast.role() != Role::Primary {
            return self.leases.clear();
        }
        if !self.leases.is_due(counted, LEASE / 10) {
            return;
        }
        for (client, renewed) in self.leases.look(self.partition.leases(), LEASE) {
            out.push(Wish::Multicast(self.expiry(client, renewed)));
        }
    }

    /// Named after the client and what is decided: said again it is the same message, until
    /// something has come of anything.
    fn expiry(&self, client: ClientId, renewed: Rank) -> Start {
        let sequence = self.partition.vector().get(self.group).0 + 1;
        let inodes = self.partition.held_by(client).take(EXPIRED_MAX).collect();
        let update = Update::Expire { client, partition: self.group, renewed, inodes };
        let id = MessageId { client: expiry_session(client, sequence, self.group), sequence };
        let mut vector = Vector::default();
        vector.raise(self.group, Stamp(sequence - 1));
        let payload = Payload::new(vector, Timestamp::default(), update);
        payload.into_start(id, sequence, &[self.group])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_has_changed_begins_anew() {
        let mut vigil = Vigil::default();
        let mut look = |value| {
            assert!(vigil.is_due(SECOND, SECOND));
            vigil.look([(5, value)].into_iter(), 2 * SECOND)
        };
        assert_eq!(look('a'), [], "what was before the first look does not count");
        assert_eq!(look('a'), []);
        assert_eq!(look('a'), [(5, 'a')]);
        assert_eq!(look('b'), []);
        assert_eq!(look('b'), []);
        assert_eq!(look('b'), [(5, 'b')]);
    }

    #[test]
    fn a_clock_that_jumps_counts_as_a_tick() {
        assert_eq!(counted(Time(0), Time(3_600_000_000_000)), TICK_MAX);
        assert_eq!(counted(Time(9), Time(5)), Duration::ZERO);
        assert_eq!(counted(Time(0), Time(125_000_000)), Duration::from_millis(125));
    }
}
