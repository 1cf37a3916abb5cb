//! Clients that speak a protocol of their own, on a port of their own: no hello and no frames. The
//! application makes requests of their bytes, one after the other, and writes the answers.

use crate::application::{Application, Networked};
use crate::clients::{ConnectionId, Form, Signals};
use crate::connection::{never, refuse};
use crate::local::Local;
use crate::serve::{STALLED_AFTER, unblock};
use crate::wire::WireError;
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
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long a client may take to show who it is.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes connections for as long as the member runs.
pub(crate) async fn accept<P: Networked, A: Application<P>>(
    local: Rc<Local<P, A>>,
    service: ServiceId,
    listener: TcpListener,
) {
    local.until_begun().await;
    let mut refuses = false; // What it was logged for holds until it takes one again.
    loop {
        match listener.accept().await {
            Ok((stream, from)) if local.has_room() => {
                local.strangers.set(local.strangers.get() + 1);
                refuses = false;
                local.spawn(serve(local.clone(), service, stream, from.ip()));
            }
            Ok((stream, from)) => {
                if !std::mem::replace(&mut refuses, true) {
                    let clients = local.clients();
                    tracing::warn!(clients, %from, "too many clients: closed, and so are others");
                }
                // It is short: a new connection takes it, or is gone.
                let _ = stream.try_write(local.engine.borrow().turned_away());
            }
            Err(error) => {
                // For example too many open files: that passes, and must not spin meanwhile.
                if !std::mem::replace(&mut refuses, true) {
                    tracing::warn!(%error, "cannot take connections");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve<P: Networked, A: Application<P>>(
    local: Rc<Local<P, A>>,
    service: ServiceId,
    stream: TcpStream,
    from: IpAddr,
) {
    // Apart, as its state is long: it goes when that has ended, and each client stays for long.
    let begun = Box::pin(local.security.accept(stream));
    let begun = timeout(BEGIN_TIMEOUT, begun).await;
    local.strangers.set(local.strangers.get() - 1);
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    let stream = match begun.unwrap_or_else(late) {
        Ok(stream) => stream,
        Err(refusal) => return local.blame(from, &refusal.into()),
    };
    let (mut socket, writer) = stream.into_split();
    let (writer, speaker) = (Rc::new(writer), socket.speaker().clone());
    let (client, signals) = local.add_client((writer.clone(), speaker), service, Form::Plain);
    let ended = tokio::select! {
        biased;
        () = signals.close.notified() => WireError::Closed,
        ended = read(&local, client, &signals, &mut socket) => never(ended),
        ended = unblock(&local, client, &signals, &writer) => never(ended),
    };
    let ended = local.ended(client, ended);
    tracing::debug!(%from, why = %ended, "a client's connection ended");
    local.blame(from, &ended);
    if ended.is_bad() {
        local.blame_client(client, &ended);
    }
    if !matches!(ended, WireError::Io(_)) {
        // What it was answered before is still its own.
        tokio::select! {
            () = signals.close.notified() => (),
            () = drain(&local, client, &writer) => (),
        }
    }
    local.remove_client(client);
    if let Some(writer) = Rc::into_inner(writer) {
        refuse::<P::Peer>(socket, writer, None).await;
    }
}

/// Writes until the client has taken all, or takes nothing any more. A socket that is broken is
/// always ready, so a failed write ends this: the thread would do nothing else any more.
async fn drain<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    socket: &WriteHalf,
) {
    while local.answer_client(client)
        && local.waits(client)
        && timeout(STALLED_AFTER, socket.writable()).await.is_ok_and(|ready| ready.is_ok())
    {}
}

async fn read<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    signals: &Signals,
    socket: &mut ReadHalf,
) -> Result<Infallible, WireError> {
    loop {
        local.client_room().await;
        while local.is_client_full(client) {
            signals.room.notified().await;
        }
        if take_all(local, client)? {
            poll_fn(|cx| poll_fill(local, client, socket, cx)).await?;
        }
    }
}

/// Takes the requests that have arrived, as long as the answers find room; whether these were all.
fn take_all<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
) -> Result<bool, WireError> {
    let mut engine = local.engine.borrow_mut();
    while !engine.clients.is_full(client) && !engine.holds_clients() {
        if !engine.on_next(client)? {
            return Ok(true);
        }
        local.wake.notify_one();
    }
    Ok(false)
}

/// Reads what has arrived, by way of a buffer that all connections share.
fn poll_fill<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    client: ConnectionId,
    socket: &mut ReadHalf,
    cx: &mut Context<'_>,
) -> Poll<Result<(), WireError>> {
    let mut shared = local.read_buffer.borrow_mut();
    let mut buffer = ReadBuf::new(&mut shared);
    ready!(Pin::new(socket).poll_read(cx, &mut buffer))?;
    if buffer.filled().is_empty() {
        return Poll::Ready(Err(WireError::Closed));
    }
    local.engine.borrow_mut().on_bytes(client, buffer.filled());
    local.wake.notify_one(); // The end of the batch makes room for more.
    Poll::Ready(Ok(()))
}
