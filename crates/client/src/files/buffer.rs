//! What is buffered of one file: a plain value, changed under one lock and never across a wait.
//!
//! Bytes leave in this order: what is in flight, what was written at an offset, what was appended.
//! So a write at an offset waits while appended bytes wait: see [`Buffer::accept`].

use crate::client::Prepared;
use crate::dirty::Dirty;
use crate::error::ClientError;
use crate::files::Handle;
use crate::files::locks::Holders;
use meridian_fs::types::{Attributes, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Buffered bytes of one file from which on they are sent while the program goes on writing.
pub const FLUSH_AT: usize = 4 << 20;
/// Buffered bytes of one file at which the program waits.
pub const FILE_MAX: usize = 3 * FLUSH_AT;
/// Runs of one file at which the program waits: one message names them all.
pub const RUNS_MAX: usize = 4096;

/// Bytes that go in one message.
#[derive(Debug)]
pub(crate) enum Batch {
    /// At their offsets.
    Positional(Dirty),
    /// At the end.
    Append(Vec<u8>),
}

impl Batch {
    /// How far it reaches from its first byte.
    pub(crate) fn span(&self) -> u64 {
        match self {
            Batch::Positional(dirty) => dirty.end() - dirty.start(),
            Batch::Append(bytes) => bytes.len() as u64,
        }
    }
}

/// A batch on its way. It keeps its message's name until that has ended, so that appended bytes
/// are appended once however often they are sent.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) batch: Arc<Batch>,
    pub(crate) time: Timestamp,
    pub(crate) message: Option<Arc<Prepared>>,
}

/// Bytes taken out of a buffer: see [`Buffer::set_aside`].
#[derive(Debug)]
pub(crate) struct Aside {
    dirty: Dirty,
    appended: Vec<u8>,
    flight: Option<Flight>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is buffered; so many bytes now are.
    Buffered(usize),
    /// The buffer must be flushed first.
    FlushFirst,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    dirty: Dirty,
    appended: Vec<u8>,
    flight: Option<Flight>,
    changed: Timestamp,
    /// Since when there is something to be sent.
    pub(crate) dirty_since: Option<Instant>,
    /// Of each open file, the failure that it was not yet told of.
    pub(crate) handles: BTreeMap<Handle, Option<ClientError>>,
    /// It has no name left and is kept for this client: nobody else can ever see its bytes.
    pub(crate) nameless: bool,
    /// It may be kept for this client, which says so as long as it is open, and then that it is
    /// not.
    pub(crate) kept: bool,
    /// Who took a lock through this mount and may hold it.
    pub(crate) holders: Holders,
    /// The length that a replica last told.
    pub(crate) size: Option<u64>,
    /// The number of the last change that ended here, of all changes of this mount.
    pub(crate) landed: u64,
    /// The inode is full: bytes go to blocks.
    pub(crate) use_blocks: bool,
}

impl Buffer {
    /// Takes written bytes, at `offset` or at the end.
    pub(crate) fn accept(&mut self, offset: Option<u64>, data: &[u8], time: Timestamp) -> Accepted {
        let full = self.held() + data.len() > FILE_MAX || self.dirty.runs() >= RUNS_MAX;
        if (full && self.held() > 0) || (offset.is_some() && !self.appended.is_empty()) {
            return Accepted::FlushFirst;
        }
        match offset {
            Some(offset) => self.dirty.write(offset, data),
            None => self.appended.extend_from_slice(data),
        }
        self.changed = time;
        self.dirty_since.get_or_insert_with(Instant::now);
        Accepted::Buffered(self.held())
    }

    /// How many bytes are held, those in flight too.
    pub(crate) fn held(&self) -> usize {
        let flying = self.flight.as_ref().map_or(0, |flight| match &*flight.batch {
            Batch::Positional(dirty) => dirty.bytes(),
            Batch::Append(bytes) => bytes.len(),
        });
        self.dirty.bytes() + self.appended.len() + flying
    }

    /// The batch to be sent next: again what is in flight, or what comes after.
    pub(crate) fn take_off(&mut self) -> Option<Flight> {
        if self.flight.is_none() {
            let batch = if !self.dirty.is_empty() {
                Batch::Positional(std::mem::take(&mut self.dirty))
            } else if !self.appended.is_empty() {
                Batch::Append(std::mem::take(&mut self.appended))
            } else {
                return None;
            };
            self.flight =
                Some(Flight { batch: Arc::new(batch), time: self.changed, message: None });
        }
        self.flight.clone()
    }

    /// Names, or unnames, the message of the batch in flight.
    ///
    /// # Panics
    /// If nothing is in flight.
    pub(crate) fn set_message(&mut self, message: Option<Arc<Prepared>>) {
        self.flight.as_mut().expect("a flush names its own batch").message = message;
    }

    /// The batch in flight is stored; so is the file then.
    pub(crate) fn land(&mut self, attributes: &Attributes, number: u64) {
        self.flight = None;
        self.size = Some(attributes.size);
        self.landed = number;
        if self.held() == 0 {
            self.dirty_since = None;
        }
    }

    /// Drops all bytes: nobody can ever see them.
    pub(crate) fn clear(&mut self) {
        self.dirty = Dirty::default();
        self.appended = Vec::new();
        self.flight = None;
        self.dirty_since = None;
    }

