//! `stat` and what changes it, extended attributes, `statfs`.

use crate::error::ClientError;
use crate::files::quota::{QUOTA, limits_of};
use crate::files::{Files, Handle, LOOK_AGAIN, OpenInode};
use bytes::Bytes;
use meridian_core::{GroupId, Stamp};
use meridian_fs::operation::{Changes, XattrMode};
use meridian_fs::types::{Attributes, Ino, Name, Place};
use meridian_fs::{Answer, Done, FsError, Query, Update};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

/// The extended attribute that shows, and on an empty directory changes, where it lives.
pub const PLACEMENT: &[u8] = b"user.meridian.placement";
/// The extended attribute that gives a program rights of root. The tree takes it from a file that
/// is changed.
pub const CAPABILITY: &[u8] = b"security.capability";
/// The extended attribute with the list of access rights that is in force.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The one with the list that a directory hands down.
pub const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// The extended attribute that tells where the cluster file is.
pub const CLUSTER: &[u8] = b"user.meridian.cluster";
/// So many bytes `fallocate` gives a file without asking whether there is room.
const SMALL: u64 = 1 << 20;
/// How often `stat` asks again before it keeps flushes from coming between.
const PATIENT_AFTER: usize = 4;

/// How much a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// How many inodes.
    pub inodes: u64,
    /// How many bytes in files.
    pub bytes: u64,
    /// How many bytes more can be written.
    pub room: u64,
    /// How many inodes there may be at most, if there is a limit.
    pub inodes_max: Option<u64>,
}

impl Files {
    /// As [`Files::attributes`], however long it takes.
    pub(crate) async fn attributes_now(&self, ino: Ino) -> Result<Attributes, ClientError> {
        for attempt in 0..LOOK_AGAIN {
            // After some flushes that came between, none more may.
            let open = self.open_inode(ino).filter(|_| attempt >= PATIENT_AFTER);
            let guard = match &open {
                Some(inode) => Some(inode.flushing.lock().await),
                None => None,
            };
            let begun = self.last_change();
            let asked = self.ask(ino, |inode| Query::Attributes { inode }).await?;
            let (Answer::Attributes(attributes), known_to) = asked else {
                return Err(strange());
            };
            if let Some(attributes) = self.overlaid(attributes, known_to, begun) {
                return Ok(attributes);
            }
            drop(guard);
            self.settle(ino).await?;
        }
        Err(ClientError::Timeout { what: "stat of a file that is written all the time".into() })
    }

    /// `attributes`, which contain all changes up to `known_to`, as a program shall see them here.
    /// They were asked for after the change `begun`.
    pub(crate) async fn seen(
        &self,
        attributes: Attributes,
        known_to: Stamp,
        begun: u64,
    ) -> Attributes {
        match self.overlaid(attributes, known_to, begun) {
            Some(attributes) => attributes,
            None => self.attributes_now(attributes.place.ino).await.unwrap_or(attributes),
        }
    }

    fn overlaid(&self, attributes: Attributes, known_to: Stamp, begun: u64) -> Option<Attributes> {
        let Some(inode) = self.open_inode(attributes.place.ino) else {
            let mut attributes = self.newest(attributes, known_to);
            self.overlay_reads(&mut attributes);
            return Some(attributes);
        };
        // Under the lock: a flush clears its bytes and notes what came of them in one step.
        let mut buffer = crate::client::lock(&inode.buffer);
        if buffer.landed > begun {
            return None; // Perhaps from before what landed: see [`Files::last_change`].
        }
        let mut attributes = self.newest(attributes, known_to);
        self.overlay_reads(&mut attributes);
        buffer.writes.learn_size(attributes.size);
        buffer.writes.overlay(attributes)
    }

    /// Waits for a flush that is under way. If one failed and nobody knows whether a replica has
    /// its appended bytes, they are sent again.
    async fn settle(&self, ino: Ino) -> Result<(), ClientError> {
        let Some(inode) = self.open_inode(ino) else { return Ok(()) };
        let _guard = inode.flushing.lock().await;
        let unknown = crate::client::lock(&inode.buffer).writes.append_flies();
        if unknown { self.flush_locked(&inode, None).await } else { Ok(()) }
    }

