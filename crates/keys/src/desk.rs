//! The clients of one replica: their requests become reads and updates of the replica, and are
//! answered in the order in which they were asked.
//!
//! A read of a Valid key is answered at once from the replica's memory. All else is asked of the
//! replica and named by a token; the answers to what a client asked afterwards wait for it.
//!
//! Invariants:
//! - D1: each request of a connection has one reply, in the order of the requests.
//! - D2: a read is answered only if the lease by which it was read had not run out after that.
//! - D3: requests of a connection on one key take effect in their order: while any is not answered,
//!   those after it go to the replica, which keeps the order of what waits for a key.
//! - D4: nobody is answered that a key has expired before an agreed change has removed it.

use crate::access::{Access, Modify, Read};
use crate::change::{Rmw, unpack};
use crate::command::{Combined, Command, Scan, describe};
use crate::connection::Peer;
use crate::glob::matches;
use crate::item::{Item, Moment};
use crate::resp::{Reply, Requests, Version};
use bytes::Bytes;
use meridian_core::Time;
use meridian_hermes::{Action, Answer, Command as Asked, Hermes, Options, Refusal, Request};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The answer to one request is no longer than this, in bytes: the longest value, and as much again
/// for several.
const REPLY_MAX: usize = 128 << 20;

/// How long a request waits for a replica that has no lease, as after a pause or a start, before
/// it is refused: many round trips within a region.
const PATIENCE: Duration = Duration::from_millis(500);
/// So many keys are looked at for one SCAN at most.
const SCAN_MAX: usize = 10_000;
/// So often an RMW is tried that others defeat: clients of Redis do not know that INCR can fail.
const ATTEMPTS_MAX: u32 = 10_000;

/// A replica that understands commands on keys.
pub type Replica = Hermes<Rmw>;

/// How replicas behave that serve a desk, if nothing else is wanted.
pub fn options() -> Options {
    Options { attempts_max: ATTEMPTS_MAX, ..Options::default() }
}

/// Names a connection.
pub type ClientNumber = u64;

/// Carries out what the desk wants done.
pub trait Counter {
    /// The time by now: read after what is to be answered was read.
    fn time(&self) -> Time;

    /// Asks the replica.
    fn ask(&mut self, asked: Asked<Rmw>);

    /// Writes to a client.
    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version);

    /// A client's connection ends when all is written.
    fn end(&mut self, client: ClientNumber);

    /// What is told of the server: these sections, or all.
    fn info(&self, sections: &[&[u8]]) -> String;
}

/// When something is done.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the replica's clock.
    pub time: Time,
    /// The time of day.
    pub moment: Moment,
}

/// What is asked of the replica.
#[derive(Debug)]
struct Waiting {
    client: ClientNumber,
    /// The number of the request on its connection.
    request: u64,
    /// Which key of the request, from 0 on.
    part: usize,
    key: Bytes,
    step: Step,
}

/// What the replica was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// What the client wants.
    Access(Access),
    /// To remove a key that has expired, since the client wants to read it.
    Expire(Read),
    /// Nothing yet: a walk over its keys waits for a lease.
    Scan(Scan),
}

/// A request and its reply.
#[derive(Debug)]
struct Slot {
    version: Version,
    reply: Progress,
}

#[derive(Debug)]
enum Progress {
    Done(Reply),
    One,
    Many { combined: Combined, parts: Vec<Option<Reply>>, left: usize },
}

#[derive(Debug)]
struct Client {
    requests: Requests,
    peer: Peer,
    /// Requests whose replies are not written.
    slots: VecDeque<Slot>,
    /// The number of the first of them.
    first: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Desk {
    bytes_max: usize,
    clients: BTreeMap<ClientNumber, Client>,
    waiting: BTreeMap<u64, Waiting>,
    /// Tokens of what the replica did not take for want of a lease, and since when, in order.
    unserved: VecDeque<(Time, u64)>,
    tokens: u64,
    connections: i64,
}

impl Desk {
    /// Nobody is connected yet. When keys take `bytes_max` bytes, what could take more is refused.
    pub fn new(bytes_max: usize) -> Desk {
        Desk {
            bytes_max,
            clients: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unserved: VecDeque::new(),
            tokens: 0,
            connections: 0,
        }
    }

    /// A client has connected.
    pub fn connect(&mut self, client: ClientNumber) {
        self.connections += 1;
        let peer = Peer::new(self.connections);
        let (requests, slots) = (Requests::default(), VecDeque::new());
        self.clients.insert(client, Client { requests, peer, slots, first: 0 });
    }

