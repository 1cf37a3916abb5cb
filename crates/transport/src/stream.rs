//! A connection and its halves, TLS or plain.
//!
//! Both ends write with [`WriteHalf::try_write`], and wait with [`WriteHalf::writable`] when that
//! would block. Under TLS the bytes of one write are encrypted at once; while the socket has not
//! taken all of these the write *would block*, and the same bytes are to be written again, with
//! others behind them or not. So what a caller counts as written the system has, as it is without
//! TLS, and nothing waits in between that nobody would send.

use crate::credentials::describe;
use crate::security::{Refusal, unauthorized};
use crate::shut::Shut;
use crate::verifier::{principal, until};
use bytes::{Buf, BytesMut};
use meridian_core::principal::Speaker;
use rustls::Connection;
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// So much is taken from the socket at once at most: some records.
const RECEIVE_LEN: usize = 64 << 10;

/// How long one that is refused may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// The state of TLS, which both halves use.
pub(crate) struct Session {
    connection: Connection,
    /// What has come and was not decrypted yet.
    received: BytesMut,
    /// So much was decrypted and not read yet.
    readable: usize,
    /// So many bytes of the caller are encrypted and not all sent: it has not been told yet.
    owed: usize,
    /// The other end says no more.
    ended: bool,
    /// The other end is not wanted here any more.
    is_shut: bool,
    /// Who waits for more to come.
    reader: Option<Waker>,
}

type Shared = Arc<Mutex<Session>>;

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: &rustls::Error) -> io::Error {
    let kind = match error {
        // The other end knows only now who is at this one, and refuses it.
        rustls::Error::AlertReceived(_) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, describe(error))
}

/// Gives the socket what is encrypted.
struct Sender<'a>(&'a TcpStream);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unwanted() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the other end is shut out here")
}

impl Session {
    /// Whoever reads waits now.
    fn wait_as(&mut self, waker: &Waker) {
        match &mut self.reader {
            Some(known) => known.clone_from(waker),
            None => self.reader = Some(waker.clone()),
        }
    }

    /// Nothing is read any more, nor written; whoever waits is told.
    pub fn shut(&mut self) {
        self.is_shut = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Sends what is encrypted; `WouldBlock` if the socket does not take all.
    fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sender(tcp)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// See the module's documentation.
    fn try_write(&mut self, tcp: &TcpStream, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_shut {
            return Err(unwanted());
        }
        self.flush(tcp)?;
        if self.owed > 0 {
            let given: usize = bytes.iter().map(|piece| piece.len()).sum();
            assert!(self.owed <= given, "a write that would block is to be repeated");
            return Ok(std::mem::take(&mut self.owed));
        }
        let taken = self.connection.writer().write_vectored(bytes)?;
        if let Err(error) = self.flush(tcp) {
            self.owed = taken;
            return Err(error);
        }
        Ok(taken)
    }

    /// Takes from the socket what has come.
    fn receive(&mut self, tcp: &TcpStream) -> io::Result<()> {
        self.received.reserve(RECEIVE_LEN);
        match tcp.try_read_buf(&mut self.received) {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Decrypts some of what has come.
    fn decrypt(&mut self, tcp: &TcpStream) -> Result<(), rustls::Error> {
        let general = |why: String| rustls::Error::General(why);
        let mut rest = &self.received[..];
        match self.connection.read_tls(&mut rest).map_err(|error| general(error.to_string()))? {
            0 => return Err(general("more comes after the end".into())),
            taken => self.received.advance(taken),
        }
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.readable = state.plaintext_bytes_to_read();
                if state.peer_has_closed() {
                    self.ended = true;
                    self.received.clear();
                }
                Ok(())
            }
            Err(error) => {
                let _ = self.flush(tcp); // It says why, if it can.
                Err(error)
            }
        }
    }

    /// Reads as much as has come; whether that is something, or the end.
    fn read(&mut self, tcp: &TcpStream, into: &mut ReadBuf<'_>) -> io::Result<bool> {
        let before = into.filled().len();
        loop {
            let len = self.readable.min(into.remaining());
            if len > 0 {
                let read = self.connection.reader().read(into.initialize_unfilled_to(len))?;
                into.advance(read);
                self.readable -= read;
            }
            if into.remaining() == 0 || self.received.is_empty() {
                return Ok(into.filled().len() > before || self.ended);
            }
            if self.readable == 0 {
                self.decrypt(tcp).map_err(|error| broken(&error))?;
            }
        }
    }
}

/// Ends a connection so that the other end can read why: without this the system would take back
/// what it was told, as more has come that nobody reads.
async fn linger(mut tcp: TcpStream) {
    let said = async {
        tcp.shutdown().await?;
        tokio::io::copy(&mut tcp, &mut tokio::io::sink()).await
    };
    let _ = timeout(LINGER, said).await; // Whether it reads that is its own affair.
}

/// A connection, of which it is known who is at the other end.
pub struct Stream {
    tcp: TcpStream,
    session: Option<Shared>,
    speaker: Speaker,
}

impl Stream {
    /// Without TLS.
    pub fn plain(tcp: TcpStream) -> Stream {
        Stream { tcp, session: None, speaker: Speaker::Anybody }
    }

