//! `D`, as far as `T` does not hold it: what was delivered and could be asked for again.
//!
//! A client says with each message below which number it waits for nothing more. What is below, and
//! no longer in `T`, is forgotten; when it comes again it is ignored. Most have ended before they
//! leave `T`, and never come here.
//!
//! Of clients that were heard of long ago all is forgotten. What such a client multicasts is new to
//! this process, also if it is a repeat: the owner refuses those, since it alone can tell when a
//! message was named.

use crate::message::Timestamp;
use meridian_core::{ClientId, MessageId, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A client is remembered until so many others, or up to twice as many, were heard of since: more
/// than are in use at a time, and some megabytes.
pub const CLIENTS_AT_LEAST: usize = 1 << 15;

/// What was delivered to this process and is no longer in `T`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Done {
    /// Clients heard of lately.
    young: Table<ClientId, Finished>,
    /// Clients heard of before that; each of them is in one of the two.
    old: Table<ClientId, Finished>,
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
    /// Of how many clients something is remembered.
    pub fn clients(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// What is remembered of `client`, which is heard of now.
    fn heard(&mut self, client: ClientId) -> &mut Finished {
        if self.young.len() >= CLIENTS_AT_LEAST && !self.young.contains(&client) {
            let old = std::mem::take(&mut self.young);
            let before = std::mem::replace(&mut self.old, old);
            if let Some(known) = before.get(&client) {
                self.old.insert(client, known.clone());
            }
        }
        let Done { young, old } = self;
        young.or_insert_with(client, || old.remove(&client).unwrap_or_default())
    }

    /// What is known of `id`, which is not in `T`.
    pub fn known(&self, id: MessageId) -> Known {
        match self.young.get(&id.client).or_else(|| self.old.get(&id.client)) {
            Some(finished) if id.sequence < finished.low => Known::Ended,
            Some(finished) => {
                finished.finals.get(&id.sequence).map_or(Known::No, |ts| Known::Delivered(*ts))
            }
            None => Known::No,
        }
    }

    /// `client` waits for nothing below `low`.
    pub fn ended_below(&mut self, client: ClientId, low: u64) {
        let finished = self.heard(client);
        if low > finished.low {
            finished.low = low;
            while let Some(first) = finished.finals.first_entry().filter(|at| *at.key() < low) {
                first.remove(); // One or two, mostly.
            }
        }
    }

    /// Takes over what another process remembers.
    pub fn merge(&mut self, other: Done) {
        for theirs in [other.old, other.young] {
            self.young.merge(theirs, |ours, theirs| {
                ours.low = ours.low.max(theirs.low);
                ours.finals.extend(theirs.finals);
                ours.finals = ours.finals.split_off(&ours.low);
            });
        }
    }

    /// `id`, delivered with the final timestamp `ts`, is no longer in `T`.
    pub fn truncated(&mut self, id: MessageId, ts: Timestamp) {
        let finished = self.heard(id.client);
        if id.sequence >= finished.low {
            finished.finals.insert(id.sequence, ts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each mount and each lease that expires is a client.
    #[test]
    fn clients_heard_of_long_ago_are_forgotten_and_no_other() {
        let id = |client, sequence| MessageId { client: ClientId(client), sequence };
        let mut done = Done::default();
        done.truncated(id(0, 7), Timestamp(1));
        for client in 1..=200_000 {
            done.ended_below(ClientId(client), 2);
            if client % 10_000 == 0 {
                done.ended_below(ClientId(0), 5);
            }
            assert!(done.clients() <= 2 * CLIENTS_AT_LEAST + 1, "{}", done.clients());
        }
        assert_eq!(done.known(id(0, 7)), Known::Delivered(Timestamp(1)), "it was in use");
        assert_eq!(done.known(id(0, 4)), Known::Ended);
        assert_eq!((done.known(id(200_000, 1)), done.known(id(1, 1))), (Known::Ended, Known::No));
    }

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

    #[test]
    fn what_two_remember_is_put_together() {
        let id = |client, sequence| MessageId { client: ClientId(client), sequence };
        let (mut a, mut b) = (Done::default(), Done::default());
        [1, 5].iter().for_each(|n| a.truncated(id(3, *n), Timestamp(*n)));
        [(3, 6), (4, 1)].iter().for_each(|(client, n)| b.truncated(id(*client, *n), Timestamp(*n)));
        b.ended_below(ClientId(3), 2);
        a.merge(b);
        assert_eq!(a.known(id(3, 1)), Known::Ended);
        let known = [(3, 5), (3, 6), (4, 1)].map(|(client, n)| (a.known(id(client, n)), n));
        assert!(known.iter().all(|(known, n)| *known == Known::Delivered(Timestamp(*n))));
        assert_eq!((a.known(id(3, 7)), a.known(id(4, 2))), (Known::No, Known::No));
    }
}
