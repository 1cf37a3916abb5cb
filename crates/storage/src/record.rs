//! How records lie in a segment file: header, body, one after the other.
//!
//! A segment is a file of zeros that is filled from its start. A record is a header of
//! [`HEADER_LEN`] bytes, little endian, and a body:
//!
//! | bytes | what |
//! | --- | --- |
//! | 2 + 2 | magic, version |
//! | 4 | length of the body |
//! | 8 | number of the record: consecutive in the whole log, over all its segments |
//! | 8 | the segment that it belongs to, so that what an earlier use of the same blocks left is never read as new |
//! | 8 | durable: the last record that was known to be durable when this one was written |
//! | 4 | CRC-32C of the body |
//! | 4 | CRC-32C of the 36 bytes before |
//!
//! **Torn or corrupt?** A crash leaves of the records of the last flush, which nobody was told of,
//! any part in any order: blocks of zeros, of garbage, and later records intact behind a torn one.
//! So a bad record is no proof of damage, and a good one behind it none either. What decides is the
//! durable mark: where the reader expects record *n* and finds none, the file is **corrupt** if
//! any header behind that place says that *n* was durable, and has a **torn tail** if none does.
//! The mark cannot lie: it is written only after the flush that made *n* durable. (A header inside
//! a body, as when somebody stores a copy of a segment, is older than the record that it lies in,
//! and so is what it claims.) For the last flush before a crash there is no later mark: damage to
//! it alone looks like a torn write, unless a later segment was begun, which every clean end of
//! a log and every start does.
//!
//! Invariants:
//! - L1: a [`Reader`] yields exactly the records that were written, from the first on, or fewer.
//! - L2: it never allocates, and never trusts a length before the checksum of its header.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The first two bytes of each record. No zero: a zero is where nothing was written.
pub const MAGIC: u16 = 0x4c6d;
/// The version of the header.
pub const VERSION: u16 = 1;
/// The length of a record before its body, in bytes.
pub const HEADER_LEN: usize = 40;
/// The longest body, in bytes: more than any frame ([`crate::frame::MAX_BODY`]) by far, as what
/// arrived in several may be kept in one.
pub const MAX_BODY: usize = 64 << 20;

/// What a record's header says of its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The segment that it is written to.
    pub segment: u64,
    /// Its number: one more than that of the record before.
    pub number: u64,
    /// The last record known to be durable before this is written; always less than `number`.
    pub durable: u64,
}

/// A record's header, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    mark: Mark,
    len: usize,
    checksum: u32,
}

/// Appends a record.
///
/// # Panics
/// If `body` is longer than [`MAX_BODY`], or `mark` says that the record itself is durable.
pub fn encode(into: &mut BytesMut, mark: Mark, body: &[u8]) {
    assert!(body.len() <= MAX_BODY, "record of {} bytes, at most {MAX_BODY}", body.len());
    assert!(mark.durable < mark.number, "record {} written as durable", mark.number);
    into.reserve(HEADER_LEN + body.len());
    let start = into.len();
    into.put_u16_le(MAGIC);
    into.put_u16_le(VERSION);
    into.put_u32_le(body.len() as u32);
    into.put_u64_le(mark.number);
    into.put_u64_le(mark.segment);
    into.put_u64_le(mark.durable);
    into.put_u32_le(crc32c::crc32c(body));
    let checksum = crc32c::crc32c(&into[start..]);
    into.put_u32_le(checksum);
    into.put_slice(body);
}

/// The header at the start of `bytes`, if there is a whole one.
fn header(bytes: &[u8]) -> Option<Header> {
    let mut header = bytes.get(..HEADER_LEN)?;
    let checksum = crc32c::crc32c(&header[..HEADER_LEN - 4]);
    let (magic, version) = (header.get_u16_le(), header.get_u16_le());
    if magic != MAGIC || version != VERSION {
        return None;
    }
    let len = header.get_u32_le() as usize;
    let number = header.get_u64_le();
    let segment = header.get_u64_le();
    let durable = header.get_u64_le();
    let of_body = header.get_u32_le();
    let sound = header.get_u32_le() == checksum && len <= MAX_BODY && durable < number;
    sound.then_some(Header { mark: Mark { segment, number, durable }, len, checksum: of_body })
}

