//! The log without threads: whoever owns it writes, and waits for the disk.
//!
//! [`crate::wal::Wal`] drives one from a thread of its own. The simulator drives one by itself, so
//! that what it crashes is the log that servers have.

use super::files::{Files, Segment, failed};
use super::recover::{self, Tail};
use super::{Options, Recovered, VERSION, WalError, checkpoint};
use crate::record::{self, HEADER_LEN, Mark};
use crate::{Disk, format};
use bytes::{Bytes, BytesMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much is gathered for one write, in bytes; a flush of more makes several, and one sync.
const CHUNK: usize = 4 << 20;
/// The body of the first record of each segment.
const FIRST: &[u8] = b"meridian log segment";

/// Where a log takes its next segment from.
pub(super) trait Source: Send {
    /// The segment of this index, empty and durable with its name.
    fn take(&mut self, files: &Files, index: u64) -> Result<Segment, WalError>;

    /// The segment of this index is taken next.
    fn prepare(&mut self, _index: u64) {}

    /// The segment that is taken next is the last.
    fn end(&mut self) {}
}

/// A segment is made when it is needed.
struct OnDemand;

impl Source for OnDemand {
    fn take(&mut self, files: &Files, index: u64) -> Result<Segment, WalError> {
        files.make_segment(index)
    }
}

/// See the module's documentation. After an error nothing more may be asked of it (W4).
pub struct Log {
    files: Arc<Files>,
    source: Box<dyn Source>,
    segment: Segment,
    /// How much of the segment is written, in bytes.
    end: u64,
    /// What comes after that.
    buffer: BytesMut,
    /// The number of the next record.
    next: u64,
    /// The number of the last that is durable.
    durable: u64,
    /// Bytes in the log that no checkpoint stands for, nor will when the one under way is done.
    since_checkpoint: Arc<AtomicU64>,
    /// How long the last checkpoint is, in bytes.
    checkpoint_bytes: Arc<AtomicU64>,
}

/// A checkpoint that was begun: it stands for all records before it.
pub struct Checkpoint {
    files: Arc<Files>,
    index: u64,
    first: u64,
    /// How many bytes of log it stands for.
    stands_for: u64,
    since_checkpoint: Arc<AtomicU64>,
    checkpoint_bytes: Arc<AtomicU64>,
}

impl Log {
    /// Opens the log in `dir`, or makes one, and reads all that it holds; see
    /// [`crate::wal::Wal::open`].
    ///
    /// # Errors
    /// As that.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
    ) -> Result<(Recovered, Log), WalError> {
        let (recovered, files, tail) = recover(disk, dir, options)?;
        let log = Log::start(files, &tail, Box::new(OnDemand))?;
        Ok((recovered, log))
    }

    /// Begins a segment, durably.
    pub(super) fn start(
        files: Arc<Files>,
        tail: &Tail,
        source: Box<dyn Source>,
    ) -> Result<Log, WalError> {
        let mut log = Log {
            segment: files.make_segment(tail.index)?,
            files,
            source,
            end: 0,
            buffer: BytesMut::new(),
            next: tail.next,
            durable: tail.next - 1,
            since_checkpoint: Arc::new(AtomicU64::new(tail.bytes)),
            checkpoint_bytes: Arc::new(AtomicU64::new(tail.checkpoint_bytes)),
        };
        log.source.prepare(tail.index + 1);
        log.encode(FIRST);
        log.sync()?;
        Ok(log)
    }

    pub(super) fn since_checkpoint(&self) -> Arc<AtomicU64> {
        self.since_checkpoint.clone()
    }

    pub(super) fn checkpoint_bytes(&self) -> Arc<AtomicU64> {
        self.checkpoint_bytes.clone()
    }

    /// How far the log goes: the number of the record after the last that is durable.
    pub fn logged(&self) -> u64 {
        self.durable + 1
    }

    /// Whether records of so many bytes in all, with their headers, fit into the segment.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.end + (self.buffer.len() + bytes) as u64 <= self.files.segment_bytes()
    }

    /// Appends a record. It may be written, but it is not durable before [`Log::sync`].
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn append(&mut self, record: &Bytes) -> Result<(), WalError> {
        let used = self.end + self.buffer.len() as u64;
        let len = (HEADER_LEN + record.len()) as u64;
        let fresh = used <= (HEADER_LEN + FIRST.len()) as u64;
        if used + len > self.files.segment_bytes() && !fresh {
            self.begin_segment()?;
        }
        self.encode(record);
        if self.buffer.len() >= CHUNK {
            self.write()?;
        }
        Ok(())
    }

    fn encode(&mut self, body: &[u8]) {
        let segment = self.files.segment_name(self.segment.index);
        let mark = Mark { segment, number: self.next, durable: self.durable };
        record::encode(&mut self.buffer, mark, body);
        self.next += 1;
    }

    /// Writes what was appended, without a sync.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&mut self) -> Result<(), WalError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = self.segment.file.write_at(self.end, &self.buffer);
        written.map_err(failed("write", &self.segment.path))?;
        let len = self.buffer.len() as u64;
        self.end += len;
        self.since_checkpoint.fetch_add(len, Ordering::Relaxed);
        self.buffer.clear();
        Ok(())
    }

    /// Makes durable all that was appended.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&mut self) -> Result<(), WalError> {
        if self.durable + 1 == self.next {
            return Ok(());
        }
        self.write()?;
        self.segment.file.sync_data().map_err(failed("sync", &self.segment.path))?;
        self.durable = self.next - 1;
        Ok(())
    }

    /// Goes on in the next segment (W2). Its first record is encoded, not yet written.
    fn begin_segment(&mut self) -> Result<(), WalError> {
        self.sync()?;
        let index = self.segment.index + 1;
        self.segment = self.source.take(&self.files, index)?;
        assert_eq!(self.segment.index, index, "W2: the segment taken is not the next");
        self.end = 0;
        self.source.prepare(index + 1);
        self.encode(FIRST);
        Ok(())
    }

    /// Says in a new segment that all before is durable, so that damage to it will be noticed.
    pub(super) fn seal(&mut self) -> Result<(), WalError> {
        self.source.end();
        self.begin_segment()?;
        self.sync()
    }

    /// Begins a checkpoint that stands for all that was appended until now, which is durable when
    /// this returns.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin_checkpoint(&mut self) -> Result<Checkpoint, WalError> {
        self.sync()?;
        let stands_for = self.since_checkpoint.load(Ordering::Relaxed);
        let first = self.next;
        self.begin_segment()?;
        self.sync()?;
        self.since_checkpoint.fetch_sub(stands_for, Ordering::Relaxed);
        Ok(Checkpoint {
            files: self.files.clone(),
            index: self.segment.index,
            first,
            stands_for,
            since_checkpoint: self.since_checkpoint.clone(),
            checkpoint_bytes: self.checkpoint_bytes.clone(),
        })
    }
}

