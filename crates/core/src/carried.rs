//! Frames with many bytes in one place, which are put there and taken out without a copy of them.
//!
//! On the wire nothing tells such a frame from any other: it is the same value in postcard. Only
//! who writes it gets it in pieces, and who reads it gets the bytes as a part of the frame.

use crate::frame::{self, FrameError};
use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::Serialize;

/// Of so many bytes no copy is made. Fewer are copied in less time than it takes to write a frame
/// in pieces, and would keep much longer frames in memory.
pub const CARRIED_MIN: usize = 128 << 10;

/// `bytes`, if they are so many that they are carried.
pub fn long(bytes: &Bytes) -> Option<&Bytes> {
    Some(bytes).filter(|bytes| bytes.len() >= CARRIED_MIN)
}

/// A frame with `value` as its body, in pieces: `carried`, which lies in `value`, is one of them.
///
/// # Errors
/// [`FrameError::TooLong`] if that is too long for a frame.
pub fn encode<T: Serialize>(value: &T, carried: &Bytes) -> Result<Vec<Bytes>, FrameError> {
    let around = Around { carried, before: vec![0; frame::HEADER_LEN], after: None };
    let written = postcard::serialize_with_flavor(value, around);
    let (mut before, after) = written.map_err(|error| FrameError::Body(error.to_string()))?;
    let mut checksum = crc32c::crc32c(&before[frame::HEADER_LEN..]);
    let mut len = before.len() - frame::HEADER_LEN;
    if let Some(after) = &after {
        for piece in [&carried[..], after] {
            checksum = crc32c::crc32c_append(checksum, piece);
            len += piece.len();
        }
    }
    before[..frame::HEADER_LEN].copy_from_slice(&frame::header(len, checksum)?);
    let mut pieces = vec![before.into()];
    if let Some(after) = after {
        pieces.extend([carried.clone(), after.into()]);
    }
    pieces.retain(|piece| !piece.is_empty());
    Ok(pieces)
}

/// Takes bytes off the beginning of `rest`, which is what is left of the body of a frame; also
/// gives what follows. They are a part of the body if they are most of it, else a copy.
///
/// # Errors
/// If no bytes in postcard lie there.
pub fn take<'a>(body: &Bytes, rest: &'a [u8]) -> postcard::Result<(Bytes, &'a [u8])> {
    let (data, rest) = postcard::take_from_bytes::<&[u8]>(rest)?;
    let is_carried = data.len() >= CARRIED_MIN.max(body.len() / 2);
    let data = if is_carried { body.slice_ref(data) } else { Bytes::copy_from_slice(data) };
    Ok((data, rest))
}

/// Lets postcard write all but `carried`.
struct Around<'a> {
    carried: &'a Bytes,
    before: Vec<u8>,
    /// What follows; nothing until then.
    after: Option<Vec<u8>>,
}

impl Flavor for Around<'_> {
    type Output = (Vec<u8>, Option<Vec<u8>>);

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.after.as_mut().unwrap_or(&mut self.before).push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if self.after.is_none() && std::ptr::eq(bytes, &self.carried[..]) {
            self.after = Some(Vec::new());
        } else {
            self.after.as_mut().unwrap_or(&mut self.before).extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok((self.before, self.after))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};
    use proptest::prelude::*;

    /// The frame as it is without pieces.
    fn plain<T: Serialize>(value: &T) -> BytesMut {
        let (mut bytes, body) = (BytesMut::new(), postcard::to_stdvec(value).unwrap());
        frame::encode(&mut bytes, |into| into.put_slice(&body)).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_frame(before: Vec<u8>, data: Vec<u8>, after: Vec<u32>, twice: bool) {
            let data = Bytes::from(data);
            let again = twice.then(|| data.clone());
            let value = (Bytes::from(before), &data, after, again);
            let pieces = encode(&value, &data).unwrap();
            prop_assert_eq!(pieces.concat(), plain(&value));
            prop_assert!(data.is_empty() || pieces[1].as_ptr() == data.as_ptr());
        }

        #[test]
        fn what_is_not_in_it_is_not_carried(data: Vec<u8>, others: Vec<u8>) {
            let value = (7_u8, Bytes::from(data));
            let pieces = encode(&value, &others.into()).unwrap();
            prop_assert_eq!(pieces.concat(), plain(&value));
        }

        #[test]
        fn bytes_are_taken_as_postcard_takes_them(bytes: Vec<u8>, skipped: prop::sample::Index) {
            let body = Bytes::from(bytes);
            let rest = &body[skipped.index(body.len() + 1)..];
            let taken = take(&body, rest);
            prop_assert_eq!(taken.ok(), postcard::take_from_bytes::<Bytes>(rest).ok());
        }
    }

    #[test]
    fn long_bytes_are_taken_without_a_copy() {
        for (len, behind, is_part) in [
            (CARRIED_MIN, 0, true),
            (CARRIED_MIN, CARRIED_MIN / 2, true),
            (CARRIED_MIN, CARRIED_MIN + 9, false),
            (CARRIED_MIN - 1, 0, false),
        ] {
            let value = (Bytes::from(vec![3; len]), Bytes::from(vec![4; behind]));
            let body = Bytes::from(postcard::to_stdvec(&value).unwrap());
            let (taken, rest) = take(&body, &body).unwrap();
            assert_eq!(taken, value.0);
            assert_eq!(postcard::from_bytes::<Bytes>(rest).unwrap(), value.1);
            let within = body.as_ptr_range().contains(&taken.as_ptr());
            assert_eq!(within, is_part, "{len} bytes before {behind}");
        }
    }

    #[test]
    fn what_is_too_long_is_no_frame() {
        let data = Bytes::from(vec![0; frame::MAX_BODY - 4]);
        assert_eq!(encode(&data, &data).unwrap().concat(), plain(&data));
        let data = Bytes::from(vec![0; frame::MAX_BODY - 3]);
        assert_eq!(encode(&data, &data), Err(FrameError::TooLong(frame::MAX_BODY + 1)));
    }
}
