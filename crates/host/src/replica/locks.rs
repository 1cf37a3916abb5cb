//! Who waits for a lock: its question is kept here until the answer is another, and cycles of those
//! who wait for each other are ended.

use super::{Replica, Wish};
use crate::reads::Read;
use meridian_core::mix;
use meridian_fs::mutation::Mutation as InTree;
use meridian_fs::{Answer, Query, Standing, Update};
use meridian_multicast::Role;
use std::time::Duration;

/// How long a question for a lock stays here that is waited for. If this node stands still, so long
/// and the patience of the client it takes until another is asked.
pub const PARKED_MAX: Duration = Duration::from_secs(5);

/// In the name of the sessions in which a group ends cycles.
const UNTANGLE_SESSION: u64 = 0x756e_7461_6e67_6c65;

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

    /// The primary has a cycle ended that it sees. What it says is ordered like all else, and does
    /// nothing if the cycle is not there any more.
    pub(super) fn untangle(&mut self, out: &mut Vec<Wish>) {
        if self.multicast.role() != Role::Primary {
            self.untangling = None;
            return;
        }
        let Some(cycle) = self.partition.tangle() else { return };
        let update = Update::Untangle { partition: self.group, cycle };
        let start = self.said_once(mix(UNTANGLE_SESSION), self.untangling.as_ref(), update);
        self.untangling = Some(start.clone());
        out.push(Wish::Multicast(start));
    }

    /// With a bug planted in the tree.
    pub(crate) fn plant_in_tree(&mut self, mutation: InTree) {
        self.partition.plant(mutation);
    }
}
