//! The thread that writes the log, and those that help it.

use super::files::{Files, Segment, failed};
use super::recover::Tail;
use super::{Queue, Records, Report, Shared, WalError, checkpoint};
use crate::record::{self, HEADER_LEN, Mark};
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// How much is gathered for one write, in bytes; a flush of more makes several, and one sync.
const CHUNK: usize = 4 << 20;
/// The body of the first record of each segment.
const FIRST: &[u8] = b"meridian log segment";

pub(super) struct Writer {
    shared: Arc<Shared>,
    files: Arc<Files>,
    segment: Segment,
    /// How much of the segment is written, in bytes.
    end: u64,
    /// What comes after that.
    buffer: BytesMut,
    /// The number of the next record.
    next: u64,
    /// The number of the last that is durable.
    durable: u64,
    spare: Spare,
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

    fn order(&self, index: u64) {
        if let Some(wanted) = &self.wanted {
            let _ = wanted.send(index); // If the thread is gone, the segment is made when needed.
        }
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
        shared: Arc<Shared>,
        files: Arc<Files>,
        tail: &Tail,
    ) -> Result<JoinHandle<()>, WalError> {
        let spare = Spare::start(files.clone())?;
        let mut writer = Writer {
            segment: files.make_segment(tail.index)?,
            shared,
            files,
            end: 0,
            buffer: BytesMut::new(),
            next: tail.next,
            durable: tail.next - 1,
            spare,
            checkpoint: None,
        };
        writer.spare.order(tail.index + 1);
        writer.encode(FIRST);
        writer.sync()?;
        spawn("wal", move || writer.run())
    }

    fn run(mut self) {
        let mut taken = 0;
        loop {
            let (queue, closing) = self.shared.take();
            taken += queue.records.len() as u64;
            let result = self.flush(queue);
            if let Err(error) = result.and_then(|()| if closing { self.seal() } else { Ok(()) }) {
                self.shared.closing.store(true, Ordering::Release);
                self.join_checkpoint();
                return self.shared.fail(error);
            }
            (self.shared.report)(Report::Durable(taken));
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
        self.append(before)?;
        if let Some(records) = checkpoint.take() {
            self.begin_checkpoint(records)?;
        }
        self.append(after)?;
        self.sync()
    }

    fn append(&mut self, records: &[Bytes]) -> Result<(), WalError> {
        for record in records {
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
        }
        Ok(())
    }

    fn encode(&mut self, body: &[u8]) {
        let segment = self.files.segment_name(self.segment.index);
        let mark = Mark { segment, number: self.next, durable: self.durable };
        record::encode(&mut self.buffer, mark, body);
        self.next += 1;
    }

    fn write(&mut self) -> Result<(), WalError> {
        let written = self.segment.file.write_at(self.end, &self.buffer);
        written.map_err(failed("write", &self.segment.path))?;
        let len = self.buffer.len() as u64;
        self.end += len;
        self.shared.since_checkpoint.fetch_add(len, Ordering::Relaxed);
        self.buffer.clear();
        Ok(())
    }

    /// Makes durable all that was encoded.
    fn sync(&mut self) -> Result<(), WalError> {
        if self.durable + 1 == self.next {
            return Ok(());
        }
        if !self.buffer.is_empty() {
            self.write()?;
        }
        self.segment.file.sync_data().map_err(failed("sync", &self.segment.path))?;
        self.durable = self.next - 1;
        Ok(())
    }

    /// Goes on in the next segment (W2). Its first record is encoded, not yet written.
    fn begin_segment(&mut self) -> Result<(), WalError> {
        self.sync()?;
        let index = self.segment.index + 1;
        self.segment = match self.spare.ready.recv() {
            Ok(Ok(segment)) => segment,
            // There may be room now.
            Ok(Err(_)) | Err(_) => self.files.make_segment(index)?,
        };
        assert_eq!(self.segment.index, index, "the spare segment is not the next");
        self.end = 0;
        self.spare.order(index + 1);
        self.encode(FIRST);
        Ok(())
    }

    /// Says in a new segment that all before is durable, so that damage to it will be noticed.
    fn seal(&mut self) -> Result<(), WalError> {
        self.spare.wanted = None; // It is the last.
        self.begin_segment()?;
        self.sync()
    }

    fn begin_checkpoint(&mut self, records: Records) -> Result<(), WalError> {
        self.join_checkpoint();
        self.sync()?;
        let stood_for = self.shared.since_checkpoint.load(Ordering::Relaxed);
        let first = self.next;
        self.begin_segment()?;
        self.sync()?;
        self.shared.since_checkpoint.fetch_sub(stood_for, Ordering::Relaxed);
        let (shared, files, index) = (self.shared.clone(), self.files.clone(), self.segment.index);
        self.checkpoint = Some(spawn("wal-checkpoint", move || {
            let stop = || shared.closing.load(Ordering::Acquire);
            let written = checkpoint::write(&files, index, first, records, stop);
            let report = match written {
                Ok(true) => match files.remove_before(index) {
                    Ok(()) => Report::Checkpointed,
                    Err(error) => Report::CheckpointFailed(error),
                },
                Ok(false) => {
                    let source = io::ErrorKind::Interrupted.into();
                    let path = files.checkpoint_path(index);
                    Report::CheckpointFailed(failed("finish, as the log is closed,", &path)(source))
                }
                Err(error) => {
                    shared.since_checkpoint.fetch_add(stood_for, Ordering::Relaxed);
                    Report::CheckpointFailed(error)
                }
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
