//! What a replica has to do with blocks that no file names: see [`crate::space`].

use super::{Replica, Wish};
use crate::sessions;
use crate::update::Payload;
use meridian_core::{BlockId, MessageId, Stamp, Time};
use meridian_fs::{Partition, Timestamp, Update, Vector};
use meridian_multicast::{Role, Start};
use std::time::Duration;

/// In the name of the session in which a group raises its horizon.
const HORIZON_SESSION: u64 = 0x686f_7269_7a6f_0000;

impl Replica {
    /// The blocks that no file lies in any more, since this was asked last.
    pub fn take_released(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.released)
    }

    /// What a state that came from another has released is what it does not name any more.
    pub(super) fn replace_partition(&mut self, partition: Partition) {
        let before = std::mem::replace(&mut self.partition, partition);
        self.released.extend(self.partition.unnamed(before.names_blocks()));
    }

    /// The primary has the horizon raised to `window` ago, by its own clock, if that is far enough
    /// from where it is. What it says is ordered like all else.
    pub fn raise_horizon(&self, now: Time, window: Duration, out: &mut Vec<Wish>) {
        let now_ms = now.0 / 1_000_000;
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let horizon_ms = now_ms.saturating_sub(window_ms);
        // Not with each tick: it is a message, and an old block may wait.
        let is_due = horizon_ms >= self.partition.horizon_ms() + window_ms / 16;
        if is_due && horizon_ms > 0 && self.multicast.role() == Role::Primary {
            out.push(Wish::Multicast(self.horizon(horizon_ms)));
        }
    }

    /// Named after what is decided: said again it is the same message, until something has come of
    /// anything.
    fn horizon(&self, horizon_ms: u64) -> Start {
        let sequence = self.partition.vector().get(self.group).0 + 1;
        let update = Update::RaiseHorizon { partition: self.group, horizon_ms };
        let client = sessions::name(HORIZON_SESSION, &[self.group]);
        let id = MessageId { client, sequence };
        let mut vector = Vector::default();
        vector.raise(self.group, Stamp(sequence - 1));
        let payload = Payload::new(vector, Timestamp::default(), update);
        payload.into_start(id, sequence, &[self.group])
    }
}
