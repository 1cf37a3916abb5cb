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

/// A flush that takes no longer than this is fast: two threads that wake each other take as long
/// where processors doze in virtual machines, and meanwhile more comes together for the next.
const FAST: Duration = Duration::from_micros(500);
/// How long a log waits on a full disk until it tries again.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// From so many marks on a disk counts as fast. Each fast flush gives one, each other takes some
/// away: so it is fast while more than four of five flushes are.
const MARKS_FAST: u32 = 8;
/// So many marks there are at most: a few slow flushes after many fast ones change nothing.
const MARKS_MAX: u32 = 24;
/// What a slow flush takes away, for each time that it is as long as a fast one.
const MARKS_LOST: u32 = 4;

pub(super) struct Writer {
    shared: Arc<Shared>,
    checkpoint: Option<JoinHandle<()>>,
}

/// The log, and how fast its disk is.
pub(super) struct Flusher {
    pub log: Log,
    /// How many records were ever taken off the queue.
    flushed: u64,
    /// How long the last flush took.
    took: Duration,
    pace: Pace,
}

/// How fast flushes were lately.
#[derive(Default)]
struct Pace {
    marks: u32,
}

impl Pace {
    /// A flush took so long.
    fn note(&mut self, took: Duration) {
        let times = u32::try_from(took.as_nanos() / FAST.as_nanos()).unwrap_or(u32::MAX);
        self.marks = match times {
            0 => (self.marks + 1).min(MARKS_MAX),
            times => self.marks.saturating_sub(MARKS_LOST.saturating_mul(times)),
        };
    }

    /// Whether the next can be expected to be fast.
    fn is_fast(&self) -> bool {
        self.marks >= MARKS_FAST
    }
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
        Flusher { log, flushed: 0, took: Duration::ZERO, pace: Pace::default() }
    }

    /// Whether the disk has been fast for a while.
    pub fn is_fast(&self) -> bool {
        self.pace.is_fast()
    }

    #[cfg(test)]
    pub fn assume_fast(&mut self) {
        self.pace.marks = MARKS_MAX;
    }

    /// What was made durable.
    pub fn durable(&self) -> Report {
        Report::Durable { upto: self.flushed, logged: self.log.logged(), took: self.took }
    }

    /// Makes these records durable, and all before.
    pub fn flush(&mut self, records: &[Bytes]) -> Result<(), WalError> {
        let begun = Instant::now();
        self.flushed += records.len() as u64;
        records.iter().try_for_each(|record| self.log.append(record))?;
        self.log.sync()?;
        self.took = begun.elapsed();
        self.pace.note(self.took);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the disk counts as fast after so many flushes, of which each `nth` is slow.
    fn is_fast(flushes: u32, nth: u32) -> bool {
        let mut pace = Pace::default();
        for flush in 1..=flushes {
            pace.note(if flush % nth == 0 { FAST * 3 / 2 } else { FAST / 2 });
        }
        pace.is_fast()
    }

    /// Several logs on one disk are flushed at the same time: now and then one waits for others.
    #[test]
    fn a_disk_is_fast_while_few_flushes_are_slow() {
        assert!(!is_fast(7, 100) && is_fast(8, 100));
        assert!((100..200).all(|flushes| is_fast(flushes, 10)));
        assert!((1..200).all(|flushes| !is_fast(flushes, 4)));
    }

    #[test]
    fn a_disk_that_has_become_slow_is_noticed_after_a_few_flushes() {
        for (took, count) in [(FAST * 3 / 2, 4), (FAST * 10, 0)] {
            let mut pace = Pace { marks: MARKS_MAX };
            let still_fast = (0..).take_while(|_| {
                pace.note(took);
                pace.is_fast()
            });
            assert_eq!(still_fast.count(), count, "{took:?}");
        }
    }
}
