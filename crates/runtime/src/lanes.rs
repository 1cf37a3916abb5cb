//! Threads of one server that are called at one port. The thread that has the port reads the hello
//! of each caller, and hands over the connection of one that wants another thread.

use crate::wire::FrameReader;
use bytes::{Bytes, BytesMut};
use meridian_core::hello::Lane;
use meridian_transport::{Detached, ReadHalf, WriteHalf};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// So many connections wait for a thread at most; more are turned away.
const WAITING_MAX: usize = 256;

/// A connection, and what was read from it.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) stream: Detached,
    /// The body of its first frame.
    pub(crate) hello: Bytes,
    /// What came after that.
    pub(crate) pending: BytesMut,
    pub(crate) from: IpAddr,
}

/// Connections that come to the server's port for one of its other threads.
#[derive(Debug)]
pub struct Arrivals {
    pub(crate) lane: Lane,
    pub(crate) address: SocketAddr,
    waiting: mpsc::Receiver<Arrived>,
}

impl Arrivals {
    /// The next one; none any more when the main thread has ended.
    pub(crate) async fn next(&mut self) -> Option<Arrived> {
        self.waiting.recv().await
    }
}

/// Where connections come from.
#[derive(Debug)]
pub(crate) enum Door {
    /// From the port.
    Port(TcpListener),
    /// From the thread that has it.
    Lane(Arrivals),
}

/// The other threads of a server, as the one knows them that has the port.
#[derive(Debug, Default)]
pub struct Lanes {
    threads: BTreeMap<Lane, mpsc::Sender<Arrived>>,
    /// What is told to those who want a thread that there is not.
    explanation: String,
}

impl Lanes {
    /// One more thread of a server that listens on `address`.
    pub fn open(&mut self, lane: Lane, address: SocketAddr) -> Arrivals {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        self.threads.insert(lane, sender);
        Arrivals { lane, address, waiting }
    }

    /// What is told to those who want a thread that there is not.
    pub fn explain(&mut self, why: String) {
        self.explanation = why;
    }

    /// Why there is no such thread.
    pub(crate) fn refusal(&self, lane: Lane) -> String {
        format!("thread {} is not served here: {}", lane.0, self.explanation)
    }

    /// Hands a connection over. It is given back if there is no such thread, or too many wait for
    /// it.
    pub(crate) fn pass(
        &self,
        lane: Lane,
        hello: Bytes,
        stream: (FrameReader, WriteHalf, IpAddr),
    ) -> Result<(), (ReadHalf, WriteHalf)> {
        let (reader, writer, from) = stream;
        let (reader, pending) = reader.into_parts();
        let Some(thread) = self.threads.get(&lane) else { return Err((reader, writer)) };
        let Ok(room) = thread.try_reserve() else { return Err((reader, writer)) };
        let stream = reader.reunite(writer).expect("the halves of one socket");
        match stream.detach() {
            Ok(stream) => room.send(Arrived { stream, hello, pending, from }),
            Err(error) => tracing::warn!(%from, %error, "cannot hand a connection over"),
        }
        Ok(())
    }
}
