//! Frames on a socket, and values in them.

use bytes::{Bytes, BytesMut};
use meridian_core::frame::{self, FrameError};
use meridian_core::hello::{Endpoint, HelloError};
use meridian_core::link::LinkError;
use meridian_core::principal::Speaker;
use meridian_transport::{ReadHalf, Refusal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::AsyncReadExt;

/// How much is read at a time: room is made for what has arrived, never for what is announced.
const READ_LEN: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// What came is not ours to understand.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is well-formed, but must not come here or now.
    #[error("{0}")]
    Refused(String),
    /// Whoever is at the other end must not send it, by its certificate.
    #[error("not authorized: {0}")]
    Unauthorized(String),
    /// The link asks for another connection.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The network, or the other end went away.
    #[error(transparent)]
    Io(io::Error),
    /// Nothing is wrong: the other end, or a newer connection, ended it.
    #[error("closed")]
    Closed,
}

impl WireError {
    /// Whether the other end is to blame for what it sent.
    pub fn is_bad(&self) -> bool {
        matches!(self, WireError::Frame(_) | WireError::Refused(_) | WireError::Unauthorized(_))
    }
}

/// Takes frames off a socket.
#[derive(Debug)]
pub struct FrameReader {
    socket: ReadHalf,
    buffer: BytesMut,
}

impl FrameReader {
    /// Of this socket.
    pub fn new(socket: impl Into<ReadHalf>) -> FrameReader {
        FrameReader { socket: socket.into(), buffer: BytesMut::new() }
    }

    /// Of this socket, of which this was read and not taken.
    pub(crate) fn resume(socket: ReadHalf, buffer: BytesMut) -> FrameReader {
        FrameReader { socket, buffer }
    }

    /// The body of the next frame that has arrived whole.
    ///
    /// # Errors
    /// If what has arrived is no frame.
    pub fn buffered(&mut self) -> Result<Option<Bytes>, WireError> {
        Ok(frame::decode(&mut self.buffer)?)
    }

    /// Waits until more has arrived.
    ///
    /// # Errors
    /// If the other end has gone.
    pub async fn fill(&mut self) -> Result<(), WireError> {
        self.buffer.reserve(READ_LEN);
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(WireError::Closed),
            _ => Ok(()),
        }
    }

    /// Waits for the body of a frame.
    ///
    /// # Errors
    /// If the other end has gone, or what arrives is no frame.
    pub async fn next_body(&mut self) -> Result<Bytes, WireError> {
        loop {
            if let Some(body) = self.buffered()? {
                return Ok(body);
            }
            self.fill().await?;
        }
    }

    /// Waits for a frame with a value.
    ///
    /// # Errors
    /// If the other end has gone, or what arrives is no such frame.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, WireError> {
        decode(&self.next_body().await?)
    }

    /// Who is at the other end.
    pub fn speaker(&self) -> &Speaker {
        self.socket.speaker()
    }

    /// The socket, and what was read from it and is not taken yet.
    pub(crate) fn into_parts(self) -> (ReadHalf, BytesMut) {
        (self.socket, BytesMut::from(&self.buffer[..]))
    }
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> WireError {
        match error.kind() {
            io::ErrorKind::PermissionDenied => WireError::Unauthorized(error.to_string()),
            _ => WireError::Io(error),
        }
    }
}

impl From<Refusal> for WireError {
    fn from(refusal: Refusal) -> WireError {
        match refusal {
            Refusal::Unauthorized(why) => WireError::Unauthorized(why),
            Refusal::Io(error) => WireError::Io(error),
        }
    }
}

impl<I: Endpoint> From<HelloError<I>> for WireError {
    fn from(error: HelloError<I>) -> WireError {
        WireError::Refused(error.to_string())
    }
}

/// Reads a value that is all of a body.
///
/// # Errors
/// If it is not one.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    match take(body)? {
        (value, []) => Ok(value),
        (_, rest) => Err(FrameError::Body(format!("{} bytes too many", rest.len())).into()),
    }
}

/// Reads a value that others may follow; also gives what follows.
///
/// # Errors
/// If what comes first is not one.
pub fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    postcard::take_from_bytes(bytes).map_err(|e| FrameError::Body(e.to_string()).into())
}

/// Appends a frame with `value` as its body.
///
/// # Errors
/// If it is too long for a frame.
pub fn encode<T: Serialize>(into: &mut BytesMut, value: &T) -> Result<(), FrameError> {
    frame::encode(into, |into| append(into, value))
}

/// Appends the bytes of a value.
pub(crate) fn append<T: Serialize>(into: &mut impl Sink, value: &T) {
    postcard::serialize_with_flavor(value, Appended(into)).expect("writing to memory");
}

/// The bytes of a value.
pub fn to_bytes<T: Serialize>(value: &T) -> Bytes {
    let mut bytes = BytesMut::new();
    append(&mut bytes, value);
    bytes.freeze()
}

/// Where bytes are appended.
pub(crate) trait Sink {
    fn push_byte(&mut self, byte: u8);
    fn push_bytes(&mut self, bytes: &[u8]);
}

impl Sink for BytesMut {
    fn push_byte(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for Vec<u8> {
    fn push_byte(&mut self, byte: u8) {
        self.push(byte);
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        // Most are numbers of one or two bytes, for which a call to copy them is long.
        match bytes {
            [byte] => self.push(*byte),
            [first, second] => {
                self.push(*first);
                self.push(*second);
            }
            _ => self.extend_from_slice(bytes),
        }
    }
}

/// Lets postcard append to a buffer.
struct Appended<'a, S>(&'a mut S);

impl<S: Sink> postcard::ser_flavors::Flavor for Appended<'_, S> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push_byte(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.push_bytes(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
