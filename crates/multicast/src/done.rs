//! `D`, as far as `T` does not hold it: what was delivered and could be asked for again.
//!
//! A client says with each message below which number it waits for nothing more. What is below, and
//! no longer in `T`, is forgotten; when it comes again it is ignored. Most have ended before they leave `T`, and never
//! come here.

use crate::message::Timestamp;
use meridian_core::{ClientId, MessageId, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was delivered to this process and is no longer in `T`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Done {
    clients: Table<ClientId, Finished>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Finished {
    low: u64,
    /// None below `low`.
    finals: BTreeMap<u64, Timestamp>,
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
    /// What is known of `id`, which is not in `T`.
    pub fn known(&self, id: MessageId) -> Known {
        match self.clients.get(&id.client) {
            Some(finished) if id.sequence < finished.low => Known::Ended,
            Some(finished) => {
                finished.finals.get(&id.sequence).map_or(Known::No, |ts| Known::Delivered(*ts))
            }
            None => Known::No,
        }
    }

    /// `client` waits for nothing below `low`.
    pub fn ended_below(&mut self, client: ClientId, low: u64) {
        let finished = self.clients.or_insert_with(client, Finished::default);
        if low > finished.low {
            finished.low = low;
            while let Some(first) = finished.finals.first_entry().filter(|at| *at.key() < low) {
                first.remove(); // One or two, mostly.
            }
        }
    }

    /// `id`, delivered with the final timestamp `ts`, is no longer in `T`.
    pub fn truncated(&mut self, id: MessageId, ts: Timestamp) {
        let finished = self.clients.or_insert_with(id.client, Finished::default);
        if id.sequence >= finished.low {
            finished.finals.insert(id.sequence, ts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_client_still_waits_for_is_remembered() {
        let client = ClientId(3);
        let id = |sequence| MessageId { client, sequence };
        let mut done = Done::default();
        assert_eq!(done.known(id(1)), Known::No);
        done.truncated(id(1), Timestamp(4));
        done.truncated(id(4), Timestamp(9));
        assert_eq!(done.known(id(1)), Known::Delivered(Timestamp(4)));
        done.ended_below(client, 3);
        done.ended_below(client, 2);
        assert_eq!(done.known(id(1)), Known::Ended);
        assert_eq!(done.known(id(2)), Known::Ended);
        assert_eq!(done.known(id(3)), Known::No);
        assert_eq!(done.known(id(4)), Known::Delivered(Timestamp(9)));
        done.truncated(id(2), Timestamp(5));
        assert_eq!(done.known(id(2)), Known::Ended);
    }
}
