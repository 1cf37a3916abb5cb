//! Connections between members: of each two, the one with the smaller id calls the other.
//!
//! A newer connection with the same peer replaces the older, so a link is fed by one at a time.

use crate::application::{Application, Networked};
use crate::hello::{Hello, VERSION};
use crate::local::Local;
use crate::wire::{FrameReader, WireError, encode};
use bytes::{Bytes, BytesMut};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long calling may take, and until the other end has said who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before calling again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Connections that have not said who they are, at most: each is a descriptor and a buffer.
const STRANGERS_MAX: usize = 256;

/// Calls a peer, again and again, for as long as the member runs.
pub(crate) async fn call<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, peer: usize) {
    let mut backoff = BACKOFF.0;
    loop {
        local.until_mended(peer).await;
        match call_once(&local, peer).await {
            Ok(()) => backoff = BACKOFF.0,
            Err(error) => {
                tracing::debug!(peer = %local.peer(peer), %error, "no connection");
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        }
        sleep(backoff).await;
    }
}

/// Calls a peer and stays until the connection ends; an error if it never began.
async fn call_once<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
) -> Result<(), WireError> {
    let id = local.peer(peer);
    let greeting = async {
        let stream = TcpStream::connect(&local.address(peer)).await?;
        stream.set_nodelay(true)?;
        let from = stream.peer_addr()?.ip();
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        let mut out = BytesMut::new();
        encode(&mut out, &local.hello(id))?;
        writer.write_all(&out).await?;
        let hello: Hello = reader.next().await.inspect_err(|error| local.blame(from, error))?;
        if hello.from != id {
            let error = WireError::Refused(format!("{} where {id} should be", hello.from));
            local.blame(from, &error);
            return Err(error);
        }
        local.meet(peer, &hello).inspect_err(|error| local.blame(from, error))?;
        Ok::<_, WireError>((from, reader, writer))
    };
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    let (from, reader, writer) = timeout(HELLO_TIMEOUT, greeting).await.unwrap_or_else(late)?;
    run(local, peer, (reader, writer, from), None).await
}

/// Takes connections for as long as the member runs.
pub(crate) async fn accept<P: Networked, A: Application<P>>(
    local: Rc<Local<P, A>>,
    listener: TcpListener,
) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) if local.strangers.get() < STRANGERS_MAX => {
                local.strangers.set(local.strangers.get() + 1);
                local.spawn(greet(local.clone(), stream, from.ip()));
            }
            Ok((_, from)) => tracing::warn!(%from, "too many connections: closed"),
            Err(error) => {
                // For example too many open files: that passes, and must not spin meanwhile.
                tracing::warn!(%error, "cannot take connections");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet<P: Networked, A: Application<P>>(
    local: Rc<Local<P, A>>,
    stream: TcpStream,
    from: IpAddr,
) {
    let nodelay = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    let met = match nodelay {
        Ok(()) => meet(&local, &mut reader).await,
        Err(error) => Err(error.into()),
    };
    local.strangers.set(local.strangers.get() - 1);
    let (peer, hello) = match met {
        Ok(met) => met,
        Err(error) => return local.blame(from, &error),
    };
    if let Err(error) = run(&local, peer, (reader, writer, from), Some(hello)).await {
        tracing::debug!(%from, why = %error, "connection ended");
    }
}

/// Learns who calls; tells what to answer.
async fn meet<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    reader: &mut FrameReader,
) -> Result<(usize, Hello), WireError> {
    let hello = timeout(HELLO_TIMEOUT, reader.next::<Hello>()).await;
    let Ok(hello) = hello else { return Err(WireError::Refused("no hello".into())) };
    let hello = hello?;
    let known = local.index(hello.from).filter(|_| hello.from < local.me);
    let Some(peer) = known else {
        return Err(WireError::Refused(format!("{} has no reason to call", hello.from)));
    };
    if local.is_cut(peer) {
        return Err(WireError::Closed);
    }
    local.meet(peer, &hello)?;
    Ok((peer, local.hello(hello.from)))
}

