//! Who waits for a lock: its question is kept here until the answer is another.

use super::Replica;
use crate::reads::Read;
use meridian_fs::mutation::Mutation as InTree;
use meridian_fs::{Answer, Query, Standing};
use std::time::Duration;

/// How long a question for a lock stays here that is waited for. If this node stands still, so long
/// and the patience of the client it takes until another is asked.
pub const PARKED_MAX: Duration = Duration::from_secs(5);

impl Replica {
    /// Whether a question is to wait, as the answer is that its lock is waited for. What changes
    /// that touches the inode, and so has the question looked at again.
    pub(super) fn is_parked(&self, read: &Read) -> bool {
        matches!(read.query, Query::Awaited { .. })
            && self.ticked.since(read.since) < PARKED_MAX
            && matches!(
                self.partition.read(&read.query),
                Ok(Answer::Awaited(stand)) if stand.lock == Standing::Waits
            )
    }

    /// With a bug planted in the tree.
    pub(crate) fn plant_in_tree(&mut self, mutation: InTree) {
        self.partition.plant(mutation);
    }
}
