//! The clients of one thread: their requests become reads and updates of replicas, and are answered
//! in the order in which they were asked.
//!
//! A thread has a replica of one shard of the keys. A read of a Valid key there is answered at once
//! from the replica's memory. All else is asked of the replica, or passed to the desk of the shard
//! that has the key; answers to what a client asked afterwards wait for it.
//!
//! | module | what |
//! | --- | --- |
//! | `client` | a client, and its requests that are not answered |
//! | [`passing`] | what the desks of a node say to each other |
//! | `tasks` | what is asked of the replica, and what its answers mean |
//! | [`watch`] | clients that are told of changes |
//! | `work` | a request on its way to replicas |
//!
//! Invariants:
//! - D1: each request of a connection has one reply, in the order of the requests.
//! - D2: a read is answered only if the lease by which it was read had not run out after that.
//! - D3: requests of a connection on one key take effect in their order: while one is with the
//!   key's replica, those after it wait behind it.
//! - D4: nobody is answered that a key has expired before an agreed change has removed it.
//! - N1: no request with a name ([`Command::Once`]) outlives the time for which its replica was
//!   live. So who was removed since does nothing more of what it was asked ([`Command::Settled`]).

mod client;
pub mod passing;
pub(crate) mod tasks;
pub mod watch;
mod work;

use crate::change::Rmw;
use crate::command::Command;
use crate::connection::Peer;
use crate::grant::{Grant, Mutation};
use crate::item::Moment;
use crate::names;
use crate::resp::{ProtocolError, Reply, Requests, Version};
use crate::slots::Shard;
use bytes::Bytes;
pub use client::Load;
use client::{Client, Progress};
use meridian_core::Time;
use meridian_hermes::{Answer, Command as Asked, Hermes, Options};
use passing::Passed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tasks::{Settled, Tasks, is_settled};
use watch::{Told, Watchers, Who};
pub use work::REPLY_MAX;
pub(crate) use work::together;
use work::{Work, page};

/// So often an RMW is tried that others defeat: clients of Redis do not know that INCR can fail.
const ATTEMPTS_MAX: u32 = 10_000;
/// After so long it is seen whether a client that was full of changes has taken some.
const STUFFED_FOR: Duration = Duration::from_millis(10);

/// So often names of clients that nobody uses any more are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);

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

    /// What a client may do by now, if it may not do all.
    fn grant(&mut self, client: ClientNumber) -> Option<Arc<Grant>>;

    /// Asks the replica.
    fn ask(&mut self, asked: Asked<Rmw>);

    /// Says something to the desk of another shard: in order, and without loss.
    fn pass(&mut self, to: Shard, passed: Passed);

    /// How much the other shards of this node hold, as they have last said.
    fn elsewhere(&self) -> Held;

    /// Writes to a client.
    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version);

    /// Whether a client does not take what was written to it.
    fn is_stuffed(&mut self, client: ClientNumber) -> bool;

    /// A client is to blame for what it sent.
    fn blame(&mut self, client: ClientNumber, error: &ProtocolError);

    /// A client's connection ends when all is written.
    fn end(&mut self, client: ClientNumber);

    /// What is told of the server: these sections, or all.
    fn info(&self, sections: &[&[u8]]) -> String;
}

/// How much shards hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// So many keys have a value.
    pub keys: usize,
    /// So many bytes keys and values take.
    pub bytes: usize,
}

/// When something is done.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the replica's clock.
    pub time: Time,
    /// The time of day.
    pub moment: Moment,
}

/// Which part of the keys a desk stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// This shard.
    pub shard: Shard,
    /// Of so many.
    pub shards: usize,
}

impl Seat {
    /// Where causal keys are: behind the shards.
    pub fn causal(self) -> Shard {
        Shard(u8::try_from(self.shards).expect("SHARDS_MAX"))
    }

