//! What is kept on disk, and what waits for it.

use crate::application::Networked;
use crate::error::MemberError;
use crate::gate::Gate;
use crate::journal::Journal;
use crate::wire::to_bytes;
use bytes::{Bytes, BytesMut};
use meridian_core::ProcessId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;

/// What passes the gate.
pub(crate) enum Passing<P: Networked> {
    Send { to: ProcessId, message: P::Message },
    Output(P::Output),
}

/// So many bytes of a record are written in one: the log takes no more than [`meridian_core::log::MAX_BODY`].
const PIECE_LEN: usize = 16 << 20;

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Logged<R> {
    /// The process's.
    Process(R),
    /// The application's, at the end of a checkpoint.
    Application(Bytes),
    /// A piece of a longer record: a state may be of any length.
    Piece {
        /// Whether it is the first; what was before it and had no last one is of a torn tail.
        first: bool,
        last: bool,
        bytes: Bytes,
    },
}

/// What is written of a record: itself, or pieces of it.
fn pieces(record: Bytes, len: usize) -> impl Iterator<Item = Bytes> {
    let count = if record.len() <= len { 1 } else { record.len().div_ceil(len) };
    (0..count).map(move |at| {
        if count == 1 {
            return record.clone();
        }
        let bytes = record.slice(at * len..record.len().min((at + 1) * len));
        to_bytes(&Logged::<()>::Piece { first: at == 0, last: at + 1 == count, bytes })
    })
}

/// Puts records together again.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    begun: Option<BytesMut>,
}

impl Pieces {
    /// Reads what was written; `None` while a record is not whole.
    pub(crate) fn join<R: DeserializeOwned>(
        &mut self,
        written: &[u8],
    ) -> Result<Option<Logged<R>>, postcard::Error> {
        match postcard::from_bytes(written)? {
            Logged::Piece { first, last, bytes } => {
                if first {
                    self.begun = Some(BytesMut::new());
                }
                let begun = self.begun.as_mut().ok_or(postcard::Error::DeserializeBadEncoding)?;
                begun.extend_from_slice(&bytes);
                match self.begun.take_if(|_| last) {
                    Some(whole) => postcard::from_bytes(&whole).map(Some),
                    None => Ok(None),
                }
            }
            whole => {
                self.begun = None;
                Ok(Some(whole))
            }
        }
    }
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
        for piece in pieces(to_bytes(&Logged::Process(record)), PIECE_LEN) {
            let number = self.journal.append(piece);
            self.gate.on_persisted(number);
        }
        self.persisted = true;
    }

    pub(crate) fn note(&mut self, record: &P::Record) {
        for piece in pieces(to_bytes(&Logged::Process(record)), PIECE_LEN) {
            self.journal.append(piece);
        }
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
        let all = records.chain(std::iter::once(last));
        self.journal.checkpoint(Box::new(all.flat_map(|record| pieces(record, PIECE_LEN))));
    }

    pub(crate) fn close(self) -> Result<(), MemberError> {
        self.journal.close().map_err(MemberError::Log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Words = Logged<Vec<u64>>;

    fn read(pieces: &mut Pieces, written: &Bytes) -> Option<Vec<u64>> {
        match pieces.join(written).unwrap()? {
            Logged::Process(words) => Some(words),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_long_record_is_written_in_pieces_and_read_whole() {
        let long: Vec<u64> = (0..1000).collect();
        for len in [1 << 20, 4096, 100, 7] {
            let written: Vec<_> = pieces(to_bytes(&Words::Process(long.clone())), len).collect();
            assert_eq!(written.len() > 1, len < 4096, "{len}");
            assert!(written.iter().all(|piece| len > 4000 || piece.len() < len + 8));
            let mut reader = Pieces::default();
            let (last, before) = written.split_last().unwrap();
            assert!(before.iter().all(|piece| read(&mut reader, piece).is_none()));
            assert_eq!(read(&mut reader, last), Some(long.clone()));
        }
    }

    #[test]
    fn pieces_before_a_crash_are_not_mixed_with_what_comes_after() {
        let long = |seed: u64| Words::Process((seed..seed + 100).collect());
        let torn: Vec<_> = pieces(to_bytes(&long(5)), 50).collect();
        let whole: Vec<_> = pieces(to_bytes(&long(9)), 50).collect();
        let mut reader = Pieces::default();
        assert!(read(&mut reader, &torn[0]).is_none());
        let read_all = whole.iter().filter_map(|piece| read(&mut reader, piece));
        assert_eq!(read_all.collect::<Vec<_>>(), [(9..109).collect::<Vec<u64>>()]);
        assert!(read(&mut reader, &torn[0]).is_none());
        assert_eq!(read(&mut reader, &to_bytes(&Words::Process(vec![7]))), Some(vec![7]));
        assert!(reader.join::<Vec<u64>>(&torn[1]).is_err());
    }
}