    /// A client is gone. What it asked for may still happen.
    pub fn disconnect(&mut self, client: ClientNumber) {
        self.clients.remove(&client);
    }

    /// How many clients there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// How many requests of a client are not answered.
    pub fn unanswered(&self, client: ClientNumber) -> usize {
        self.clients.get(&client).map_or(0, |client| client.slots.len())
    }

    /// Bytes have come from a client.
    pub fn feed(&mut self, client: ClientNumber, bytes: &[u8]) {
        if let Some(client) = self.clients.get_mut(&client).filter(|client| !client.peer.ends) {
            client.requests.feed(bytes);
        }
    }

    /// Takes the next request of a client; whether there was a whole one. What is no request is
    /// answered so, and the connection ends after the answers to what came before.
    pub fn take(
        &mut self,
        now: Now,
        number: ClientNumber,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        if client.peer.ends {
            return false;
        }
        let place = (number, client.first + client.slots.len() as u64);
        let Desk { waiting, tokens, .. } = self;
        let bytes_max = self.bytes_max;
        let is_first = client.slots.is_empty();
        let mut work = Work { now, place, is_first, bytes_max, replica, waiting, tokens };
        let reply = match client.requests.take() {
            Ok(None) => return false,
            Ok(Some(request)) => match Command::parse(&request, now.moment) {
                Ok(command) => work.execute(command, &mut client.peer, counter),
                Err(error) => Progress::Done(error),
            },
            Err(error) => {
                client.peer.ends = true;
                Progress::Done(Reply::error(format!("Protocol error: {error}")))
            }
        };
        // A version that was just asked for is that of the answer, too.
        client.slots.push_back(Slot { version: client.peer.version, reply });
        client.write(number, counter);
        true
    }

    /// The replica has answered; whose question it was.
    pub fn on_answer(
        &mut self,
        now: Now,
        token: u64,
        answer: Answer,
        counter: &mut impl Counter,
    ) -> Option<ClientNumber> {
        let step = self.waiting.get(&token).map(|waiting| &waiting.step);
        if answer == Answer::Refused(Refusal::NotServing) || matches!(step, Some(Step::Scan(_))) {
            self.unserved.push_back((now.time, token));
            return None;
        }
        let waiting = self.waiting.remove(&token)?;
        let client = waiting.client;
        match reply_to(now, &waiting.step, answer, counter) {
            Ok(reply) => self.settle(&waiting, reply, counter),
            Err(step) if self.clients.contains_key(&waiting.client) => {
                counter.ask(step.ask(token, waiting.key.clone(), now.moment));
                self.waiting.insert(token, Waiting { step, ..waiting });
            }
            Err(_) => {} // Nobody wants to know.
        }
        Some(client)
    }

    /// When [`Desk::look_again`] must be called.
    pub fn due(&self) -> Option<Time> {
        self.unserved.front().map(|(since, _)| *since + PATIENCE)
    }