/// A record, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it starts, in bytes from the start of the segment.
    pub offset: usize,
    /// Its place in the log.
    pub mark: Mark,
    /// What was written.
    pub body: Bytes,
}

/// How the records of a segment end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing but zeros follows.
    Clean {
        /// Where the last record ends.
        offset: usize,
    },
    /// The next record was being written when the writer stopped; it and what follows were never
    /// reported durable. To be cut at `offset`.
    TornTail {
        /// Where the last good record ends.
        offset: usize,
    },
    /// The next record was durable and is not there.
    Corrupt {
        /// Where it should be.
        offset: usize,
    },
}

/// Reads the records of one segment in order; [`Reader::end`] tells how they end.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    segment: u64,
    next: u64,
    offset: usize,
    durable: u64,
}

impl Reader {
    /// Reads `bytes`, the whole content of the segment `segment`, whose first record is `number`.
    pub fn new(bytes: Bytes, segment: u64, number: u64) -> Self {
        Reader { bytes, segment, next: number, offset: 0, durable: 0 }
    }

    /// The number of the record that comes next, or would.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// The greatest number that a record read so far calls durable; 0 if none.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// What follows the last record that was yielded: to be asked when there are no more.
    pub fn end(&self) -> End {
        let offset = self.offset;
        let rest = &self.bytes[offset..];
        if rest.iter().all(|byte| *byte == 0) {
            End::Clean { offset }
        } else if says_durable(rest, self.segment, self.next) {
            End::Corrupt { offset }
        } else {
            End::TornTail { offset }
        }
    }
}

impl Iterator for Reader {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let header = header(&self.bytes[self.offset..])?;
        let start = self.offset + HEADER_LEN;
        if header.mark.segment != self.segment
            || header.mark.number != self.next
            || header.len > self.bytes.len() - start
        {
            return None;
        }
        let body = self.bytes.slice(start..start + header.len);
        if crc32c::crc32c(&body) != header.checksum {
            return None;
        }
        let record = Record { offset: self.offset, mark: header.mark, body };
        self.offset = start + header.len;
        self.next += 1;
        self.durable = self.durable.max(header.mark.durable);
        Some(record)
    }
}

/// Whether any record of `segment` in `bytes`, wherever it starts and whether or not its body is
/// whole, says that the record `number` was durable when it was written.
pub fn says_durable(bytes: &[u8], segment: u64, number: u64) -> bool {
    let first = MAGIC.to_le_bytes()[0];
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == first) {
        at += found;
        if let Some(header) = header_quickly(&bytes[at..])
            && header.mark.segment == segment
            && header.mark.durable >= number
        {
            return true;
        }
        at += 1;
    }
    false
}

