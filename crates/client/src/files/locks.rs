//! `fcntl` and `flock` locks: decided by the file's partition, for all clients.
//!
//! The kernel names the owner of a lock after an address, which the next open file may get while
//! the close of the last one is still on its way here. So a mount notes through which open files an
//! owner took its locks, and these go with the last of those files, not with the owner's name.
//!
//! Invariants:
//! - K1: of one file a mount has one lock or unlock under way at a time.
//! - K2: an owner takes no lock before all that it left behind by closing is given back.
//! - K3: an owner is noted as long as it may hold a lock.
//!
//! Before a lock is given back what was written under it is sent, so that the next holder sees it.
//! How a lock is waited for is in [`super::waiting`], what becomes of one that was lost in
//! [`super::tenure`].

use crate::client::lock as hold;
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::{Files, Handle, OpenInode};
use meridian_fs::types::{Lock, LockFamily, LockOwner};
use meridian_fs::{Answer, Done, Query, Stand, Standing, Update};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::MutexGuard;

/// Who asks for locks, as the kernel names it. Locks of the two families do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// `fcntl` or `flock`.
    pub family: LockFamily,
    /// Stands for a process's table of files (`fcntl`), or for an open file.
    pub number: u64,
}

impl Owner {
    /// A process, which takes locks by `fcntl`.
    pub fn process(number: u64) -> Owner {
        Owner { family: LockFamily::Posix, number }
    }

    /// An open file, which takes locks by `flock`.
    pub fn open_file(number: u64) -> Owner {
        Owner { family: LockFamily::Flock, number }
    }
}

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who asks.
    pub owner: Owner,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// Whether others are shut out.
    pub exclusive: bool,
    /// The process that asks.
    pub pid: u32,
}

/// Who may hold locks of one file, through which open files each of them took them, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    by_owner: BTreeMap<Owner, BTreeSet<Handle>>,
    /// What is waited for, and whether nobody waits for it here any more.
    waits: BTreeMap<u64, (Wanted, bool)>,
}

