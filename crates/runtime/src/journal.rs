//! What a driver asks of the write-ahead log, and the log that answers.

use bytes::Bytes;
use meridian_storage::Disk;
use meridian_storage::wal::{Options, QUEUE_BYTES, Recovered, Report, Wal, WalError};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// From so many flushes it is told how long one takes: the first after a start are slow.
const FLUSHES: usize = 31;

/// Records that make up a checkpoint, drawn on another thread.
pub type Records = Box<dyn Iterator<Item = Bytes> + Send>;

/// Where records go. Appending never waits for the disk.
pub trait Journal {
    /// Appends a record and tells its number, which is greater than all before.
    fn append(&mut self, record: Bytes) -> u64;

    /// What was appended is to be made durable now.
    fn flush(&mut self);

    /// All records up to this number are durable. When it grows the driver is woken.
    ///
    /// # Errors
    /// If the disk has failed.
    fn durable(&self) -> Result<u64, String>;

    /// How far the log goes, over all starts; all of it is durable.
    fn logged(&self) -> u64;

    /// How long a flush takes: the median of the last ones, once there was any.
    fn flush_time(&self) -> Option<Duration>;

    /// Whether so much waits for the disk that the driver must not make more.
    fn is_full(&self) -> bool;

    /// Bytes appended since the last checkpoint began.
    fn bytes_since_checkpoint(&self) -> u64;

    /// How long the last checkpoint is, in bytes; 0 if there is none.
    fn checkpoint_bytes(&self) -> u64;

    /// Whether a checkpoint is being written: until it is done no other can begin.
    fn is_checkpointing(&self) -> bool;

    /// Makes `records` stand for all that was appended until now; does not wait for it.
    fn checkpoint(&mut self, records: Records);

    /// Waits until all that was appended is durable.
    ///
    /// # Errors
    /// If the disk has failed.
    fn close(self: Box<Self>) -> Result<(), String>;
}

/// Tells the driver, from any thread, that more is durable.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A log that was opened.
pub struct Opened {
    /// Where records go from now on.
    pub journal: Box<dyn Journal>,
    /// The records that it holds, those of its checkpoint first.
    pub records: Vec<Bytes>,
    /// How far it goes.
    pub logged: u64,
    /// What tells it from all other logs.
    pub name: u64,
}

/// Opens the log in `dir`, or makes one.
///
/// # Errors
/// If the disk refuses, or what lies there is damaged.
pub fn open(disk: Arc<dyn Disk>, dir: &Path, wake: Wake) -> Result<Opened, JournalError> {
    let said = Arc::new(Said::default());
    let hears = said.clone();
    let report = move |report| {
        hears.on_report(report);
        wake();
    };
    let (recovered, wal) = Wal::open(disk, dir, Options::default(), report)?;
    let Recovered { checkpoint: mut records, records: after, torn, next, salt } = recovered;
    if let Some((path, len)) = torn {
        let path = path.display();
        tracing::warn!(%path, len, "the log ended in a torn record, and was cut there");
    }
    records.extend(after);
    said.logged.fetch_max(next, Ordering::AcqRel);
    let journal = Box::new(WalJournal { wal, said });
    Ok(Opened { journal, records, logged: next, name: salt })
}

/// Why a log cannot be opened, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(.0))]
pub struct JournalError(#[from] WalError);

/// A [`Wal`] as the driver wants it.
struct WalJournal {
    wal: Wal,
    said: Arc<Said>,
}

/// What the log's threads have said.
#[derive(Default)]
struct Said {
    durable: AtomicU64,
    logged: AtomicU64,
    /// How long the last flushes took, the newest last.
    flushes: Mutex<VecDeque<Duration>>,
    failed: OnceLock<String>,
    checkpointing: AtomicBool,
    /// Bytes of log at which a checkpoint failed: as many more come before the next is tried.
    checkpoint_failed_at: AtomicU64,
}

impl Said {
    fn on_report(&self, report: Report) {
        match report {
            Report::Durable { upto, logged, took } => {
                let mut flushes = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
                if flushes.len() == FLUSHES {
                    flushes.pop_front();
                }
                flushes.push_back(took);
                self.logged.fetch_max(logged, Ordering::AcqRel);
                self.durable.fetch_max(upto, Ordering::Release);
            }
            Report::Failed(error) => {
                let _ = self.failed.set(describe(&error)); // It comes once.
            }
            Report::Checkpointed => {
                self.checkpointing.store(false, Ordering::Release);
                self.checkpoint_failed_at.store(0, Ordering::Relaxed);
                tracing::debug!("checkpoint written");
            }
            Report::CheckpointFailed(error) => {
                tracing::error!(error = describe(&error), "no checkpoint; the log only grows");
                self.checkpoint_failed_at.store(u64::MAX, Ordering::Relaxed);
                self.checkpointing.store(false, Ordering::Release);
            }
        }
    }
}

impl Journal for WalJournal {
    fn append(&mut self, record: Bytes) -> u64 {
        self.wal.append(record, false)
    }

    fn flush(&mut self) {
        self.wal.flush();
    }

    fn durable(&self) -> Result<u64, String> {
        match self.said.failed.get() {
            Some(error) => Err(error.clone()),
            None => Ok(self.said.durable.load(Ordering::Acquire)),
        }
    }

    fn logged(&self) -> u64 {
        self.said.logged.load(Ordering::Acquire)
    }

    fn flush_time(&self) -> Option<Duration> {
        let flushes = self.said.flushes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut flushes = Vec::from(flushes);
        flushes.sort_unstable();
        flushes.get(flushes.len() / 2).copied()
    }

    fn is_full(&self) -> bool {
        self.wal.queued_bytes() > QUEUE_BYTES
    }

    fn bytes_since_checkpoint(&self) -> u64 {
        let bytes = self.wal.bytes_since_checkpoint();
        let failed_at = &self.said.checkpoint_failed_at;
        // The log's thread does not know the bytes: they are noted here, where it is next asked.
        let _ = failed_at.compare_exchange(u64::MAX, bytes, Ordering::Relaxed, Ordering::Relaxed);
        bytes.saturating_sub(failed_at.load(Ordering::Relaxed))
    }

    fn checkpoint_bytes(&self) -> u64 {
        self.wal.checkpoint_bytes()
    }

    fn is_checkpointing(&self) -> bool {
        self.said.checkpointing.load(Ordering::Acquire)
    }

    fn checkpoint(&mut self, records: Records) {
        self.said.checkpointing.store(true, Ordering::Release);
        if !self.wal.checkpoint(records) {
            self.said.checkpointing.store(false, Ordering::Release);
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        let WalJournal { wal, said } = *self;
        drop(wal);
        said.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// An error and what caused it, in one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