    fn others(self) -> impl Iterator<Item = Shard> {
        let all = (0..self.shards).map(|shard| Shard(u8::try_from(shard).expect("SHARDS_MAX")));
        all.filter(move |shard| *shard != self.shard)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Desk {
    seat: Seat,
    bytes_max: usize,
    /// Keys that begin so are causal, if there are such.
    causal: Option<Bytes>,
    clients: BTreeMap<ClientNumber, Client>,
    tasks: Tasks,
    watchers: Watchers,
    /// Changes that were written to clients of this thread, whom the tellers owe room: in bytes.
    taken: BTreeMap<(Shard, ClientNumber), usize>,
    /// Clients that have replies here, as they do not take what was written to them.
    behind: BTreeSet<ClientNumber>,
    /// When it is to be seen whether clients have taken some.
    stuffed: Option<Time>,
    /// Whether the replica was live when that was last looked at.
    live: bool,
    connections: i64,
    /// So many bytes of requests are with replicas.
    under_way: usize,
    /// When old names are to be forgotten.
    forgets: Time,
    mutation: Mutation,
}

impl Desk {
    /// Nobody is connected yet. When keys take `bytes_max` bytes, what could take more is refused.
    pub fn new(seat: Seat, bytes_max: usize) -> Desk {
        Desk {
            seat,
            bytes_max,
            causal: None,
            clients: BTreeMap::new(),
            tasks: Tasks::default(),
            watchers: Watchers::default(),
            taken: BTreeMap::new(),
            behind: BTreeSet::new(),
            stuffed: None,
            live: false,
            connections: 0,
            under_way: 0,
            forgets: Time(0),
            mutation: Mutation::Correct,
        }
    }

    /// The same with a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Desk {
        Desk { mutation, ..self }
    }

    /// Keys that begin so are causal: the thread behind those of the shards has them.
    pub fn with_causal(self, prefix: Option<Bytes>) -> Desk {
        Desk { causal: prefix, ..self }
    }

    /// How many threads of this node have keys.
    fn threads(&self) -> usize {
        self.seat.shards + usize::from(self.causal.is_some())
    }

    /// A client has connected.
    pub fn connect(&mut self, client: ClientNumber) {
        let Seat { shard, shards } = self.seat;
        let number = self.connections * i64::try_from(shards).expect("SHARDS_MAX");
        self.connections += 1;
        let peer = Peer::new(number + i64::from(shard.0) + 1);
        self.clients.insert(client, Client::new(peer));
    }

    /// A client is gone. What it asked for may still happen.
    pub fn disconnect(&mut self, client: ClientNumber, counter: &mut impl Counter) {
        let Some(gone) = self.clients.remove(&client) else { return };
        let (peer, Load { under_way, .. }) = (&gone.peer, gone.load());
        self.under_way -= under_way;
        if peer.watches.is_some() {
            self.unwatch((self.seat.shard, client), counter);
            self.seat.others().for_each(|shard| counter.pass(shard, Passed::Unwatch(client)));
        }
        if peer.is_session {
            counter.pass(self.seat.causal(), Passed::Left(client));
        }
    }

    /// How many clients there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// What a client has here.
    pub fn load(&self, client: ClientNumber) -> Load {
        self.clients.get(&client).map_or(Load::default(), Client::load)
    }

    /// So many bytes of requests of all clients are with replicas.
    pub fn under_way(&self) -> usize {
        self.under_way
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
        let Desk { clients, tasks, watchers, seat, bytes_max, causal, behind, mutation, .. } = self;
        let mut len = 0;
        let Some(client) = clients.get_mut(&number) else { return false };
        if client.peer.ends {
            client.requests = Requests::default(); // Nobody will be answered what is left.
            return false;
        }
        let place = (number, client.first + client.slots.len() as u64);
        let reply = match client.requests.take() {
            Ok(None) => return false,
            Ok(Some(request)) => match Command::parse(&request, now.moment) {
                Ok(command) => {
                    len = Client::len_of(&request);
                    let (seat, bytes_max, mutation) = (*seat, *bytes_max, *mutation);
                    let is_first = client.slots.is_empty();
                    let (causal, grant) = (causal.as_ref(), counter.grant(number));
                    let mut work = Work {
                        now,
                        place,
                        is_first,
                        seat,
                        bytes_max,
                        causal,
                        grant,
                        replica,
                        tasks,
                        watchers,
                        mutation,
                    };
                    work.execute(command, &mut client.peer, counter)
                }
                Err(error) => Progress::Done(error),
            },
            Err(error) => client.refuse(number, &error, counter),
        };
        let before = client.load().under_way;
        client.push(reply, len);
        self.under_way += client.load().under_way - before;
        client.write(number, behind, counter);
        true
    }

    /// The replica has answered; which clients of this thread are concerned.
    pub fn on_answer(
        &mut self,
        now: Now,
        token: u64,
        answer: Answer,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<ClientNumber> {
        let settled = self.tasks.on_answer(now, token, answer, replica, counter);
        settled.into_iter().filter_map(|settled| self.settle(settled, counter)).collect()
    }

    /// The desk of another shard says something; which client of this thread is concerned.
    pub fn on_passed(
        &mut self,
        now: Now,
        from: Shard,
        passed: Passed,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Option<ClientNumber> {
        match passed {
            Passed::Wish(part, wish) => {
                let reply = self.tasks.begin(now, (from, part), wish, replica, counter)?;
                counter.pass(from, Passed::Answer(part, reply));
            }
            Passed::Walk(part, walk) => {
                let reply = self.tasks.walk(now, (from, part), walk, replica, counter)?;
                counter.pass(from, Passed::Answer(part, reply));
            }
            Passed::Settled(part, node, epoch) => {
                counter.pass(from, Passed::Answer(part, is_settled(node, epoch, replica)));
            }
            Passed::Causal(..) | Passed::Left(_) => {} // Not for a shard.
            Passed::Answer(part, reply) => {
                return self.settle(Settled { from: self.seat.shard, part, reply }, counter);
            }
            Passed::Watch(client, subject) => {
                if self.watchers.begin((from, client), subject) {
                    counter.ask(Asked::Watch(true));
                }
            }
            Passed::Unwatch(client) => self.unwatch((from, client), counter),
            Passed::Changed(client, key, value) => self.show(from, client, key, value, counter),
            Passed::Taken(client, len) => self.watchers.on_taken((from, client), len),
        }
        None
    }

    /// The replica tells of all changes from now on.
    pub fn on_watching(&mut self) {
        self.watchers.on_watching();
    }

    /// A change of a key is committed.
    pub fn on_committed(&mut self, key: &Bytes) {
        self.watchers.on_committed(key);
    }

    /// When [`Desk::look_again`] must be called; the beginning of time for at once.
    pub fn due(&self) -> Option<Time> {
        // A replica that is not live tells nothing: to look at once again would only take time.
        let at_once = (self.live && self.watchers.is_due()).then_some(Time(0));
        at_once.or_else(|| self.tasks.due().into_iter().chain(self.stuffed).min())
    }

    /// Goes on with what waited: requests for a lease, changes for clients that take them. To be
    /// called after each batch; whose requests were refused.
    pub fn look_again(
        &mut self,
        now: Now,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<ClientNumber> {
        if now.time >= self.forgets {
            self.forgets = now.time + FORGET_EVERY;
            counter.ask(Asked::ForgetBefore(names::oldest(now.moment)));
        }
        let was_live = std::mem::replace(&mut self.live, replica.is_live());
        if was_live && !self.live {
            self.lapse(counter);
        }
        let refused = self.tasks.look_again(now, replica, counter);
        let settled = refused.into_iter().filter_map(|settled| self.settle(settled, counter));
        let mut concerned: Vec<_> = settled.collect();
        concerned.extend(self.catch_up(counter));
        self.tell(now, replica, counter);
        concerned
    }

    /// Goes on writing to clients that may have taken some; whose those are.
    fn catch_up(&mut self, counter: &mut impl Counter) -> BTreeSet<ClientNumber> {
        let before = std::mem::take(&mut self.behind);
        for number in &before {
            if let Some(client) = self.clients.get_mut(number) {
                client.write(*number, &mut self.behind, counter);
            }
        }
        before
    }

    /// The replica is no member any more: clients that count on its memory go elsewhere (N1).
    fn lapse(&mut self, counter: &mut impl Counter) {
        self.end_where(counter, |_, peer, _| {
            (peer.client.is_some() || peer.watches.is_some()).then(not_serving)
        });
    }

    /// What clients may do is another now: who watches keys that it may not read any more is told
    /// so, and its connection ends. All else is looked at when it is asked.
    pub fn on_grants(&mut self, counter: &mut impl Counter) {
        if self.mutation.is(Mutation::WatchesOn) {
            return;
        }
        self.end_where(counter, |number, peer, counter| {
            let watched = peer.watches.as_ref()?;
            counter.grant(number)?.check_key(watched.key()).err()
        });
    }

    /// Ends the connections for which there is a reason, which is what they are told.
    fn end_where<C: Counter>(
        &mut self,
        counter: &mut C,
        reason: impl Fn(ClientNumber, &Peer, &mut C) -> Option<Reply>,
    ) {
        for (number, client) in &mut self.clients {
            if client.peer.ends {
                continue;
            }
            if let Some(reason) = reason(*number, &client.peer, counter) {
                client.peer.ends = true;
                client.push(Progress::Done(reason), 0);
                client.write(*number, &mut self.behind, counter);
            }
        }
    }

    fn tell(&mut self, now: Now, replica: &Replica, counter: &mut impl Counter) {
        for Told { who: (to, client), key, value, .. } in self.watchers.tell(replica) {
            if to == self.seat.shard {
                self.show(to, client, key, value, counter);
            } else {
                counter.pass(to, Passed::Changed(client, key, value));
            }
        }
        let taken = std::mem::take(&mut self.taken);
        let had = !taken.is_empty();
        for ((shard, client), len) in taken {
            if !self.clients.contains_key(&client) {
                continue;
            } else if counter.is_stuffed(client) {
                self.taken.insert((shard, client), len);
            } else if shard == self.seat.shard {
                self.watchers.on_taken((shard, client), len);
            } else {
                counter.pass(shard, Passed::Taken(client, len));
            }
        }
        let waits = !self.taken.is_empty() || !self.behind.is_empty();
        if had || waits || self.stuffed.is_some() {
            self.stuffed = waits.then_some(now.time + STUFFED_FOR);
        }
    }

    /// Writes a change of a key of that shard to a client.
    fn show(
        &mut self,
        shard: Shard,
        number: ClientNumber,
        key: Bytes,
        value: Option<Bytes>,
        counter: &mut impl Counter,
    ) {
        let Some(client) = self.clients.get(&number).filter(|client| !client.peer.ends) else {
            return;
        };
        *self.taken.entry((shard, number)).or_default() += watch::len(&key, value.as_ref());
        let value = value.map_or(Reply::Null, Reply::Bulk);
        let change = Reply::Push(vec![Reply::bulk("change"), Reply::Bulk(key), value]);
        counter.write(number, &change, client.peer.version);
    }

    fn unwatch(&mut self, who: Who, counter: &mut impl Counter) {
        if self.watchers.end(who) {
            counter.ask(Asked::Watch(false));
        }
    }

    /// Gives a part of a request its reply; which client of this thread is concerned.
    fn settle(&mut self, settled: Settled, counter: &mut impl Counter) -> Option<ClientNumber> {
        let Settled { from, part: at, reply } = settled;
        if from != self.seat.shard {
            counter.pass(from, Passed::Answer(at, reply));
            return None;
        }
        let threads = self.threads();
        let client = self.clients.get_mut(&at.client)?;
        let place = usize::try_from(at.request - client.first).expect("it is not written");
        let done = match &mut client.slots[place].reply {
            Progress::Done(reply) => panic!("D1: answered twice, before with {reply:?}"),
            Progress::One => Some(reply),
            Progress::Page { shard, none } => Some(page(reply, *shard, threads, *none)),
            Progress::Many { combined, parts, left } => {
                parts[at.part] = Some(reply);
                *left -= 1;
                (*left == 0).then(|| together(*combined, std::mem::take(parts)))
            }
        };
        if let Some(reply) = done {
            let before = client.load().under_way;
            client.done(place, reply);
            self.under_way -= before - client.load().under_way;
        }
        client.write(at.client, &mut self.behind, counter);
        Some(at.client)
    }
}

pub(crate) fn not_serving() -> Reply {
    let why = "CLUSTERDOWN this node is not sure of its membership now; ask another one";
    Reply::Error(why.into())
}

#[cfg(test)]
mod tests;
