//! Opening files: under which number, and when what is written to them is durable.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::{Files, Handle, OpenFile, OpenInode, OpenMode};
use meridian_fs::types::{Attributes, Ino};
use meridian_fs::{Durability, FsError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

impl Files {
    /// Opens the file `ino`. Asks when what is written to it is durable, if that is not known here.
    ///
    /// # Errors
    /// [`FsError::Gone`] if it was removed a moment ago; or nobody answers.
    pub async fn open(&self, ino: Ino, mode: OpenMode) -> Result<Handle, ClientError> {
        self.open_as(ino, mode, None).await
    }

    /// As [`Files::open`]. `durability` is what [`Files::durability_of`] tells of its attributes,
    /// if these are known.
    ///
    /// # Errors
    /// The same.
    pub async fn open_as(
        &self,
        ino: Ino,
        mode: OpenMode,
        mut durability: Option<Durability>,
    ) -> Result<Handle, ClientError> {
        let mut verify = false;
        let handle = loop {
            if self.is_removed(ino) {
                return Err(FsError::Gone.into());
            }
            let unlinked = self.unlinked.notified();
            tokio::pin!(unlinked);
            unlinked.as_mut().enable();
            if let Some(handle) = self.open_now(ino, mode, durability) {
                break handle;
            }
            verify = true;
            match durability.is_some() || lock(&self.unlinking).contains_key(&ino) {
                true => unlinked.await,
                false => durability = Some(self.ask_durability(ino).await?),
            }
        };
        if verify {
            let attributes = self.attributes(ino).await;
            let first = self.open_inode(ino);
            let first = first.is_none_or(|open| lock(&open.buffer).writes.open_count() == 1);
            // Who looks again finds no name.
            let gone = |found: &Attributes| found.nlink == 0 && first;
            if let Err(error) = attributes.and_then(|found| match gone(&found) {
                true => Err(FsError::Gone.into()),
                false => Ok(()),
            }) {
                self.release(handle).await;
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// Opens the file `ino`, unless its name is just being removed here, or nobody knows when what
    /// is written to it is durable, neither the caller nor this client: then [`Files::open`] waits
    /// or asks.
    pub fn open_now(
        &self,
        ino: Ino,
        mode: OpenMode,
        durability: Option<Durability>,
    ) -> Option<Handle> {
        let durability = durability.or_else(|| self.durability_at_hand(ino, mode))?;
        // Held until it is registered: who removes the name then sees that it is open.
        let unlinking = lock(&self.unlinking);
        let goes = unlinking.contains_key(&ino) || self.is_removed(ino);
        let durability = mode.write.then_some(durability);
        (!goes).then(|| self.register(ino, mode, durability))
    }

    /// `durability` is `None` if nothing is written through it.
    pub(crate) fn register(
        &self,
        ino: Ino,
        mode: OpenMode,
        durability: Option<Durability>,
    ) -> Handle {
        let handle = Handle(self.next_handle.fetch_add(1, Ordering::Relaxed));
        let place = self.place_of(ino);
        let mut inodes = lock(&self.inodes);
        let inode = inodes.entry(ino).or_insert_with(|| {
            let (buffer, flushing, locking) = Default::default();
            Arc::new(OpenInode { place, buffer, flushing, room: Notify::new(), locking })
        });
        {
            let mut buffer = lock(&inode.buffer);
            buffer.open(handle, mode);
            buffer.durability = buffer.durability.or(durability);
        }
        lock(&self.open).insert(handle, OpenFile { inode: inode.clone(), mode });
        lock(&self.opens).open(place, self.client.time());
        handle
    }
}
