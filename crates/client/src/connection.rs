//! One connection to one node, opened when it is needed and again when it broke.
//!
//! One task per connection writes and reads. What waits to be written is written together and
//! flushed once. A node in another region is made as far away as the topology says: each request
//! waits before it is written, each reply before it is handed on; both keep their order, and nothing
//! waits for anything else.

use bytes::{Buf, BufMut, BytesMut};
use meridian_core::NodeId;
use meridian_core::frame;
use meridian_core::hello::{Answer, Hello};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Requests that wait to be written on one connection: beyond this callers wait.
const QUEUE: usize = 256;
/// How long a connection may take to open and greet.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node that could not be reached is not tried again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How much is read at a time, and written together.
const CHUNK: usize = 256 << 10;

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection broke, or could not be opened: the request may have arrived or not.
    #[error("no connection: {0}")]
    Broken(String),
    /// The request is too long to be sent.
    #[error("request too long")]
    TooLong,
}

/// Waiting callers by request; `None` once the connection is closed.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<ReplyBody>>>>>;

/// An open connection.
#[derive(Clone, Debug)]
struct Live {
    queue: mpsc::Sender<(Instant, BytesMut)>,
    waiting: Waiting,
}

/// When the node may be tried again.
#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    failures: u32,
    not_before: Option<Instant>,
}

/// The way to one node.
#[derive(Debug)]
pub struct Connection {
    address: String,
    hello: Hello<NodeId>,
    delay: Duration,
    next_id: AtomicU64,
    state: tokio::sync::Mutex<State>,
}

impl Connection {
    /// To the node that listens at `address`, as far away as `delay`. Opens nothing yet.
    pub fn new(address: String, hello: Hello<NodeId>, delay: Duration) -> Connection {
        let (next_id, state) = (AtomicU64::new(1), tokio::sync::Mutex::default());
        Connection { address, hello, delay, next_id, state }
    }

    /// Whether that is where it leads.
    pub fn leads_to(&self, address: &str, delay: Duration) -> bool {
        self.address == address && self.delay == delay
    }

    /// Sends a request and waits for its reply. The caller limits the time.
    ///
    /// # Errors
    /// [`CallError::Broken`] if the connection breaks or cannot be opened; at once while a node
    /// that just failed is not to be tried again.
    pub async fn call(&self, body: RequestBody) -> Result<ReplyBody, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut frame = BytesMut::new();
        encode(&mut frame, &Request { id, body }).map_err(|_| CallError::TooLong)?;
        let live = self.live().await?;
        let (answer, answered) = oneshot::channel();
        let broken = || CallError::Broken(format!("{}: connection lost", self.address));
        match &mut *lock(&live.waiting) {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(broken()),
        };
        let _forget = Forget { waiting: &live.waiting, id };
        let due = Instant::now() + self.delay;
        live.queue.send((due, frame)).await.map_err(|_| broken())?;
        answered.await.map_err(|_| broken())
    }

    async fn live(&self) -> Result<Live, CallError> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live {
            if lock(&live.waiting).is_some() {
                return Ok(live.clone());
            }
            state.live = None;
        }
        if state.not_before.is_some_and(|at| at > Instant::now()) {
            return Err(CallError::Broken(format!("{}: failed a moment ago", self.address)));
        }
        // The caller may go away at any time; then the node counts as failed until the next try.
        let wait = BACKOFF.0.saturating_mul(1 << state.failures.min(10)).min(BACKOFF.1);
        state.not_before = Some(Instant::now() + wait);
        state.failures += 1;
        let open = tokio::time::timeout(OPEN_TIMEOUT, self.open()).await;
        let stream = open.unwrap_or_else(|_| Err("no greeting in time".into()));
        let (stream, rest) =
            stream.map_err(|error| CallError::Broken(format!("{}: {error}", self.address)))?;
        let live = self.start(stream, rest);
        *state = State { live: Some(live.clone()), failures: 0, not_before: None };
        Ok(live)
    }

    /// Connects and greets; also gives what was read beyond the greeting.
    async fn open(&self) -> Result<(TcpStream, BytesMut), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(&self.address).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        let mut bytes = BytesMut::new();
        encode(&mut bytes, &self.hello).map_err(|error| error.to_string())?;
        stream.write_all(&bytes).await.map_err(text)?;
        bytes.clear();
        loop {
            if let Some(body) = frame::decode(&mut bytes).map_err(|error| error.to_string())? {
                return match postcard::from_bytes::<Answer<NodeId>>(&body) {
                    Ok(Answer::Client) => Ok((stream, bytes)),
                    Ok(Answer::Refused(why)) => Err(why),
                    Ok(Answer::Member(_)) | Err(_) => Err("a stranger listens there".into()),
                };
            }
            if stream.read_buf(&mut bytes).await.map_err(text)? == 0 {
                return Err("closed before a greeting".into());
            }
        }
    }

    fn start(&self, stream: TcpStream, rest: BytesMut) -> Live {
        let (queue, to_write) = mpsc::channel(QUEUE);
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (reader, writer) = stream.into_split();
        let (address, delay, at_end) = (self.address.clone(), self.delay, waiting.clone());
        tokio::spawn(async move {
            let reason = tokio::select! {
                reason = write_all(writer, to_write) => reason,
                reason = read_all(reader, rest, at_end.clone(), delay) => reason,
            };
            tracing::debug!("connection to {address} ended: {reason}");
            lock(&at_end).take();
        });
        Live { queue, waiting }
    }
}

