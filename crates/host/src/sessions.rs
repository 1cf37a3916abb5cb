//! What was answered to whom, so that a message that is sent again is answered again, and not applied
//! again. Part of the replicated state: equal at all replicas that have decided the same messages,
//! whatever the order of those that commute: it consists of maxima and of sets.

use meridian_core::{ClientId, MessageId, Stamp};
use meridian_fs::{Done, FsError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What came of an update, and its timestamp.
pub type Outcome = (Stamp, Result<Done, FsError>);

/// For each client the outcomes that it may still ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sessions {
    clients: BTreeMap<ClientId, Session>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Session {
    low: u64,
    outcomes: BTreeMap<u64, Outcome>,
}

impl Sessions {
    /// The client waits for nothing below `low`.
    pub fn forget_below(&mut self, client: ClientId, low: u64) {
        let session = self.clients.entry(client).or_default();
        if low > session.low {
            session.low = low;
            session.outcomes = session.outcomes.split_off(&low);
        }
    }

    /// Whether the client has said that it does not wait for `id`, which may not be delivered here yet:
    /// another partition that it concerns has answered it.
    pub fn is_ended(&self, id: MessageId) -> bool {
        self.clients.get(&id.client).is_some_and(|session| id.sequence < session.low)
    }

    /// `id` was decided.
    pub fn decided(&mut self, id: MessageId, outcome: Outcome) {
        let session = self.clients.entry(id.client).or_default();
        if id.sequence >= session.low {
            session.outcomes.insert(id.sequence, outcome);
        }
    }

    /// What came of `id`, if it was decided and may still be asked for.
    pub fn outcome(&self, id: MessageId) -> Option<&Outcome> {
        self.clients.get(&id.client)?.outcomes.get(&id.sequence)
    }

    /// Whether `id`, which does not wait in the partition, was decided. Of one that is ended and not delivered yet
    /// this is wrong: see [`Sessions::is_ended`].
    pub fn is_decided(&self, id: MessageId) -> bool {
        let Some(session) = self.clients.get(&id.client) else { return false };
        id.sequence < session.low || session.outcomes.contains_key(&id.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Outcome = (Stamp(9), Ok(Done::Nothing));

    fn id(sequence: u64) -> MessageId {
        MessageId { client: ClientId(7), sequence }
    }

    #[test]
    fn an_outcome_is_kept_as_long_as_its_client_may_ask() {
        let mut sessions = Sessions::default();
        let refused = (Stamp(8), Err(FsError::Exists));
        sessions.decided(id(1), DONE);
        sessions.decided(id(2), refused.clone());
        assert_eq!(sessions.outcome(id(2)), Some(&refused));
        assert!(!sessions.is_decided(id(3)));
        sessions.forget_below(ClientId(7), 2);
        assert_eq!(sessions.outcome(id(1)), None);
        assert!(sessions.is_decided(id(1)) && sessions.is_decided(id(2)));
        sessions.decided(id(1), DONE);
        assert_eq!(sessions.outcome(id(1)), None, "too late to be asked for");
    }

    /// All that is told of a client's messages, in each order.
    #[test]
    fn sessions_do_not_depend_on_the_order() {
        let told = [(1, 1), (2, 1), (3, 2), (4, 4), (5, 3)];
        let orders = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 4, 1, 2], [1, 4, 2, 0, 3]];
        let after = orders.map(|order| {
            let mut sessions = Sessions::default();
            for at in order {
                let (sequence, low) = told[at];
                sessions.forget_below(ClientId(7), low);
                let outcome = (Stamp(sequence * 2), Ok(Done::Nothing));
                sessions.decided(id(sequence), outcome);
            }
            sessions
        });
        assert!(after.iter().all(|sessions| *sessions == after[0]), "{after:?}");
        assert!(after[0].outcome(id(4)).is_some() && after[0].outcome(id(3)).is_none());
    }
}
