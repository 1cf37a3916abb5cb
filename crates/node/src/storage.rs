//! A node's log and blocks on the real disk.

use crate::blocks::BlockEngine;
use crate::disk::RealDisk;
use crate::error::ServerError;
use crate::journal::{BlockDone, BlockService, Blocks, Journal, Records};
use crate::server::{Replay, Storage, Wake};
use crate::wal::{Options, QUEUE_BYTES, Recovered, Report, Wal};
use bytes::Bytes;
use meridian_blocks::{BlockError, Disk};
use meridian_core::BlockId;
use meridian_host::api::{Refusal, ReplyBody};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Opens what the node in `dir` keeps on the real disk, and replays its log.
///
/// # Errors
/// If the disk refuses, or is damaged.
pub fn open(dir: &Path, wake: Wake, replay: Replay<'_>) -> Result<Storage, ServerError> {
    let disk = Arc::new(RealDisk);
    let journal = open_journal(disk.clone(), dir, wake.clone(), replay)?;
    let blocks = open_blocks(disk, dir, wake)?;
    Ok(Storage { journal, blocks })
}

/// Opens the blocks of the node in `dir` on any disk.
///
/// # Errors
/// If the disk refuses, or is damaged.
pub fn open_blocks(disk: Arc<dyn Disk>, dir: &Path, wake: Wake) -> Result<Blocks, ServerError> {
    let engine = BlockEngine::open(disk, &dir.join("blocks"))
        .map_err(|error| ServerError::Blocks(describe(&error)))?;
    Ok(Box::new(EngineBlocks { engine, failed: Arc::default(), wake }))
}

/// Opens the log of the node in `dir` on any disk, and replays it.
///
/// # Errors
/// If the disk refuses, or is damaged.
pub fn open_journal(
    disk: Arc<dyn Disk>,
    dir: &Path,
    wake: Wake,
    replay: Replay<'_>,
) -> Result<Box<dyn Journal>, ServerError> {
    Ok(Box::new(WalJournal::open(disk, &dir.join("wal"), wake, replay)?))
}

/// A [`Wal`] as the driver wants it.
struct WalJournal {
    wal: Wal,
    said: Arc<Said>,
}

/// What the log's threads have said.
#[derive(Default)]
struct Said {
    durable: AtomicU64,
    failed: OnceLock<String>,
    /// Bytes of log at which a checkpoint failed: as many more come before the next is tried.
    checkpoint_failed_at: AtomicU64,
}

impl WalJournal {
    fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        wake: Wake,
        replay: Replay<'_>,
    ) -> Result<WalJournal, ServerError> {
        let said = Arc::new(Said::default());
        let hears = said.clone();
        let report = move |report| {
            hears.on_report(report);
            wake();
        };
        let (recovered, wal) = Wal::open(disk, dir, Options::default(), report)
            .map_err(|error| ServerError::Log(describe(&error)))?;
        let Recovered { checkpoint, records, torn } = recovered;
        if let Some((path, len)) = torn {
            let path = path.display();
            tracing::warn!(%path, len, "the log ended in a torn record, and was cut there");
        }
        for (number, record) in checkpoint.iter().chain(&records).enumerate() {
            replay(number as u64 + 1, record)?;
        }
        Ok(WalJournal { wal, said })
    }
}

impl Said {
    fn on_report(&self, report: Report) {
        match report {
            Report::Durable(number) => {
                self.durable.fetch_max(number, Ordering::Release);
            }
            Report::Failed(error) => {
                let _ = self.failed.set(describe(&error)); // It comes once.
            }
            Report::Checkpointed => {
                self.checkpoint_failed_at.store(0, Ordering::Relaxed);
                tracing::debug!("checkpoint written");
            }
            Report::CheckpointFailed(error) => {
                tracing::error!(error = describe(&error), "no checkpoint; the log only grows");
                self.checkpoint_failed_at.store(u64::MAX, Ordering::Relaxed);
            }
        }
    }
}

impl Journal for WalJournal {
    fn append(&mut self, record: Bytes) -> u64 {
        self.wal.append(record, false)
    }

    fn flush(&mut self) {
        self.wal.sync();
    }

    fn durable(&self) -> Result<u64, String> {
        match self.said.failed.get() {
            Some(error) => Err(error.clone()),
            None => Ok(self.said.durable.load(Ordering::Acquire)),
        }
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

    fn checkpoint(&mut self, records: Records) {
        self.wal.checkpoint(records);
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        let WalJournal { wal, said } = *self;
        drop(wal);
        said.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// A [`BlockEngine`] as the server wants it.
struct EngineBlocks {
    engine: BlockEngine,
    failed: Arc<OnceLock<String>>,
    wake: Wake,
}

impl BlockService for EngineBlocks {
    fn put(&self, block: BlockId, data: Bytes, done: BlockDone) {
        let (failed, wake) = (self.failed.clone(), self.wake.clone());
        let stored = move |result: Result<(), BlockError>| {
            if let Err(error @ (BlockError::Closed | BlockError::Io { .. })) = &result {
                failed.get_or_init(|| describe(error));
                wake();
            }
            done(result.map_or_else(|error| refused(&error), |()| ReplyBody::Stored));
        };
        self.engine.put(block, data, Box::new(stored));
    }

    fn get(&self, block: BlockId, offset: u32, len: u32, done: BlockDone) {
        let read = move |result: Result<Bytes, BlockError>| {
            done(result.map_or_else(|error| refused(&error), ReplyBody::Block));
        };
        self.engine.get(block, offset, len, Box::new(read));
    }

    fn failed(&self) -> Option<String> {
        self.failed.get().cloned()
    }

    fn held(&self) -> (u64, u64) {
        let counters = self.engine.counters();
        (counters.blocks, counters.bytes)
    }
}

fn refused(error: &BlockError) -> ReplyBody {
    ReplyBody::Refused(match error {
        BlockError::NoBlock(block) => Refusal::NoBlock(*block),
        BlockError::Damaged(block) => Refusal::Damaged(*block),
        BlockError::Length(_) => Refusal::Bad(error.to_string()),
        BlockError::Busy => Refusal::Overloaded,
        BlockError::Full | BlockError::Closed | BlockError::Io { .. } => {
            Refusal::Disk(describe(error))
        }
    })
}

/// An error and what caused it, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
