//! Checkpoints: one file of framed records, the last of which says how many there are.
//!
//! It is written under a temporary name and renamed when it is durable, so a file that has its
//! name is whole: if it cannot be read, it was damaged.

use super::WalError;
use super::files::{Files, failed};
use crate::record::{self, End, Mark, Reader};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::path::Path;

/// How much is gathered for one write, in bytes.
const CHUNK: usize = 1 << 20;

/// A checkpoint, as read.
pub(super) struct Checkpoint {
    pub records: Vec<Bytes>,
    /// The number of the first record of its segment.
    pub next: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Writes the checkpoint that stands for all before the segment `index`, whose first record is
/// `next`; returns its length in bytes. Stops without a result if `stop` says so.
pub(super) fn write(
    files: &Files,
    index: u64,
    next: u64,
    records: impl Iterator<Item = Bytes>,
    stop: impl Fn() -> bool,
) -> Result<Option<u64>, WalError> {
    let path = files.checkpoint_path(index);
    let temporary = path.with_extension("tmp");
    let file = files.create(&temporary)?;
    let written = || {
        let (mut buffer, mut end, mut count) = (BytesMut::new(), 0, 0);
        let segment = files.checkpoint_name(index);
        for record in records {
            if stop() {
                return Ok(None);
            }
            count += 1;
            record::encode(&mut buffer, Mark { segment, number: count, durable: 0 }, &record);
            if buffer.len() >= CHUNK {
                file.write_at(end, &buffer)?;
                end += buffer.len() as u64;
                buffer.clear();
            }
        }
        let mut last = BytesMut::new();
        last.put_u64_le(count);
        last.put_u64_le(next);
        record::encode(&mut buffer, Mark { segment, number: count + 1, durable: 0 }, &last);
        file.write_at(end, &buffer)?;
        file.sync_data()?;
        Ok(Some(end + buffer.len() as u64))
    };
    match written() {
        Ok(Some(len)) => {
            files.rename(&temporary, &path)?;
            files.sync_dir()?;
            Ok(Some(len))
        }
        other => {
            files.remove(&temporary)?;
            other.map_err(failed("write", &temporary))
        }
    }
}

/// Reads the checkpoint `index`.
pub(super) fn read(files: &Files, index: u64) -> Result<Checkpoint, WalError> {
    let path = files.checkpoint_path(index);
    let bytes = files.read(&path)?;
    let len = bytes.len() as u64;
    let mut reader = Reader::new(bytes, files.checkpoint_name(index), 1);
    let mut records: Vec<Bytes> = reader.by_ref().map(|record| record.body).collect();
    let corrupt = |offset: usize| corrupt(&path, offset);
    let end = match reader.end() {
        End::Clean { offset } => offset,
        End::TornTail { offset } | End::Corrupt { offset } => return Err(corrupt(offset)),
    };
    let mut last = records.pop().filter(|last| last.len() == 16).ok_or_else(|| corrupt(end))?;
    let (count, next) = (last.get_u64_le(), last.get_u64_le());
    if count != records.len() as u64 {
        return Err(corrupt(end));
    }
    Ok(Checkpoint { records, next, len })
}

fn corrupt(path: &Path, offset: usize) -> WalError {
    WalError::CorruptCheckpoint { path: path.to_owned(), offset: offset as u64 }
}