    /// Shows each end who the other is.
    pub(crate) async fn begin(
        tcp: TcpStream,
        connection: Connection,
        cluster: &str,
    ) -> Result<Stream, Refusal> {
        let (received, readable, owed) = (BytesMut::new(), 0, 0);
        let (ended, is_shut, reader) = (false, false, None);
        let mut session = Session { connection, received, readable, owed, ended, is_shut, reader };
        loop {
            match session.flush(&tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tcp.writable().await?;
                    continue;
                }
                flushed => flushed?,
            }
            if !session.connection.is_handshaking() {
                break;
            }
            if !session.received.is_empty() {
                if let Err(error) = session.decrypt(&tcp) {
                    linger(tcp).await;
                    return Err(unauthorized(&error));
                }
                continue;
            }
            if session.ended {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            tcp.readable().await?;
            match session.receive(&tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => received?,
            }
        }
        let shown = session.connection.peer_certificates().and_then(<[_]>::first);
        let shown = shown.ok_or_else(|| unauthorized(&rustls::Error::NoCertificatesPresented))?;
        let named = principal(shown, cluster).map_err(|error| unauthorized(&error))?;
        let speaker = Speaker::Known(Arc::new(named));
        Ok(Stream { tcp, session: Some(Arc::new(Mutex::new(session))), speaker })
    }

    /// Whether it may go on; if so, as long as nobody is shut out whose it is.
    pub(crate) fn is_admitted(&self, shut: &Shut) -> bool {
        self.session.as_ref().is_none_or(|session| shut.admit(&self.speaker, session))
    }

    /// Who is at the other end.
    pub fn speaker(&self) -> &Speaker {
        &self.speaker
    }

    /// Until when the certificate counts that the other end has shown, in seconds since 1970.
    pub fn speaks_until(&self) -> Option<u64> {
        let session = lock(self.session.as_ref()?);
        session.connection.peer_certificates()?.iter().filter_map(until).min()
    }

    /// Where the other end is.
    ///
    /// # Errors
    /// If it has gone.
    pub fn peer_ip(&self) -> io::Result<IpAddr> {
        Ok(self.tcp.peer_addr()?.ip())
    }

    /// Its two halves, to be used by different tasks.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (read, write) = self.tcp.into_split();
        let session = self.session.clone();
        let read = ReadHalf { tcp: read, session, speaker: self.speaker };
        (read, WriteHalf { tcp: write, session: self.session })
    }

    /// Takes it off the present runtime, so that another thread can go on with it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn detach(self) -> io::Result<Detached> {
        let Stream { tcp, session, speaker } = self;
        Ok(Detached { tcp: tcp.into_std()?, session, speaker })
    }
}

/// A connection between two threads.
pub struct Detached {
    tcp: std::net::TcpStream,
    session: Option<Shared>,
    speaker: Speaker,
}

impl Detached {
    /// Goes on with it in the present runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn attach(self) -> io::Result<Stream> {
        let Detached { tcp, session, speaker } = self;
        Ok(Stream { tcp: TcpStream::from_std(tcp)?, session, speaker })
    }
}

/// The half of a connection that reads.
pub struct ReadHalf {
    tcp: OwnedReadHalf,
    session: Option<Shared>,
    speaker: Speaker,
}

impl From<OwnedReadHalf> for ReadHalf {
    fn from(tcp: OwnedReadHalf) -> ReadHalf {
        ReadHalf { tcp, session: None, speaker: Speaker::Anybody }
    }
}

impl ReadHalf {
    /// Who is at the other end.
    pub fn speaker(&self) -> &Speaker {
        &self.speaker
    }

    /// The connection that both halves are of.
    pub fn reunite(self, other: WriteHalf) -> Option<Stream> {
        let tcp = self.tcp.reunite(other.tcp).ok()?;
        Some(Stream { tcp, session: self.session, speaker: self.speaker })
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(session) = &this.session else {
            return Pin::new(&mut this.tcp).poll_read(cx, into);
        };
        let tcp: &TcpStream = this.tcp.as_ref();
        loop {
            {
                let mut session = lock(session);
                if session.is_shut {
                    return Poll::Ready(Err(unwanted()));
                }
                if session.read(tcp, into)? {
                    return Poll::Ready(Ok(()));
                }
                session.wait_as(cx.waker());
            }
            ready!(tcp.poll_read_ready(cx))?;
            match lock(session).receive(tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => received?,
            }
        }
    }
}

/// The half of a connection that writes. Dropped, it tells the other end that no more comes.
pub struct WriteHalf {
    tcp: OwnedWriteHalf,
    session: Option<Shared>,
}

impl WriteHalf {
    /// Writes as much as the socket takes. If that would block, the same bytes are to be written
    /// again: see the module's documentation.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing now; others if the connection is broken.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.session {
            None => self.tcp.try_write(bytes),
            Some(session) => lock(session).try_write(self.tcp.as_ref(), &[IoSlice::new(bytes)]),
        }
    }

    /// The same with bytes that lie in several places.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_vectored(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.session {
            None => self.tcp.try_write_vectored(bytes),
            Some(session) => lock(session).try_write(self.tcp.as_ref(), bytes),
        }
    }

    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn writable(&self) -> io::Result<()> {
        self.tcp.writable().await
    }

    /// Where the other end is.
    ///
    /// # Errors
    /// If it has gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.session.is_none() {
            return Pin::new(&mut self.tcp).poll_write(cx, bytes);
        }
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.tcp.as_ref().poll_write_ready(cx))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // What was written was sent.
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(session) = &self.session {
            let mut session = lock(session);
            session.connection.send_close_notify();
            while let Err(error) = session.flush(self.tcp.as_ref()) {
                match error.kind() {
                    io::ErrorKind::WouldBlock => ready!(self.tcp.as_ref().poll_write_ready(cx))?,
                    _ => return Poll::Ready(Err(error)),
                }
            }
        }
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("tcp", &self.tcp).field("speaker", &self.speaker).finish()
    }
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").field("tcp", &self.tcp).field("speaker", &self.speaker).finish()
    }
}

impl std::fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadHalf").field("tcp", &self.tcp).field("speaker", &self.speaker).finish()
    }
}

impl std::fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteHalf").field("tcp", &self.tcp).finish()
    }
}
