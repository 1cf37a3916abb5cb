//! How messages travel between nodes and clients: length, version, checksum, body.
//!
//! A frame is a header of 12 bytes, little endian, and a body: magic and version (`u16`, `u16`),
//! length of the body (`u32`), CRC-32C of the body (`u32`). A frame that is not one is the
//! sender's fault or the network's: the connection is closed, never more is allocated than
//! has arrived.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The longest body, in bytes: a block of data with room for what names it.
pub const MAX_BODY: usize = 4 << 20;
/// The first two bytes of each frame.
pub const MAGIC: u16 = 0x4d52;
/// The version of everything that travels in frames.
pub const VERSION: u16 = 3;
/// The length of a frame before its body, in bytes.
pub const HEADER_LEN: usize = 12;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a Meridian peer.
    #[error("not a frame of Meridian (it starts with {0:#06x})")]
    Magic(u16),
    /// A peer of another version.
    #[error("frame of version {0}, this program speaks {VERSION}")]
    Version(u16),
    /// Longer than [`MAX_BODY`].
    #[error("frame of {0} bytes, at most {MAX_BODY} are allowed")]
    TooLong(usize),
    /// The body is not what was sent.
    #[error("frame with a bad checksum")]
    Checksum,
    /// The body is not a message.
    #[error("frame that does not decode: {0}")]
    Body(String),
}

/// Appends a frame with the body that `write` appends.
///
/// # Errors
/// [`FrameError::TooLong`] if that body is too long; `into` is then as it was.
pub fn encode(into: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) -> Result<(), FrameError> {
    let start = into.len();
    into.put_bytes(0, HEADER_LEN);
    write(into);
    let len = into.len() - start - HEADER_LEN;
    if len > MAX_BODY {
        into.truncate(start);
        return Err(FrameError::TooLong(len));
    }
    let checksum = crc32c::crc32c(&into[start + HEADER_LEN..]);
    into[start..start + HEADER_LEN].copy_from_slice(&header(len, checksum)?);
    Ok(())
}

/// What stands before a body of that length and with that checksum.
///
/// # Errors
/// [`FrameError::TooLong`] if that body is too long.
pub fn header(len: usize, checksum: u32) -> Result<[u8; HEADER_LEN], FrameError> {
    if len > MAX_BODY {
        return Err(FrameError::TooLong(len));
    }
    let mut bytes = [0; HEADER_LEN];
    let mut header = &mut bytes[..];
    header.put_u16_le(MAGIC);
    header.put_u16_le(VERSION);
    header.put_u32_le(len as u32);
    header.put_u32_le(checksum);
    Ok(bytes)
}

/// Takes the first frame's body off the bytes that have arrived; `None` if it is not whole yet.
///
/// # Errors
/// If the bytes do not start with a frame: nothing after them can be trusted.
pub fn decode(from: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    let Some((len, checksum)) = announced(from)? else { return Ok(None) };
    if from.len() < len {
        return Ok(None);
    }
    let mut body = from.split_to(len).freeze();
    body.advance(HEADER_LEN);
    if crc32c::crc32c(&body) != checksum {
        return Err(FrameError::Checksum);
    }
    Ok(Some(body))
}

/// How long the first frame is, header and body, once its header has arrived.
///
/// # Errors
/// If the bytes do not start with a frame.
pub fn len_of(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    Ok(announced(bytes)?.map(|(len, _)| len))
}

/// The length of the first frame, and the checksum of its body.
fn announced(bytes: &[u8]) -> Result<Option<(usize, u32)>, FrameError> {
    let Some(mut header) = bytes.get(..HEADER_LEN) else { return Ok(None) };
    let (magic, version) = (header.get_u16_le(), header.get_u16_le());
    let (len, checksum) = (header.get_u32_le() as usize, header.get_u32_le());
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    if len > MAX_BODY {
        return Err(FrameError::TooLong(len));
    }
    Ok(Some((HEADER_LEN + len, checksum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(body: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::new();
        encode(&mut bytes, |into| into.put_slice(body)).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(a: Vec<u8>, b: Vec<u8>, cut in 0..12usize) {
            let mut bytes = framed(&a);
            bytes.unsplit(framed(&b));
            let mut start = BytesMut::from(&bytes[..cut]);
            prop_assert_eq!(decode(&mut start), Ok(None));
            prop_assert_eq!(decode(&mut bytes).unwrap().unwrap(), a);
            prop_assert_eq!(decode(&mut bytes).unwrap().unwrap(), b);
            prop_assert_eq!(decode(&mut bytes), Ok(None));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = decode(&mut BytesMut::from(&bytes[..]));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let whole = framed(b"meridian");
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&mut bytes), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let mut bytes = framed(b"x");
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&mut bytes), Err(FrameError::TooLong(u32::MAX as usize)));
        let mut into = BytesMut::from(&b"before"[..]);
        let long = encode(&mut into, |into| into.put_bytes(0, MAX_BODY + 1));
        assert_eq!(long, Err(FrameError::TooLong(MAX_BODY + 1)));
        assert_eq!(&into[..], b"before");
    }
}
