//! Reads a log when it is opened, and cuts what a crash left at its end.

use super::files::{Files, failed};
use super::{Recovered, WalError, checkpoint};
use crate::record::{self, End, HEADER_LEN, Reader};
use bytes::Bytes;
use std::path::PathBuf;

/// Where a log ends.
pub(super) struct Tail {
    /// The index for the next segment.
    pub index: u64,
    /// The number of the next record.
    pub next: u64,
    /// How many bytes of records were read, without the checkpoint.
    pub bytes: u64,
    /// How long the checkpoint is, in bytes; 0 if there is none.
    pub checkpoint_bytes: u64,
}

/// Reads on from segment to segment.
struct Recovery<'a> {
    files: &'a Files,
    recovered: Recovered,
    next: u64,
    bytes: u64,
    /// The greatest number that is known to have been durable.
    durable: u64,
    /// The last segment that has a record.
    last: Option<Last>,
    /// Where the first record is missing.
    stop: Option<Stop>,
}

struct Last {
    path: PathBuf,
    bytes: Bytes,
    /// The number and offset of each of its records.
    records: Vec<(u64, usize)>,
    end: usize,
}

struct Stop {
    path: PathBuf,
    offset: usize,
    torn: bool,
}

/// Reads the whole log and makes its end fit to be continued.
pub(super) fn recover(files: &Files) -> Result<(Recovered, Tail), WalError> {
    let listing = files.list()?;
    let mut recovery = Recovery {
        files,
        recovered: Recovered::default(),
        next: 1,
        bytes: 0,
        durable: 0,
        last: None,
        stop: None,
    };
    let checkpoint = listing.checkpoints.last().copied();
    let mut checkpoint_bytes = 0;
    if let Some(index) = checkpoint {
        let read = checkpoint::read(files, index)?;
        recovery.recovered.checkpoint = read.records;
        recovery.next = read.next;
        checkpoint_bytes = read.len;
    }
    let first = checkpoint.unwrap_or(0);
    for index in listing.segments.iter().filter(|index| **index >= first) {
        recovery.segment(*index)?;
    }
    if let (Some(index), None) = (checkpoint, &recovery.last) {
        // Its first record was durable before the checkpoint was begun.
        let path = files.segment_path(index);
        return Err(WalError::Corrupt { path, offset: 0, number: recovery.next });
    }
    recovery.repair(&listing.segments)?;
    files.remove_before(first)?;
    let index = listing.segments.last().copied().unwrap_or(0).max(first) + 1;
    let Recovery { mut recovered, next, bytes, .. } = recovery;
    recovered.next = next;
    Ok((recovered, Tail { index, next, bytes, checkpoint_bytes }))
}

impl Recovery<'_> {
    fn segment(&mut self, index: u64) -> Result<(), WalError> {
        let path = self.files.segment_path(index);
        let name = self.files.segment_name(index);
        let bytes = self.files.read(&path)?;
        if let Some(stop) = &self.stop {
            if record::says_durable(&bytes, name, self.next) {
                return Err(self.corrupt(stop.path.clone(), stop.offset));
            }
            return Ok(());
        }
        let mut reader = Reader::new(bytes.clone(), name, self.next);
        let mut records = Vec::new();
        for record in reader.by_ref() {
            if !records.is_empty() {
                self.recovered.records.push(record.body); // The first is the log's own.
            }
            records.push((record.mark.number, record.offset));
        }
        self.next = reader.next_number();
        self.durable = self.durable.max(reader.durable());
        let (end, torn) = match reader.end() {
            End::Clean { offset } => (offset, false),
            End::TornTail { offset } => (offset, true),
            End::Corrupt { offset } => return Err(self.missing(path, &bytes, name, offset)),
        };
        self.bytes += end as u64;
        if torn || records.is_empty() {
            self.stop = Some(Stop { path: path.clone(), offset: end, torn });
        }
        if !records.is_empty() {
            self.last = Some(Last { path, bytes, records, end });
        }
        Ok(())
    }

    /// The next record should be at `offset` of this segment, or at the end of the one before if
    /// this one starts well, but with a later record.
    fn missing(&self, path: PathBuf, bytes: &[u8], name: u64, offset: usize) -> WalError {
        let starts_well =
            record::says_durable(&bytes[..HEADER_LEN.min(bytes.len())], name, self.next);
        match &self.last {
            Some(last) if offset == 0 && starts_well => self.corrupt(last.path.clone(), last.end),
            _ => self.corrupt(path, offset),
        }
    }

    fn corrupt(&self, path: PathBuf, offset: usize) -> WalError {
        WalError::Corrupt { path, offset: offset as u64, number: self.next }
    }

    /// Makes durable what was read, and cuts what was not.
    ///
    /// The records that nobody calls durable may lie in the cache of the operating system only, and
    /// after a failed sync even a second one that succeeds would not write them: so they are
    /// written over themselves first.
    fn repair(&mut self, segments: &[u64]) -> Result<(), WalError> {
        if let Some(stop) = self.stop.take().filter(|stop| stop.torn) {
            tracing::warn!(
                file = %stop.path.display(),
                offset = stop.offset,
                "the log has a torn tail, which is cut"
            );
            self.recovered.torn = Some((stop.path, stop.offset as u64));
        }
        let mut last_path = None;
        if let Some(Last { path, bytes, records, end }) = &self.last {
            let file = self.files.open(path)?;
            let doubtful = records.iter().find(|(number, _)| *number > self.durable);
            let start = doubtful.map_or(*end, |(_, offset)| *offset);
            file.write_at(start as u64, &bytes[start..*end])
                .and_then(|()| file.truncate(*end as u64))
                .and_then(|()| file.sync_data())
                .map_err(failed("make durable", path))?;
            last_path = Some(path.clone());
        }
        // What comes after the last record was made ready and never used, or is torn wholly.
        for index in segments.iter().rev() {
            let path = self.files.segment_path(*index);
            if Some(&path) == last_path.as_ref() {
                break;
            }
            self.files.remove(&path)?;
        }
        self.files.sync_dir()
    }
}