/// As [`header`], without a checksum for what does not even start like one.
fn header_quickly(bytes: &[u8]) -> Option<Header> {
    if !bytes.starts_with(&MAGIC.to_le_bytes()) {
        return None;
    }
    header(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u64 = 0x5e61;

    /// Records 1, 2, ... in flushes of two: each says that all before its flush was durable.
    fn written(bodies: &[Vec<u8>]) -> (BytesMut, Vec<usize>) {
        let (mut bytes, mut starts) = (BytesMut::new(), Vec::new());
        for (index, body) in bodies.iter().enumerate() {
            starts.push(bytes.len());
            let (number, durable) = (index as u64 + 1, index as u64 / 2 * 2);
            encode(&mut bytes, Mark { segment: SEGMENT, number, durable }, body);
        }
        starts.push(bytes.len());
        (bytes, starts)
    }

    fn read(bytes: &[u8]) -> (Vec<Bytes>, End) {
        let mut reader = Reader::new(Bytes::copy_from_slice(bytes), SEGMENT, 1);
        let bodies = reader.by_ref().map(|record| record.body).collect();
        (bodies, reader.end())
    }

    fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..12)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bodies in bodies(), zeros in 0..100usize) {
            let (mut bytes, starts) = written(&bodies);
            bytes.put_bytes(0, zeros);
            let (found, end) = read(&bytes);
            prop_assert_eq!(found, bodies.clone());
            prop_assert_eq!(end, End::Clean { offset: starts[bodies.len()] });
        }

        #[test]
        fn of_a_segment_cut_anywhere_the_whole_records_are_read(bodies in bodies(), at: u16) {
            let (mut bytes, starts) = written(&bodies);
            bytes.truncate(at as usize % (bytes.len() + 1));
            let whole = starts.iter().filter(|start| **start <= bytes.len()).count() - 1;
            let (found, end) = read(&bytes);
            prop_assert_eq!(&found[..], &bodies[..whole]);
            let offset = starts[whole];
            let clean = offset == bytes.len();
            let torn = End::TornTail { offset };
            prop_assert_eq!(end, if clean { End::Clean { offset } } else { torn });
        }

        #[test]
        fn flipped_bits_never_yield_other_data(
            bodies in bodies(),
            flips in proptest::collection::vec(any::<u32>(), 1..4),
        ) {
            let (mut bytes, _) = written(&bodies);
            for flip in flips {
                let bit = flip as usize % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let (found, _) = read(&bytes);
            prop_assert_eq!(&found[..], &bodies[..found.len()]);
        }

        #[test]
        fn one_bad_record_is_corruption_iff_a_later_one_says_it_was_durable(
            bodies in bodies(),
            bit: u32,
        ) {
            let (mut bytes, starts) = written(&bodies);
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let bad = starts.iter().filter(|start| **start <= bit / 8).count() - 1;
            let (found, end) = read(&bytes);
            prop_assert_eq!(&found[..], &bodies[..bad]);
            let offset = starts[bad];
            let in_last_flush = bad / 2 == (bodies.len() - 1) / 2;
            let corrupt = End::Corrupt { offset };
            let expected = if in_last_flush { End::TornTail { offset } } else { corrupt };
            prop_assert_eq!(end, expected);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, start in any::<bool>()) {
            let mut all = if start { MAGIC.to_le_bytes().to_vec() } else { Vec::new() };
            all.extend(bytes);
            let _ = read(&all);
        }
    }

    #[test]
    fn a_record_lost_as_zeros_is_judged_as_any_other() {
        let (mut bytes, starts) = written(&vec![vec![7; 30]; 5]);
        bytes[starts[4]..].fill(0);
        assert_eq!(read(&bytes).1, End::Clean { offset: starts[4] });
        bytes[starts[2]..starts[3]].fill(0);
        assert_eq!(
            read(&bytes),
            (vec![Bytes::from(vec![7; 30]); 2], End::TornTail { offset: starts[2] })
        );
        let (mut bytes, starts) = written(&vec![vec![7; 30]; 5]);
        bytes[starts[2]..starts[3]].fill(0);
        assert_eq!(read(&bytes).1, End::Corrupt { offset: starts[2] });
    }

    #[test]
    fn an_old_tail_of_another_segment_is_not_read() {
        let (mut bytes, _) = written(&vec![vec![1; 30]; 2]);
        let end = bytes.len();
        encode(&mut bytes, Mark { segment: SEGMENT - 1, number: 3, durable: 2 }, b"old");
        encode(&mut bytes, Mark { segment: SEGMENT - 1, number: 9, durable: 8 }, b"old");
        assert_eq!(read(&bytes).0.len(), 2);
        assert_eq!(read(&bytes).1, End::TornTail { offset: end });
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let (mut bytes, _) = written(&[vec![1; 30]]);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..HEADER_LEN - 4]);
        bytes[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(read(&bytes), (Vec::new(), End::TornTail { offset: 0 }));
    }
}
