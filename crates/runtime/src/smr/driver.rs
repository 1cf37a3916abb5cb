//! What is behind clients that share a connection: finds the leader, sends, and sends again
//! elsewhere.
//!
//! All that waits for an answer waits on one connection. When that ends, or something waits on it
//! for too long, or the replica names another, all is sent to the next replica under the same
//! names: what was executed already is answered from the replicas' memory, so it is executed once.

use crate::smr::client::{ClientError, ClientOptions};
use crate::smr::line::{Line, News};
use crate::smr::pending::{Ask, Next, Pending};
use crate::smr::wire::Told;
use crate::wire::{WireError, take};
use meridian_core::NodeId;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// So many asks are taken at once: they travel together.
const ASKS: usize = 4096;
/// How often it is looked whether something waits for too long, and asked again what was turned
/// away.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long to wait before another replica is called, at first and at most, while no answer comes.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(300));

/// See the module's documentation.
pub(crate) struct Driver {
    options: ClientOptions,
    pending: Pending,
    members: BTreeMap<NodeId, String>,
    /// The replica to be called next if none is named.
    turn: usize,
    /// What to call: the one that was named.
    named: Option<NodeId>,
    /// How long the next call waits.
    backoff: Duration,
    /// A pointer to a leader was followed since something was answered.
    followed: bool,
    /// Replicas that have turned the client away, one after the other.
    refusals: usize,
    /// What is called, or connected.
    address: String,
    /// What happened last.
    last: String,
}

impl Driver {
    pub(crate) fn new(options: ClientOptions) -> Driver {
        let turn = RandomState::new().hash_one(&options.cluster) as usize;
        Driver {
            options,
            pending: Pending::default(),
            members: BTreeMap::new(),
            turn,
            named: None,
            backoff: Duration::ZERO,
            followed: false,
            refusals: 0,
            address: String::new(),
            last: "none was asked".into(),
        }
    }

    /// Runs until all clients are gone.
    pub(crate) async fn run(mut self, mut asks: mpsc::UnboundedReceiver<Ask>) {
        let mut waiting = Vec::new();
        loop {
            if self.pending.is_empty() {
                // Nothing is to be asked: no connection is needed.
                if asks.recv_many(&mut waiting, ASKS).await == 0 {
                    return;
                }
                let now = Instant::now();
                waiting.drain(..).for_each(|ask| drop(self.pending.add(now, ask)));
                continue;
            }
            let ended = match self.call(&mut asks).await {
                Called::Gone => return,
                Called::Line(line) => self.serve(line, &mut asks, &mut waiting).await,
                Called::Failed(error) => Err(error),
            };
            match ended {
                Ok(()) => return,
                Err(error) => self.note(&error),
            }
        }
    }

    /// A call or a connection has ended.
    fn note(&mut self, error: &WireError) {
        self.last = format!("{}: {error}", self.address);
        if error.is_bad() {
            self.refusals += 1;
        }
        let (now, last) = (Instant::now(), &self.last);
        if self.refusals >= self.addresses().len() {
            self.refusals = 0;
            let refused = || ClientError::Refused(last.clone());
            return self.pending.give_up(now, Duration::ZERO, refused);
        }
        self.give_up(now);
    }

    fn give_up(&mut self, now: Instant) {
        let (after, last) = (self.options.give_up_after, &self.last);
        let unavailable = || ClientError::Unavailable { after, last: last.clone() };
        self.pending.give_up(now, after, unavailable);
    }

    /// Where replicas are, as far as is known.
    fn addresses(&self) -> Vec<&String> {
        let given = self.options.addresses.iter();
        let given = given.filter(|one| !self.members.values().any(|member| member == *one));
        self.members.values().chain(given).collect()
    }

    /// Where the next replica is.
    fn next_address(&mut self) -> String {
        if let Some(address) = self.named.take().and_then(|node| self.members.get(&node)) {
            return address.clone();
        }
        self.turn = self.turn.wrapping_add(1);
        let addresses = self.addresses();
        addresses[self.turn % addresses.len()].clone()
    }

    /// Calls a replica. What is asked meanwhile is noted.
    async fn call(&mut self, asks: &mut mpsc::UnboundedReceiver<Ask>) -> Called {
        self.address = self.next_address();
        let (options, address) = (self.options.clone(), self.address.clone());
        let after = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).clamp(BACKOFF.0, BACKOFF.1);
        let calling = async {
            sleep_until(after).await;
            Line::call(&options, &address).await
        };
        let mut calling = pin!(calling);
        loop {
            tokio::select! {
                called = &mut calling => return called.map_or_else(Called::Failed, Called::Line),
                ask = asks.recv() => match ask {
                    Some(ask) => drop(self.pending.add(Instant::now(), ask)),
                    None => return Called::Gone,
                },
            }
        }
    }

    /// Uses a connection until another is needed, or all clients are gone.
    async fn serve(
        &mut self,
        mut line: Line,
        asks: &mut mpsc::UnboundedReceiver<Ask>,
        waiting: &mut Vec<Ask>,
    ) -> Result<(), WireError> {
        for sent in self.pending.again(Instant::now()) {
            line.put(sent)?;
        }
        let mut look = pin!(sleep_until(Instant::now() + LOOK_EVERY));
        loop {
            line.write()?;
            tokio::select! {
                count = asks.recv_many(waiting, ASKS) => {
                    if count == 0 {
                        return Ok(());
                    }
                    let now = Instant::now();
                    for ask in waiting.drain(..) {
                        line.put(self.pending.add(now, ask))?;
                    }
                }
                news = line.news() => if let News::Frame(body) = news? {
                    let now = Instant::now();
                    self.on_frame(now, &body)?;
                    while let Some(body) = line.buffered()? {
                        self.on_frame(now, &body)?;
                    }
                },
                () = look.as_mut(), if !self.pending.is_empty() => {
                    let now = Instant::now();
                    look.as_mut().reset(now + LOOK_EVERY);
                    self.give_up(now);
                    if self.pending.is_late(now) {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                    for sent in self.pending.turned_away() {
                        line.put(sent)?;
                    }
                }
            }
        }
    }

    fn on_frame(&mut self, now: Instant, body: &[u8]) -> Result<(), WireError> {
        let mut rest = body;
        while !rest.is_empty() {
            let told;
            (told, rest) = take(rest)?;
            self.on_told(now, told)?;
        }
        Ok(())
    }

    fn on_told(&mut self, now: Instant, told: Told) -> Result<(), WireError> {
        let next = match told {
            Told::Welcome { me, leader, members } => {
                self.members = members;
                leader.filter(|leader| *leader != me).map_or(Next::Stay, |to| Next::Move(Some(to)))
            }
            Told::Members(members) => {
                self.members = members;
                Next::Stay
            }
            Told::Closing(why) => return Err(WireError::Refused(why)),
            told => self.pending.on_told(now, told),
        };
        match next {
            Next::Done => {
                (self.backoff, self.refusals, self.followed) = (Duration::ZERO, 0, false);
            }
            Next::Stay => {}
            Next::Move(to) => {
                self.named = to;
                // The first pointer to a leader is followed at once, others may lead in a circle.
                if to.is_some() && !std::mem::replace(&mut self.followed, true) {
                    self.backoff = Duration::ZERO;
                }
                return Err(WireError::Closed);
            }
        }
        Ok(())
    }
}

/// What came of a call.
enum Called {
    Line(Line),
    Failed(WireError),
    /// Nobody is there any more to call for.
    Gone,
}
