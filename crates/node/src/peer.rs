//! Connections between nodes: of each two, the one with the smaller id calls the other.
//!
//! A connection is one task that reads and writes. A newer connection with the same peer replaces
//! the older, so a link is fed by one at a time.

use crate::service::Service;
use crate::shared::{Input, Peer, Shared};
use bytes::BytesMut;
use meridian_core::link::{LinkEvent, Packet};
use meridian_core::{Event, NodeId};
use meridian_host::api::{Hello, Who};
use meridian_runtime::wire::{FrameReader, WireError, decode, encode};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long calling may take, and until the other end has said who it is.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before calling again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// So much is gathered for one write at most.
pub(crate) const WRITE_LEN: usize = 512 << 10;

/// Calls a peer, again and again, for as long as the server runs and the peer is not removed.
pub(crate) async fn call<P: Service>(shared: Rc<Shared<P>>, node: NodeId) {
    let Some(peer) = shared.peer(node) else { return };
    let mut backoff = BACKOFF.0;
    while !peer.gone.get() {
        match call_once(&shared, &peer).await {
            Ok(()) => backoff = BACKOFF.0,
            Err(error) => {
                tracing::debug!(peer = *peer.address.borrow(), %error, "no connection");
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        }
        sleep(backoff).await;
    }
}

/// Calls a peer and stays until the connection ends; an error if it never began.
async fn call_once<P: Service>(shared: &Shared<P>, peer: &Peer) -> Result<(), WireError> {
    let greeting = async {
        let address = peer.address.borrow().clone();
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let from = stream.peer_addr()?.ip();
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        let mut out = BytesMut::new();
        encode(&mut out, &shared.hello())?;
        writer.write_all(&out).await?;
        let hello: Result<Hello, _> = reader.next().await;
        let met = hello.and_then(|hello| check_peer(shared, peer.node, &hello));
        Ok::<_, WireError>((from, reader, writer, met))
    };
    let greeting = timeout(HELLO_TIMEOUT, greeting).await;
    let (from, reader, writer, met) = greeting
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))?;
    let met = met.inspect_err(|error| {
        if matches!(error, WireError::Frame(_) | WireError::Refused(_)) {
            shared.on_bad(from, error);
        }
    });
    met?;
    let error = run(shared, peer, reader, writer, BytesMut::new()).await;
    log_end(shared, peer, from, &error);
    Ok(())
}

/// Whether the one at the other end is the node that it should be.
fn check_peer<P: Service>(
    shared: &Shared<P>,
    node: NodeId,
    hello: &Hello,
) -> Result<(), WireError> {
    let wrong = |text: String| Err(WireError::Refused(text));
    if hello.cluster != shared.topology().cluster {
        return wrong(format!("a node of cluster {}", hello.cluster));
    }
    match &hello.who {
        Who::Node { node: found, .. } if *found == node => Ok(()),
        other => wrong(format!("{other:?} where node {} should be", node.0)),
    }
}

/// Takes a call of a peer that has said who it is, and stays until the connection ends.
pub(crate) async fn answer<P: Service>(
    shared: &Shared<P>,
    node: NodeId,
    stream: (FrameReader, OwnedWriteHalf, std::net::IpAddr),
) -> Result<(), WireError> {
    let (reader, writer, from) = stream;
    let Some(peer) = shared.peer(node).filter(|_| node < shared.me) else {
        return Err(WireError::Refused(format!("node {} has no reason to call", node.0)));
    };
    let mut out = BytesMut::new();
    encode(&mut out, &shared.hello())?;
    let error = run(shared, &peer, reader, writer, out).await;
    log_end(shared, &peer, from, &error);
    Ok(())
}

fn log_end<P: Service>(shared: &Shared<P>, peer: &Peer, from: std::net::IpAddr, error: &WireError) {
    match error {
        WireError::Frame(_) | WireError::Refused(_) => shared.on_bad(from, error),
        WireError::Link(_) | WireError::Io(_) | WireError::Closed => {
            let name = shared.name_of(peer.node);
            tracing::info!(peer = name, why = %error, "connection ended");
        }
    }
}

