//! `stat` and what changes it, extended attributes, `statfs`.

use crate::client::now;
use crate::error::ClientError;
use crate::files::{Files, Handle, LOOK_AGAIN, OpenInode};
use bytes::Bytes;
use meridian_core::{GroupId, Position};
use meridian_fs::operation::{Changes, XattrMode};
use meridian_fs::types::{Attributes, Ino, Name, Place};
use meridian_fs::{Answer, Done, FsError, Query, Update};
use std::sync::Arc;

/// The extended attribute that shows, and on an empty directory changes, where it lives.
pub const PLACEMENT: &[u8] = b"user.meridian.placement";

impl Files {
    /// `stat`, with what is buffered here.
    ///
    /// # Errors
    /// [`FsError::Gone`] if there is no such inode any more.
    pub async fn attributes(&self, ino: Ino) -> Result<Attributes, ClientError> {
        for _ in 0..LOOK_AGAIN {
            let asked = self.ask(ino, |inode| Query::Attributes { inode }).await?;
            let (Answer::Attributes(attributes), position) = asked else {
                return Err(strange());
            };
            if let Some(attributes) = self.overlaid(attributes, position) {
                return Ok(attributes);
            }
            self.settle(ino).await;
        }
        Err(ClientError::Timeout { what: "stat of a file that is written all the time".into() })
    }

    /// `attributes`, true at `position`, as a program shall see them here.
    pub(crate) async fn seen(&self, attributes: Attributes, position: Position) -> Attributes {
        match self.overlaid(attributes, position) {
            Some(attributes) => attributes,
            None => {
                self.settle(attributes.place.ino).await;
                self.attributes(attributes.place.ino).await.unwrap_or(attributes)
            }
        }
    }

    fn overlaid(&self, attributes: Attributes, position: Position) -> Option<Attributes> {
        let Some(inode) = self.open_inode(attributes.place.ino) else {
            return Some(self.newest(attributes, position));
        };
        // Under the lock: a flush clears its bytes and notes what came of them in one step.
        let mut buffer = crate::client::lock(&inode.buffer);
        let attributes = self.newest(attributes, position);
        buffer.size = Some(attributes.size);
        buffer.overlay(attributes)
    }

    /// Waits for a flush that is under way.
    async fn settle(&self, ino: Ino) {
        if let Some(inode) = self.open_inode(ino) {
            drop(inode.flushing.lock().await);
        }
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
        let attributes = self
            .ordered(open.as_ref(), ino, |inode| Update::SetAttributes {
                inode,
                changes: changes.clone(),
            })
            .await?;
        Ok(match &open {
            Some(inode) => crate::client::lock(&inode.buffer).overlay(attributes),
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
        let hole = |inode: Place| Update::PunchHole { inode, offset, len };
        self.ordered(Some(&inode), inode.place.ino, hole).await.map(drop)
    }

    /// `fallocate` without flags: the file is at least so long. Nothing is reserved.
    ///
    /// # Errors
    /// As [`Files::set_attributes`].
    pub async fn extend(&self, handle: Handle, size: u64) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        if self.attributes(inode.place.ino).await?.size >= size {
            return Ok(());
        }
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.set_attributes(inode.place.ino, changes).await.map(drop)
    }

    /// Does an update of one inode after all that is buffered of it, and before all that is
    /// written meanwhile.
    async fn ordered(
        &self,
        open: Option<&Arc<OpenInode>>,
        ino: Ino,
        update: impl Fn(Place) -> Update,
    ) -> Result<Attributes, ClientError> {
        let _guard = match open {
            Some(inode) => {
                let guard = inode.flushing.lock().await;
                self.flush_locked(inode, None).await?;
                Some(guard)
            }
            None => None,
        };
        let mut place = self.place_of(ino);
        for _ in 0..LOOK_AGAIN {
            let message = self.client.prepare(&update(place), now());
            match self.client.send(&message).await {
                Ok((Done::Attributes(attributes), vector)) => {
                    let position = vector.get(place.partition);
                    if let Some(inode) = open {
                        self.change_buffer(inode, |buffer| {
                            buffer.size = Some(attributes.size);
                            buffer.flushed_at = buffer.flushed_at.max(position);
                            self.note(attributes, position);
                        });
                    } else {
                        self.note(attributes, position);
                    }
                    return Ok(attributes);
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(ino).await?,
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
            let attributes = self.attributes(ino).await?;
            let group = self.client.topology().group(attributes.place.partition);
            return Ok(Bytes::copy_from_slice(group.name.as_bytes()));
        }
        let asked = self.ask(ino, |inode| Query::Xattr { inode, name: name.clone() }).await?;
        match asked.0 {
            Answer::Bytes(value) => Ok(value),
            _ => Err(strange()),
        }
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

    /// `setxattr`; of [`PLACEMENT`]: [`Files::place`].
    ///
    /// # Errors
    /// If the tree refuses.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: Name,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<(), ClientError> {
        if &name[..] == PLACEMENT {
            let group = std::str::from_utf8(&value).ok();
            let group = group.and_then(|name| self.client.topology().group_named(name));
            return self.place(ino, group.ok_or(FsError::Invalid)?).await;
        }
        let update =
            |inode| Update::SetXattr { inode, name: name.clone(), value: value.clone(), mode };
        let open = self.open_inode(ino);
        self.ordered(open.as_ref(), ino, update).await.map(drop)
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if it has none of that name.
    pub async fn remove_xattr(&self, ino: Ino, name: Name) -> Result<(), ClientError> {
        let update = |inode| Update::RemoveXattr { inode, name: name.clone() };
        let open = self.open_inode(ino);
        self.ordered(open.as_ref(), ino, update).await.map(drop)
    }

    /// How many inodes and bytes `partition` holds.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn totals(&self, partition: GroupId) -> Result<(u64, u64), ClientError> {
        match self.client.read(Query::Totals { partition }).await? {
            Answer::Totals { inodes, bytes } => Ok((inodes, bytes)),
            _ => Err(strange()),
        }
    }
}

pub(crate) fn strange() -> ClientError {
    ClientError::Protocol("an answer to something else".into())
}
