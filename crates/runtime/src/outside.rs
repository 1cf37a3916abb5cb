//! A client that multicasts to groups of which it is no member, for programs.
//!
//! [`meridian_multicast::outside`] decides which member is asked, and when another; here are its
//! sockets, its clock and its timers. A connection is made when a member is to be asked, and stays.

use crate::greeting;
use crate::wire::{FrameReader, WireError, encode, take};
use bytes::{Bytes, BytesMut};
use meridian_core::hello::ServiceId;
use meridian_core::{Effect, Event, GroupId, Outbox, Process, ProcessId, Time};
use meridian_multicast::outside::{CallId, Command, Failure, Outgoing, Output, Say, Sender};
use meridian_multicast::{Timestamp, Touches};
use meridian_transport::{Security, WriteHalf};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// So many messages of a client and its clones are under way at most, and so many bytes of them;
/// then senders wait.
pub const UNDER_WAY_MAX: usize = 1024;
/// See [`UNDER_WAY_MAX`].
pub const UNDER_WAY_BYTES_MAX: usize = 32 << 20;
/// So many senders wait in line at most; the others wait for that.
const ASKS_MAX: usize = 64;
/// So much that members said waits to be looked at; then it is not read.
const NEWS_MAX: usize = 1024;

/// How a client multicasts.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The name of the cluster: members of another turn it away.
    pub cluster: String,
    /// How connections are secured, as the members have it.
    pub security: Security,
    /// Where all members of all groups listen that it multicasts to.
    pub members: BTreeMap<ProcessId, String>,
    /// After so long a message that has not been delivered is given up;
    /// [`GIVE_UP_MAX`](meridian_multicast::outside::GIVE_UP_MAX) at most.
    pub give_up_after: Duration,
}

impl ClientOptions {
    /// In plain text; waits for half a minute.
    pub fn new(cluster: impl Into<String>, members: BTreeMap<ProcessId, String>) -> ClientOptions {
        let (cluster, security) = (cluster.into(), Security::default());
        ClientOptions { cluster, security, members, give_up_after: Duration::from_secs(30) }
    }
}

struct Ask {
    message: Outgoing,
    done: oneshot::Sender<Result<Timestamp, Failure>>,
}

/// Multicasts to groups of which it is no member; see the module. Clones share its connections.
/// Can be used from any thread and runtime, as long as the one lives in which it was made.
#[derive(Clone, Debug)]
pub struct Client {
    asks: mpsc::Sender<Ask>,
}

impl Client {
    /// A client that calls members when there is something to multicast, in the present runtime.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn new(options: ClientOptions) -> Client {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        tokio::spawn(Driver::new(options).run(asked));
        Client { asks }
    }

    /// Multicasts a message that conflicts with all others; its timestamp, once it is delivered.
    ///
    /// # Errors
    /// If that is not known to have happened: [`Failure::is_certain`] tells whether it is known not
    /// to happen, either.
    pub async fn multicast(
        &self,
        dest: &[GroupId],
        payload: impl Into<Bytes>,
    ) -> Result<Timestamp, Failure> {
        let (dest, payload) = (dest.to_vec(), payload.into());
        self.send(Outgoing { dest, payload, touches: Touches::All, after: Timestamp(0) }).await
    }

    /// Multicasts a message; its timestamp, once it is delivered. Waits while
    /// [`UNDER_WAY_MAX`] others are under way. What was begun goes on if nobody waits for it.
    ///
    /// # Errors
    /// As [`Client::multicast`]; [`Failure::Unknown`] also if the client's runtime has ended.
    pub async fn send(&self, message: Outgoing) -> Result<Timestamp, Failure> {
        let (done, ended) = oneshot::channel();
        self.asks.send(Ask { message, done }).await.map_err(|_| Failure::Unknown)?;
        ended.await.unwrap_or(Err(Failure::Unknown))
    }
}

/// What has happened on the connection of that number.
struct News {
    from: ProcessId,
    line: u64,
    /// What the member said; nothing, if the connection is gone.
    said: Option<Say>,
}

/// A connection, or one that is being made.
struct Line {
    number: u64,
    frames: mpsc::UnboundedSender<Bytes>,
}

/// Who waits for a message, and how long it is.
type Waiting = (oneshot::Sender<Result<Timestamp, Failure>>, usize);

struct Driver {
    options: Arc<ClientOptions>,
    process: Sender,
    out: Outbox<Sender>,
    began: Instant,
    timers: BTreeSet<Time>,
    calls: BTreeMap<CallId, Waiting>,
    last_call: CallId,
    /// Bytes of messages under way.
    bytes: usize,
    lines: BTreeMap<ProcessId, Line>,
    last_line: u64,
}

