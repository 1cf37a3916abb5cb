//! How a block lies in a segment file: a header of [`HEADER_LEN`] bytes, little endian, and the
//! data.
//!
//! | bytes | what |
//! | --- | --- |
//! | 2 + 2 | magic, version |
//! | 4 | length of the data |
//! | 8 | the segment that it belongs to |
//! | 16 | the block's name |
//! | 8 | up to which byte of this segment all was durable when this was written |
//! | 4 | CRC-32C of the data |
//! | 4 | CRC-32C of the 44 bytes before |
//!
//! The header has its own checksum, so that an index can be built from headers alone.

use bytes::{Buf, BufMut, BytesMut};
use meridian_core::BlockId;

/// The first two bytes of each record. No zero: a zero is where nothing was written.
pub const MAGIC: u16 = 0x426d;
/// The version of the header.
pub const VERSION: u16 = 1;
/// The length of a record before its data, in bytes.
pub const HEADER_LEN: usize = 48;
/// The longest block, in bytes: as much as fits into a frame.
pub const MAX_BLOCK: usize = meridian_core::frame::MAX_BODY;

/// What stands before a block's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The segment that it was written to.
    pub segment: u64,
    /// The block.
    pub block: BlockId,
    /// Up to which byte of the segment all was durable when this was written.
    pub durable: u64,
    /// How long the data is, in bytes.
    pub len: u32,
    /// The CRC-32C of the data.
    pub checksum: u32,
}

/// Appends the record of a block.
///
/// # Panics
/// If `data` is longer than [`MAX_BLOCK`].
pub fn encode(into: &mut BytesMut, segment: u64, durable: u64, block: BlockId, data: &[u8]) {
    assert!(data.len() <= MAX_BLOCK, "block of {} bytes, at most {MAX_BLOCK}", data.len());
    into.reserve(HEADER_LEN + data.len());
    let start = into.len();
    into.put_u16_le(MAGIC);
    into.put_u16_le(VERSION);
    into.put_u32_le(data.len() as u32);
    into.put_u64_le(segment);
    into.put_u128_le(block.0);
    into.put_u64_le(durable);
    into.put_u32_le(crc32c::crc32c(data));
    let checksum = crc32c::crc32c(&into[start..]);
    into.put_u32_le(checksum);
    into.put_slice(data);
}

impl Header {
    /// The header at the start of `bytes`, if there is a whole one of the segment `segment`.
    pub fn decode(bytes: &[u8], segment: u64) -> Option<Header> {
        let mut header = bytes.get(..HEADER_LEN)?;
        if !header.starts_with(&MAGIC.to_le_bytes()) {
            return None;
        }
        let checksum = crc32c::crc32c(&header[..HEADER_LEN - 4]);
        header.advance(2);
        let version = header.get_u16_le();
        let len = header.get_u32_le();
        let written_to = header.get_u64_le();
        let block = BlockId(header.get_u128_le());
        let durable = header.get_u64_le();
        let of_data = header.get_u32_le();
        let sound = header.get_u32_le() == checksum
            && version == VERSION
            && written_to == segment
            && len as usize <= MAX_BLOCK;
        sound.then_some(Header { segment, block, durable, len, checksum: of_data })
    }

    /// Whether `data` is what was written after this header.
    pub fn matches(&self, data: &[u8]) -> bool {
        data.len() == self.len as usize && crc32c::crc32c(data) == self.checksum
    }

    /// Where the next record starts if this one starts at `offset`, in bytes.
    pub fn end(&self, offset: u64) -> u64 {
        offset + HEADER_LEN as u64 + u64::from(self.len)
    }
}

/// Where in `bytes` the first whole header of `segment` starts.
pub fn find(bytes: &[u8], segment: u64) -> Option<usize> {
    let first = MAGIC.to_le_bytes()[0];
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == first)?;
        if Header::decode(&bytes[at..], segment).is_some() {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_found(before: Vec<u8>, data: Vec<u8>, block: u128) {
            let mut bytes = BytesMut::from(&before[..]);
            encode(&mut bytes, 3, 11, BlockId(block), &data);
            let at = find(&bytes, 3).unwrap();
            prop_assert_eq!(at, before.len());
            let header = Header::decode(&bytes[at..], 3).unwrap();
            prop_assert_eq!(header.block, BlockId(block));
            prop_assert_eq!(header.durable, 11);
            prop_assert_eq!(header.end(at as u64), bytes.len() as u64);
            prop_assert!(header.matches(&bytes[at + HEADER_LEN..]));
            prop_assert_eq!(find(&bytes, 4), None);
        }

        #[test]
        fn a_flipped_bit_is_noticed(data: Vec<u8>, bit: u32) {
            let mut bytes = BytesMut::new();
            encode(&mut bytes, 3, 0, BlockId(1), &data);
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let header = Header::decode(&bytes, 3);
            let good = header.is_some_and(|header| header.matches(&bytes[HEADER_LEN..]));
            prop_assert!(!good);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = find(&bytes, 1);
        }
    }
}