impl Holders {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_owner.is_empty() && self.waits.is_empty()
    }

    pub(crate) fn contains(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Whether something is to be given back.
    pub(crate) fn has_left(&self) -> bool {
        self.waits.values().any(|(_, gone)| *gone) || !self.left().is_empty()
    }

    /// What nobody waits for here any more.
    fn gone(&self) -> Vec<(u64, Wanted)> {
        let gone = self.waits.iter().filter(|(_, (_, gone))| *gone);
        gone.map(|(ticket, (wanted, _))| (*ticket, *wanted)).collect()
    }

    /// Somebody waits, under that name.
    pub(crate) fn wait(&mut self, ticket: u64, wanted: Wanted) {
        self.waits.insert(ticket, (wanted, false));
    }

    /// Nobody waits under that name any more, which its partition is still to hear.
    pub(crate) fn abandon(&mut self, ticket: u64) {
        if let Some((_, gone)) = self.waits.get_mut(&ticket) {
            *gone = true;
        }
    }

    /// It is not waited for any more.
    pub(crate) fn end_wait(&mut self, ticket: u64) {
        self.waits.remove(&ticket);
    }

    /// All but `kept` have lost their locks: through which open files they had them. They are given
    /// back all the same: some may be left.
    pub(crate) fn lose(&mut self, kept: Option<Owner>) -> BTreeSet<Handle> {
        let lost = self.by_owner.iter_mut().filter(|(owner, _)| Some(**owner) != kept);
        lost.flat_map(|(_, handles)| std::mem::take(handles)).collect()
    }

    /// Nobody here holds anything.
    pub(crate) fn clear(&mut self) {
        self.by_owner.clear();
    }

    /// Owners without an open file: their locks are to be given back.
    pub(crate) fn left(&self) -> Vec<Owner> {
        let left = self.by_owner.iter().filter(|(_, handles)| handles.is_empty());
        left.map(|(owner, _)| *owner).collect()
    }

    /// Whether the close of that file leaves the locks of an owner behind.
    pub(crate) fn leaves(&self, handle: Handle) -> bool {
        self.by_owner.values().any(|handles| handles.iter().eq([&handle]))
    }

    /// That file is closed.
    pub(crate) fn close(&mut self, handle: Handle) {
        for handles in self.by_owner.values_mut() {
            handles.remove(&handle);
        }
    }

    /// Notes that the owner may take a lock through that file; returns whether it had none.
    fn add(&mut self, owner: Owner, handle: Handle) -> bool {
        let fresh = !self.contains(owner);
        self.by_owner.entry(owner).or_default().insert(handle);
        fresh
    }

    /// The owner holds nothing any more.
    fn remove(&mut self, owner: Owner) {
        self.by_owner.remove(&owner);
    }
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
    /// [`meridian_fs::FsError::WouldBlock`] if another holds one;
    /// [`meridian_fs::FsError::LockLost`] if one was lost that was taken through this open file.
    pub async fn lock(&self, handle: Handle, wanted: Wanted) -> Result<(), ClientError> {
        let inode = self.ready_to_lock(handle, wanted.owner).await?;
        let turn = self.turn(&inode).await?;
        self.take(&inode, &turn, (handle, wanted), None).await.map(drop)
    }

    /// The open file, once what its owner wrote under other locks is sent: it may be about to give
    /// some of them up.
    pub(crate) async fn ready_to_lock(
        &self,
        handle: Handle,
        owner: Owner,
    ) -> Result<Arc<OpenInode>, ClientError> {
        let inode = self.intact(handle)?;
        if hold(&inode.buffer).holders.contains(owner) {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        Ok(inode)
    }

    /// Asks for a lock, and waits for it in the partition if there is a ticket.
    pub(crate) async fn take(
        &self,
        inode: &Arc<OpenInode>,
        turn: &MutexGuard<'_, ()>,
        (handle, wanted): (Handle, Wanted),
        ticket: Option<u64>,
    ) -> Result<Standing, ClientError> {
        self.give_back_for(inode, turn, Some(wanted.owner)).await?; // K2
        // Noted before it is held: if its answer is lost, it is given back all the same.
        let fresh = hold(&inode.buffer).holders.add(wanted.owner, handle);
        let update = Update::Lock { inode: inode.place, lock: self.lock_of(wanted), ticket };
        let result = self.client.update(&update).await;
        if fresh && matches!(result, Err(ClientError::Fs(_))) {
            hold(&inode.buffer).holders.remove(wanted.owner);
        }
        let stand = stand_of(result?)?;
        self.on_stand(inode, stand, fresh.then_some(wanted.owner));
        self.intact(handle)?;
        Ok(stand.lock)
    }

    /// Gives a range back, if the owner took any lock of the file through this mount. It is given
    /// back also if what was written under it cannot be stored.
    ///
    /// # Errors
    /// If what was written cannot be stored, or the partition does not answer; or
    /// [`meridian_fs::FsError::LockLost`].
    pub async fn unlock(
        &self,
        handle: Handle,
        owner: Owner,
        start: u64,
        end: u64,
    ) -> Result<(), ClientError> {
        let inode = self.intact(handle)?;
        if !hold(&inode.buffer).holders.contains(owner) {
            return Ok(());
        }
        let flushed = self.flush_inode(&inode, Some(handle)).await;
        let turn = self.turn(&inode).await?;
        self.drop_locks(&inode, &turn, owner, (start, end)).await?;
        flushed?;
        self.intact(handle).map(drop)
    }

    /// Gives back the locks that were left behind by the last close of a file of their owner, and
    /// what nobody waits for any more. What fails is tried again later.
    pub(crate) async fn give_back_left(&self, inode: &Arc<OpenInode>) {
        if !hold(&inode.buffer).holders.has_left() {
            return;
        }
        if let Err(error) = self.flush_inode(inode, None).await {
            let partition = inode.place.partition;
            self.client.warn(partition, "written data of a closed file wait to be sent", &error);
        }
        let Ok(turn) = self.turn(inode).await else { return };
        if let Err(error) = self.give_back_for(inode, &turn, None).await {
            let partition = inode.place.partition;
            self.client.warn(partition, "locks of a closed file wait to be given back", &error);
        }
    }

    /// Gives back what an owner, or all, have left behind.
    async fn give_back_for(
        &self,
        inode: &Arc<OpenInode>,
        turn: &MutexGuard<'_, ()>,
        owner: Option<Owner>,
    ) -> Result<(), ClientError> {
        let is_meant = |of: &Owner| owner.is_none_or(|owner| owner == *of);
        let gone = hold(&inode.buffer).holders.gone();
        for (ticket, wanted) in gone.into_iter().filter(|(_, wanted)| is_meant(&wanted.owner)) {
            if self.leave(inode, turn, (wanted, ticket)).await? {
                let Wanted { owner, start, end, .. } = wanted;
                self.drop_locks(inode, turn, owner, (start, end)).await?;
            }
        }
        let left = hold(&inode.buffer).holders.left();
        for owner in left.into_iter().filter(is_meant) {
            self.drop_locks(inode, turn, owner, (0, u64::MAX)).await?;
        }
        Ok(())
    }

    /// Says that nobody waits under that name any more; whether the lock was given before.
    pub(crate) async fn leave(
        &self,
        inode: &Arc<OpenInode>,
        _turn: &MutexGuard<'_, ()>,
        (wanted, ticket): (Wanted, u64),
    ) -> Result<bool, ClientError> {
        let update = Update::Leave { inode: inode.place, lock: self.lock_of(wanted), ticket };
        let stand = stand_of(self.client.update(&update).await?)?;
        hold(&inode.buffer).holders.end_wait(ticket);
        self.on_stand(inode, stand, None);
        Ok(stand.lock == Standing::Held)
    }

    /// Waits until no other lock of the file is asked for or given back (K1).
    pub(crate) async fn turn<'a>(
        &self,
        inode: &'a OpenInode,
    ) -> Result<MutexGuard<'a, ()>, ClientError> {
        let turn = tokio::time::timeout(self.client.timeout(), inode.locking.lock()).await;
        turn.map_err(|_| ClientError::Timeout { what: "an earlier lock of the file".into() })
    }

    async fn drop_locks(
        &self,
        inode: &Arc<OpenInode>,
        _turn: &MutexGuard<'_, ()>,
        owner: Owner,
        (start, end): (u64, u64),
    ) -> Result<(), ClientError> {
        let Owner { family, number } = owner;
        let of = LockOwner { client: self.client.id(), owner: number };
        let update = Update::Unlock { inode: inode.place, owner: of, family, start, end };
        let done = self.client.update(&update).await;
        if done.as_ref().is_err_and(ClientError::is_unknown) {
            hold(&inode.buffer).tenure = None; // It may have ended, and not been lost.
        }
        let stand = stand_of(done?)?;
        if start == 0 && end >= i64::MAX as u64 {
            hold(&inode.buffer).holders.remove(owner);
        }
        self.on_stand(inode, stand, None);
        Ok(())
    }

    pub(crate) fn lock_of(&self, wanted: Wanted) -> Lock {
        let Wanted { owner, start, end, exclusive, pid } = wanted;
        let Owner { family, number } = owner;
        let owner = LockOwner { client: self.client.id(), owner: number };
        Lock { owner, family, start, end, exclusive, pid }
    }
}

fn stand_of(done: Done) -> Result<Stand, ClientError> {
    match done {
        Done::Lock(stand) => Ok(stand),
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_keeps_its_locks_until_all_its_files_are_closed() {
        let mut holders = Holders::default();
        let owner = Owner::open_file(7);
        assert!(holders.add(owner, Handle(1)) && !holders.add(owner, Handle(2)));
        assert!(!holders.contains(Owner::process(7)), "the families have numbers of their own");
        assert!(!holders.leaves(Handle(1)));
        holders.close(Handle(1));
        assert!(holders.leaves(Handle(2)) && holders.left().is_empty());
        holders.close(Handle(2));
        assert_eq!(holders.left(), [owner]);
        holders.remove(owner);
        assert!(holders.is_empty());
    }
}
