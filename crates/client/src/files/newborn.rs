//! What is kept back: new files, until all is known that their programs give them, so that each
//! comes to the nodes by one update (decision 102); removals of files (decision 104); and what is
//! written to files of which nobody else can know (decision 116).

use crate::client::{lock, now};
use crate::error::ClientError;
use crate::files::buffer::Buffer;
use crate::files::landing::land_called;
use crate::files::{Files, Handle, OpenInode, OpenMode};
use meridian_fs::FsError;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Ino, Name, Place};
use meridian_session::writeback::birth::Birth;
use std::sync::Arc;
use tokio::sync::mpsc::unbounded_channel;

impl Files {
    /// From now on new files may be kept back until they are closed or synced, somebody looks, or a
    /// second has passed. Comes after
    /// [`Client::keep_looks_with`](crate::Client::keep_looks_with). Must be called within a tokio
    /// runtime.
    pub fn keep_back(self: &Arc<Self>) {
        let (landing, called) = unbounded_channel();
        self.client.driver().keep_back(self.client.durability().into(), landing);
        tokio::spawn(land_called(Arc::downgrade(self), called));
    }

    /// How many changes it has kept back.
    pub fn kept_back(&self) -> u64 {
        self.client.driver().kept_back()
    }

    /// How many new files were removed before they were sent, and so never were.
    pub fn unsent(&self) -> u64 {
        self.client.driver().unsent()
    }

    /// Makes a file and opens it without asking anybody, if its directory is held so that nobody
    /// else can see it before.
    pub(crate) fn begin_new(
        &self,
        parent: Ino,
        name: &Name,
        node: &NewNode,
        mode: OpenMode,
    ) -> Option<(Attributes, Handle)> {
        // What a client may do, and as whom, is decided at the nodes if the configuration says so.
        if mode.sync || self.client.driver().has_grant() {
            return None;
        }
        let (parent, made) = (self.place_of(parent), now());
        // What is too much for a quota is told by the call that makes it.
        if self.client.has_quota(parent) {
            return None;
        }
        let attributes = self.client.driver().begin_new(parent, name, node, made)?;
        let ino = attributes.place.ino;
        let handle = self.register(ino, mode, Some(self.durability_of(&attributes)));
        let inode = self.open_inode(ino).expect("it was registered, and is open");
        let (name, node) = (name.clone(), node.clone());
        self.change_buffer(&inode, |buffer| {
            let birth = Birth { parent, name, node, ino, made };
            buffer.writes.born(birth, self.client.time());
        });
        self.born.notify_waiters();
        Some((attributes, handle))
    }

    /// `fsync` of a directory: all that was made in it is durable. What else changed it was when
    /// its call returned.
    ///
    /// # Errors
    /// If a new file cannot be sent; it stays and is sent again.
    pub async fn sync_directory(&self, ino: Ino) -> Result<(), ClientError> {
        let mut result = self.land_all(Some(self.place_of(ino).partition)).await;
        for file in self.client.driver().unlanded_in(ino) {
            let landed = self.land(file).await;
            result = result.and(landed);
        }
        result
    }

    async fn land(&self, ino: Ino) -> Result<(), ClientError> {
        match self.open_inode(ino) {
            Some(inode) => self.flush_inode(&inode, None).await,
            None => Ok(()), // It is being made just now, and is sent when it is old or closed.
        }
    }

    /// Removes a name of a file without asking anybody, if its directory is held so that nobody
    /// else can see it before, and the file is not open here; whether it does.
    pub(crate) fn begin_removal(&self, parent: Ino, name: &Name, child: Place) -> bool {
        if self.client.driver().has_grant() {
            return false;
        }
        let parent = self.place_of(parent);
        if self.is_plain(child) {
            return self.client.driver().begin_removal(parent, name, child, now());
        }
        let open = self.open_inode(child.ino);
        open.is_some_and(|open| self.begin_removal_unsent((parent, name), &open))
    }

    /// The same of a file of which something was written, that is closed and not sent: that is
    /// dropped. Whoever removes a name keeps the file from being opened meanwhile.
    fn begin_removal_unsent(&self, (parent, name): (Place, &Name), file: &Arc<OpenInode>) -> bool {
        let Ok(_flushing) = file.flushing.try_lock() else { return false };
        let is_unsent = |buffer: &Buffer| {
            let is_closed = buffer.writes.open_count() == 0 && buffer.holders.is_empty();
            is_closed && buffer.writes.is_unsent() && !buffer.kept
        };
        let driver = self.client.driver();
        if !driver.is_unlanded(file.place.ino)
            || !is_unsent(&lock(&file.buffer))
            || self.client.has_quota(file.place)
            || !driver.begin_removal(parent, name, file.place, now())
        {
            return false;
        }
        self.change_buffer(file, Buffer::clear);
        self.forget_if_unused(file);
        true
    }

    /// Whether what was written to a file that is being closed is kept back, if it may be.
    pub(crate) fn begin_written(&self, file: &OpenInode) -> bool {
        // Who sends some of it now does not know that it is kept back.
        let Ok(_flushing) = file.flushing.try_lock() else { return false };
        let may = {
            let buffer = lock(&file.buffer);
            let is_plain = !buffer.nameless && buffer.holders.is_empty();
            is_plain && self.is_sent_late(&buffer) && buffer.writes.is_one_unsent()
        };
        may && !self.client.driver().has_grant()
            && !self.client.has_quota(file.place)
            && self.client.driver().begin_written(file.place)
    }

    /// Whether it is not open here, and counts against no quota.
    fn is_plain(&self, place: Place) -> bool {
        self.open_inode(place.ino).is_none() && !self.client.has_quota(place)
    }

    /// Whether a file that is made under that name would be kept back now; if the name leads to a
    /// file, whether its removal would.
    pub fn would_keep(&self, parent: Ino, name: &Name) -> bool {
        let driver = self.client.driver();
        let about = driver.would_keep(self.place_of(parent), name);
        !driver.has_grant() && about.is_some_and(|about| self.is_plain(about))
    }

    /// Whether a name of that file was removed, and the nodes may not know yet.
    pub(crate) fn is_removed(&self, ino: Ino) -> bool {
        self.client.driver().removes(ino)
    }
}

/// Says of a new file that it is lost.
pub(crate) fn tell_lost(birth: &Birth) {
    tracing::warn!(
        "the new file '{}' in the directory with number {} is lost, and what was written to it: {}",
        birth.name.escape_ascii(),
        birth.parent.ino.0,
        FsError::Unmade
    );
}