    /// Asks once more for what the replica did not take, if it serves now, and refuses what has
    /// waited for too long. To be called after each batch; whose requests were answered.
    pub fn look_again(
        &mut self,
        now: Now,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<ClientNumber> {
        let mut answered = Vec::new();
        let serves = !self.unserved.is_empty() && replica.serves(now.time);
        while let Some((_, token)) =
            self.unserved.pop_front_if(|(since, _)| serves || now.time >= *since + PATIENCE)
        {
            let Some(waiting) = self.waiting.get(&token) else { continue };
            if let Step::Scan(scan) = &waiting.step
                && serves
            {
                let found = walk(now, scan, replica);
                if let Some(waiting) = self.waiting.remove(&token) {
                    self.settle(&waiting, found, counter);
                    answered.push(waiting.client);
                }
            } else if serves {
                counter.ask(waiting.step.ask(token, waiting.key.clone(), now.moment));
            } else if let Some(waiting) = self.waiting.remove(&token) {
                self.settle(&waiting, not_serving(), counter);
                answered.push(waiting.client);
            }
        }
        answered
    }

    fn settle(&mut self, waiting: &Waiting, reply: Reply, counter: &mut impl Counter) {
        let Some(client) = self.clients.get_mut(&waiting.client) else { return };
        let place = usize::try_from(waiting.request - client.first).expect("it is not written");
        let slot = &mut client.slots[place];
        match &mut slot.reply {
            Progress::Done(reply) => panic!("D1: answered twice, before with {reply:?}"),
            Progress::One => slot.reply = Progress::Done(reply),
            Progress::Many { combined, parts, left } => {
                parts[waiting.part] = Some(reply);
                *left -= 1;
                if *left == 0 {
                    slot.reply = Progress::Done(together(*combined, std::mem::take(parts)));
                }
            }
        }
        client.write(waiting.client, counter);
    }
}

impl Client {
    /// Writes the replies up to the first that is not known.
    fn write(&mut self, number: ClientNumber, counter: &mut impl Counter) {
        while let Some(Slot { reply: Progress::Done(reply), version }) = self.slots.front() {
            counter.write(number, reply, *version);
            self.slots.pop_front();
            self.first += 1;
        }
        if self.peer.ends && self.slots.is_empty() {
            counter.end(number);
        }
    }
}

impl Step {
    fn ask(&self, token: u64, key: Bytes, now: Moment) -> Asked<Rmw> {
        let action = match self {
            Step::Access(Access::Read(_)) => return Asked::Read { token, key },
            Step::Access(Access::Write(item)) => Action::Write(Some(item.encode())),
            Step::Access(Access::Modify(modify)) => {
                Action::Modify(Rmw { modify: modify.clone(), now })
            }
            Step::Expire(_) => Action::Modify(Rmw { modify: Modify::Expire, now }),
            // It waits for a lease like a read of a key that nobody has.
            Step::Scan(_) => return Asked::Read { token, key },
        };
        Asked::Update(Request { token, key, id: None, action })
    }
}

/// A request on its way to the replica.
struct Work<'a> {
    now: Now,
    /// Whose, and which of its requests.
    place: (ClientNumber, u64),
    /// Whether all before it are answered.
    is_first: bool,
    /// When keys take so many bytes, nothing more is taken.
    bytes_max: usize,
    replica: &'a Replica,
    waiting: &'a mut BTreeMap<u64, Waiting>,
    tokens: &'a mut u64,
}

impl Work<'_> {
    fn execute(
        &mut self,
        command: Command<'_>,
        peer: &mut Peer,
        counter: &mut impl Counter,
    ) -> Progress {
        let reply = match command {
            command if command.grows() && self.replica.bytes() >= self.bytes_max => Reply::Error(
                format!(
                    "OOM keys take {} bytes already: nothing more is taken until some are removed",
                    self.replica.bytes()
                )
                .into(),
            ),
            Command::One { key, access } => {
                let found = self.begin(0, key, access, counter);
                return found.map_or(Progress::One, Progress::Done);
            }
            Command::Many { each, combined } => return self.begin_all(each, combined, counter),
            Command::Scan(scan) if self.replica.serves(self.now.time) => {
                walk(self.now, &scan, self.replica)
            }
            Command::Scan(scan) => {
                self.ask(0, Bytes::new(), Step::Scan(scan), counter);
                return Progress::One;
            }
            Command::Size => count(self.replica.len()),
            Command::Connection(asked) => peer.handle(&asked),
            Command::Info(sections) => Reply::Text(counter.info(&sections).into()),
            Command::Describe(what) => describe(&what),
            Command::Settings(_) => Reply::Map(Vec::new()),
        };
        Progress::Done(reply)
    }

    fn begin_all(
        &mut self,
        each: Vec<(&[u8], Access)>,
        combined: Combined,
        counter: &mut impl Counter,
    ) -> Progress {
        let keys = each.into_iter().enumerate();
        let begun = keys.map(|(part, (key, access))| self.begin(part, key, access, counter));
        let parts: Vec<_> = begun.collect();
        match parts.iter().filter(|part| part.is_none()).count() {
            0 => Progress::Done(together(combined, parts)),
            left => Progress::Many { combined, parts, left },
        }
    }

    /// Answers from the replica's memory if it can, and else asks the replica.
    fn begin(
        &mut self,
        part: usize,
        key: &[u8],
        access: Access,
        counter: &mut impl Counter,
    ) -> Option<Reply> {
        let (key, now) = (Bytes::copy_from_slice(key), self.now);
        let mut step = Step::Access(access);
        if let Step::Access(Access::Read(read)) = step
            && self.is_first
            && let Some(found) = self.replica.read(now.time, &key)
        {
            match shown(now, read, found, self.replica.lease(), counter) {
                Ok(reply) => return Some(reply),
                Err(first) => step = first,
            }
        }
        self.ask(part, key, step, counter);
        None
    }