impl Checkpoint {
    /// Writes the checkpoint, durably, and removes what it stands for.
    ///
    /// # Errors
    /// If the disk refuses: the log is still whole.
    pub fn write(self, records: impl Iterator<Item = Bytes>) -> Result<(), WalError> {
        self.write_until(records, || false).map(drop)
    }

    /// The same, but `stop` is asked before each record. Returns whether it was not stopped.
    pub(super) fn write_until(
        self,
        records: impl Iterator<Item = Bytes>,
        stop: impl Fn() -> bool,
    ) -> Result<bool, WalError> {
        match checkpoint::write(&self.files, self.index, self.first, records, stop) {
            Ok(Some(len)) => {
                self.checkpoint_bytes.store(len, Ordering::Relaxed);
                self.files.remove_before(self.index).map(|()| true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                self.since_checkpoint.fetch_add(self.stands_for, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Says that the checkpoint was stopped.
    pub(super) fn stopped(&self) -> WalError {
        let path = self.files.checkpoint_path(self.index);
        let source = std::io::ErrorKind::Interrupted.into();
        failed("finish, as the log is closed,", &path)(source)
    }
}

/// Reads what lies in `dir`, and cuts what a crash left at its end.
pub(super) fn recover(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: Options,
) -> Result<(Recovered, Arc<Files>, Tail), WalError> {
    let salt = format::open(&*disk, dir, "log", VERSION, options.salt)?;
    let files = Arc::new(Files::new(disk, dir, salt, options.segment_bytes));
    let (recovered, tail) = recover::recover(&files)?;
    Ok((Recovered { salt, ..recovered }, files, tail))
}