/// Uses a connection, in place of an earlier one, until it ends.
async fn run<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
    stream: (FrameReader, OwnedWriteHalf, IpAddr),
    hello: Option<Hello>,
) -> Result<(), WireError> {
    if local.is_cut(peer) {
        return Err(WireError::Closed);
    }
    let (reader, writer, from) = stream;
    let writer = Rc::new(writer);
    let (id, signals) = (local.peer(peer), local.signals(peer));
    let connection = local.connect(peer, writer.clone(), hello.as_ref())?;
    tracing::debug!(me = %local.me, peer = %id, "connected");
    let ended = tokio::select! {
        biased;
        () = signals.close.notified() => WireError::Closed,
        ended = read(local, peer, reader) => never(ended),
        ended = unblock(local, peer, &writer, &signals.blocked) => never(ended),
    };
    local.disconnect(peer, connection);
    tracing::debug!(me = %local.me, peer = %id, why = %ended, "connection ended");
    local.blame(from, &ended);
    Ok(())
}

fn never(ended: Result<Infallible, WireError>) -> WireError {
    match ended {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn read<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
    mut reader: FrameReader,
) -> Result<Infallible, WireError> {
    loop {
        if let Some(body) = reader.buffered()? {
            let taken = take_all(local, peer, body, &mut reader);
            local.wake.notify_one();
            taken?;
        }
        local.room().await;
        reader.fill().await?;
    }
}

/// Takes all frames that have arrived, of which `body` is the first.
fn take_all<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
    body: Bytes,
    reader: &mut FrameReader,
) -> Result<(), WireError> {
    let mut engine = local.engine.borrow_mut();
    engine.on_frame(peer, &body)?;
    while let Some(body) = reader.buffered()? {
        engine.on_frame(peer, &body)?;
    }
    Ok(())
}

/// Goes on writing when a socket that was full takes more.
async fn unblock<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
    socket: &OwnedWriteHalf,
    blocked: &tokio::sync::Notify,
) -> Result<Infallible, WireError> {
    loop {
        blocked.notified().await;
        socket.writable().await?;
        local.transmit(peer);
    }
}

/// Whether the other end may be spoken with: it is of this cluster and version, means this member, and
/// has not lost its memory.
pub(crate) fn check(ours: &Hello, theirs: &Hello, known: Option<u64>) -> Result<(), WireError> {
    let refused = |text: String| Err(WireError::Refused(text));
    if theirs.version != VERSION {
        return refused(format!("{} speaks version {}", theirs.from, theirs.version));
    }
    if theirs.cluster != ours.cluster {
        return refused(format!("{} is of cluster {:?}", theirs.from, theirs.cluster));
    }
    if theirs.to != ours.from {
        return refused(format!("{} wants {}", theirs.from, theirs.to));
    }
    if !theirs.durable && known.is_some_and(|known| known != theirs.incarnation) {
        return refused(format!("{} has lost its memory", theirs.from));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{GroupId, NodeId, ProcessId};

    fn hello(from: u16, to: u16) -> Hello {
        let process = |node| ProcessId { group: GroupId(0), node: NodeId(node) };
        let (from, to) = (process(from), process(to));
        Hello { version: VERSION, cluster: "a".into(), from, to, incarnation: 5, durable: false }
    }

    #[test]
    fn only_members_of_the_same_cluster_and_version_that_remember_are_met() {
        let ours = hello(0, 1);
        let refused = |change: fn(&mut Hello), known| {
            let mut theirs = hello(1, 0);
            change(&mut theirs);
            check(&ours, &theirs, known).err().map(|error| error.to_string())
        };
        assert_eq!(refused(|_| (), None), None);
        assert_eq!(refused(|_| (), Some(5)), None);
        assert!(refused(|theirs| theirs.version = 9, None).unwrap().contains("version 9"));
        assert!(refused(|theirs| theirs.cluster = "b".into(), None).unwrap().contains("\"b\""));
        assert!(refused(|theirs| theirs.to.node = NodeId(7), None).unwrap().contains("n7"));
        assert!(refused(|_| (), Some(4)).unwrap().contains("lost its memory"));
        assert_eq!(refused(|theirs| theirs.durable = true, Some(4)), None);
    }
}
