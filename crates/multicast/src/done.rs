//! `D`: what was delivered, as long as it could be asked for again.
//!
//! A client says with each message below which number it waits for nothing more. What is below, and
//! no longer in `T`, is forgotten; when it comes again it is ignored.

use crate::message::Timestamp;
use meridian_core::{ClientId, MessageId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What was delivered to this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Done {
    clients: BTreeMap<ClientId, Finished>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Finished {
    low: u64,
    finals: BTreeMap<u64, Timestamp>,
    /// Those of `finals`, at or above `low`, that are no longer in `T`.
    truncated: BTreeSet<u64>,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Not delivered here.
    No,
    /// Delivered with this final timestamp.
    Delivered(Timestamp),
    /// It has ended: its client waits for it no more.
    Ended,
}

impl Done {
    /// What is known of `id`.
    pub fn known(&self, id: MessageId) -> Known {
        let Some(finished) = self.clients.get(&id.client) else { return Known::No };
        match finished.finals.get(&id.sequence) {
            Some(ts) => Known::Delivered(*ts),
            None if id.sequence < finished.low => Known::Ended,
            None => Known::No,
        }
    }

    /// `id` was delivered; its client waits for nothing below `low`.
    pub fn delivered(&mut self, id: MessageId, ts: Timestamp, low: u64) {
        let finished = self.clients.entry(id.client).or_default();
        finished.finals.insert(id.sequence, ts);
        if low > finished.low {
            finished.low = low;
            let kept = finished.truncated.split_off(&low);
            for sequence in std::mem::replace(&mut finished.truncated, kept) {
                finished.finals.remove(&sequence);
            }
        }
    }

    /// `id` is no longer in `T`.
    pub fn truncated(&mut self, id: MessageId) {
        if let Some(finished) = self.clients.get_mut(&id.client) {
            if id.sequence < finished.low {
                finished.finals.remove(&id.sequence);
            } else {
                finished.truncated.insert(id.sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_client_still_waits_for_is_remembered() {
        let id = |sequence| MessageId { client: ClientId(3), sequence };
        let mut done = Done::default();
        assert_eq!(done.known(id(1)), Known::No);
        done.delivered(id(1), Timestamp(4), 1);
        done.delivered(id(2), Timestamp(5), 1);
        done.truncated(id(1));
        assert_eq!(done.known(id(1)), Known::Delivered(Timestamp(4)));
        done.delivered(id(4), Timestamp(9), 3);
        assert_eq!(done.known(id(1)), Known::Ended);
        assert_eq!(done.known(id(2)), Known::Delivered(Timestamp(5)));
        assert_eq!(done.known(id(3)), Known::No);
        assert_eq!(done.known(id(4)), Known::Delivered(Timestamp(9)));
        done.truncated(id(2));
        done.truncated(id(4));
        assert_eq!(done.known(id(2)), Known::Ended);
        assert_eq!(done.known(id(4)), Known::Delivered(Timestamp(9)));
    }
}
