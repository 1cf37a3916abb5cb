//! What is kept on disk, and what waits for it.

use crate::application::Networked;
use crate::error::MemberError;
use crate::gate::Gate;
use crate::journal::Journal;
use crate::wire::append;
use bytes::{Bytes, BytesMut};
use meridian_core::ProcessId;
use serde::{Deserialize, Serialize};
use std::fs::File;

/// What passes the gate.
pub(crate) enum Passing<P: Networked> {
    Send { to: ProcessId, message: P::Message },
    Output(P::Output),
}

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Logged<R> {
    /// The process's.
    Process(R),
    /// The application's, at the end of a checkpoint.
    Application(Bytes),
}

/// The log of one member, and what its records hold back.
pub(crate) struct Store<P: Networked> {
    pub(crate) gate: Gate<Passing<P>>,
    journal: Box<dyn Journal>,
    /// Whether something was persisted since the last flush.
    persisted: bool,
    /// Whether a checkpoint was asked for that has not begun.
    asked: bool,
    /// A log that grew by so many bytes is replaced by a checkpoint.
    checkpoint_bytes: u64,
    /// Held as long as this lives: the system drops it however the process ends.
    _lock: File,
}

impl<P: Networked> Store<P> {
    pub(crate) fn new(
        journal: Box<dyn Journal>,
        lock: File,
        checkpoint_bytes: u64,
    ) -> Result<Store<P>, MemberError> {
        let durable = journal.durable().map_err(MemberError::Log)?;
        Ok(Store {
            gate: Gate::new(durable),
            journal,
            persisted: false,
            asked: false,
            checkpoint_bytes,
            _lock: lock,
        })
    }

    pub(crate) fn persist(&mut self, record: &P::Record) {
        let number = self.journal.append(to_bytes(&Logged::Process(record)));
        self.gate.on_persisted(number);
        self.persisted = true;
    }

    pub(crate) fn note(&mut self, record: &P::Record) {
        self.journal.append(to_bytes(&Logged::Process(record)));
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
        let bytes = self.journal.bytes_since_checkpoint();
        self.asked &= bytes > self.checkpoint_bytes;
        bytes > self.checkpoint_bytes * if self.asked { 2 } else { 1 }
    }

    /// Puts the state of the process and of its application in the place of the log.
    pub(crate) fn checkpoint(&mut self, process: &P, application: Bytes) {
        let records = process.checkpoint().map(|record| to_bytes(&Logged::Process(record)));
        let last = to_bytes(&Logged::<P::Record>::Application(application));
        self.asked = true;
        self.journal.checkpoint(Box::new(records.chain(std::iter::once(last))));
    }

    pub(crate) fn close(self) -> Result<(), MemberError> {
        self.journal.close().map_err(MemberError::Log)
    }
}

fn to_bytes<T: Serialize>(value: &T) -> Bytes {
    let mut bytes = BytesMut::new();
    append(&mut bytes, value);
    bytes.freeze()
}
