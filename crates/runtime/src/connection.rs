//! Connections between members: of each two, the one with the smaller id calls the other. Clients
//! call the same port; the first frame says who it is.
//!
//! A newer connection with the same peer replaces the older, so a link is fed by one at a time.

use crate::application::{Application, Networked};
use crate::lanes::{Arrived, Door};
use crate::local::Local;
use crate::serve::serve;
use crate::wire::{FrameReader, WireError, encode};
use bytes::{Bytes, BytesMut};
use meridian_core::Endpoint;
use meridian_core::hello::{Answer, Caller, Hello, HelloError, Identity, Lane, ServiceId};
use meridian_core::principal::Speaker;
use meridian_transport::{ReadHalf, WriteHalf};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long calling may take, and until the other end has said who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one that is turned away may take to read why.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait before calling again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Connections that have not said who they are: each is a descriptor and a buffer. Beyond this the
/// one that has been silent for longest is closed, so that many silent ones keep nobody out; twice
/// as many there never are.
const STRANGERS_MAX: usize = 256;

/// Calls a peer, again and again, for as long as the member runs.
pub(crate) async fn call<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, peer: usize) {
    let mut backoff = BACKOFF.0;
    loop {
        local.until_wanted(peer).await;
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
        let stream = local.call(peer).await?;
        let from = stream.peer_ip()?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        let mut out = BytesMut::new();
        encode(&mut out, &local.hello(id))?;
        writer.write_all(&out).await?;
        let answer: Answer<P::Peer> =
            reader.next().await.inspect_err(|error| local.blame(from, error))?;
        let met = match answer {
            Answer::Member(identity) => local.meet(peer, &identity).map_err(|why| local.tell(why)),
            Answer::Refused(why) => Err(WireError::Refused(format!("{id} refuses: {why}"))),
            Answer::Client => Err(WireError::Refused(format!("{id} takes this for a client"))),
        };
        met.inspect_err(|error| local.blame(from, error))?;
        Ok::<_, WireError>((from, reader, writer))
    };
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    let (from, reader, writer) = timeout(HELLO_TIMEOUT, greeting).await.unwrap_or_else(late)?;
    run(local, peer, (reader, writer, from), None).await
}

/// Takes connections for as long as the member runs.
pub(crate) async fn accept<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, door: Door) {
    match door {
        Door::Port(listener) => accept_at(local, listener).await,
        Door::Lane(mut arrivals) => {
            while let Some(arrived) = arrivals.next().await {
                local.spawn(take_over(local.clone(), arrived));
            }
        }
    }
}

async fn accept_at<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) if local.strangers.get() < 2 * STRANGERS_MAX => {
                if local.strangers.get() >= STRANGERS_MAX {
                    local.crowded.notify_one(); // The oldest goes.
                }
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

/// Whose connection it is.
enum Met<I> {
    Member(usize, Answer<I>),
    /// Of a member that is only told this.
    Told(Answer<I>),
    /// Of one that has lost its memory, and is told what is known of it.
    Refused(Answer<I>, String),
    Client(ServiceId),
    /// Of another thread of this server, to which it says this.
    Elsewhere(Lane, Bytes),
}

async fn greet<P: Networked, A: Application<P>>(
    local: Rc<Local<P, A>>,
    stream: TcpStream,
    from: IpAddr,
) {
    let late = |_| Err(WireError::Refused("no hello in time".into()));
    let hearing = Box::pin(hear(&local, stream)); // See `plain`: connections stay for long.
    let heard = tokio::select! {
        heard = timeout(HELLO_TIMEOUT, hearing) => heard.unwrap_or_else(late),
        () = local.crowded.notified() => Err(WireError::Refused("others came after it".into())),
    };
    let (reader, writer, met) = match heard {
        Ok(((reader, writer), Ok(body))) => {
            let met = meet(&local, body, reader.speaker()).await;
            (reader, writer, met)
        }
        Ok(((reader, writer), Err(error))) => (reader, writer, Err(error)),
        Err(error) => {
            local.blame(from, &error);
            tracing::debug!(%from, why = %error, "nobody");
            return local.strangers.set(local.strangers.get() - 1);
        }
    };
    // Who is turned away is a stranger until it has been told so.
    let is_bad = matches!(&met, Err(error) if error.is_bad());
    if !is_bad {
        local.strangers.set(local.strangers.get() - 1);
    }
    stay(&local, met, (reader, writer, from)).await;
    if is_bad {
        local.strangers.set(local.strangers.get() - 1);
    }
}

/// Goes on with a connection that was made to another thread.
async fn take_over<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, arrived: Arrived) {
    let Arrived { stream, hello, pending, from } = arrived;
    let stream = match stream.attach() {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%from, %error, "cannot take a connection over"),
    };
    let (reader, writer) = stream.into_split();
    let met = meet(&local, hello, reader.speaker()).await;
    stay(&local, met, (FrameReader::resume(reader, pending), writer, from)).await;
}