/// Uses a connection, in place of an earlier one, until it ends; tells why it did.
async fn run<P: Service>(
    shared: &Shared<P>,
    peer: &Peer,
    reader: FrameReader,
    writer: OwnedWriteHalf,
    out: BytesMut,
) -> WireError {
    let connection = shared.next_connection();
    peer.close.notify_waiters();
    peer.connection.set(connection);
    let open = peer.link.borrow_mut().on_connected();
    tracing::info!(peer = shared.name_of(peer.node), "connected");
    let ended = tokio::select! {
        biased;
        () = peer.close.notified() => Err(WireError::Closed),
        ended = read(shared, peer, reader) => ended,
        ended = Writer { shared, peer, out, held: VecDeque::new() }.run(writer, open) => ended,
    };
    if peer.connection.get() == connection {
        peer.connection.set(0);
        peer.link.borrow_mut().on_disconnected();
    }
    match ended {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn read<P: Service>(
    shared: &Shared<P>,
    peer: &Peer,
    mut reader: FrameReader,
) -> Result<std::convert::Infallible, WireError> {
    loop {
        while let Some(body) = reader.buffered()? {
            let packet: Packet = decode(&body)?;
            let events = peer.link.borrow_mut().on_packet(shared.now(), packet)?;
            for event in events {
                let event = match event {
                    LinkEvent::Restarted => Event::Restarted(peer.node),
                    LinkEvent::Message(bytes) => {
                        // It counts as arrived: without a reset both would believe that it did.
                        let message =
                            decode(&bytes).inspect_err(|_| peer.link.borrow_mut().reset())?;
                        Event::Message { from: peer.node, message }
                    }
                };
                shared.push(Input::Event(event));
            }
        }
        // For acknowledgements, and for what waited until the link was open.
        peer.wake.notify_one();
        shared.room().await;
        reader.fill().await?;
    }
}

/// Puts on the socket what the link transmits: all that is ready in one write, and not before its
/// time, if the peer is to be further away than it is.
struct Writer<'a, P: Service> {
    shared: &'a Shared<P>,
    peer: &'a Peer,
    out: BytesMut,
    held: VecDeque<(Instant, BytesMut)>,
}

impl<P: Service> Writer<'_, P> {
    async fn run(
        mut self,
        mut socket: OwnedWriteHalf,
        open: Packet,
    ) -> Result<std::convert::Infallible, WireError> {
        self.put(&open)?;
        loop {
            while self.out.len() < WRITE_LEN {
                let packet = self.peer.link.borrow_mut().poll_transmit(self.shared.now());
                let Some(packet) = packet else { break };
                self.put(&packet)?;
            }
            let now = if self.held.is_empty() { None } else { Some(Instant::now()) };
            while let Some((due, _)) = self.held.front()
                && Some(*due) <= now
                && let Some((_, frame)) = self.held.pop_front()
            {
                self.out.extend_from_slice(&frame);
            }
            if self.out.is_empty() {
                self.wait().await;
            } else {
                socket.write_all(&self.out).await?;
                self.out.clear();
                if self.out.capacity() > 2 * WRITE_LEN {
                    self.out = BytesMut::new();
                }
            }
        }
    }

    fn put(&mut self, packet: &Packet) -> Result<(), WireError> {
        if self.peer.delay.get().is_zero() {
            return Ok(encode(&mut self.out, packet)?);
        }
        let mut frame = BytesMut::new();
        encode(&mut frame, packet)?;
        self.held.push_back((Instant::now() + self.peer.delay.get(), frame));
        Ok(())
    }

    /// Waits until there may be something to write.
    async fn wait(&self) {
        let held = self.held.front().map(|(due, _)| *due);
        let link = self.peer.link.borrow().poll_timer().map(|time| self.shared.instant(time));
        let woken = self.peer.wake.notified();
        match held.into_iter().chain(link).min() {
            None => woken.await,
            Some(due) => {
                tokio::select! {
                    () = woken => (),
                    () = sleep_until(due) => (),
                }
            }
        }
    }
}
