//! Tasks that serve clients: one for each connection, reading requests as long as there is room for
//! them.

use crate::application::{Application, Networked};
use crate::clients::{ConnectionId, Form, Signals};
use crate::connection::{never, refuse};
use crate::local::Local;
use crate::wire::{FrameReader, WireError};
use bytes::BytesMut;
use meridian_core::frame;
use meridian_core::hello::ServiceId;
use meridian_transport::{ReadHalf, WriteHalf};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::timeout;

/// A client that takes nothing of what it asked for during so long is left.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Serves a client that has said who it is, until its connection ends.
pub(crate) async fn serve<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    service: ServiceId,
    stream: (FrameReader, WriteHalf, IpAddr),
) {
    let (reader, writer, from) = stream;
    let writer = Rc::new(writer);
    let speaker = reader.speaker().clone();
    let (mut socket, mut pending) = reader.into_parts();
    let (client, signals) = local.add_client((writer.clone(), speaker), service, Form::Framed);
    let ended = tokio::select! {
        biased;
        () = signals.close.notified() => WireError::Closed,
        ended = read(local, client, &signals, &mut socket, &mut pending) => never(ended),
        ended = unblock(local, client, &signals, &writer) => never(ended),
    };
    tracing::debug!(me = %local.me, %from, why = %ended, "a client's connection ended");
    local.blame(from, &ended);
    if ended.is_bad() {
        local.blame_client(client, &ended);
    }
    local.remove_client(client);
    if ended.is_bad()
        && let Some(writer) = Rc::into_inner(writer)
    {
        refuse::<P::Peer>(socket, writer, None).await;
    }
}

async fn read<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    signals: &Signals,
    socket: &mut ReadHalf,
    pending: &mut BytesMut,
) -> Result<Infallible, WireError> {
    loop {
        local.client_room().await;
        while local.is_client_full(client) {
            signals.room.notified().await;
        }
        // What has come with the hello is the first.
        if take_all(local, client, pending)? {
            poll_fn(|cx| poll_fill(local, socket, pending, cx)).await?;
        }
    }
}

/// Takes the frames that have arrived, as long as the answers find room; whether these were all.
fn take_all<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    pending: &mut BytesMut,
) -> Result<bool, WireError> {
    let mut engine = local.engine.borrow_mut();
    while !engine.clients.is_full(client) {
        let Some(body) = frame::decode(pending)? else { return Ok(true) };
        local.wake.notify_one();
        engine.on_asked(client, body)?;
    }
    Ok(false)
}

/// Reads what has arrived, by way of a buffer that all connections share: what is kept of it, for
/// as long as any request in it lives, is no longer than what came.
fn poll_fill<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    socket: &mut ReadHalf,
    pending: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut shared = local.read_buffer.borrow_mut();
    let mut buffer = ReadBuf::new(&mut shared);
    ready!(Pin::new(socket).poll_read(cx, &mut buffer))?;
    match buffer.filled() {
        [] => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        filled if pending.is_empty() => *pending = BytesMut::from(filled),
        filled => pending.extend_from_slice(filled),
    }
    Poll::Ready(Ok(()))
}

/// Goes on writing when a socket that was full takes more.
pub(crate) async fn unblock<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    signals: &Signals,
    socket: &WriteHalf,
) -> Result<Infallible, WireError> {
    loop {
        signals.blocked.notified().await;
        match timeout(STALLED_AFTER, socket.writable()).await {
            Ok(writable) => writable?,
            Err(_) => return Err(WireError::Closed),
        }
        local.answer_client(client);
    }
}