/// Takes a caller off the list, however its call ends.
struct Forget<'a> {
    waiting: &'a Waiting,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *lock(self.waiting) {
            waiting.remove(&self.id);
        }
    }
}

async fn write_all(
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::Receiver<(Instant, BytesMut)>,
) -> String {
    let mut late = None;
    loop {
        let Some((due, mut bytes)) = (match late.take() {
            Some(next) => Some(next),
            None => queue.recv().await,
        }) else {
            return "not needed any more".into();
        };
        // A timer is never early, and by up to a millisecond late: without a delay there is none.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        while bytes.len() < CHUNK {
            match queue.try_recv() {
                Ok((due, more)) if due <= Instant::now() => bytes.unsplit(more),
                Ok(next) => {
                    late = Some(next);
                    break;
                }
                Err(_) => break,
            }
        }
        if let Err(error) = writer.write_all(&bytes).await {
            return error.to_string();
        }
    }
}

async fn read_all(
    mut reader: OwnedReadHalf,
    mut bytes: BytesMut,
    waiting: Waiting,
    delay: Duration,
) -> String {
    // As many replies wait here as there are callers: that bounds it.
    let (far, mut near) = mpsc::unbounded_channel::<(Instant, Reply)>();
    let read = async {
        loop {
            loop {
                match frame::decode(&mut bytes) {
                    Ok(Some(body)) => {
                        let mut rest = &body[..];
                        while !rest.is_empty() {
                            let reply;
                            (reply, rest) = match postcard::take_from_bytes::<Reply>(rest) {
                                Ok(taken) => taken,
                                Err(error) => return format!("a bad reply: {error}"),
                            };
                            if delay.is_zero() {
                                hand_over(&waiting, reply);
                            } else {
                                drop(far.send((Instant::now() + delay, reply)));
                            }
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
            }
            bytes.reserve(CHUNK);
            match reader.read_buf(&mut bytes).await {
                Ok(0) => return "closed by the node".into(),
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    };
    let hand_on = async {
        while let Some((due, reply)) = near.recv().await {
            tokio::time::sleep_until(due).await;
            hand_over(&waiting, reply);
        }
    };
    tokio::select! {
        reason = read => reason,
        () = hand_on => "not needed any more".into(),
    }
}

fn hand_over(waiting: &Waiting, reply: Reply) {
    let caller = lock(waiting).as_mut().and_then(|waiting| waiting.remove(&reply.id));
    if let Some(caller) = caller {
        let _ = caller.send(reply.body); // A caller that went away needs no answer.
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends `message` as one frame.
///
/// # Errors
/// If it is too long for a frame.
pub fn encode<T: serde::Serialize>(
    into: &mut BytesMut,
    message: &T,
) -> Result<(), frame::FrameError> {
    let mut failed = None;
    frame::encode(into, |into| {
        if let Err(error) = postcard::to_io(message, into.writer()) {
            failed = Some(frame::FrameError::Body(error.to_string()));
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Takes the first whole frame off `bytes` and decodes it.
///
/// # Errors
/// If the bytes are not a frame, or the frame's body is not a `T`.
pub fn decode<T: serde::de::DeserializeOwned>(
    bytes: &mut BytesMut,
) -> Result<Option<T>, frame::FrameError> {
    let Some(body) = frame::decode(bytes)? else { return Ok(None) };
    let message = postcard::from_bytes(body.chunk());
    message.map(Some).map_err(|error| frame::FrameError::Body(error.to_string()))
}
