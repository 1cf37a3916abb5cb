//! What is kept on disk, and what waits for it.

use crate::application::Networked;
use crate::directory::Directory;
use crate::error::MemberError;
use crate::gate::Gate;
use crate::journal::Journal;
use crate::logged::{Logged, pieces};
use bytes::Bytes;
use meridian_core::Visible;
use meridian_core::standing::{Standing, Start};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The log of one member, and what its records hold back.
pub(crate) struct Store<P: Networked> {
    pub(crate) gate: Gate<Visible<P>>,
    journal: Box<dyn Journal>,
    /// Whether something was persisted since the last flush.
    persisted: bool,
    /// Whether a checkpoint was asked for that has not begun.
    asked: bool,
    /// A log that grew by so many bytes, and by as many as the last checkpoint has, is replaced by
    /// a checkpoint: so all checkpoints together write no more than the log does.
    checkpoint_bytes: u64,
    /// All starts until now.
    starts: Vec<Start>,
    /// Held as long as this lives.
    _lock: Option<Directory>,
}

impl<P: Networked> Store<P> {
    pub(crate) fn new(
        journal: Box<dyn Journal>,
        lock: Option<Directory>,
        checkpoint_bytes: u64,
    ) -> Result<Store<P>, MemberError> {
        let durable = journal.durable().map_err(MemberError::Log)?;
        Ok(Store {
            gate: Gate::new(durable),
            journal,
            persisted: false,
            asked: false,
            checkpoint_bytes,
            starts: Vec::new(),
            _lock: lock,
        })
    }

    pub(crate) fn persist(&mut self, record: &P::Record) {
        for piece in pieces(&Logged::<_, P::Peer>::Process(record)) {
            let number = self.journal.append(piece);
            self.gate.on_persisted(number);
        }
        self.persisted = true;
    }

    pub(crate) fn note(&mut self, record: &P::Record) {
        for piece in pieces(&Logged::<_, P::Peer>::Process(record)) {
            self.journal.append(piece);
        }
    }

    /// Writes down all starts until now, the present one last, with this and each checkpoint. They
    /// are durable when this returns, before anybody hears of this start; `says` tells when more
    /// is.
    pub(crate) fn begin(
        &mut self,
        starts: Vec<Start>,
        says: &Receiver<()>,
    ) -> Result<(), MemberError> {
        let mut last = 0;
        for piece in pieces(&Logged::<(), P::Peer>::Starts(starts.clone())) {
            last = self.journal.append(piece);
        }
        self.journal.flush();
        while self.journal.durable().map_err(MemberError::Log)? < last {
            if says.recv().is_err() {
                break; // The log has ended, and has said why.
            }
        }
        self.starts = starts;
        self.on_durable()
    }

    /// Writes down how far the logs of others go. It is flushed when the batch ends, though nothing
    /// waits for it.
    pub(crate) fn remember(&mut self, known: Vec<(P::Peer, Standing)>) {
        for piece in pieces(&Logged::<(), _>::Known(known)) {
            self.journal.append(piece);
        }
        self.persisted = true;
    }

    /// Whether something waits to be flushed.
    pub(crate) fn is_persisted(&self) -> bool {
        self.persisted
    }

    /// How far the log goes.
    pub(crate) fn logged(&self) -> u64 {
        self.journal.logged()
    }

    /// How long a flush takes, once there was any.
    pub(crate) fn flush_time(&self) -> Option<Duration> {
        self.journal.flush_time()
    }

    pub(crate) fn on_durable(&mut self) -> Result<(), MemberError> {
        self.gate.on_durable(self.journal.durable().map_err(MemberError::Log)?);
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.journal.is_full()
    }

    /// Flushes what was persisted; tells whether the log should be replaced by a checkpoint.
    pub(crate) fn end_batch(&mut self) -> bool {
        if self.persisted {
            self.journal.flush();
            self.persisted = false;
        }
        if self.journal.is_checkpointing() {
            return false; // Another could not begin: it would be copied for nothing.
        }
        let bytes = self.journal.bytes_since_checkpoint();
        let enough = self.checkpoint_bytes.max(self.journal.checkpoint_bytes());
        self.asked &= bytes > enough;
        bytes > enough * if self.asked { 2 } else { 1 }
    }