    fn ask(&mut self, part: usize, key: Bytes, step: Step, counter: &mut impl Counter) {
        *self.tokens += 1;
        let (token, (client, request)) = (*self.tokens, self.place);
        counter.ask(step.ask(token, key.clone(), self.now.moment));
        self.waiting.insert(token, Waiting { client, request, part, key, step });
    }
}

/// Some keys of a replica, and where to go on. A key that is there all the time is shown by a walk
/// from cursor 0 to cursor 0; one that comes or goes meanwhile may be.
fn walk(now: Now, scan: &Scan, replica: &Replica) -> Reply {
    let from = u32::try_from(scan.cursor).unwrap_or(u32::MAX);
    let (mut next, mut keys) = (0, Vec::new());
    let seen = scan.count.min(SCAN_MAX);
    for (place, (after, key, value)) in replica.walk(from).enumerate() {
        if place == seen {
            next = after - 1;
            break;
        }
        let live = |value| Item::decode(value).is_ok_and(|item| !item.is_expired(now.moment));
        let wanted = scan.pattern.as_ref().is_none_or(|pattern| matches(pattern, key));
        if !scan.none && wanted && value.is_some_and(live) {
            keys.push(Reply::Bulk(key.clone()));
        }
    }
    let cursor = Bytes::from(next.to_string());
    Reply::Array(vec![Reply::Bulk(cursor), Reply::Array(keys)])
}

/// The reply to a read of `found`, or what must be asked first.
fn shown(
    now: Now,
    read: Read,
    found: Option<&Bytes>,
    until: Time,
    counter: &impl Counter,
) -> Result<Reply, Step> {
    if counter.time() >= until {
        return Err(Step::Access(Access::Read(read)));
    }
    let item = match found.map(Item::decode) {
        None => None,
        Some(Ok(item)) if item.is_expired(now.moment) => return Err(Step::Expire(read)),
        Some(Ok(item)) => Some(item),
        Some(Err(error)) => return Ok(Reply::error(error.to_string())),
    };
    Ok(read.answer(item.as_ref(), now.moment))
}

/// The reply when the replica has answered, or what must be asked next.
fn reply_to(now: Now, step: &Step, answer: Answer, counter: &impl Counter) -> Result<Reply, Step> {
    match (answer, step) {
        (Answer::Value { value, until }, Step::Access(Access::Read(read))) => {
            shown(now, *read, value.as_ref(), until, counter)
        }
        // It is gone, by this change.
        (Answer::Modified(_), Step::Expire(read)) => Ok(read.answer(None, now.moment)),
        // Somebody else was faster: what there is now is to be read.
        (Answer::Kept { .. } | Answer::Aborted, Step::Expire(read)) => {
            Err(Step::Access(Access::Read(*read)))
        }
        (Answer::Written, Step::Access(Access::Write(_))) => Ok(Reply::OK),
        (Answer::Modified(answer), Step::Access(Access::Modify(_))) => Ok(unpack(&answer)),
        // An RMW that changes nothing is a read.
        (Answer::Kept { until, .. }, step) if counter.time() >= until => Err(step.clone()),
        (Answer::Kept { answer, .. }, Step::Access(Access::Modify(_))) => Ok(unpack(&answer)),
        (Answer::Aborted, _) => {
            Ok(Reply::Error("TRYAGAIN others changed the key each time; nothing was done".into()))
        }
        (Answer::Refused(why), _) => Ok(Reply::Error(format!("BUSY {why}").into())),
        (Answer::Unknown, _) => Ok(Reply::Error(
            "UNKNOWN this node was removed; the change may have been made or not".into(),
        )),
        (answer, step) => panic!("D1: {answer:?} in answer to {step:?}"),
    }
}

fn not_serving() -> Reply {
    let why = "CLUSTERDOWN this node is not sure of its membership now; ask another one";
    Reply::Error(why.into())
}

fn count(count: usize) -> Reply {
    Reply::Integer(i64::try_from(count).expect("a number of things in memory"))
}

fn together(combined: Combined, parts: Vec<Option<Reply>>) -> Reply {
    let replies: Vec<_> = parts.into_iter().flatten().collect();
    let len = |reply: &Reply| if let Reply::Bulk(bytes) = reply { bytes.len() } else { 0 };
    if replies.iter().map(len).sum::<usize>() > REPLY_MAX {
        return Reply::error(format!("the values are longer than {REPLY_MAX} bytes together"));
    }
    combined.combine(replies)
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
