//! The thread that writes the log, and those that help it.

use super::files::{Files, Segment, failed};
use super::log::{Log, Source};
use super::recover::Tail;
use super::{Queue, Records, Report, Shared, WalError};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A flush that takes no longer than this is fast: two threads that wake each other take as long.
const FAST: Duration = Duration::from_micros(300);
/// How long a log waits on a full disk until it tries again.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// After so many fast flushes, one after the other, the next is expected to be fast.
const FAST_FLUSHES: u32 = 8;

pub(super) struct Writer {
    shared: Arc<Shared>,
    checkpoint: Option<JoinHandle<()>>,
}

/// The log, and how fast its disk is.
pub(super) struct Flusher {
    pub log: Log,
    /// How many records were ever taken off the queue.
    flushed: u64,
    /// How many flushes were fast since the last that was not.
    fast: u32,
}

/// The thread that makes segments ready.
struct Spare {
    closing: Arc<AtomicBool>,
    wanted: Option<Sender<u64>>,
    ready: Receiver<Result<Segment, WalError>>,
    thread: Option<JoinHandle<()>>,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, WalError> {
    let failed = failed("start the thread of the log,", name.as_ref());
    Builder::new().name(name.into()).spawn(run).map_err(failed)
}

impl Spare {
    fn start(files: Arc<Files>, closing: Arc<AtomicBool>) -> Result<Self, WalError> {
        let (wanted, orders) = channel::<u64>();
        let (done, ready) = channel();
        let thread = spawn("wal-spare", move || {
            for index in orders {
                if done.send(files.make_segment(index)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Spare { closing, wanted: Some(wanted), ready, thread: Some(thread) })
    }
}

impl Source for Spare {
    fn take(&mut self, files: &Files, index: u64) -> Result<Segment, WalError> {
        if let Ok(Ok(segment)) = self.ready.recv() {
            return Ok(segment);
        }
        // There may be room now. If not, the log waits for it: what was written is whole.
        loop {
            match files.make_segment(index) {
                Err(error) if error.is_full() && !self.closing.load(Ordering::Acquire) => {
                    std::thread::sleep(FULL_PAUSE);
                }
                result => return result,
            }
        }
    }

    fn prepare(&mut self, index: u64) {
        if let Some(wanted) = &self.wanted {
            let _ = wanted.send(index); // If the thread is gone, the segment is made when needed.
        }
    }

    fn end(&mut self) {
        self.wanted = None;
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Flusher {
    pub fn new(log: Log) -> Flusher {
        Flusher { log, flushed: 0, fast: 0 }
    }

    /// Whether the disk has been fast for a while.
    pub fn is_fast(&self) -> bool {
        self.fast >= FAST_FLUSHES
    }

    #[cfg(test)]
    pub fn assume_fast(&mut self) {
        self.fast = FAST_FLUSHES;
    }

    /// What was made durable.
    pub fn durable(&self) -> Report {
        Report::Durable { upto: self.flushed, logged: self.log.logged() }
    }

    /// Makes these records durable, and all before.
    pub fn flush(&mut self, records: &[Bytes]) -> Result<(), WalError> {
        let begun = Instant::now();
        self.flushed += records.len() as u64;
        records.iter().try_for_each(|record| self.log.append(record))?;
        self.log.sync()?;
        self.fast = if begun.elapsed() <= FAST { self.fast.saturating_add(1) } else { 0 };
        Ok(())
    }
}

impl Writer {
    /// Begins a segment, durably, and starts the thread.
    pub fn start(
        shared: impl FnOnce(Log, Arc<AtomicBool>) -> Arc<Shared>,
        files: Arc<Files>,
        tail: &Tail,
    ) -> Result<(Arc<Shared>, JoinHandle<()>), WalError> {
        let closing = Arc::new(AtomicBool::new(false));
        let spare = Spare::start(files.clone(), closing.clone())?;
        let shared = shared(Log::start(files, tail, Box::new(spare))?, closing);
        let writer = Writer { shared: shared.clone(), checkpoint: None };
        Ok((shared, spawn("wal", move || writer.run())?))
    }

    fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            shared.wait();
            let mut flusher = shared.flusher();
            let (queue, closing) = shared.take();
            if queue.failed {
                return self.join_checkpoint(); // The owner's thread has told it.
            }
            let flushed = self.flush(&mut flusher, queue);
            let ended = flushed.and_then(|()| if closing { flusher.log.seal() } else { Ok(()) });
            let durable = flusher.durable();
            drop(flusher);
            match ended {
                Ok(()) => (shared.report)(durable),
                Err(error) => {
                    shared.closing.store(true, Ordering::Release);
                    self.join_checkpoint();
                    return shared.fail(error);
                }
            }
            if closing {
                return self.join_checkpoint();
            }
        }
    }

    fn flush(&mut self, flusher: &mut Flusher, queue: Queue) -> Result<(), WalError> {
        let Some((place, records)) = queue.checkpoint else { return flusher.flush(&queue.records) };
        let (before, after) = queue.records.split_at(place);
        flusher.flush(before)?;
        self.begin_checkpoint(&mut flusher.log, records)?;
        flusher.flush(after)
    }

    fn begin_checkpoint(&mut self, log: &mut Log, records: Records) -> Result<(), WalError> {
        self.join_checkpoint();
        let checkpoint = log.begin_checkpoint()?;
        let shared = self.shared.clone();
        self.checkpoint = Some(spawn("wal-checkpoint", move || {
            let stop = || shared.closing.load(Ordering::Acquire);
            let stopped = checkpoint.stopped();
            let report = match checkpoint.write_until(records, stop) {
                Ok(true) => Report::Checkpointed,
                Ok(false) => Report::CheckpointFailed(stopped),
                Err(error) => Report::CheckpointFailed(error),
            };
            shared.checkpointing.store(false, Ordering::Release);
            (shared.report)(report);
        })?);
        Ok(())
    }

    fn join_checkpoint(&mut self) {
        if let Some(thread) = self.checkpoint.take() {
            let _ = thread.join();
        }
    }
}