impl Driver {
    fn new(options: ClientOptions) -> Driver {
        let mut groups = BTreeMap::<_, Vec<_>>::new();
        for member in options.members.keys() {
            groups.entry(member.group).or_default().push(member.node);
        }
        // Two random numbers: no two clients have the same, on one machine or two.
        let seed = RandomState::new().hash_one(RandomState::new().hash_one(&options.cluster));
        Driver {
            options: Arc::new(options),
            process: Sender::new(Arc::new(groups), seed),
            out: Outbox::new(),
            began: Instant::now(),
            timers: BTreeSet::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            bytes: 0,
            lines: BTreeMap::new(),
            last_line: 0,
        }
    }

    /// Runs until all clients are gone.
    async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let (tell, mut news) = mpsc::channel(NEWS_MAX);
        loop {
            let room = self.calls.len() < UNDER_WAY_MAX && self.bytes < UNDER_WAY_BYTES_MAX;
            let due = self.timers.first().map(|at| self.began + Duration::from_nanos(at.0));
            tokio::select! {
                ask = asks.recv(), if room => match ask {
                    Some(ask) => self.on_ask(ask, &tell),
                    None => return,
                },
                Some(news) = news.recv() => self.on_news(news, &tell),
                () = sleep_until(due.unwrap_or(self.began)), if due.is_some() => {
                    self.timers.pop_first();
                    self.step(Event::Timer(meridian_multicast::outside::Due), &tell);
                }
            }
        }
    }

    fn on_ask(&mut self, Ask { message, done }: Ask, tell: &mpsc::Sender<News>) {
        self.last_call += 1;
        let (call, len) = (self.last_call, message.payload.len());
        self.bytes += len;
        self.calls.insert(call, (done, len));
        let give_up_after = self.options.give_up_after;
        self.step(Event::Command(Command::Multicast { call, message, give_up_after }), tell);
    }

    fn on_news(&mut self, news: News, tell: &mpsc::Sender<News>) {
        let News { from, line, said } = news;
        if self.lines.get(&from).is_none_or(|present| present.number != line) {
            return; // Of a connection that is known to be gone.
        }
        match said {
            Some(message) => self.step(Event::Message { from, message }, tell),
            None => {
                self.lines.remove(&from);
                self.step(Event::Restarted(from), tell);
            }
        }
    }

    fn step(&mut self, event: Event<Sender>, tell: &mpsc::Sender<News>) {
        let now = self.began.elapsed();
        let now = Time(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        self.process.step(now, event, &mut self.out);
        let mut out = std::mem::take(&mut self.out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => self.send(to, &message, tell),
                Effect::Output(Output { call, outcome }) => {
                    if let Some((done, len)) = self.calls.remove(&call) {
                        self.bytes -= len;
                        let _ = done.send(outcome); // Who asked has given up.
                    }
                }
                Effect::Timer { at, .. } => drop(self.timers.insert(at)),
                Effect::Persist(never) | Effect::Note(never) => match never {},
            }
        }
        self.out = out;
    }

    /// Puts a message on the connection to a member, which is made if there is none.
    fn send(&mut self, to: ProcessId, message: &Say, tell: &mpsc::Sender<News>) {
        let mut frame = BytesMut::new();
        if let Err(error) = encode(&mut frame, message) {
            tracing::error!(%error, "a message cannot be sent");
            return;
        }
        if !self.lines.contains_key(&to) {
            self.last_line += 1;
            let (frames, queue) = mpsc::unbounded_channel(); // As many as are under way.
            let number = self.last_line;
            tokio::spawn(serve(self.options.clone(), (to, number), queue, tell.clone()));
            self.lines.insert(to, Line { number, frames });
        }
        let _ = self.lines[&to].frames.send(frame.freeze()); // Its end is told.
    }
}

/// Makes a connection and uses it until it ends, or the client does.
async fn serve(
    options: Arc<ClientOptions>,
    (to, line): (ProcessId, u64),
    queue: mpsc::UnboundedReceiver<Bytes>,
    tell: mpsc::Sender<News>,
) {
    let address = &options.members[&to];
    let (cluster, security) = (&options.cluster, &options.security);
    let ended = match greeting::call(cluster, security, ServiceId::MAIN, address).await {
        Ok(ends) => talk(ends, (to, line), queue, &tell).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        match error.is_bad() {
            true => tracing::warn!(%to, address, %error, "a member turns this client away"),
            false => tracing::debug!(%to, address, %error, "a connection ended"),
        }
    }
    let _ = tell.send(News { from: to, line, said: None }).await; // Nobody is there.
}

async fn talk(
    (mut reader, mut writer): (FrameReader, WriteHalf),
    (from, line): (ProcessId, u64),
    mut queue: mpsc::UnboundedReceiver<Bytes>,
    tell: &mpsc::Sender<News>,
) -> Result<(), WireError> {
    loop {
        tokio::select! {
            frame = queue.recv() => match frame {
                Some(frame) => writer.write_all(&frame).await?,
                None => return Ok(()),
            },
            body = reader.next_body() => {
                let body = body?;
                let mut rest = &body[..];
                while !rest.is_empty() {
                    let said;
                    (said, rest) = take(rest)?;
                    if tell.send(News { from, line, said: Some(said) }).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}
