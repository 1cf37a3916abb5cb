//! One connection to one node, opened when it is needed and again when it broke.
//!
//! One task per connection opens it and reads. Whoever posts a request writes it, if the socket
//! takes it at once and few are under way; else the task writes, together, what waits. A node in
//! another region is made as far away as the topology says: each request waits before it is
//! written, each reply before it is handed on; both keep their order, and nothing waits for
//! anything else.
//!
//! The session *posts* requests, and its driver hears of replies and of a connection that broke.
//! For the status of a node there are *calls*: whoever calls waits for the reply.

use crate::driver::Driver;
use crate::incoming::Incoming;
use bytes::{Buf, BufMut, BytesMut};
use meridian_core::NodeId;
use meridian_core::hello::{Answer, Hello};
use meridian_core::{carried, frame};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::carried::take_reply;
use meridian_transport::{Outbound, ReadHalf, Security, WriteHalf};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Frames that wait to be written on one connection: beyond this posts are refused. Some minutes of
/// a busy client while a node stands still, in some MiB; blocks among them are bounded by what a
/// mount may buffer.
const QUEUE: usize = 16_384;
/// The bit that tells the numbers of calls from those of posts, which are the session's.
const CALL_BIT: u64 = 1 << 63;
/// So many posts are written by who posts them; with more under way the task writes them, together:
/// that costs each some time, and both ends less work. Questions that a node answers when it has
/// something to tell are not counted: each client has one open for each group, all the time.
const AT_ONCE: usize = 2;
/// How long a connection may take to open and greet.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node that could not be reached is not tried again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How much is written together.
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
    /// Too much waits to be written.
    #[error("too many requests wait for the connection")]
    Full,
}

/// Waiting callers by request; `None` once the connection is closed.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<ReplyBody>>>>>;

/// What waits to be written.
#[derive(Debug)]
struct Frame {
    /// Not before this.
    due: Instant,
    bytes: Outbound,
}

/// A connection that is open, or about to be.
#[derive(Clone, Debug)]
struct Live {
    queue: mpsc::Sender<Frame>,
    waiting: Waiting,
    line: Arc<Mutex<Line>>,
}

/// Who may write: whoever has a frame, while none waits in the queue; else the connection's task.
#[derive(Debug, Default)]
struct Line {
    /// None until the connection is open, and if the node is made far away.
    socket: Option<Arc<WriteHalf>>,
    /// Frames given to the task that it has not written yet.
    queued: usize,
    /// Posts that have no reply yet, and whose replies come as soon as they can.
    open: usize,
}

impl Live {
    /// Writes a frame at once if few others are under way, and queues what is left of it.
    fn post(
        &self,
        mut frame: Frame,
        is_counted: bool,
    ) -> Result<(), mpsc::error::TrySendError<Frame>> {
        let mut line = lock(&self.line);
        line.open += usize::from(is_counted);
        if line.queued == 0
            && line.open <= AT_ONCE
            && let Some(socket) = &line.socket
            && frame.bytes.write(socket).is_ok()
            && frame.bytes.is_empty()
        {
            return Ok(());
        }
        // An empty queue has room for the rest of a frame.
        self.queue.try_send(frame)?;
        line.queued += 1;
        Ok(())
    }
}

/// When the node may be tried again.
#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    failures: u32,
    not_before: Option<Instant>,
    /// Until when the certificate counts that the node showed last, in seconds since 1970.
    shown_until: Option<u64>,
}

/// A connection that is open, what was read of it behind the greeting, and until when the node's
/// certificate counts.
type Open = ((ReadHalf, WriteHalf), BytesMut, Option<u64>);

/// Where a connection leads, and who hears of it.
#[derive(Clone, Debug)]
struct Way {
    node: NodeId,
    /// What the node is called.
    name: String,
    security: Security,
    address: String,
    hello: Hello<NodeId>,
    delay: Duration,
    driver: Weak<Driver>,
}

/// The way to one node.
#[derive(Debug)]
pub(crate) struct Connection {
    way: Way,
    next_id: AtomicU64,
    state: Arc<Mutex<State>>,
}

impl Connection {
    /// To `node`, which listens at `address`, as far away as `delay`. Opens nothing yet.
    pub fn new(
        (node, name): (NodeId, String),
        (address, security): (String, Security),
        hello: Hello<NodeId>,
        delay: Duration,
        driver: Weak<Driver>,
    ) -> Connection {
        let way = Way { node, name, security, address, hello, delay, driver };
        Connection { way, next_id: AtomicU64::new(1), state: Arc::default() }
    }

    /// Whether that is where it leads.
    pub fn leads_to(&self, address: &str, delay: Duration) -> bool {
        self.way.address == address && self.way.delay == delay
    }

