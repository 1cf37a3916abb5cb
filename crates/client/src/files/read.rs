//! Reading: what a replica has, and over it what is buffered.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::write::{patch, zeros};
use crate::files::{Files, Handle, LOOK_AGAIN, OpenInode};
use bytes::Bytes;
use meridian_core::GroupId;
use meridian_fs::types::{Attributes, Data, Extent};
use meridian_fs::{Answer, FsError, Query};
use std::sync::Arc;
use tokio::task::JoinSet;

/// What is read of a block at least, if it is there: the rest is asked for next.
const READ_ALIGN: u64 = 256 << 10;
/// How much of a file is asked for at a time when data or a hole is sought.
const SEEK_WINDOW: u64 = 64 << 20;

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

impl Files {
    /// Reads at most `len` bytes from `offset`; fewer only at the file's end.
    ///
    /// # Errors
    /// If the file is gone, or nobody who has its bytes answers.
    pub async fn read(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let inode = self.file(handle)?.inode;
        let end = offset.saturating_add(len as u64);
        for attempt in 0..LOOK_AGAIN {
            if lock(&inode.buffer).appends() {
                self.flush_inode(&inode, Some(handle)).await?;
            }
            // After some flushes that came between, none more may.
            let _guard = match attempt {
                0..4 => None,
                _ => Some(inode.flushing.lock().await),
            };
            if let Some(bytes) = lock(&inode.buffer).whole(offset..end) {
                return Ok(bytes);
            }
            let begun = self.last_change();
            let from = offset - offset % READ_ALIGN;
            let to = end.checked_next_multiple_of(READ_ALIGN).unwrap_or(end);
            let query = Query::Contents { inode: inode.place, offset: from, len: to - from };
            let asked = self.client.read_within(query, self.client.timeout()).await?;
            let (Answer::Contents { attributes, extents }, _) = asked else {
                return Err(ClientError::Protocol("contents answered by something else".into()));
            };
            let (size, over) = {
                let mut buffer = lock(&inode.buffer);
                if buffer.landed > begun || buffer.append_flies() {
                    continue; // F3: the answer may be from before a flush that ended meanwhile.
                }
                buffer.size = Some(attributes.size);
                (attributes.size.max(buffer.positional_end()), buffer.within(offset..end))
            };
            let count = usize::try_from(end.min(size).saturating_sub(offset)).unwrap_or(0);
            let mut bytes = zeros(count);
            let partition = inode.place.partition;
            match self.fill(partition, offset, &mut bytes, extents).await {
                Err(ClientError::Lost(what)) if attempt < 3 => {
                    tracing::debug!("{what}; perhaps overwritten meanwhile: again");
                    continue;
                }
                other => other?,
            }
            for (at, part) in over {
                patch(&mut bytes, offset, at, &Bytes::from(part));
            }
            return Ok(bytes);
        }
        Err(ClientError::Timeout { what: "reading a file that is written all the time".into() })
    }

    /// Copies what `extents` say over `into`, which is the file from `offset`.
    async fn fill(
        &self,
        partition: GroupId,
        offset: u64,
        into: &mut [u8],
        extents: Vec<(u64, Extent)>,
    ) -> Result<(), ClientError> {
        let end = offset + into.len() as u64;
        let mut wanted = Vec::new();
        for (at, extent) in extents {
            if at >= end || at + u64::from(extent.len) <= offset {
                continue;
            }
            match extent.data {
                Data::Inline(bytes) => patch(into, offset, at, &bytes),
                Data::Block { block, start } => wanted.push((at, block, start, extent.len)),
            }
        }
        if let [(at, block, start, len)] = wanted[..] {
            let bytes = self.client.read_block(partition, block, start, len).await?;
            patch(into, offset, at, &bytes);
            return Ok(());
        }
        let mut under_way = JoinSet::new();
        for (at, block, start, len) in wanted {
            match self.client.cached(block, start, len) {
                Some(bytes) => patch(into, offset, at, &bytes),
                None => {
                    let client = self.client.clone();
                    under_way.spawn(async move {
                        (at, client.read_block(partition, block, start, len).await)
                    });
                }
            }
        }
        while let Some(ended) = under_way.join_next().await {
            let (at, bytes) = ended.map_err(|error| ClientError::Protocol(error.to_string()))?;
            patch(into, offset, at, &bytes?);
        }
        Ok(())
    }

    /// `lseek(SEEK_DATA)` and `lseek(SEEK_HOLE)`.
    ///
    /// # Errors
    /// `None` stands for `ENXIO`: nothing of that kind comes after `offset`.
    pub async fn seek(
        &self,
        handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<Option<u64>, ClientError> {
        let inode = self.file(handle)?.inode;
        self.flush_inode(&inode, Some(handle)).await?;
        let mut at = offset;
        loop {
            let (attributes, extents) = self.contents(&inode, at, SEEK_WINDOW).await?;
            if at >= attributes.size {
                // The end of the file counts as a hole.
                let found = what == Seek::Hole && offset < attributes.size;
                return Ok(found.then_some(attributes.size));
            }
            let window_end = attributes.size.min(at.saturating_add(SEEK_WINDOW));
            for (start, extent) in extents {
                match what {
                    Seek::Data if start + u64::from(extent.len) > at => {
                        return Ok(Some(start.max(at)));
                    }
                    Seek::Hole if start > at => return Ok(Some(at)),
                    Seek::Hole => at = at.max(start + u64::from(extent.len)),
                    Seek::Data => {}
                }
            }
            match what {
                Seek::Hole if at < window_end => return Ok(Some(at)),
                Seek::Hole | Seek::Data => at = window_end,
            }
        }
    }

    async fn contents(
        &self,
        inode: &Arc<OpenInode>,
        offset: u64,
        len: u64,
    ) -> Result<(Attributes, Vec<(u64, Extent)>), ClientError> {
        let query = Query::Contents { inode: inode.place, offset, len };
        match self.client.read(query).await? {
            Answer::Contents { attributes, extents } => Ok((attributes, extents)),
            _ => Err(FsError::Invalid.into()),
        }
    }
}
