//! `fcntl` locks: decided by the file's partition, for all clients.
//!
//! Before a lock is given back what was written under it is sent, so that the next holder sees it.

use crate::client::lock as hold;
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::{Files, Handle, OpenInode};
use meridian_fs::types::{Lock, LockFamily, LockOwner};
use meridian_fs::{Answer, Query, Update};
use std::sync::Arc;

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who asks: the kernel's name of a process's table of files, or of an open file.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// Whether others are shut out.
    pub exclusive: bool,
    /// The process that asks.
    pub pid: u32,
}

impl Files {
    /// A lock that stands in the way of `wanted`.
    ///
    /// # Errors
    /// If the partition does not answer.
    pub async fn lock_in_the_way(
        &self,
        handle: Handle,
        wanted: Wanted,
    ) -> Result<Option<Lock>, ClientError> {
        let inode = self.file(handle)?.inode.place;
        let lock = self.lock_of(wanted);
        match self.client.read(Query::LockInTheWay { inode, lock }).await? {
            Answer::Lock(lock) => Ok(lock),
            _ => Err(strange()),
        }
    }

    /// Takes a lock.
    ///
    /// # Errors
    /// [`meridian_fs::FsError::WouldBlock`] if another holds one.
    pub async fn lock(&self, handle: Handle, wanted: Wanted) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        {
            // Noted before it is held: if its answer is lost, it is given back all the same.
            let mut buffer = hold(&inode.buffer);
            if !buffer.lock_owners.contains(&wanted.owner) {
                buffer.lock_owners.push(wanted.owner);
            }
        }
        let update = Update::Lock { inode: inode.place, lock: self.lock_of(wanted) };
        self.client.update(&update).await.map(drop)
    }

    /// Gives a range back, if the owner took any lock of the file through this mount.
    ///
    /// # Errors
    /// If what was written cannot be stored, or the partition does not answer.
    pub async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        if !hold(&inode.buffer).lock_owners.contains(&owner) {
            return Ok(());
        }
        self.flush_inode(&inode, Some(handle)).await?;
        self.drop_lock(&inode, owner, start, end).await?;
        if start == 0 && end >= i64::MAX as u64 {
            hold(&inode.buffer).lock_owners.retain(|known| *known != owner);
        }
        Ok(())
    }

    pub(crate) async fn drop_lock(
        &self,
        inode: &Arc<OpenInode>,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Result<(), ClientError> {
        let owner = LockOwner { client: self.client.id(), owner };
        let family = LockFamily::Posix;
        let update = Update::Unlock { inode: inode.place, owner, family, start, end };
        self.client.update(&update).await.map(drop)
    }

    fn lock_of(&self, wanted: Wanted) -> Lock {
        let Wanted { owner, start, end, exclusive, pid } = wanted;
        let owner = LockOwner { client: self.client.id(), owner };
        Lock { owner, family: LockFamily::Posix, start, end, exclusive, pid }
    }
}