    /// Until when the certificate counts that the node showed when it was called last.
    pub fn shown_until(&self) -> Option<u64> {
        lock(&self.state).shown_until
    }

    /// Sends a request of the session. Its reply comes to the driver, or that the connection broke.
    ///
    /// # Errors
    /// If it is not sent: [`CallError::Broken`] at once while a node that just failed is not to be
    /// tried again.
    pub fn post(&self, request: &Request) -> Result<(), CallError> {
        let bytes = encoded(request)?;
        let frame = Frame { due: Instant::now() + self.way.delay, bytes };
        let is_counted = !matches!(request.body, RequestBody::Recalls { .. });
        self.live()?.post(frame, is_counted).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CallError::Full,
            mpsc::error::TrySendError::Closed(_) => self.way.broken(),
        })
    }

    /// Sends a request and waits for its reply. The caller limits the time.
    ///
    /// # Errors
    /// [`CallError::Broken`] if the connection breaks or cannot be opened; at once while a node
    /// that just failed is not to be tried again.
    pub async fn call(&self, body: RequestBody) -> Result<ReplyBody, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) | CALL_BIT;
        let bytes = encoded(&Request { id, body })?;
        let live = self.live()?;
        let (answer, answered) = oneshot::channel();
        match &mut *lock(&live.waiting) {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(self.way.broken()),
        };
        let _forget = Forget { waiting: &live.waiting, id };
        let frame = Frame { due: Instant::now() + self.way.delay, bytes };
        let room = live.queue.reserve().await.map_err(|_| self.way.broken())?;
        {
            let mut line = lock(&live.line);
            room.send(frame);
            line.queued += 1;
        }
        answered.await.map_err(|_| self.way.broken())
    }

    /// The connection, which is opened if it has to be.
    fn live(&self) -> Result<Live, CallError> {
        let mut state = lock(&self.state);
        if let Some(live) = &state.live
            && !live.queue.is_closed()
        {
            return Ok(live.clone());
        }
        if state.not_before.is_some_and(|at| at > Instant::now()) {
            let why = format!("{}: failed a moment ago", self.way.address);
            return Err(CallError::Broken(why));
        }
        let (queue, to_write) = mpsc::channel(QUEUE);
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let line = Arc::<Mutex<Line>>::default();
        let live = Live { queue, waiting: waiting.clone(), line: line.clone() };
        state.live = Some(live.clone());
        let state = Arc::downgrade(&self.state);
        tokio::spawn(run(self.way.clone(), state, waiting, (line, to_write)));
        Ok(live)
    }
}

/// Opens a connection and serves it to its end, which comes also when nobody needs it any more:
/// `state` and callers hold it open, and this does not hold `state`.
async fn run(
    way: Way,
    state: Weak<Mutex<State>>,
    waiting: Waiting,
    (line, to_write): (Arc<Mutex<Line>>, mpsc::Receiver<Frame>),
) {
    let open = tokio::time::timeout(OPEN_TIMEOUT, way.open()).await;
    let reason = match open.unwrap_or_else(|_| Err("no greeting in time".into())) {
        Ok(((reader, writer), rest, until)) => {
            if let Some(state) = state.upgrade() {
                let mut state = lock(&state);
                (state.failures, state.not_before, state.shown_until) = (0, None, until);
            }
            let writer = Arc::new(writer);
            lock(&line).socket = Some(writer.clone()).filter(|_| way.delay.is_zero());
            let ended = tokio::select! {
                reason = write_all(&writer, to_write, &line) => reason,
                reason = read_all(Incoming::new(reader, rest), (&waiting, &line), &way) => reason,
            };
            lock(&line).socket = None;
            ended
        }
        Err(reason) => {
            if let Some(state) = state.upgrade() {
                let mut state = lock(&state);
                let wait = BACKOFF.0.saturating_mul(1 << state.failures.min(10)).min(BACKOFF.1);
                state.not_before = Some(Instant::now() + wait);
                state.failures += 1;
            }
            drop(to_write);
            reason
        }
    };
    tracing::debug!("connection to {} ended: {reason}", way.address);
    lock(&waiting).take();
    // Nothing is taken into the queue any more: who posts now is told at once.
    if let Some(driver) = way.driver.upgrade() {
        driver.lost(way.node);
    }
}

impl Way {
    fn broken(&self) -> CallError {
        CallError::Broken(format!("{}: connection lost", self.address))
    }

