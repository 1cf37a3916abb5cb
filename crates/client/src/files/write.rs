//! Writing: into the buffer at once, from there to the nodes when it is asked for, gets much or
//! old.

use crate::client::{Prepared, lock, now};
use crate::error::ClientError;
use crate::files::buffer::Buffer;
use crate::files::locks::Owner;
use crate::files::{Files, Handle, OpenInode, OpenMode, newborn};
use bytes::Bytes;
use meridian_core::Stamp;
use meridian_fs::types::{Attributes, FILE_MAX};
use meridian_fs::{Done, Durability, FsError};
use meridian_session::writeback::flush::{Landed, Packing, Sent, Step};
use meridian_session::writeback::{ALL_MAX, Accepted};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a caller of [`Files::write_now`] has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// Nothing: it is written.
    Done,
    /// Call [`Files::write`]: it must wait for something. Nothing was written.
    MustWait,
}

impl Files {
    /// Writes without waiting, if that is possible.
    ///
    /// # Errors
    /// If there is no such open file, the file would be too long, or an earlier write failed.
    pub fn write_now(
        self: &Arc<Self>,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Wrote, ClientError> {
        let mode = self.file(handle)?.mode;
        self.write_now_as(handle, mode, offset, data)
    }

    /// As [`Files::write_now`], as if the file were opened in `mode`: a program may change that of
    /// an open file, and pages that are written back have their place, however it was opened.
    ///
    /// # Errors
    /// As [`Files::write_now`].
    pub fn write_now_as(
        self: &Arc<Self>,
        handle: Handle,
        mode: OpenMode,
        offset: u64,
        data: &[u8],
    ) -> Result<Wrote, ClientError> {
        let inode = self.file(handle)?.inode;
        let at = self.begin_write(&inode, handle, mode, offset, data)?;
        if self.is_synchronous(&inode, mode) || self.buffered.load(Ordering::Relaxed) > ALL_MAX {
            return Ok(Wrote::MustWait);
        }
        Ok(match self.accept(&inode, at, data) {
            Accepted::Buffered | Accepted::Much => Wrote::Done,
            Accepted::FlushFirst => Wrote::MustWait,
        })
    }

    /// Writes `data` at `offset`, or at the end if the file was opened so; waits if too much is
    /// buffered already, and under `O_SYNC` until it is durable.
    ///
    /// # Errors
    /// As [`Files::write_now`]; or what was to be waited for failed.
    pub async fn write(
        self: &Arc<Self>,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        let mode = self.file(handle)?.mode;
        self.write_as(handle, mode, offset, data).await
    }

    /// As [`Files::write`], as if the file were opened in `mode`.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub async fn write_as(
        self: &Arc<Self>,
        handle: Handle,
        mode: OpenMode,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        let at = self.begin_write(&inode, handle, mode, offset, data)?;
        if self.buffered.load(Ordering::Relaxed) > ALL_MAX {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        loop {
            let mut room = pin!(inode.room.notified());
            room.as_mut().enable();
            if self.accept(&inode, at, data) != Accepted::FlushFirst {
                break;
            }
            if let Ok(_flushing) = inode.flushing.try_lock() {
                self.flush_locked(&inode, Some(handle)).await?;
                continue;
            }
            // The flush that is under way makes room, or ends.
            tokio::select! {
                () = room => {}
                flushing = self.flushing(&inode) => drop(flushing?),
            }
        }
        if self.is_synchronous(&inode, mode) {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        Ok(())
    }

    /// Whether what is written so is durable when the call returns.
    fn is_synchronous(&self, inode: &OpenInode, mode: OpenMode) -> bool {
        mode.sync || self.durability_of_open(inode) == Durability::Sync
    }

    /// Whether it may be written: at which offset, or at the end.
    fn begin_write(
        &self,
        inode: &OpenInode,
        handle: Handle,
        mode: OpenMode,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<u64>, ClientError> {
        if let Some(error) = self.take_error(inode, handle) {
            return Err(error);
        }
        self.intact(handle)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX);
        if end.is_none() && !mode.append {
            return Err(FsError::TooLarge.into());
        }
        Ok((!mode.append).then_some(offset))
    }

    /// Buffers it, and has much that is buffered sent meanwhile.
    fn accept(
        self: &Arc<Self>,
        inode: &Arc<OpenInode>,
        offset: Option<u64>,
        data: &[u8],
    ) -> Accepted {
        if data.is_empty() {
            return Accepted::Buffered;
        }
        let accepted = self.change_buffer(inode, |buffer| {
            buffer.lacks_capability = buffer.writers > 0;
            buffer.writes.accept(offset, data, now(), self.client.time())
        });
        if accepted == Accepted::Much && inode.flushing.try_lock().is_ok() {
            let (files, inode) = (self.clone(), inode.clone());
            tokio::spawn(async move {
                // Whoever has the file open is told of a failure.
                let _ = files.flush_inode(&inode, None).await;
            });
        }
        accepted
    }

    /// `fsync`: all that was written through any handle of the file is durable.
    ///
    /// # Errors
    /// If that fails, or failed since this handle was last told. The bytes stay buffered and are
    /// sent again.
    pub async fn sync(&self, handle: Handle) -> Result<(), ClientError> {
        let file = self.file(handle)?;
        self.land_all(Some(file.inode.place.partition)).await?;
        let earlier = self.take_error(&file.inode, handle);
        let result = self.flush_inode(&file.inode, Some(handle)).await;
        // A flush that was under way may have failed, and have left nothing to be sent.
        let meanwhile = self.take_error(&file.inode, handle);
        earlier.or(meanwhile).map_or(result, Err)?;
        self.intact(handle).map(drop)
    }

    /// `close` of one descriptor: as [`Files::sync`], except that a file without a name, which
    /// nobody can open again, is not sent for it.
    ///
    /// # Errors
    /// As [`Files::sync`].
    pub async fn close(&self, handle: Handle) -> Result<(), ClientError> {
        let file = self.file(handle)?;
        let is_sent = self.is_sent_by_close(&lock(&file.inode.buffer));
        if !is_sent || self.begin_written(&file.inode) {
            self.take_error(&file.inode, handle).map_or(Ok(()), Err)?;
            return self.intact(handle).map(drop);
        }
        self.sync(handle).await
    }

    /// As [`Files::close`] by a process that perhaps has locks, if nothing must be sent for it.
    ///
    /// # Errors
    /// As [`Files::close`].
    pub fn close_now(&self, handle: Handle, owner: Owner) -> Result<Wrote, ClientError> {
        let inode = self.file(handle)?.inode;
        self.note_use(&inode, handle);
        let is_sent = self.is_sent_by_close(&lock(&inode.buffer));
        let must_wait = is_sent && !self.begin_written(&inode);
        let mut buffer = lock(&inode.buffer);
        if must_wait || buffer.holders.contains(owner) {
            return Ok(Wrote::MustWait);
        }
        buffer.writes.take_failure(handle).map_or(Ok(()), Err)?;
        match buffer.lost.contains(&handle) {
            true => Err(FsError::LockLost.into()),
            false => Ok(Wrote::Done),
        }
    }

    /// Whether what is kept of a file is sent when it is closed.
    fn is_sent_by_close(&self, buffer: &Buffer) -> bool {
        let lands = buffer.writes.is_kept_whole() && self.is_sent_late(buffer);
        !buffer.writes.is_clean() && !buffer.nameless && !lands
    }

    /// Whether what is kept of a file may be sent after it is closed, and there is room for it.
    pub(crate) fn is_sent_late(&self, buffer: &Buffer) -> bool {
        let by_default = self.client.durability();
        buffer.durability.unwrap_or(by_default) == Durability::Fsync
            && self.buffered.load(Ordering::Relaxed) <= ALL_MAX / 2
    }

    fn take_error(&self, inode: &OpenInode, handle: Handle) -> Option<ClientError> {
        lock(&inode.buffer).writes.take_failure(handle)
    }

    /// Sends all that is buffered, gives back what is left, and tells what was read; before an
    /// unmount.
    ///
    /// # Errors
    /// The first of what fails; the rest is done all the same.
    pub async fn flush_all(self: &Arc<Self>) -> Result<(), ClientError> {
        let result = self.flush_buffered().await;
        let inodes: Vec<_> = lock(&self.inodes).values().cloned().collect();
        for inode in inodes {
            self.give_back_left(&inode).await;
            self.forget_if_unused(&inode);
        }
        let mut telling = self.tell_reads(true);
        // One that is cancelled, as its runtime ends, tells nothing; nobody is to panic for it.
        while telling.join_next().await.is_some() {}
        result
    }

    /// Sends all that is buffered.
    ///
    /// # Errors
    /// The first of what fails; the rest is sent all the same.
    pub(crate) async fn flush_buffered(&self) -> Result<(), ClientError> {
        let mut result = self.land_all(None).await;
        let inodes: Vec<_> = lock(&self.inodes).values().cloned().collect();
        for inode in inodes {
            let ended = self.flush_inode(&inode, None).await;
            result = result.and(ended);
        }
        result
    }

    /// Sends what is buffered now. A failure is told to `teller` by the result, and to all other
    /// open files of the inode at their next call.
    pub(crate) async fn flush_inode(
        &self,
        inode: &Arc<OpenInode>,
        teller: Option<Handle>,
    ) -> Result<(), ClientError> {
        let _guard = self.flushing(inode).await?;
        self.flush_locked(inode, teller).await
    }

    /// As [`Files::flush_inode`], for a caller that holds `inode.flushing`.
    pub(crate) async fn flush_locked(
        &self,
        inode: &Arc<OpenInode>,
        teller: Option<Handle>,
    ) -> Result<(), ClientError> {
        self.change_buffer(inode, |buffer| buffer.writes.begin_flush(teller));
        loop {
            let step = lock(&inode.buffer).writes.next_step();
            let ended = match step {
                Step::Done => return Ok(()),
                Step::Pack(packing) => {
                    self.pack(inode, packing);
                    continue;
                }
                Step::Store(blocks) => {
                    let stored = self.client.put_blocks(inode.place.partition, blocks).await;
                    self.change_buffer(inode, |buffer| buffer.writes.on_stored(stored))
                }
                Step::Send { update, time } => {
                    let under = self.under(inode);
                    let message = Arc::new(self.client.prepare_under(&update, time, under));
                    lock(&inode.buffer).message = Some(message.clone());
                    self.send_batch(inode, &message).await
                }
                Step::Again => {
                    let message = lock(&inode.buffer).message.clone();
                    let message = message.expect("W3: what was sent keeps its name");
                    self.send_batch(inode, &message).await
                }
            };
            if let Err(error) = ended {
                tracing::debug!("flush of inode {:#x}: {error}", inode.place.ino.0);
                self.client.driver().doubt_pages(inode.place.ino);
                return Err(error);
            }
        }
    }

    /// Packs a batch.
    pub(crate) fn pack(&self, inode: &OpenInode, packing: Packing) {
        inode.room.notify_waiters(); // What waited is in flight.
        let partition = inode.place.partition;
        let packed = packing.pack(inode.place, || self.client.new_block(partition));
        lock(&inode.buffer).writes.on_packed(packed);
    }

    /// Sends the message of the batch in flight, and waits for its end.
    async fn send_batch(
        &self,
        inode: &Arc<OpenInode>,
        message: &Prepared,
    ) -> Result<(), ClientError> {
        let answered = match self.client.send(message).await {
            Err(ClientError::Fs(FsError::LockLost)) => {
                let sent = match self.was_lost(inode, message.under()).await {
                    true => Sent::Refused(FsError::LockLost),
                    false => Sent::Anew,
                };
                Answered { sent, written: None }
            }
            result => Answered::of(result),
        };
        self.take_answer(inode, answered)
    }

    /// The update of the batch in flight was answered, or not.
    ///
    /// # Errors
    /// The failure with which the flush ends.
    pub(crate) fn take_answer(
        &self,
        inode: &Arc<OpenInode>,
        Answered { sent, written }: Answered,
    ) -> Result<(), ClientError> {
        let birth = lock(&inode.buffer).writes.birth().cloned();
        match sent {
            Sent::Refused(FsError::Late { horizon_ms }) => self.client.block_refused(horizon_ms),
            Sent::Refused(FsError::UnnamedQuota { quota }) => {
                let parent = birth.as_ref().map(|birth| birth.parent);
                let counts = [Some(inode.place), parent].into_iter().flatten();
                counts.for_each(|of| self.client.counts_against(of, quota));
            }
            _ => {}
        }
        let landed = self.change_buffer(inode, |buffer| {
            if !matches!(sent, Sent::Unknown(_)) {
                buffer.message = None; // It has ended.
            }
            if let Some(Written { attributes, ts, .. }) = written {
                buffer.landed = self.next_change();
                self.note(attributes, ts);
            }
            buffer.writes.on_answer(sent)
        });
        if let (Err(ClientError::Fs(FsError::Unmade)), Some(birth)) = (&landed, &birth) {
            newborn::tell_lost(birth);
        }
        self.note_landed();
        let landed = landed?;
        if let (Some(Written { offset, merge_from: Some(from), .. }), Landed::Written { span }) =
            (written, landed)
        {
            self.merge(inode.place, from..offset + span);
        }
        Ok(())
    }
}

/// What an update that writes was answered.
pub(crate) struct Answered {
    pub sent: Sent<ClientError>,
    pub written: Option<Written>,
}

/// What was written.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    offset: u64,
    merge_from: Option<u64>,
    attributes: Attributes,
    ts: Stamp,
}

impl Answered {
    pub fn of(result: Result<(Done, Stamp), ClientError>) -> Answered {
        let (sent, written) = match result {
            Ok((Done::Written { offset, attributes, merge_from }, ts)) => {
                let written = Written { offset, merge_from, attributes, ts };
                (Sent::Written { size: attributes.size }, Some(written))
            }
            Ok((done, _)) => {
                let what = ClientError::Protocol(format!("a write answered by {done:?}"));
                (Sent::Unknown(what), None)
            }
            Err(ClientError::Fs(error)) => (Sent::Refused(error), None),
            Err(error) => (Sent::Unknown(error), None),
        };
        Answered { sent, written }
    }
}

/// Bytes of zero: what a hole reads as.
pub(crate) fn zeros(len: usize) -> Vec<u8> {
    vec![0; len]
}

/// Copies `data`, which lies at `at` of the file, over the bytes of `into`, which start at
/// `offset`.
pub(crate) fn patch(into: &mut [u8], offset: u64, at: u64, data: &Bytes) {
    let end = (offset + into.len() as u64).min(at + data.len() as u64);
    let from = at.max(offset);
    if from < end {
        let index = |distance: u64| usize::try_from(distance).expect("within a buffer");
        let source = &data[index(from - at)..index(end - at)];
        into[index(from - offset)..index(end - offset)].copy_from_slice(source);
    }
}
