//! What was answered to whom, so that a message that is sent again is answered again, and not applied
//! again. Part of the replicated state: equal at all replicas that have applied the same.

use meridian_core::{ClientId, MessageId, Position};
use meridian_fs::{Done, FsError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What came of an update.
pub type Outcome = Result<Done, FsError>;

/// For each client the outcomes that it may still ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sessions {
    clients: BTreeMap<ClientId, Session>,
    /// Where those stand that were delivered and are not decided.
    undecided: BTreeMap<MessageId, Position>,
    /// The greatest position of a message that was decided. While an earlier one waits for votes it is
    /// beyond what the partition calls applied; who saw that state has seen up to here.
    seen: Position,
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

    /// `id` was delivered as the message at `position`.
    pub fn delivered(&mut self, id: MessageId, position: Position) {
        self.undecided.insert(id, position);
    }

    /// The position up to which something of the state can be seen.
    pub fn seen(&self) -> Position {
        self.seen
    }

    /// `id` was decided.
    pub fn decided(&mut self, id: MessageId, outcome: Outcome) {
        let position = self.undecided.remove(&id).unwrap_or_default();
        self.seen = position.max(self.seen);
        let session = self.clients.entry(id.client).or_default();
        if id.sequence >= session.low {
            session.outcomes.insert(id.sequence, outcome);
        }
    }

    /// What came of `id`, if it was decided and may still be asked for.
    pub fn outcome(&self, id: MessageId) -> Option<&Outcome> {
        self.clients.get(&id.client)?.outcomes.get(&id.sequence)
    }

    /// Whether `id` was decided here: what concerns it now comes too late. One that waits for votes was
    /// not, even if its client was answered elsewhere and waits for it no more.
    pub fn is_decided(&self, id: MessageId) -> bool {
        if self.undecided.contains_key(&id) {
            return false;
        }
        let Some(session) = self.clients.get(&id.client) else { return false };
        id.sequence < session.low || session.outcomes.contains_key(&id.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client saw must not vanish at another replica: the position that it is told counts all
    /// that was decided, also beyond one that waits.
    #[test]
    fn what_can_be_seen_is_counted_beyond_one_that_waits() {
        let id = |sequence| MessageId { client: ClientId(7), sequence };
        let mut sessions = Sessions::default();
        sessions.delivered(id(1), Position(1));
        sessions.delivered(id(2), Position(2));
        sessions.decided(id(2), Ok(Done::Nothing));
        assert_eq!(sessions.seen(), Position(2));
        sessions.forget_below(ClientId(7), 3);
        assert!(sessions.is_decided(id(2)) && !sessions.is_decided(id(1)));
        sessions.decided(id(1), Ok(Done::Nothing));
        assert_eq!(sessions.seen(), Position(2));
    }

    #[test]
    fn an_outcome_is_kept_as_long_as_its_client_may_ask() {
        let id = |sequence| MessageId { client: ClientId(7), sequence };
        let mut sessions = Sessions::default();
        sessions.decided(id(1), Ok(Done::Nothing));
        sessions.decided(id(2), Err(FsError::Exists));
        assert_eq!(sessions.outcome(id(2)), Some(&Err(FsError::Exists)));
        assert!(!sessions.is_decided(id(3)));
        sessions.forget_below(ClientId(7), 2);
        assert_eq!(sessions.outcome(id(1)), None);
        assert!(sessions.is_decided(id(1)) && sessions.is_decided(id(2)));
        sessions.decided(id(1), Ok(Done::Nothing));
        assert_eq!(sessions.outcome(id(1)), None, "too late to be asked for");
    }
}
