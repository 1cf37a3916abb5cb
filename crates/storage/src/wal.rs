//! The node's write-ahead log: group commit, checkpoints, recovery. It does not know what a record
//! says.
//!
//! A directory holds `FORMAT`, segments `wal-<index>` (see [`crate::record`] for what is in
//! them) and at most one `checkpoint-<index>`: the records that stand for everything before the
//! segment of that index. One thread writes: it takes all that waits, writes it, syncs once, and
//! tells. Another makes the next segment ready, a third writes a checkpoint when asked. Where the
//! disk has no room for the next segment, the first waits for it: nothing is durable until then.
//!
//! Invariants:
//! - W1: a record is reported durable only after a sync that succeeded, and all before it are too.
//! - W2: a segment is synced before anything is written to the next, whose first record, written
//!   by the log itself, says so. So only the newest segment can have a torn tail.
//! - W3: a segment is deleted only after the checkpoint that stands for it is durable, and a
//!   checkpoint has its name only once it is whole.
//! - W4: after a failed write or sync nothing is written any more.

mod checkpoint;
mod files;
mod log;
mod recover;
#[cfg(test)]
mod tests;
mod writer;

use crate::Disk;
use crate::format::FormatError;
use crate::record::{HEADER_LEN, MAX_BODY};
use bytes::Bytes;
pub use log::{Checkpoint, Log};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use writer::{Flusher, Writer};

/// The version of the directory, in `FORMAT`.
pub const VERSION: u32 = 8;
/// How long a segment is, in bytes: long enough that a new one is rare beside its syncs, short
/// enough that nine nodes on one small disk have room for two each.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// How much may wait, in bytes: some hundred milliseconds of what a disk takes. [`Wal::append`]
/// never blocks; its owner stops taking work while [`Wal::queued_bytes`] is beyond this.
pub const QUEUE_BYTES: usize = 64 << 20;
/// How much is flushed on the owner's thread at most, in bytes.
const HERE_BYTES: usize = 64 << 10;

/// Why a log cannot be opened, or closed itself.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The disk refuses.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory is not one of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A record that was durable is damaged or gone.
    #[error("{} is corrupt at byte {offset}: record {number} of the log should be there", path.display())]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// The record's number in the log.
        number: u64,
    },
    /// A checkpoint is damaged.
    #[error("{} is corrupt at byte {offset}", path.display())]
    CorruptCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
    },
}

impl WalError {
    /// Whether the disk has no room.
    fn is_full(&self) -> bool {
        let WalError::Io { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// How a log is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a segment is, in bytes, unless one record needs more.
    pub segment_bytes: u64,
    /// A random number, used when the directory is new; see [`crate::format`].
    pub salt: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: SEGMENT_BYTES, salt: crate::real_disk::random_salt() }
    }
}

/// What a log found when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The records of the newest checkpoint; empty if there is none.
    pub checkpoint: Vec<Bytes>,
    /// The records after it, in order.
    pub records: Vec<Bytes>,
    /// The torn tail that was cut: the file, and its length now.
    pub torn: Option<(PathBuf, u64)>,
    /// The number of the next record, counted over all starts; never lower than at an earlier
    /// start, if the disk kept what was durable.
    pub next: u64,
    /// What tells this directory from all others; see [`crate::format`].
    pub salt: u64,
}

impl Recovered {
    /// What the log in `dir` holds, as [`Wal::open`] reads it; none is begun. On the disk that it
    /// is given it repairs what a crash has left, as that does: an [`crate::OverlayDisk`] keeps
    /// such changes to itself.
    ///
    /// # Errors
    /// As [`Wal::open`].
    pub fn read(disk: Arc<dyn Disk>, dir: &Path) -> Result<Recovered, WalError> {
        log::recover(disk, dir, Options::default()).map(|(recovered, ..)| recovered)
    }
}

/// What a log tells its owner, from its own threads.
#[derive(Debug)]
pub enum Report {
    /// More is durable.
    Durable {
        /// All records up to the one that [`Wal::append`] gave this number.
        upto: u64,
        /// How far the log goes: what [`Recovered::next`] is at least at the next start.
        logged: u64,
        /// How long it took to write and sync the last of them.
        took: Duration,
    },
    /// The log has closed itself; nothing is written any more. Comes once, as the last report.
    Failed(WalError),
    /// The checkpoint asked for is durable.
    Checkpointed,
    /// The checkpoint asked for was not written. The log goes on, and keeps what it would have
    /// replaced.
    CheckpointFailed(WalError),
}

/// The records of a checkpoint.
pub type Records = Box<dyn Iterator<Item = Bytes> + Send>;

