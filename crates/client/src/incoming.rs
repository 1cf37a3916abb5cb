//! Frames that come on a connection, as they lie there: a long one in a buffer of its own, so that
//! who keeps the block in it keeps no more (see [`meridian_core::carried`]).

use bytes::{BufMut, Bytes, BytesMut};
use meridian_core::carried::CARRIED_MIN;
use meridian_core::frame;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much is read at a time of short frames.
const CHUNK: usize = 256 << 10;
/// How much is read after a long frame: mostly the beginning of another, and that is copied.
const FEW: usize = 16 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Incoming<R> {
    reader: R,
    /// What has come of the next frame, and perhaps of others.
    bytes: BytesMut,
    /// How much is read next if no long frame has begun.
    room: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// From this reader, of which that was read already.
    pub fn new(reader: R, bytes: BytesMut) -> Incoming<R> {
        Incoming { reader, bytes, room: CHUNK }
    }

    /// The body of the next frame; none if the other end has closed the connection.
    ///
    /// # Errors
    /// If the connection breaks, or what comes is no frame.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let none = |error: frame::FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            if let Some(body) = frame::decode(&mut self.bytes).map_err(none)? {
                self.room = if body.len() < CARRIED_MIN { CHUNK } else { FEW };
                return Ok(Some(body));
            }
            let len = frame::len_of(&self.bytes).map_err(none)?;
            let room = match len.filter(|len| *len >= CARRIED_MIN) {
                // The node at the other end is one of the cluster: it is believed how long it is.
                Some(len) => self.own_buffer(len),
                None => self.room,
            };
            self.bytes.reserve(room);
            if self.reader.read_buf(&mut (&mut self.bytes).limit(room)).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The frame that has begun, of which that is the length, gets a buffer of its own; how much of
    /// it is missing.
    fn own_buffer(&mut self, len: usize) -> usize {
        if self.bytes.capacity() < len {
            let mut whole = BytesMut::with_capacity(len);
            whole.extend_from_slice(&self.bytes);
            self.bytes = whole;
        }
        len - self.bytes.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(lens: &[usize]) -> (Vec<Vec<u8>>, BytesMut) {
        let body = |(at, len): (usize, &usize)| vec![at as u8; *len];
        let bodies: Vec<_> = lens.iter().enumerate().map(body).collect();
        let mut bytes = BytesMut::new();
        for body in &bodies {
            frame::encode(&mut bytes, |into| into.put_slice(body)).unwrap();
        }
        (bodies, bytes)
    }

    #[tokio::test]
    async fn a_long_frame_lies_alone() {
        let (long, longer) = (CARRIED_MIN + 5, CHUNK + 5);
        let (bodies, bytes) = frames(&[3, longer, long, long, 7, longer, long]);
        let mut incoming = Incoming::new(&bytes[20..], BytesMut::from(&bytes[..20]));
        let mut all = Vec::new();
        while let Some(taken) = incoming.next().await.unwrap() {
            all.push(taken);
        }
        assert_eq!(all, bodies);
        drop(incoming);
        for taken in all.into_iter().filter(|taken| taken.len() >= long) {
            let len = taken.len();
            let buffer = taken.try_into_mut().unwrap();
            assert!(buffer.capacity() < len + 100, "{len} bytes in {}", buffer.capacity());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn frames_come_as_they_were_sent(
            lens in prop::collection::vec(prop_oneof![0..99usize, 0..2 * CHUNK], 0..9),
            before: prop::sample::Index,
        ) {
            let (bodies, bytes) = frames(&lens);
            let cut = before.index(bytes.len() + 1).min(CHUNK);
            let mut incoming = Incoming::new(&bytes[cut..], BytesMut::from(&bytes[..cut]));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for body in bodies {
                    assert_eq!(incoming.next().await.unwrap().unwrap(), body);
                }
                assert_eq!(incoming.next().await.unwrap(), None);
            });
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut incoming = Incoming::new(&bytes[..], BytesMut::new());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(incoming.next());
        }
    }
}
