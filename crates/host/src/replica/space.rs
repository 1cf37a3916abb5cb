//! What a replica has to do with blocks that no file names: see [`crate::space`].

use super::{Replica, Wish};
use crate::sessions;
use crate::update::Payload;
use meridian_core::{BlockId, MessageId, Time};
use meridian_fs::blocks::SHARDS;
use meridian_fs::{Partition, Timestamp, Update, Vector};
use meridian_multicast::{Role, Start};
use std::time::Duration;

/// In the name of the session in which a group raises its horizon.
const HORIZON_SESSION: u64 = 0x686f_7269_7a6f_0000;

/// A horizon is raised so often within the time for which a name may wait.
const STEPS: u64 = 4;

impl Replica {
    /// The blocks that no file lies in any more, since this was asked last.
    pub fn take_released(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.released)
    }

    /// What a state that came from another has released is what it does not name any more.
    pub(super) fn replace_partition(&mut self, partition: Partition) {
        let before = std::mem::replace(&mut self.partition, partition);
        self.partition.plant(before.planted());
        self.snapshots.lose(); // What was delivered meanwhile is not known.
        self.released.extend(self.partition.unnamed(before.names_blocks()));
    }

    /// The primary has the horizons raised to `window` ago, by its own clock, those that are far
    /// enough from there. What it says is ordered like all else.
    pub fn raise_horizon(&self, now: Time, window: Duration, out: &mut Vec<Wish>) {
        if self.multicast.role() != Role::Primary {
            return;
        }
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        // Not with each tick: it is a message for each shard, and an old block may wait.
        let step = (window_ms / STEPS).max(1);
        let steps = (now.0 / 1_000_000).saturating_sub(window_ms) / step;
        for shard in (0..SHARDS).filter(|shard| self.partition.horizon_ms(*shard) < steps * step) {
            out.push(Wish::Multicast(self.horizon(shard, steps, step)));
        }
    }

    /// Named after the horizon: said again it is the same message. One that waits in its shard for
    /// another region is followed by few.
    fn horizon(&self, shard: u8, steps: u64, step: u64) -> Start {
        let update = Update::RaiseHorizon { partition: self.group, horizon_ms: steps * step };
        let client = sessions::in_shard(HORIZON_SESSION, shard, &[self.group]);
        let id = MessageId { client, sequence: steps };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        payload.into_start(id, steps, &[self.group])
    }
}
