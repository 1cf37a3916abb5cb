//! Cycles of programs that wait for each other's locks, of which one waits here: looked for in all
//! partitions, and ended by those in which it is ([`meridian_session::deadlocks`]).

use super::{Files, lock};
use crate::error::ClientError;
use crate::files::locks::Wanted;
use meridian_fs::types::LockFamily;
use meridian_fs::{Answer, FsError};
use std::sync::Arc;
use std::time::Duration;

/// How long a partition is waited for that may know who waits: what is found without it is
/// something, too.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// While it exists, a program waits that may be in a cycle.
pub(crate) struct Watch<'a>(&'a Files);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        lock(&self.0.deadlocks).end();
    }
}

impl Files {
    /// A program waits for `wanted`: a cycle is looked for if it is one of `fcntl`'s.
    pub(crate) fn watch(&self, wanted: Wanted) -> Option<Watch<'_>> {
        (wanted.owner.family == LockFamily::Posix).then(|| {
            lock(&self.deadlocks).begin(self.client.time());
            Watch(self)
        })
    }

    /// Asks the partitions who waits, if it is time to.
    pub(crate) fn look_for_deadlocks(self: &Arc<Self>) {
        let partitions = self.client.topology().group_ids();
        for query in lock(&self.deadlocks).due(self.client.time(), partitions) {
            let files = self.clone();
            tokio::spawn(async move {
                let partition = query.partition();
                let waits = match files.client.read_within(query, LOOK_LIMIT).await {
                    Ok((Answer::Waits(waits), _)) => Some(waits),
                    Ok(_) | Err(_) => None, // Seen with the next look.
                };
                let now = files.client.time();
                let found = lock(&files.deadlocks).answered(partition, waits, now);
                let Some(update) = found else { return };
                match files.client.update(&update).await {
                    Ok(_) => tracing::info!("a cycle of programs that wait for locks is ended"),
                    Err(ClientError::Fs(FsError::Stale)) => {} // It was not there, or is no more.
                    Err(error) => files.client.warn(partition, "a cycle of locks stays", &error),
                }
            });
        }
    }
}
