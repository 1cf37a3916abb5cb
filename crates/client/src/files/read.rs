//! Reading: what a replica has, and over it what is buffered.

use crate::client::{Client, lock};
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::write::{patch, zeros};
use crate::files::{Files, Handle, LOOK_AGAIN, OpenFile};
use bytes::Bytes;
use meridian_core::GroupId;
use meridian_fs::types::{Attributes, Data, Extent, Place};
use meridian_fs::{Answer, Query, Update};
use std::ops::Range;
use tokio::task::JoinSet;

/// What is read of a block at least, if it is there: the rest is asked for next.
const READ_ALIGN: u64 = 256 << 10;
/// How much of a file is asked for at a time when data or a hole is sought.
const SEEK_WINDOW: u64 = 64 << 20;

/// Blocks that one read asks for at a time.
const IN_FLIGHT: usize = 64;

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
        self.read_bytes(handle, offset, len).await.map(Vec::from)
    }

    /// As [`Files::read`], without a copy of what lies in one block.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn read_bytes(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, ClientError> {
        let OpenFile { inode, mode } = self.file(handle)?;
        let end = offset.saturating_add(len as u64);
        self.note_use(&inode, handle);
        for attempt in 0..LOOK_AGAIN {
            let knows_end = || self.client.driver().knows_end(inode.place.ino);
            if lock(&inode.buffer).writes.appends_nowhere(knows_end) {
                self.flush_inode(&inode, Some(handle)).await?;
            }
            // After some flushes that came between, none more may.
            let _guard = match attempt {
                0..4 => None,
                _ => Some(self.flushing(&inode).await?),
            };
            let here = lock(&inode.buffer).writes.whole(offset..end);
            if let Some(bytes) = here {
                let shown = self.client.driver().held_attributes(inode.place);
                shown.iter().filter(|_| !mode.noatime).for_each(|of| self.note_read(of));
                return Ok(bytes.into());
            }
            let begun = self.last_change();
            let from = offset - offset % READ_ALIGN;
            let to = end.checked_next_multiple_of(READ_ALIGN).unwrap_or(end);
            let (attributes, extents) = contents(&self.client, inode.place, from..to).await?;
            let (size, over) = {
                let mut buffer = lock(&inode.buffer);
                // F3: the answer may be from before a flush that ended meanwhile.
                if buffer.landed > begun || buffer.writes.appends_nowhere(knows_end) {
                    continue;
                }
                buffer.writes.learn_size(attributes.size);
                buffer.writes.over(offset..end, attributes.size)
            };
            let count = usize::try_from(end.min(size).saturating_sub(offset)).unwrap_or(0);
            self.read_ahead(&inode, handle, offset..end, attributes.size);
            let bytes = gather(&self.client, inode.place.partition, (offset, count), extents);
            let bytes = match bytes.await {
                Err(ClientError::Lost(what)) if attempt < 3 => {
                    tracing::debug!("{what}; perhaps overwritten meanwhile, and freed: again");
                    // Whoever has seen this, which changes nothing, is told of nothing older.
                    let see_all = Update::Extend { inode: inode.place, size: 0 };
                    self.client.update(&see_all).await?;
                    continue;
                }
                other => other?,
            };
            if !mode.noatime {
                self.note_read(&attributes);
            }
            return Ok(patched(bytes, offset, over));
        }
        Err(ClientError::Timeout { what: "reading a file that is written all the time".into() })
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
            let window = at..at.saturating_add(SEEK_WINDOW);
            let (attributes, extents, end) = page(&self.client, inode.place, window).await?;
            if at >= attributes.size {
                // The end of the file counts as a hole.
                let found = what == Seek::Hole && offset < attributes.size;
                return Ok(found.then_some(attributes.size));
            }
            let window_end = attributes.size.min(end);
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
}

/// What lies in a range of a file, or in a part from its beginning, and where that part ends.
pub(crate) async fn page(
    client: &Client,
    inode: Place,
    range: Range<u64>,
) -> Result<(Attributes, Vec<(u64, Extent)>, u64), ClientError> {
    let query = Query::Contents { inode, offset: range.start, len: range.end - range.start };
    match client.read(query).await? {
        Answer::Contents { attributes, extents, end } => Ok((attributes, extents, end)),
        _ => Err(strange()),
    }
}

/// What lies in a range of a file. Of one with very many extents not all of it at one moment.
pub(crate) async fn contents(
    client: &Client,
    inode: Place,
    range: Range<u64>,
) -> Result<(Attributes, Vec<(u64, Extent)>), ClientError> {
    let (mut at, mut all) = (range.start, Vec::new());
    loop {
        let (attributes, extents, end) = page(client, inode, at..range.end).await?;
        all.extend(extents);
        if end >= range.end.min(attributes.size) {
            return Ok((attributes, all));
        }
        at = end;
    }
}

/// The bytes that `extents` say of a file, `count` from `offset` on.
async fn gather(
    client: &Client,
    partition: GroupId,
    (offset, count): (u64, usize),
    extents: Vec<(u64, Extent)>,
) -> Result<Bytes, ClientError> {
    let end = offset + count as u64;
    for (at, extent) in &extents {
        let in_it = count > 0 && end <= at + u64::from(extent.len);
        let behind = offset.checked_sub(*at).filter(|_| in_it);
        if let (Data::Block { block, start }, Some(behind)) = (&extent.data, behind) {
            let bytes = client.read_block(partition, *block, *start, extent.len).await?;
            let from = usize::try_from(behind).expect("within a block");
            return Ok(bytes.slice(from..from + count));
        }
    }
    let mut bytes = zeros(count);
    fill(client, partition, offset, &mut bytes, extents).await?;
    Ok(bytes.into())
}

/// With `over`, which lies where it says, over the bytes from `offset`.
fn patched(bytes: Bytes, offset: u64, over: Vec<(u64, Vec<u8>)>) -> Bytes {
    if over.is_empty() {
        return bytes;
    }
    let mut bytes = Vec::from(bytes);
    over.into_iter().for_each(|(at, part)| patch(&mut bytes, offset, at, &part.into()));
    bytes.into()
}

/// Copies what `extents` say over `into`, which is the file from `offset`.
pub(crate) async fn fill(
    client: &Client,
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
        let bytes = client.read_block(partition, block, start, len).await?;
        patch(into, offset, at, &bytes);
        return Ok(());
    }
    let mut under_way = JoinSet::new();
    for (at, block, start, len) in wanted {
        match client.cached(block, start, len) {
            Some(bytes) => patch(into, offset, at, &bytes),
            None => {
                if under_way.len() >= IN_FLIGHT {
                    join(&mut under_way, into, offset).await?;
                }
                let client = client.clone();
                under_way.spawn(async move {
                    (at, client.read_block(partition, block, start, len).await)
                });
            }
        }
    }
    while !under_way.is_empty() {
        join(&mut under_way, into, offset).await?;
    }
    Ok(())
}

/// Waits for one of the blocks that are asked for, and copies it.
async fn join(
    under_way: &mut JoinSet<(u64, Result<Bytes, ClientError>)>,
    into: &mut [u8],
    offset: u64,
) -> Result<(), ClientError> {
    let Some(ended) = under_way.join_next().await else { return Ok(()) };
    let (at, bytes) = ended.map_err(|error| ClientError::Protocol(error.to_string()))?;
    patch(into, offset, at, &bytes?);
    Ok(())
}
