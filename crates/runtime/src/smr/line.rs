//! One connection of a client to a replica.

use crate::greeting;
use crate::smr::client::ClientOptions;
use crate::smr::pending::Sent;
use crate::smr::wire::Asked;
use crate::wire::{FrameReader, WireError, append, encode};
use bytes::{Buf, Bytes, BytesMut};
use meridian_core::frame;
use meridian_paxos::{Batch, Request};
use meridian_transport::WriteHalf;
use std::io;

/// Requests are put into one frame up to so many bytes: the replica reads the first while others
/// are written.
const FRAME_LEN: usize = 128 << 10;

/// See the module's documentation.
pub(crate) struct Line {
    reader: FrameReader,
    writer: WriteHalf,
    /// Requests of this turn.
    requests: Vec<Request>,
    requests_len: usize,
    /// Frames for the socket.
    out: BytesMut,
}

/// What happened on it.
pub(crate) enum News {
    /// Something has come.
    Frame(Bytes),
    /// It takes more of what is to be written.
    Writable,
}

impl Line {
    /// Calls a replica.
    pub(crate) async fn call(options: &ClientOptions, address: &str) -> Result<Line, WireError> {
        let ClientOptions { cluster, security, service, .. } = options;
        let (reader, writer) = greeting::call(cluster, security, *service, address).await?;
        let (requests, out) = (Vec::new(), BytesMut::new());
        Ok(Line { reader, writer, requests, requests_len: 0, out })
    }

    /// Something is to be asked; requests with others.
    pub(crate) fn put(&mut self, sent: Sent) -> Result<(), WireError> {
        let request = match sent {
            Sent::Other(asked) => return Ok(encode(&mut self.out, &asked)?),
            Sent::Request(request) => request,
        };
        if self.requests_len + request.len() > FRAME_LEN {
            self.enframe()?;
        }
        self.requests_len += request.len();
        self.requests.push(request);
        Ok(())
    }

    fn enframe(&mut self) -> Result<(), WireError> {
        if !self.requests.is_empty() {
            let batch = Batch::new(&self.requests);
            self.requests.clear();
            self.requests_len = 0;
            frame::encode(&mut self.out, |into| append(into, &Asked::Requests(batch)))?;
        }
        Ok(())
    }

    /// Writes what was asked, as far as the socket takes it.
    pub(crate) fn write(&mut self) -> Result<(), WireError> {
        self.enframe()?;
        while !self.out.is_empty() {
            match self.writer.try_write(&self.out) {
                Ok(written) => self.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until something happens.
    pub(crate) async fn news(&mut self) -> Result<News, WireError> {
        if let Some(body) = self.buffered()? {
            return Ok(News::Frame(body));
        }
        tokio::select! {
            body = self.reader.next_body() => Ok(News::Frame(body?)),
            writable = self.writer.writable(), if !self.out.is_empty() => {
                writable?;
                Ok(News::Writable)
            }
        }
    }

    /// What has come already.
    pub(crate) fn buffered(&mut self) -> Result<Option<Bytes>, WireError> {
        self.reader.buffered()
    }
}
