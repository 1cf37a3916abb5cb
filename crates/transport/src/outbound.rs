//! What waits to be written on a connection: short frames one after the other in one buffer, long
//! bytes where they lie.

use crate::WriteHalf;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// So many pieces are written together at most: some long frames.
const PIECES: usize = 16;
/// A buffer that is longer is given back when it is empty, in bytes.
const KEPT_LEN: usize = 64 << 10;

/// See the module. What is written goes from its beginning, and pieces are never cut or joined: so
/// what would block is written again as it was (see [`crate::stream`]).
#[derive(Debug, Default)]
pub struct Outbound {
    pieces: VecDeque<Bytes>,
    /// What comes after them.
    last: BytesMut,
    len: usize,
}

impl Outbound {
    /// Nothing.
    pub fn new() -> Outbound {
        Outbound::default()
    }

    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what `write` appends to the buffer that it is given, which may have something in it.
    pub fn write_to<R>(&mut self, write: impl FnOnce(&mut BytesMut) -> R) -> R {
        let before = self.last.len();
        let result = write(&mut self.last);
        self.len += self.last.len() - before;
        result
    }

    /// Appends bytes, which are not copied.
    pub fn push(&mut self, bytes: Bytes) {
        self.seal();
        self.len += bytes.len();
        self.pieces.extend(Some(bytes).filter(|bytes| !bytes.is_empty()));
    }

    /// Appends all that waits in `next`.
    pub fn append(&mut self, next: Outbound) {
        if next.pieces.is_empty() {
            self.write_to(|last| last.unsplit(next.last));
            return;
        }
        self.seal();
        self.pieces.extend(next.pieces);
        self.last = next.last;
        self.len += next.len;
    }

    /// What is in the buffer is a piece.
    fn seal(&mut self) {
        if !self.last.is_empty() {
            self.pieces.push_back(self.last.split().freeze());
        }
    }

    /// Writes what the socket takes at once, of the first pieces; how many bytes that were.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing now; others if the connection is broken.
    pub fn write(&mut self, socket: &WriteHalf) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let all = self.pieces.iter().map(|piece| &piece[..]);
        let all = all.chain(Some(&self.last[..]).filter(|last| !last.is_empty()));
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(all) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let written = match &slices[..count] {
            [one] => socket.try_write(one)?,
            some => socket.try_write_vectored(some)?,
        };
        self.advance(written);
        Ok(written)
    }

    /// So many bytes are written.
    fn advance(&mut self, mut written: usize) {
        self.len -= written;
        while let Some(first) = self.pieces.front_mut() {
            if written < first.len() {
                return first.advance(written);
            }
            written -= first.len();
            self.pieces.pop_front();
        }
        if written < self.last.len() {
            return self.last.advance(written);
        }
        self.last.clear();
        if self.last.capacity() > KEPT_LEN {
            self.last = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    fn all(of: &Outbound) -> Vec<u8> {
        let pieces = of.pieces.iter().flatten().copied();
        pieces.chain(of.last.iter().copied()).collect()
    }

    #[test]
    fn what_was_appended_is_written_in_its_order() {
        let mut out = Outbound::new();
        out.write_to(|last| last.extend_from_slice(b"ab"));
        out.push(Bytes::from_static(b"cde"));
        out.push(Bytes::new());
        out.write_to(|last| last.extend_from_slice(b"f"));
        let mut next = Outbound::new();
        next.write_to(|last| last.extend_from_slice(b"g"));
        out.append(next);
        let mut next = Outbound::new();
        next.push(Bytes::from_static(b"hi"));
        next.write_to(|last| last.extend_from_slice(b"j"));
        out.append(next);
        assert_eq!(out.pieces.len(), 4);
        for at in 0..11 {
            assert_eq!(all(&out), b"abcdefghij"[at.min(10)..]);
            assert_eq!(out.len(), 10_usize.saturating_sub(at));
            assert_eq!(out.is_empty(), at == 10);
            out.advance(usize::from(at < 10));
        }
        out.write_to(|last| last.extend_from_slice(b"k"));
        assert_eq!(all(&out), b"k");
    }

    #[tokio::test]
    async fn many_pieces_come_as_they_were() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (_, writer) = crate::Stream::plain(one.unwrap()).into_split();
        let (mut reader, _) = other.unwrap().0.into_split();
        let piece = |at: usize| Bytes::from(vec![at as u8; 100_000 + at]);
        let wanted: Vec<u8> = (0..40).flat_map(piece).collect();
        let mut out = Outbound::new();
        (0..40).for_each(|at| out.push(piece(at)));
        let (mut read, len) = (Vec::new(), wanted.len());
        let write = async {
            while !out.is_empty() {
                writer.writable().await.unwrap();
                match out.write(&writer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => assert!(written.unwrap() > 0),
                }
            }
        };
        let take = async {
            while read.len() < len {
                assert!(reader.read_buf(&mut read).await.unwrap() > 0);
            }
        };
        tokio::join!(write, take);
        assert!(read == wanted);
    }
}
