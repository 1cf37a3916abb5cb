//! How the threads of a node's keys hear each other: each has an inbox that the others fill.

use meridian_hermes::{Epoch, reliable};
use meridian_keys::desk::passing::Passed;
use meridian_keys::slots::Shard;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What one thread says to another.
pub(super) enum Said {
    /// The desk to the desk.
    Desk(Passed),
    /// The membership to the replica of another shard.
    Membership(reliable::Output),
    /// A replica to the membership: it has everything.
    Complete(Epoch),
    /// The same: it is used.
    Used,
}

/// What wakes a thread.
type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inbox {
    said: Mutex<Vec<(Shard, Said)>>,
    wake: OnceLock<Wake>,
}

/// The inboxes of all threads. What one says to another arrives in order; all is bounded by what
/// clients may have under way.
#[derive(Default)]
pub(super) struct Exchange {
    inboxes: Vec<Inbox>,
}

impl Exchange {
    pub fn new(shards: usize) -> Exchange {
        Exchange { inboxes: (0..shards).map(|_| Inbox::default()).collect() }
    }

    /// This wakes the thread of that shard.
    pub fn open(&self, shard: Shard, wake: Wake) {
        let _ = self.inboxes[usize::from(shard.0)].wake.set(wake); // A thread starts once.
    }

    /// `from` says all that to `to`, in order.
    pub fn say(&self, from: Shard, to: Shard, all: &mut Vec<Said>) {
        let inbox = &self.inboxes[usize::from(to.0)];
        let mut said = inbox.said.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = said.is_empty();
        said.extend(all.drain(..).map(|one| (from, one)));
        drop(said);
        if was_empty && let Some(wake) = inbox.wake.get() {
            wake();
        }
    }

    /// What was said to a thread.
    pub fn take(&self, shard: Shard) -> Vec<(Shard, Said)> {
        let mut said =
            self.inboxes[usize::from(shard.0)].said.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *said)
    }
}
