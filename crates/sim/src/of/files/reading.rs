//! The bytes of a file, put together from what a replica says of it.

use bytes::Bytes;
use meridian_fs::Answer;
use meridian_fs::types::Data;
use meridian_session::{Failure, Part};
use std::fmt;

/// See the module.
#[derive(Clone)]
pub(super) struct Reading {
    bytes: Vec<u8>,
    /// Where parts of blocks belong that are still to come.
    wanted: Vec<(usize, Part)>,
    /// Whether more is asked for now than the block has, as if the file had been forged.
    forged: bool,
}

impl Reading {
    /// Of the answer to a question for all contents.
    pub fn of(answer: Answer) -> Reading {
        let Answer::Contents { attributes, extents, end } = answer else { panic!("{answer:?}") };
        assert!(end >= attributes.size, "it has few extents");
        let index = |at: u64| usize::try_from(at).expect("short");
        let bytes = vec![0; index(attributes.size)];
        let mut reading = Reading { bytes, wanted: Vec::new(), forged: false };
        for (at, extent) in extents {
            match extent.data {
                Data::Inline(data) => reading.patch(index(at), &data),
                Data::Block { block, start } => {
                    let part = Part { block, start, len: extent.len };
                    reading.wanted.push((index(at), part));
                }
            }
        }
        reading
    }

    /// What is still to come.
    pub fn next(&self) -> Option<Part> {
        self.wanted.last().map(|(_, part)| *part)
    }

    /// What is asked for now: what is to come, or what a forged file says.
    pub fn ask(&mut self, forged: bool) -> Part {
        let part = self.next().expect("something is wanted");
        self.forged = forged;
        if forged { Part { len: u32::MAX - part.start, ..part } } else { part }
    }

    /// Whether a reading had to fail so: it was of more than the block has, and of two copies one
    /// may be damaged.
    pub fn had_to_fail(&self, failure: &Failure) -> bool {
        self.forged && matches!(failure, Failure::Beyond { .. } | Failure::Lost { .. })
    }

    /// It has come.
    pub fn on_part(&mut self, data: &Bytes) {
        assert!(!self.forged, "{} bytes of more than there is", data.len());
        let (at, part) = self.wanted.pop().expect("it was asked for");
        assert_eq!(data.len(), part.len as usize, "a damaged answer was taken for {part:?}");
        self.patch(at, data);
    }

    fn patch(&mut self, at: usize, data: &Bytes) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// The file, once nothing more is to come, holds what it should.
    ///
    /// # Errors
    /// Where it does not.
    pub fn compare(&self, should: &[u8]) -> Result<(), String> {
        let (len, expected) = (self.bytes.len(), should.len());
        let differs = self.bytes.iter().zip(should).position(|(is, should)| is != should);
        match differs {
            Some(at) => Err(format!("contents: byte {at} of {len} is not what was written")),
            None if len == expected => Ok(()),
            None => Err(format!("contents: {len} bytes, and {expected} were written")),
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, of which {:?} are to come", self.bytes.len(), self.wanted)
    }
}
