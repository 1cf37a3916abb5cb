//! The thread that writes the log, and those that help it.

use super::files::{Files, Segment, failed};
use super::log::{Log, Source};
use super::recover::Tail;
use super::{Queue, Records, Report, Shared, WalError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

pub(super) struct Writer {
    shared: Arc<Shared>,
    log: Log,
    checkpoint: Option<JoinHandle<()>>,
}

/// The thread that makes segments ready.
struct Spare {
    wanted: Option<Sender<u64>>,
    ready: Receiver<Result<Segment, WalError>>,
    thread: Option<JoinHandle<()>>,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, WalError> {
    let failed = failed("start the thread of the log,", name.as_ref());
    Builder::new().name(name.into()).spawn(run).map_err(failed)
}

impl Spare {
    fn start(files: Arc<Files>) -> Result<Self, WalError> {
        let (wanted, orders) = channel::<u64>();
        let (done, ready) = channel();
        let thread = spawn("wal-spare", move || {
            for index in orders {
                if done.send(files.make_segment(index)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Spare { wanted: Some(wanted), ready, thread: Some(thread) })
    }
}

impl Source for Spare {
    fn take(&mut self, files: &Files, index: u64) -> Result<Segment, WalError> {
        match self.ready.recv() {
            Ok(Ok(segment)) => Ok(segment),
            // There may be room now.
            Ok(Err(_)) | Err(_) => files.make_segment(index),
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

impl Writer {
    /// Begins a segment, durably, and starts the thread.
    pub fn start(
        shared: impl FnOnce(&Log) -> Arc<Shared>,
        files: Arc<Files>,
        tail: &Tail,
    ) -> Result<(Arc<Shared>, JoinHandle<()>), WalError> {
        let spare = Spare::start(files.clone())?;
        let log = Log::start(files, tail, Box::new(spare))?;
        let shared = shared(&log);
        let writer = Writer { shared: shared.clone(), log, checkpoint: None };
        Ok((shared, spawn("wal", move || writer.run())?))
    }

    fn run(mut self) {
        let mut taken = 0;
        loop {
            let (queue, closing) = self.shared.take();
            taken += queue.records.len() as u64;
            let result = self.flush(queue);
            if let Err(error) = result.and_then(|()| if closing { self.log.seal() } else { Ok(()) })
            {
                self.shared.closing.store(true, Ordering::Release);
                self.join_checkpoint();
                return self.shared.fail(error);
            }
            (self.shared.report)(Report::Durable { upto: taken, logged: self.log.logged() });
            if closing {
                return self.join_checkpoint();
            }
        }
    }

    fn flush(&mut self, queue: Queue) -> Result<(), WalError> {
        let (place, mut checkpoint) = match queue.checkpoint {
            Some((place, records)) => (place, Some(records)),
            None => (queue.records.len(), None),
        };
        let (before, after) = queue.records.split_at(place);
        before.iter().try_for_each(|record| self.log.append(record))?;
        if let Some(records) = checkpoint.take() {
            self.begin_checkpoint(records)?;
        }
        after.iter().try_for_each(|record| self.log.append(record))?;
        self.log.sync()
    }

    fn begin_checkpoint(&mut self, records: Records) -> Result<(), WalError> {
        self.join_checkpoint();
        let checkpoint = self.log.begin_checkpoint()?;
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