    /// Puts the state of the process and of its application, and what is known of others, in the
    /// place of the log.
    pub(crate) fn checkpoint(
        &mut self,
        process: &P,
        application: Bytes,
        known: Vec<(P::Peer, Standing)>,
    ) {
        let records = process.checkpoint().map(Logged::Process);
        let starts = Logged::Starts(self.starts.clone());
        let last = [Logged::Application(application), Logged::Known(known), starts];
        self.asked = true;
        let all = records.chain(last);
        self.journal.checkpoint(Box::new(all.flat_map(|record| pieces(&record))));
    }

    pub(crate) fn close(self) -> Result<(), MemberError> {
        self.journal.close().map_err(MemberError::Log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Records;
    use meridian_multicast::PrimCast;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A log of nothing but its length.
    #[derive(Clone, Default)]
    struct Length {
        bytes: Arc<AtomicU64>,
        is_checkpointing: Arc<AtomicBool>,
        checkpoint_bytes: Arc<AtomicU64>,
    }

    impl Journal for Length {
        fn append(&mut self, record: Bytes) -> u64 {
            self.bytes.fetch_add(record.len() as u64, Ordering::Relaxed)
        }

        fn flush(&mut self) {}

        fn durable(&self) -> Result<u64, String> {
            Ok(self.logged())
        }

        fn logged(&self) -> u64 {
            self.bytes.load(Ordering::Relaxed)
        }

        fn flush_time(&self) -> Option<Duration> {
            None
        }

        fn is_full(&self) -> bool {
            false
        }

        fn bytes_since_checkpoint(&self) -> u64 {
            self.logged()
        }

        fn checkpoint_bytes(&self) -> u64 {
            self.checkpoint_bytes.load(Ordering::Relaxed)
        }

        fn is_checkpointing(&self) -> bool {
            self.is_checkpointing.load(Ordering::Relaxed)
        }

        fn checkpoint(&mut self, _: Records) {
            panic!("it is not asked for here");
        }

        fn close(self: Box<Self>) -> Result<(), String> {
            Ok(())
        }
    }

    /// Who is told that a checkpoint is wanted copies all its state for it.
    #[test]
    fn no_checkpoint_is_wanted_while_one_is_written() {
        let journal = Length::default();
        let (bytes, is_checkpointing) = (journal.bytes.clone(), journal.is_checkpointing.clone());
        let mut store = Store::<PrimCast>::new(Box::new(journal), None, 100).unwrap();
        assert!(!store.end_batch());
        bytes.store(101, Ordering::Relaxed);
        assert!(store.end_batch(), "the log is long");
        is_checkpointing.store(true, Ordering::Relaxed);
        for longer in [101, 1_000, 1_000_000] {
            bytes.store(longer, Ordering::Relaxed);
            assert!(!store.end_batch(), "it would be thrown away");
        }
        is_checkpointing.store(false, Ordering::Relaxed);
        assert!(store.end_batch(), "the log is long again");
    }

    /// With much that lives, a log of a fixed length would be replaced again and again.
    #[test]
    fn a_log_grows_by_as_much_as_lives_before_it_is_replaced() {
        let journal = Length::default();
        let (bytes, checkpoint) = (journal.bytes.clone(), journal.checkpoint_bytes.clone());
        let mut store = Store::<PrimCast>::new(Box::new(journal), None, 100).unwrap();
        checkpoint.store(5000, Ordering::Relaxed);
        for (grown, wanted) in [(101, false), (5000, false), (5001, true)] {
            bytes.store(grown, Ordering::Relaxed);
            assert_eq!(store.end_batch(), wanted, "after {grown} bytes");
        }
        checkpoint.store(50, Ordering::Relaxed);
        bytes.store(101, Ordering::Relaxed);
        assert!(store.end_batch(), "little lives again");
    }
}