/// Uses a connection as whoever it is of wants, or says why not.
async fn stay<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    met: Result<Met<P::Peer>, WireError>,
    stream: (FrameReader, WriteHalf, IpAddr),
) {
    let (reader, writer, from) = stream;
    match met {
        Ok(Met::Member(peer, answer)) => {
            let stream = (reader, writer, from);
            if let Err(error) = run(local, peer, stream, Some(answer)).await {
                tracing::debug!(%from, why = %error, "connection ended");
            }
        }
        Ok(Met::Refused(answer, why)) => {
            local.blame(from, &WireError::Refused(why));
            refuse(reader.into_parts().0, writer, Some(answer)).await;
        }
        Ok(Met::Told(answer)) => refuse(reader.into_parts().0, writer, Some(answer)).await,
        Ok(Met::Client(service)) => serve(local, service, (reader, writer, from)).await,
        Ok(Met::Elsewhere(lane, hello)) => {
            if let Err((reader, writer)) = local.lanes.pass(lane, hello, (reader, writer, from)) {
                let answer = Answer::<P::Peer>::Refused(local.lanes.refusal(lane));
                refuse(reader, writer, Some(answer)).await;
            }
        }
        Err(error) if error.is_bad() => {
            local.blame(from, &error);
            let answer = Answer::<P::Peer>::Refused(error.to_string());
            refuse(reader.into_parts().0, writer, Some(answer)).await;
        }
        Err(error) => tracing::debug!(%from, why = %error, "nobody"),
    }
}

/// What a connection is read and written by.
type Halves = (FrameReader, WriteHalf);

/// Waits until the caller has shown who it is, and then said so.
async fn hear<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    stream: TcpStream,
) -> Result<(Halves, Result<Bytes, WireError>), WireError> {
    let (reader, writer) = local.security.accept(stream).await?.into_split();
    let mut reader = FrameReader::new(reader);
    let body = reader.next_body().await;
    Ok(((reader, writer), body))
}

/// Learns who calls; tells what to answer.
async fn meet<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    body: Bytes,
    speaker: &Speaker,
) -> Result<Met<P::Peer>, WireError> {
    let refused = |why: String| Err(WireError::Refused(why));
    let Hello { lane, caller, .. } = Hello::<P::Peer>::read(&body, &local.cluster)?;
    if lane != local.lane {
        return Ok(Met::Elsewhere(lane, body));
    }
    if !matches!(caller, Caller::Starting(_)) {
        local.until_begun().await;
    }
    if let Caller::Starting(identity) | Caller::Member(identity) = &caller {
        local.authorize(identity.from, speaker)?;
    }
    match caller {
        Caller::Starting(identity) => meet_member(local, &identity, false),
        Caller::Member(identity) if identity.from < local.me => meet_member(local, &identity, true),
        Caller::Member(identity) => refused(format!("{} has no reason to call", identity.from)),
        Caller::Client(service) if !local.serves_clients(service) => {
            refused("no clients here".into())
        }
        Caller::Client(_) if local.clients() >= local.clients_max => {
            refused(format!("{} clients are connected: try another", local.clients_max))
        }
        Caller::Client(service) => Ok(Met::Client(service)),
    }
}

/// Another member calls, to stay or only to ask. Who has lost its memory is told what is known of
/// it.
fn meet_member<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    identity: &Identity<P::Peer>,
    stays: bool,
) -> Result<Met<P::Peer>, WireError> {
    let Some(peer) = local.index(identity.from) else {
        return Err(WireError::Refused(format!("{} has no reason to call", identity.from)));
    };
    if local.is_cut(peer) {
        return Err(WireError::Closed);
    }
    let answer = Answer::Member(local.identity(identity.from));
    match local.meet(peer, identity) {
        Ok(()) if stays => Ok(Met::Member(peer, answer)),
        Ok(()) => Ok(Met::Told(answer)),
        Err(HelloError::Forgot(forgotten)) => Ok(Met::Refused(answer, local.describe(&forgotten))),
        Err(error) => Err(error.into()),
    }
}

/// Ends a connection so that the other end can read why: what it still says is read, for a while,
/// or else the system would take back what it was told.
pub(crate) async fn refuse<I: Endpoint>(
    mut socket: ReadHalf,
    mut writer: WriteHalf,
    answer: Option<Answer<I>>,
) {
    let mut out = BytesMut::new();
    let said = async {
        if let Some(answer) = answer {
            encode(&mut out, &answer).map_err(io::Error::other)?;
            writer.write_all(&out).await?;
        }
        writer.shutdown().await?;
        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await
    };
    // Whether it reads that is its own affair.
    let _ = timeout(REFUSE_TIMEOUT, said).await;
}

/// Uses a connection, in place of an earlier one, until it ends.
async fn run<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
    stream: (FrameReader, WriteHalf, IpAddr),
    answer: Option<Answer<P::Peer>>,
) -> Result<(), WireError> {
    if local.is_cut(peer) {
        return Err(WireError::Closed);
    }
    let (reader, writer, from) = stream;
    let writer = Rc::new(writer);
    let (id, signals) = (local.peer(peer), local.signals(peer));
    let connection = local.connect(peer, writer.clone(), answer.as_ref())?;
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

pub(crate) fn never(ended: Result<Infallible, WireError>) -> WireError {
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
    socket: &WriteHalf,
    blocked: &tokio::sync::Notify,
) -> Result<Infallible, WireError> {
    loop {
        blocked.notified().await;
        socket.writable().await?;
        local.transmit(peer);
    }
}
