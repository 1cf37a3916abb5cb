//! Writing: into the buffer at once, from there to the nodes when it is asked for, gets much or
//! old.

use crate::client::{Prepared, lock, now};
use crate::error::ClientError;
use crate::files::buffer::{Accepted, Batch, FLUSH_AT, Flight};
use crate::files::{Files, Handle, OpenInode, OpenMode};
use bytes::Bytes;
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::types::{BLOCK_MAX, Data, Extent, FILE_MAX, INLINE_MAX};
use meridian_fs::{Done, FsError, Update};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Buffered bytes of all files of a mount at which writers wait.
const MOUNT_MAX: usize = 256 << 20;
/// Batches that one flush sends: what was in flight, what was written at offsets, what was
/// appended. What comes after waits for the next flush, or a busy writer would hold up the caller.
const BATCHES: usize = 3;

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
        if mode.sync || self.buffered.load(Ordering::Relaxed) > MOUNT_MAX {
            return Ok(Wrote::MustWait);
        }
        Ok(match self.accept(&inode, at, data) {
            Accepted::Buffered(_) => Wrote::Done,
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
        if self.buffered.load(Ordering::Relaxed) > MOUNT_MAX {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        while self.accept(&inode, at, data) == Accepted::FlushFirst {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        if mode.sync {
            self.flush_inode(&inode, Some(handle)).await?;
        }
        Ok(())
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
            return Accepted::Buffered(0);
        }
        let accepted = self.change_buffer(inode, |buffer| buffer.accept(offset, data, now()));
        let much = matches!(accepted, Accepted::Buffered(held) if held >= FLUSH_AT);
        if much && inode.flushing.try_lock().is_ok() {
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
        let earlier = self.take_error(&file.inode, handle);
        let result = self.flush_inode(&file.inode, Some(handle)).await;
        earlier.map_or(result, Err)
    }

    /// `close` of one descriptor: as [`Files::sync`], except that a file without a name, which
    /// nobody can open again, is not sent for it.
    ///
    /// # Errors
    /// As [`Files::sync`].
    pub async fn close(&self, handle: Handle) -> Result<(), ClientError> {
        let file = self.file(handle)?;
        let (nameless, empty) = {
            let buffer = lock(&file.inode.buffer);
            (buffer.nameless, buffer.held() == 0)
        };
        if nameless || empty {
            return self.take_error(&file.inode, handle).map_or(Ok(()), Err);
        }
        self.sync(handle).await
    }

    /// As [`Files::close`] by the owner of perhaps some locks, if nothing must be sent for it.
    ///
    /// # Errors
    /// As [`Files::close`].
    pub fn close_now(&self, handle: Handle, owner: u64) -> Result<Wrote, ClientError> {
        let inode = self.file(handle)?.inode;
        let mut buffer = lock(&inode.buffer);
        if (buffer.held() > 0 && !buffer.nameless) || buffer.holders.contains(owner) {
            return Ok(Wrote::MustWait);
        }
        let untold = buffer.handles.get_mut(&handle).and_then(Option::take);
        untold.map_or(Ok(Wrote::Done), Err)
    }

    fn take_error(&self, inode: &OpenInode, handle: Handle) -> Option<ClientError> {
        lock(&inode.buffer).handles.get_mut(&handle).and_then(Option::take)
    }

    /// Sends what is buffered now. A failure is told to `teller` by the result, and to all other
    /// open files of the inode at their next call.
    pub(crate) async fn flush_inode(
        &self,
        inode: &Arc<OpenInode>,
        teller: Option<Handle>,
    ) -> Result<(), ClientError> {
        let _guard = inode.flushing.lock().await;
        self.flush_locked(inode, teller).await
    }

    /// As [`Files::flush_inode`], for a caller that holds `inode.flushing`.
    pub(crate) async fn flush_locked(
        &self,
        inode: &Arc<OpenInode>,
        teller: Option<Handle>,
    ) -> Result<(), ClientError> {
        for _ in 0..BATCHES {
            let Some(flight) = lock(&inode.buffer).take_off() else { break };
            if let Err(error) = self.send_flight(inode, flight).await {
                tracing::debug!("flush of inode {:#x}: {error}", inode.place.ino.0);
                for (handle, untold) in &mut lock(&inode.buffer).handles {
                    if teller != Some(*handle) {
                        *untold = Some(error.clone());
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn send_flight(
        &self,
        inode: &Arc<OpenInode>,
        mut flight: Flight,
    ) -> Result<(), ClientError> {
        loop {
            let message = match flight.message.take() {
                Some(message) => message,
                None => {
                    let message = Arc::new(self.prepare_write(inode, &flight).await?);
                    lock(&inode.buffer).set_message(Some(message.clone()));
                    message
                }
            };
            match self.client.send(&message).await {
                Ok((Done::Written { offset, attributes, merge_from }, ts)) => {
                    self.change_buffer(inode, |buffer| {
                        buffer.land(&attributes, self.next_change());
                        self.note(attributes, ts);
                    });
                    if let Some(from) = merge_from {
                        self.merge(inode.place, from..offset + flight.batch.span());
                    }
                    return Ok(());
                }
                Ok((done, _)) => {
                    return Err(ClientError::Protocol(format!("a write answered by {done:?}")));
                }
                Err(ClientError::Fs(FsError::InlineFull)) => {
                    let mut buffer = lock(&inode.buffer);
                    buffer.set_message(None);
                    buffer.use_blocks = true;
                }
                Err(ClientError::Fs(error @ (FsError::Gone | FsError::Stale))) => {
                    self.change_buffer(inode, |buffer| buffer.clear());
                    return Err(error.into());
                }
                Err(ClientError::Fs(error)) => {
                    lock(&inode.buffer).set_message(None); // Refused for good; the bytes stay.
                    return Err(error.into());
                }
                Err(error) => return Err(error), // It may have happened: its name stays.
            }
        }
    }

    /// Names the message for a batch; its blocks are stored before.
    async fn prepare_write(
        &self,
        inode: &OpenInode,
        flight: &Flight,
    ) -> Result<Prepared, ClientError> {
        let (size, use_blocks) = {
            let buffer = lock(&inode.buffer);
            (buffer.size.unwrap_or(0), buffer.use_blocks)
        };
        let (at, start, end) = match &*flight.batch {
            Batch::Positional(dirty) => {
                (WriteAt::Offset(dirty.start()), dirty.start(), size.max(dirty.end()))
            }
            Batch::Append(bytes) => (WriteAt::End, 0, size + bytes.len() as u64),
        };
        let inline = end <= INLINE_MAX as u64 && !use_blocks;
        let limit = if inline { INLINE_MAX } else { BLOCK_MAX };
        let (buffers, parts) = match &*flight.batch {
            Batch::Positional(dirty) => dirty.pack(limit),
            Batch::Append(bytes) => {
                let mut dirty = crate::dirty::Dirty::default();
                dirty.write(0, bytes);
                dirty.pack(limit)
            }
        };
        let blocks = match inline {
            true => Vec::new(),
            false => self.client.put_blocks(inode.place.partition, buffers.clone()).await?,
        };
        let pieces = parts.into_iter().map(|part| {
            let data = match inline {
                true => Data::Inline(buffers[part.buffer].slice(part.start..part.start + part.len)),
                false => Data::Block {
                    block: blocks[part.buffer],
                    start: u32::try_from(part.start).expect("within a block"),
                },
            };
            let len = u32::try_from(part.len).expect("within a block");
            Piece { offset: part.offset - start, extent: Extent { len, data } }
        });
        let update = Update::Write { inode: inode.place, at, pieces: pieces.collect() };
        Ok(self.client.prepare(&update, flight.time))
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
