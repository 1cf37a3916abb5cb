//! What came of the updates, as nodes tell it: each has one outcome, whichever node tells it and
//! how often.
//!
//! Invariants:
//! - O1: what was told of an update is told again. One exception: a shard of sessions in which more
//!   was asked for than it remembers may call expired what has had another outcome (decision 18).

use meridian_core::{ClientId, MessageId};
use meridian_fs::{Done, FsError};
use meridian_host::sessions::{self, SHARD_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub struct Outcomes {
    told: BTreeMap<MessageId, Result<Done, FsError>>,
    /// The sessions in which clients have asked for something, by shard.
    sessions: BTreeMap<u64, BTreeSet<ClientId>>,
}

impl Outcomes {
    /// A client asks for an update of that name.
    pub fn ask(&mut self, id: MessageId) {
        self.sessions.entry(sessions::shard(id.client)).or_default().insert(id.client);
    }

    /// A node tells what came of an update.
    ///
    /// # Panics
    /// O1: if it was told differently.
    pub fn tell(&mut self, id: MessageId, result: &Result<Done, FsError>) {
        let first = self.told.entry(id).or_insert_with(|| result.clone());
        let same = match (&*first, result) {
            // Each partition tells the attributes that it has.
            (Ok(_), Ok(_)) => true,
            (first, again) if first == again => true,
            (Err(FsError::Expired), _) | (_, Err(FsError::Expired)) => {
                let sessions = self.sessions.get(&sessions::shard(id.client));
                may_forget(sessions.map_or(0, BTreeSet::len))
            }
            _ => false,
        };
        assert!(same, "O1: {id} had the outcome {first:?}, and now {result:?}");
    }

    /// The sessions of what was told of.
    pub fn sessions(&self) -> BTreeSet<ClientId> {
        self.told.keys().map(|id| id.client).collect()
    }

    /// How many messages were refused: cancelled, or perhaps repeats.
    pub fn refused(&self) -> usize {
        self.told.values().filter(|told| **told == Err(FsError::Expired)).count()
    }
}

/// Whether a shard of so many sessions may have forgotten one: each has an outcome, too.
fn may_forget(sessions: usize) -> bool {
    2 * sessions as u64 > SHARD_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::GroupId;

    const EXPIRED: Result<Done, FsError> = Err(FsError::Expired);

    /// The first update in a session of that number, all in one shard.
    fn id(number: u64) -> MessageId {
        let first = sessions::name(0, &[GroupId(1)]);
        MessageId { client: sessions::successor(number << 32, first), sequence: 1 }
    }

    fn asked(sessions: u64) -> Outcomes {
        let mut outcomes = Outcomes::default();
        (0..sessions).for_each(|number| outcomes.ask(id(number)));
        outcomes.tell(id(0), &Ok(Done::Nothing));
        outcomes
    }

    #[test]
    fn what_was_told_is_told_again_unless_its_shard_may_have_forgotten_it() {
        let mut outcomes = asked(SHARD_MAX / 2 + 1);
        [Ok(Done::Nothing), EXPIRED].iter().for_each(|told| outcomes.tell(id(0), told));
        assert_eq!(outcomes.refused(), 0);
        [EXPIRED, Ok(Done::Nothing)].iter().for_each(|told| outcomes.tell(id(1), told));
        assert_eq!((outcomes.refused(), outcomes.sessions().len()), (1, 2));
    }

    #[test]
    #[should_panic(expected = "O1")]
    fn what_a_shard_remembers_does_not_expire() {
        asked(SHARD_MAX / 2).tell(id(0), &EXPIRED);
    }

    #[test]
    #[should_panic(expected = "O1")]
    fn no_shard_tells_another_error() {
        asked(SHARD_MAX).tell(id(0), &Err(FsError::Invalid));
    }
}