    /// Takes all bytes out, unless some of them may have been sent.
    pub(crate) fn set_aside(&mut self) -> Option<Aside> {
        if self.flight.as_ref().is_some_and(|flight| flight.message.is_some()) {
            return None;
        }
        let (dirty, appended) =
            (std::mem::take(&mut self.dirty), std::mem::take(&mut self.appended));
        let aside = Aside { dirty, appended, flight: self.flight.take() };
        self.clear();
        Some(aside)
    }

    /// Puts bytes back under those that were written since.
    ///
    /// # Panics
    /// If something is in flight.
    pub(crate) fn put_back(&mut self, mut aside: Aside) {
        assert!(self.flight.is_none(), "who set bytes aside keeps flushes back");
        aside.dirty.absorb(&self.dirty);
        aside.appended.append(&mut self.appended);
        (self.dirty, self.appended, self.flight) = (aside.dirty, aside.appended, aside.flight);
        if self.held() > 0 {
            self.dirty_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether appended bytes wait or fly: their place is known when they are stored.
    pub(crate) fn appends(&self) -> bool {
        !self.appended.is_empty() || self.append_flies() || self.append_next() > 0
    }

    /// Whether appended bytes fly: a replica may have them or not yet.
    pub(crate) fn append_flies(&self) -> bool {
        let named = self.flight.as_ref().filter(|flight| flight.message.is_some());
        matches!(named.map(|flight| &*flight.batch), Some(Batch::Append(_)))
    }

    /// How many appended bytes come next, of which no replica can have heard.
    fn append_next(&self) -> u64 {
        let unnamed = self.flight.as_ref().filter(|flight| flight.message.is_none());
        match unnamed.map(|flight| &*flight.batch) {
            Some(Batch::Append(bytes)) => bytes.len() as u64,
            Some(Batch::Positional(_)) | None => 0,
        }
    }

    /// `attributes` as a program shall see them; `None` if that is known only after the flush.
    pub(crate) fn overlay(&self, mut attributes: Attributes) -> Option<Attributes> {
        if self.held() == 0 {
            return Some(attributes);
        }
        if self.append_flies() {
            return None;
        }
        let end = self.positional_end().max(attributes.size + self.append_next());
        attributes.size = end + self.appended.len() as u64;
        attributes.mtime = self.changed;
        attributes.ctime = attributes.ctime.max(self.changed);
        Some(attributes)
    }

    /// Where the bytes with an offset end.
    pub(crate) fn positional_end(&self) -> u64 {
        let flying = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Positional(dirty)) => dirty.end(),
            Some(Batch::Append(_)) | None => 0,
        };
        self.dirty.end().max(flying)
    }

    /// What is buffered of a range: each over those before.
    pub(crate) fn within(&self, range: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut parts = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Positional(dirty)) => dirty.within(range.clone()),
            Some(Batch::Append(_)) | None => Vec::new(),
        };
        parts.extend(self.dirty.within(range));
        parts
    }

    /// All bytes of a range, if the newest writes alone cover it.
    pub(crate) fn whole(&self, range: std::ops::Range<u64>) -> Option<Vec<u8>> {
        self.dirty.whole(range).map(<[u8]>::to_vec)
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.handles.is_empty() && self.held() == 0 && self.holders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flying(buffer: &mut Buffer) -> String {
        match buffer.take_off().map(|flight| flight.batch) {
            Some(batch) => match &*batch {
                Batch::Positional(dirty) => format!("{:?}", dirty.iter().collect::<Vec<_>>()),
                Batch::Append(bytes) => format!("+{bytes:?}"),
            },
            None => "nothing".into(),
        }
    }

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let (mut buffer, time) = (Buffer::default(), Timestamp::default());
        assert_eq!(buffer.accept(Some(5), b"a", time), Accepted::Buffered(1));
        assert_eq!(buffer.accept(None, b"b", time), Accepted::Buffered(2));
        assert_eq!(buffer.accept(Some(0), b"c", time), Accepted::FlushFirst);
        assert_eq!(flying(&mut buffer), "[(5, [97])]");
        assert_eq!(flying(&mut buffer), "[(5, [97])]", "the same until it has landed");
        buffer.flight = None;
        assert_eq!(flying(&mut buffer), "+[98]");
        assert_eq!(buffer.accept(Some(0), b"c", time), Accepted::Buffered(2));
        buffer.flight = None;
        assert_eq!(flying(&mut buffer), "[(0, [99])]");
        buffer.flight = None;
        assert_eq!(flying(&mut buffer), "nothing");
    }

    #[test]
    fn a_full_buffer_waits_and_an_empty_one_takes_anything() {
        let (mut buffer, time) = (Buffer::default(), Timestamp::default());
        let much = vec![0; FILE_MAX + 1];
        assert_eq!(buffer.accept(Some(0), &much, time), Accepted::Buffered(FILE_MAX + 1));
        assert_eq!(buffer.accept(Some(0), b"a", time), Accepted::FlushFirst);
    }

    #[test]
    fn a_write_meanwhile_lies_over_the_batch_in_flight() {
        let (mut buffer, time) = (Buffer::default(), Timestamp::default());
        buffer.accept(Some(0), b"old", time);
        let _flight = buffer.take_off();
        buffer.accept(Some(1), b"N", time);
        let mut bytes = *b"___";
        for (offset, part) in buffer.within(0..3) {
            bytes[offset as usize..][..part.len()].copy_from_slice(&part);
        }
        assert_eq!(&bytes, b"oNd");
    }
}