    /// Connects and greets; also gives what was read beyond the greeting.
    async fn open(&self) -> Result<Open, String> {
        let text = |error: std::io::Error| error.to_string();
        let stream = self.security.connect(&self.address).await;
        let stream = stream.map_err(|error| error.to_string())?;
        if !stream.speaker().is_node(Some(&self.name)) {
            return Err(format!("{} listens there, not {}", stream.speaker(), self.name));
        }
        let until = stream.speaks_until();
        let (mut reader, mut writer) = stream.into_split();
        let mut bytes = BytesMut::new();
        encode(&mut bytes, &self.hello).map_err(|error| error.to_string())?;
        writer.write_all(&bytes).await.map_err(text)?;
        bytes.clear();
        loop {
            if let Some(body) = frame::decode(&mut bytes).map_err(|error| error.to_string())? {
                return match postcard::from_bytes::<Answer<NodeId>>(&body) {
                    Ok(Answer::Client) => Ok(((reader, writer), bytes, until)),
                    Ok(Answer::Refused(why)) => Err(why),
                    Ok(Answer::Member(_)) | Err(_) => Err("a stranger listens there".into()),
                };
            }
            if reader.read_buf(&mut bytes).await.map_err(text)? == 0 {
                return Err("closed before a greeting".into());
            }
        }
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
    writer: &WriteHalf,
    mut queue: mpsc::Receiver<Frame>,
    line: &Mutex<Line>,
) -> String {
    let mut late = None;
    loop {
        let Some(Frame { due, mut bytes }) = (match late.take() {
            Some(next) => Some(next),
            None => queue.recv().await,
        }) else {
            return "not needed any more".into();
        };
        // A timer is never early, and by up to a millisecond late: without a delay there is none.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        let mut frames = 1;
        while bytes.len() < CHUNK {
            match queue.try_recv() {
                Ok(next) if next.due <= Instant::now() => {
                    bytes.append(next.bytes);
                    frames += 1;
                }
                Ok(next) => {
                    late = Some(next);
                    break;
                }
                Err(_) => break,
            }
        }
        while !bytes.is_empty() {
            if let Err(error) = write(writer, &mut bytes).await {
                return error.to_string();
            }
        }
        lock(line).queued -= frames;
    }
}

/// Writes as much as the socket takes, which is something.
async fn write(socket: &WriteHalf, bytes: &mut Outbound) -> io::Result<usize> {
    loop {
        socket.writable().await?;
        match bytes.write(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return written,
        }
    }
}

async fn read_all(
    mut incoming: Incoming<ReadHalf>,
    (waiting, line): (&Waiting, &Mutex<Line>),
    way: &Way,
) -> String {
    // As many replies wait here as there are callers: that bounds it.
    let (far, mut near) = mpsc::unbounded_channel::<(Instant, Reply)>();
    let read = async {
        loop {
            let body = match incoming.next().await {
                Ok(Some(body)) => body,
                Ok(None) => return "closed by the node".into(),
                Err(error) => return error.to_string(),
            };
            let mut rest = &body[..];
            while !rest.is_empty() {
                let reply;
                (reply, rest) = match take_reply(&body, rest) {
                    Ok(taken) => taken,
                    Err(error) => return format!("a bad reply: {error}"),
                };
                if way.delay.is_zero() {
                    hand_over(waiting, line, way, reply);
                } else {
                    drop(far.send((Instant::now() + way.delay, reply)));
                }
            }
        }
    };
    let hand_on = async {
        while let Some((due, reply)) = near.recv().await {
            tokio::time::sleep_until(due).await;
            hand_over(waiting, line, way, reply);
        }
    };
    tokio::select! {
        reason = read => reason,
        () = hand_on => "not needed any more".into(),
    }
}

fn hand_over(waiting: &Waiting, line: &Mutex<Line>, way: &Way, reply: Reply) {
    if reply.id & CALL_BIT == 0 {
        if !matches!(reply.body, ReplyBody::Recalled { .. }) {
            let mut line = lock(line);
            line.open = line.open.saturating_sub(1); // A refused one may not have been counted.
        }
        if let Some(driver) = way.driver.upgrade() {
            driver.replied(way.node, reply);
        }
        return;
    }
    let caller = lock(waiting).as_mut().and_then(|waiting| waiting.remove(&reply.id));
    if let Some(caller) = caller {
        let _ = caller.send(reply.body); // A caller that went away needs no answer.
    }
}

fn encoded(request: &Request) -> Result<Outbound, CallError> {
    let mut bytes = Outbound::new();
    match request.body.carried() {
        Some(data) => {
            let pieces = carried::encode(request, data).map_err(|_| CallError::TooLong)?;
            pieces.into_iter().for_each(|piece| bytes.push(piece));
        }
        None => {
            let written = bytes.write_to(|into| encode(into, request));
            written.map_err(|_| CallError::TooLong)?;
        }
    }
    Ok(bytes)
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
