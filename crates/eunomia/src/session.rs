//! What a client has seen (Eunomia, Algorithm 1 and section 3.4.1).

use crate::timestamp::Seen;
use serde::{Deserialize, Serialize};

/// The session of a client. As a token it moves to another region, which must first have all that
/// it has seen: [`crate::receiver::Command::Await`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Session {
    seen: Seen,
}

impl Session {
    /// What its next update depends on.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// This came with what it has read, or with its update.
    pub fn saw(&mut self, seen: &Seen) {
        self.seen.join(seen);
    }

    /// What another region, or another session, can go on from.
    pub fn token(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("writing to memory")
    }

    /// The session that gave the token; `None` if it is none.
    pub fn from_token(token: &[u8]) -> Option<Session> {
        let (session, rest) = postcard::take_from_bytes(token).ok()?;
        rest.is_empty().then_some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::{Timestamp, Vector};
    use meridian_core::RegionId;

    #[test]
    fn a_token_is_the_session() {
        let (mut session, mut vector) = (Session::default(), Vector::default());
        vector[RegionId(3)] = Timestamp(1 << 60);
        session.saw(&Seen { vector, version: Timestamp(7) });
        session.saw(&Seen::default());
        let token = session.token();
        assert_eq!(Session::from_token(&token), Some(session));
        assert!(session.seen().vector.covers(&vector) && token.len() < 45);
        assert_eq!(Session::from_token(&token[1..]), None);
    }
}