    /// `setattr`. What is buffered of the file is sent before.
    ///
    /// # Errors
    /// If that fails, or the tree refuses.
    pub async fn set_attributes(
        &self,
        ino: Ino,
        changes: Changes,
    ) -> Result<Attributes, ClientError> {
        let open = self.open_inode(ino);
        let update = |inode| Update::SetAttributes { inode, changes: changes.clone() };
        let attributes = match &open {
            Some(inode) if changes.size == Some(0) => self.empty(inode, update).await?,
            open => {
                let _guard = self.flushed(open.as_ref()).await?;
                self.ordered(open.as_ref(), ino, update).await?
            }
        };
        Ok(match &open {
            Some(inode) => crate::client::lock(&inode.buffer).writes.overlay(attributes),
            None => Some(attributes),
        }
        .unwrap_or(attributes))
    }

    /// `fallocate(FALLOC_FL_PUNCH_HOLE)`.
    ///
    /// # Errors
    /// As [`Files::set_attributes`].
    pub async fn punch_hole(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
    ) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        let _guard = self.flushed(Some(&inode)).await?;
        let hole = |inode: Place| Update::PunchHole { inode, offset, len };
        self.ordered(Some(&inode), inode.place.ino, hole).await.map(drop)
    }

    /// `fallocate` without flags: the file is at least so long. Nothing is reserved, but what could
    /// not be written now is refused.
    ///
    /// # Errors
    /// As [`Files::set_attributes`]; [`FsError::NoSpace`] if there is no room for so much more.
    pub async fn extend(&self, handle: Handle, size: u64) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        if size > SMALL {
            let now = self.attributes_now(inode.place.ino).await?;
            let more = size.saturating_sub(now.size);
            if more > SMALL && more > self.client.room(now.place.partition).await {
                return Err(FsError::NoSpace.into());
            }
        }
        let _guard = self.flushed(Some(&inode)).await?;
        let extend = |inode| Update::Extend { inode, size };
        self.ordered(Some(&inode), inode.place.ino, extend).await.map(drop)
    }

    /// Cuts an open file to nothing. It can be done also when there is no room for what is
    /// buffered.
    async fn empty(
        &self,
        inode: &Arc<OpenInode>,
        update: impl Fn(Place) -> Update,
    ) -> Result<Attributes, ClientError> {
        let _guard = inode.flushing.lock().await;
        let Err(error) = self.flush_locked(inode, None).await else {
            return self.ordered(Some(inode), inode.place.ino, update).await;
        };
        // What may have been sent must end first, or it could come after the cut.
        let aside = self.change_buffer(inode, |buffer| buffer.writes.set_aside()).ok_or(error)?;
        let result = self.ordered(Some(inode), inode.place.ino, update).await;
        self.change_buffer(inode, |buffer| match result {
            Ok(_) => buffer.writes.forget_failures(), // Of bytes that are cut.
            Err(_) => buffer.writes.put_back(aside, self.client.time()),
        });
        result
    }

    /// Sends what is buffered, and keeps what is written meanwhile back while the guard is held.
    async fn flushed<'a>(
        &self,
        open: Option<&'a Arc<OpenInode>>,
    ) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>, ClientError> {
        let Some(inode) = open else { return Ok(None) };
        let guard = inode.flushing.lock().await;
        self.flush_locked(inode, None).await?;
        Ok(Some(guard))
    }

    /// Does an update of one inode, whose buffer the caller has flushed: see [`Files::flushed`].
    async fn ordered(
        &self,
        open: Option<&Arc<OpenInode>>,
        ino: Ino,
        update: impl Fn(Place) -> Update,
    ) -> Result<Attributes, ClientError> {
        let mut place = self.place_of(ino);
        for _ in 0..LOOK_AGAIN {
            let under = open.and_then(|inode| self.under(inode));
            match self.client.apply_under(&update(place), under).await {
                Ok((Done::Attributes(attributes), ts)) => {
                    if let Some(inode) = open {
                        self.change_buffer(inode, |buffer| {
                            buffer.writes.learn_size(attributes.size);
                            buffer.landed = self.next_change();
                            self.note(attributes, ts);
                        });
                    } else {
                        self.note(attributes, ts);
                        self.note_root(attributes, ts).await;
                    }
                    return Ok(attributes);
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(ino).await?,
                Err(ClientError::Fs(FsError::LockLost)) => {
                    if let Some(inode) = open
                        && self.was_lost(inode, under).await
                    {
                        return Err(FsError::LockLost.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Gone.into())
    }

    /// `getxattr`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if it has none of that name.
    pub async fn xattr(&self, ino: Ino, name: Name) -> Result<Bytes, ClientError> {
        if &name[..] == PLACEMENT {
            let attributes = self.attributes_now(ino).await?;
            let topology = self.client.topology();
            let group = topology.group(attributes.place.partition);
            return Ok(Bytes::copy_from_slice(group.name.as_bytes()));
        }
        if &name[..] == CLUSTER {
            let path = self.client.cluster_file().ok_or(FsError::NoAttribute)?;
            return Ok(Bytes::copy_from_slice(path.as_os_str().as_bytes()));
        }
        if &name[..] == QUOTA {
            return self.quota_in_words(ino).await;
        }
        self.marked_xattr(ino, name).await
    }

    /// As [`Files::xattr`] of what is stored, however long it takes.
    pub(crate) async fn xattr_now(&self, ino: Ino, name: Name) -> Result<Bytes, ClientError> {
        match self.ask(ino, |inode| Query::Xattr { inode, name: name.clone() }).await {
            Ok((Answer::Bytes(value), _)) => Ok(value),
            Ok(_) => Err(strange()),
            Err(error) => {
                if &name[..] == CAPABILITY && matches!(error, ClientError::Fs(_)) {
                    self.note_capability(ino, false);
                }
                Err(error)
            }
        }
    }

    /// Whether the file is written here, and has no capability for programs or loses it by that: so
    /// that kernels, which ask at each write, can be answered at once.
    pub fn lacks_capability(&self, ino: Ino) -> bool {
        let open = self.open_inode(ino);
        open.is_some_and(|open| crate::client::lock(&open.buffer).lacks_capability)
    }

    fn note_capability(&self, ino: Ino, has: bool) {
        let Some(open) = self.open_inode(ino) else { return };
        let mut buffer = crate::client::lock(&open.buffer);
        buffer.lacks_capability = !has && buffer.writers > 0;
    }

    /// `listxattr`.
    ///
    /// # Errors
    /// If the inode is gone.
    pub async fn xattrs(&self, ino: Ino) -> Result<Vec<Name>, ClientError> {
        match self.ask(ino, |inode| Query::Xattrs { inode }).await?.0 {
            Answer::Names(names) => Ok(names),
            _ => Err(strange()),
        }
    }

    /// `setxattr`; of [`PLACEMENT`]: [`Files::place`]; of [`QUOTA`]: [`Files::set_quota`].
    /// `drops_set_gid`: the set-group-id bit goes with a new list of access rights.
    ///
    /// # Errors
    /// If the tree refuses.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: Name,
        value: Bytes,
        mode: XattrMode,
        drops_set_gid: bool,
    ) -> Result<(), ClientError> {
        if &name[..] == PLACEMENT {
            let group = std::str::from_utf8(&value).ok();
            let group = group.and_then(|name| self.client.topology().group_named(name));
            return self.place(ino, group.ok_or(FsError::Invalid)?).await;
        }
        if &name[..] == QUOTA {
            let limits = limits_of(&value).ok_or(FsError::Invalid)?;
            return self.set_quota(ino, Some(limits)).await;
        }
        let update = |inode| {
            let (name, value) = (name.clone(), value.clone());
            Update::SetXattr { inode, name, value, mode, drops_set_gid }
        };
        let open = self.open_inode(ino);
        let _guard = self.flushed(open.as_ref()).await?;
        let result = self.ordered(open.as_ref(), ino, update).await.map(drop);
        if &name[..] == CAPABILITY {
            self.note_capability(ino, true);
        }
        result
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if it has none of that name.
    pub async fn remove_xattr(&self, ino: Ino, name: Name) -> Result<(), ClientError> {
        if &name[..] == QUOTA {
            return self.set_quota(ino, None).await;
        }
        let update = |inode| Update::RemoveXattr { inode, name: name.clone() };
        let open = self.open_inode(ino);
        let _guard = self.flushed(open.as_ref()).await?;
        self.ordered(open.as_ref(), ino, update).await.map(drop)
    }

    /// How much `partition` holds, and how much more can be written to it.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn totals(&self, partition: GroupId) -> Result<Totals, ClientError> {
        let read = self.client.read(Query::Totals { partition });
        let (read, room) = tokio::join!(read, self.client.room(partition));
        match read? {
            Answer::Totals { inodes, bytes } => {
                Ok(Totals { inodes, bytes, room, inodes_max: None })
            }
            _ => Err(strange()),
        }
    }
}

pub(crate) fn strange() -> ClientError {
    ClientError::Protocol("an answer to something else".into())
}
