//! Locks that were lost: the lease of this client ran out, as it was stopped or cut off for too
//! long, and others may have had them since.
//!
//! What is written while locks are held names the tenure in which that is
//! ([`meridian_fs::Stand`]), and the partition refuses it if that has ended. So nothing that was
//! written under a lost lock lands, whenever this client learns of it: by that refusal, by the
//! answer to another lock, or as it looks after a renewal that came late.
//!
//! Invariant K4: through an open file by which a lock was taken that was lost nothing is written
//! any more, and no lock is taken, until it is closed: `EIO`.

use crate::client::lock as hold;
use crate::error::ClientError;
use crate::files::locks::{Owner, Wanted};
use crate::files::{Files, Handle, OpenInode};
use meridian_core::{GroupId, Stamp};
use meridian_fs::{Answer, FsError, Query, Stand, Under};
use meridian_host::replica::LEASE;
use std::sync::Arc;
use std::time::Instant;

impl Files {
    /// The file that is open under that number, unless a lock was lost that was taken through it.
    pub(crate) fn intact(&self, handle: Handle) -> Result<Arc<OpenInode>, ClientError> {
        let inode = self.file(handle)?.inode;
        let lost = hold(&inode.buffer).lost.contains(&handle);
        if lost { Err(FsError::LockLost.into()) } else { Ok(inode) }
    }

    /// What the partition must find for what is written now to count.
    pub(crate) fn under(&self, inode: &OpenInode) -> Option<Under> {
        let since = hold(&inode.buffer).tenure?;
        Some(Under { client: self.client.id(), since })
    }

    /// The answer to a lock or unlock of the file, of which one is under way at a time: tells
    /// whether locks were lost before. Those of `fresh` were not, whose first lock it was.
    pub(crate) fn on_stand(&self, inode: &OpenInode, stand: Stand, fresh: Option<Owner>) {
        let believed = hold(&inode.buffer).tenure;
        if believed.is_some() && believed != stand.before {
            self.lose(inode, fresh);
        }
        let mut buffer = hold(&inode.buffer);
        buffer.tenure = stand.since;
        if stand.since.is_none() {
            buffer.holders.clear();
        }
    }

    /// The locks of all but one owner were lost.
    fn lose(&self, inode: &OpenInode, kept: Option<Owner>) {
        let count = self.change_buffer(inode, |buffer| {
            buffer.lost_tenure = buffer.tenure.take();
            let handles = buffer.holders.lose(kept);
            buffer.lost.extend(&handles);
            buffer.writes.lose(FsError::LockLost.into());
            handles.len()
        });
        tracing::warn!(
            "locks of inode {:#x} were lost, as its partition had not heard of this mount for {} s: \
             {count} open files of it fail from now on, and what was written under the locks and \
             not yet stored is dropped",
            inode.place.ino.0,
            LEASE.as_secs()
        );
    }

    /// What was written in a tenure is refused: whether that was lost, or ended as it should.
    pub(crate) async fn was_lost(&self, inode: &OpenInode, under: Option<Under>) -> bool {
        let _turn = inode.locking.lock().await; // A lock or unlock may be about to tell.
        let Some(since) = under.map(|under| under.since) else { return false };
        let current = hold(&inode.buffer).tenure == Some(since);
        if current {
            self.lose(inode, None);
        }
        current || hold(&inode.buffer).lost_tenure == Some(since)
    }

    /// A renewal that was sent then has reached the partition. If the one before was too long ago,
    /// locks may have been lost.
    pub(crate) async fn on_renewed(&self, partition: GroupId, sent: Instant) {
        let before = hold(&self.renewed).insert(partition, sent);
        if before.is_some_and(|before| before.elapsed() <= LEASE * 7 / 8) {
            return;
        }
        let inodes: Vec<_> = hold(&self.inodes).values().cloned().collect();
        for inode in inodes.iter().filter(|inode| inode.place.partition == partition) {
            if hold(&inode.buffer).tenure.is_some()
                && let Err(error) = self.look_at_tenure(inode).await
            {
                // Nothing lands all the same.
                tracing::warn!("cannot see whether locks were lost: {error}");
            }
        }
    }

    async fn look_at_tenure(&self, inode: &Arc<OpenInode>) -> Result<(), ClientError> {
        let _turn = self.turn(inode).await?;
        let Some(since) = hold(&inode.buffer).tenure else { return Ok(()) };
        // Only the tenure of the client is looked at.
        let owner = Owner::process(0);
        let any = self.lock_of(Wanted { owner, start: 0, end: 0, exclusive: false, pid: 0 });
        let query = Query::Awaited { inode: inode.place, lock: any, ticket: NOBODY };
        if let Answer::Awaited(stand) = self.client.read(query).await?
            && stand.since != Some(since)
        {
            self.lose(inode, None);
        }
        Ok(())
    }
}

/// A name under which nobody waits.
const NOBODY: u64 = u64::MAX;

/// Since which message a client holds or awaits locks of an inode.
pub(crate) type Tenure = Option<Stamp>;