/// An open log. Dropping it writes and syncs all that was appended.
pub struct Wal {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// What the owner and the threads share.
struct Shared {
    /// Locked before the queue: whoever takes records off that also writes them, in their order.
    flusher: Mutex<Flusher>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Bytes in the log that no checkpoint stands for, nor will when the one under way is done.
    since_checkpoint: Arc<AtomicU64>,
    /// How long the last checkpoint is, in bytes.
    checkpoint_bytes: Arc<AtomicU64>,
    checkpointing: AtomicBool,
    closing: Arc<AtomicBool>,
    report: Box<dyn Fn(Report) + Send + Sync>,
}

/// What waits for the writer.
#[derive(Default)]
struct Queue {
    records: Vec<Bytes>,
    bytes: usize,
    /// How many were ever appended.
    appended: u64,
    /// Whether anybody waits.
    wanted: bool,
    /// A checkpoint that stands for all but the records from this place in `records` on.
    checkpoint: Option<(usize, Records)>,
    failed: bool,
}

impl Queue {
    fn take(&mut self) -> Queue {
        let Queue { appended, failed, .. } = *self;
        std::mem::replace(self, Queue { appended, failed, ..Queue::default() })
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flusher(&self) -> MutexGuard<'_, Flusher> {
        self.flusher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let mut queue = self.queue();
        while !(self.closing.load(Ordering::Acquire) || queue.wanted || queue.checkpoint.is_some())
        {
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes all that there is to do; whether it is the last is in `closing`, asked before.
    fn take(&self) -> (Queue, bool) {
        let closing = self.closing.load(Ordering::Acquire);
        (self.queue().take(), closing)
    }

    /// Flushes what waits on the caller's thread, if that can be expected to take no longer than
    /// waking the writer would; whether it did.
    fn flush_here(&self) -> bool {
        let Ok(mut flusher) = self.flusher.try_lock() else { return false };
        let records = {
            let mut queue = self.queue();
            let simple = !queue.failed && queue.checkpoint.is_none() && queue.bytes <= HERE_BYTES;
            if !simple || !flusher.is_fast() || !flusher.log.has_room(queue.bytes) {
                return false;
            }
            queue.take().records
        };
        match flusher.flush(&records) {
            Ok(()) => (self.report)(flusher.durable()),
            Err(error) => {
                self.closing.store(true, Ordering::Release);
                self.fail(error);
                self.wake.notify_one();
            }
        }
        true
    }

    fn fail(&self, error: WalError) {
        let mut queue = self.queue();
        *queue = Queue { appended: queue.appended, failed: true, ..Queue::default() };
        drop(queue);
        (self.report)(Report::Failed(error));
    }
}

impl Wal {
    /// Opens the log in `dir`, or makes one, and reads all that it holds. `report` is called by the
    /// log's threads and should do no more than wake somebody.
    ///
    /// A torn tail is cut. What was written but not known to be durable counts, once it has been
    /// written and synced again.
    ///
    /// # Errors
    /// If the disk refuses, the directory is of another version, or a record that was durable is
    /// not there: then nothing was changed.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<(Recovered, Wal), WalError> {
        let (recovered, files, tail) = log::recover(disk, dir, options)?;
        let shared = |log: Log, closing| {
            Arc::new(Shared {
                since_checkpoint: log.since_checkpoint(),
                checkpoint_bytes: log.checkpoint_bytes(),
                flusher: Mutex::new(Flusher::new(log)),
                queue: Mutex::default(),
                wake: Condvar::new(),
                checkpointing: AtomicBool::new(false),
                closing,
                report: Box::new(report),
            })
        };
        let (shared, writer) = Writer::start(shared, files, &tail)?;
        Ok((recovered, Wal { shared, writer: Some(writer) }))
    }

    /// Appends a record, without blocking, and returns its number: 1, 2, ... since the log was
    /// opened. If it is `wanted`, it is flushed at once; if not, with the next that is.
    ///
    /// # Panics
    /// If it is longer than [`MAX_BODY`].
    pub fn append(&self, record: Bytes, wanted: bool) -> u64 {
        assert!(record.len() <= MAX_BODY, "record of {} bytes, at most {MAX_BODY}", record.len());
        let mut queue = self.shared.queue();
        queue.appended += 1;
        let number = queue.appended;
        if queue.failed {
            return number;
        }
        queue.bytes += record.len() + HEADER_LEN;
        queue.records.push(record);
        let wake = wanted && !queue.wanted;
        queue.wanted |= wanted;
        drop(queue);
        if wake {
            self.shared.wake.notify_one();
        }
        number
    }

    /// Asks that all that was appended is flushed; returns the number of the last. A report that
    /// it is durable follows, also if it was before.
    pub fn sync(&self) -> u64 {
        let mut queue = self.shared.queue();
        queue.wanted = !queue.failed;
        let appended = queue.appended;
        drop(queue);
        self.shared.wake.notify_one();
        appended
    }

    /// The same, but on this thread as long as the disk is so fast that waking another would take
    /// as long.
    pub fn flush(&self) {
        if !self.shared.flush_here() {
            self.sync();
        }
    }

    /// Lets `records` stand for all that was recovered or appended until now; they are drawn and
    /// written by another thread. Returns whether that was begun: not while another is under way,
    /// nor after a failure.
    pub fn checkpoint(&self, records: Records) -> bool {
        let mut queue = self.shared.queue();
        if queue.failed || self.shared.checkpointing.swap(true, Ordering::AcqRel) {
            return false;
        }
        queue.checkpoint = Some((queue.records.len(), records));
        drop(queue);
        self.shared.wake.notify_one();
        true
    }

    /// How many bytes of log would have to be read at a start: see [`Wal::checkpoint`].
    pub fn bytes_since_checkpoint(&self) -> u64 {
        self.shared.since_checkpoint.load(Ordering::Relaxed)
    }

    /// How long the last checkpoint is, in bytes; 0 if there is none.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.shared.checkpoint_bytes.load(Ordering::Relaxed)
    }

    /// How many bytes wait to be written; see [`QUEUE_BYTES`].
    pub fn queued_bytes(&self) -> usize {
        self.shared.queue().bytes
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        {
            // The writer must not be between its look and its wait.
            let _queue = self.shared.queue();
            self.shared.closing.store(true, Ordering::Release);
        }
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join(); // Why it panicked it has said itself.
        }
    }
}
