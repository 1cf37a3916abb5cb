//! Requests on causal keys. Each connection is a session: what it has seen goes with each of its
//! updates.
//!
//! Connections are with the desks of shards ([`crate::desk`]), which pass on what concerns causal
//! keys, in order. Of one session one request is carried out after the other, as each may depend
//! on what those before have seen; the keys of one request all at the same time.
//!
//! Invariants:
//! - S1: a request begins when those before it in its session are answered, and knows what they
//!   have seen.
//! - S2: a read is answered only if the lease by which it was read had not run out after that.
//! - S3: nobody is answered that a key has expired before an agreed change of the region has taken
//!   its value.

mod steps;

use super::message::{Command, Output};
use super::node::Causal;
use super::token::Token;
use crate::access::Access;
use crate::change::Rmw;
use crate::command::Combined;
use crate::desk::passing::{Part, Passed};
use crate::desk::{ClientNumber, Now};
use crate::resp::Reply;
use crate::slots::Shard;
use bytes::Bytes;
use meridian_core::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use steps::{Next, Step};

/// How long a request waits for a replica that has no lease, as in [`crate::desk`].
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a session that moves waits for its region unless it says so, and at most.
pub const AWAIT: Duration = Duration::from_secs(5);
/// See [`AWAIT`].
pub const AWAIT_MAX: Duration = Duration::from_secs(600);
/// So many requests of one session wait behind others at most. Who has more under way has not read
/// any answer for long.
const QUEUE_MAX: usize = 100_000;

/// The causal keys of a node.
pub type Keys = Causal<Rmw>;

/// Carries out what the desk wants done.
pub trait Counter {
    /// The time by now: read after what is to be answered was read.
    fn time(&self) -> Time;

    /// Asks the keys.
    fn ask(&mut self, asked: Command<Rmw>);

    /// Says something to the desk of a shard: in order, and without loss.
    fn pass(&mut self, to: Shard, passed: Passed);
}

/// What a connection wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// Something of each of these keys.
    Each(Vec<(Bytes, Access)>, Combined),
    /// The values of these keys, at one moment.
    Snapshot(Vec<Bytes>),
    /// The token of its session.
    Token,
    /// To go on as the session that gave this token, once this region has all that it saw of keys;
    /// so long it waits for that. What it saw of files it hands on.
    GoOn(Bytes, Duration),
    /// To be as a new session; what is answered.
    Begin(Reply),
}

/// Whose connection: a client of that shard's thread.
type Who = (Shard, ClientNumber);

/// A session.
#[derive(Debug)]
struct Connection {
    /// What it has seen.
    seen: Token,
    /// What it wants next.
    queue: VecDeque<(Part, Wish)>,
    current: Option<Current>,
    /// It has ended, but for what is being carried out.
    ended: bool,
}

/// A request that is carried out.
#[derive(Debug)]
struct Current {
    part: Part,
    combined: Combined,
    replies: Vec<Option<Reply>>,
    left: usize,
}

/// What the keys were asked for.
#[derive(Debug)]
struct Waiting {
    who: Who,
    /// For which key of the request.
    index: usize,
    step: Step,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Desk {
    cluster: u64,
    connections: BTreeMap<Who, Connection>,
    waiting: BTreeMap<u64, Waiting>,
    /// What the keys did not take for want of a lease, and since when, in order.
    unserved: VecDeque<(Time, u64)>,
    /// Until when sessions wait that have moved here.
    moves: BTreeSet<(Time, u64)>,
    tokens: u64,
}

impl Desk {
    /// That of a node of this cluster.
    pub fn new(cluster: u64) -> Desk {
        Desk {
            cluster,
            connections: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unserved: VecDeque::new(),
            moves: BTreeSet::new(),
            tokens: 0,
        }
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The desk of a shard says something.
    pub fn on_passed(
        &mut self,
        now: Now,
        from: Shard,
        passed: Passed,
        keys: &Keys,
        counter: &mut impl Counter,
    ) {
        match passed {
            Passed::Causal(part, wish) => self.on_wish(now, from, (part, wish), keys, counter),
            Passed::Left(client) => self.on_left(from, client),
            Passed::Walk(part, walk) => {
                let reply = match keys.serves(now.time) {
                    true => steps::some_keys(now, &walk, keys),
                    false => crate::desk::not_serving(),
                };
                counter.pass(from, Passed::Answer(part, reply));
            }
            Passed::Wish(part, _) | Passed::Settled(part, ..) => {
                counter.pass(from, Passed::Answer(part, Reply::error("the key is causal")));
            }
            Passed::Answer(..)
            | Passed::Watch(..)
            | Passed::Unwatch(_)
            | Passed::Changed(..)
            | Passed::Taken(..) => {} // Not for causal keys.
        }
    }

    /// A client of that shard's thread wants this.
    fn on_wish(
        &mut self,
        now: Now,
        from: Shard,
        (part, wish): (Part, Wish),
        keys: &Keys,
        counter: &mut impl Counter,
    ) {
        let (who, cluster) = ((from, part.client), self.cluster);
        let connection = self.connections.entry(who).or_insert_with(|| Connection {
            seen: Token::new(cluster),
            queue: VecDeque::new(),
            current: None,
            ended: false,
        });
        if connection.queue.len() >= QUEUE_MAX {
            let why = format!("BUSY {QUEUE_MAX} requests of this connection wait already");
            return counter.pass(from, Passed::Answer(part, Reply::Error(why.into())));
        }
        connection.queue.push_back((part, wish));
        self.go_on(now, who, keys, counter);
    }

    /// A client is gone. What it asked for may still happen.
    fn on_left(&mut self, from: Shard, client: ClientNumber) {
        let who = (from, client);
        let Some(connection) = self.connections.get_mut(&who) else { return };
        connection.queue.clear();
        connection.ended = true;
        if connection.current.is_none() {
            self.connections.remove(&who);
        }
    }

    /// Begins what a session wants next, as far as nothing before it is open (S1).
    fn go_on(&mut self, now: Now, who: Who, keys: &Keys, counter: &mut impl Counter) {
        while let Some(connection) = self.connections.get_mut(&who) {
            if connection.current.is_some() {
                return;
            }
            let Some((part, wish)) = connection.queue.pop_front() else {
                if connection.ended {
                    self.connections.remove(&who);
                }
                return;
            };
            let (count, combined) = match &wish {
                Wish::Each(each, combined) => (each.len(), *combined),
                Wish::Snapshot(_) | Wish::Token | Wish::GoOn(..) | Wish::Begin(_) => {
                    (1, Combined::First)
                }
            };
            let replies = vec![None; count];
            connection.current = Some(Current { part, combined, replies, left: count });
            match wish {
                Wish::Each(each, _) => {
                    for (index, (key, access)) in each.into_iter().enumerate() {
                        self.start(now, who, index, Step::Access(key, access), keys, counter);
                    }
                }
                Wish::Snapshot(all) => {
                    self.start(now, who, 0, Step::Snapshot(all), keys, counter);
                }
                Wish::Token => {
                    let text = connection.seen.text();
                    self.settle(who, 0, Reply::Bulk(text.into()), counter);
                }
                Wish::Begin(reply) => {
                    connection.seen = Token::new(self.cluster);
                    self.settle(who, 0, reply, counter);
                }
                Wish::GoOn(text, wait) => match Token::accept(&text, self.cluster, now.time) {
                    Ok(token) => {
                        let step = Step::GoOn(Box::new(token), now.time + wait);
                        self.start(now, who, 0, step, keys, counter);
                    }
                    Err(error) => self.settle(who, 0, Reply::error(error.to_string()), counter),
                },
            }
        }
    }

    /// Does it at once if it can, or asks the keys.
    fn start(
        &mut self,
        now: Now,
        who: Who,
        index: usize,
        step: Step,
        keys: &Keys,
        counter: &mut impl Counter,
    ) {
        match step.at_once(now, keys, counter) {
            Next::Done(reply, seen) => {
                self.saw(who, &seen);
                self.settle(who, index, reply, counter);
            }
            Next::Ask(step) => self.ask(now, Waiting { who, index, step }, None, counter),
        }
    }

    /// Asks the keys, with a new token or that of before.
    fn ask(&mut self, now: Now, waiting: Waiting, again: Option<u64>, counter: &mut impl Counter) {
        let token = again.unwrap_or_else(|| {
            self.tokens += 1;
            self.tokens
        });
        let Some(connection) = self.connections.get(&waiting.who) else { return };
        if let Step::GoOn(_, until) = &waiting.step {
            self.moves.insert((*until, token));
        }
        counter.ask(waiting.step.command(token, connection.seen.keys.seen(), now));
        self.waiting.insert(token, waiting);
    }

    fn saw(&mut self, who: Who, seen: &meridian_eunomia::Seen) {
        if let Some(connection) = self.connections.get_mut(&who) {
            connection.seen.keys.saw(seen);
        }
    }

    /// One key of a request has its reply.
    fn settle(&mut self, who: Who, index: usize, reply: Reply, counter: &mut impl Counter) {
        let Some(connection) = self.connections.get_mut(&who) else { return };
        let Some(current) = &mut connection.current else { return };
        current.left -= 1;
        current.replies[index] = Some(reply);
        if current.left > 0 {
            return;
        }
        let Some(Current { part, combined, replies, .. }) = connection.current.take() else {
            return;
        };
        let reply = crate::desk::together(combined, replies);
        counter.pass(who.0, Passed::Answer(part, reply));
    }

    /// The keys have answered.
    pub fn on_output(&mut self, now: Now, output: Output, keys: &Keys, counter: &mut impl Counter) {
        let Some((token, came)) = steps::came_of(output) else { return };
        let Some(waiting) = self.waiting.remove(&token) else { return };
        if came.is_not_serving() {
            self.waiting.insert(token, waiting);
            return self.unserved.push_back((now.time, token));
        }
        let Waiting { who, index, step } = waiting;
        if let Step::GoOn(moved, until) = &step {
            self.moves.remove(&(*until, token));
            if let Some(connection) = self.connections.get_mut(&who).filter(|_| came.is_reached()) {
                connection.seen.join(moved);
            }
        }
        match step.after(now, came, keys, counter) {
            Next::Done(reply, seen) => {
                self.saw(who, &seen);
                self.settle(who, index, reply, counter);
                self.go_on(now, who, keys, counter);
            }
            Next::Ask(step) => self.ask(now, Waiting { who, index, step }, Some(token), counter),
        }
    }

    /// When [`Desk::look_again`] must be called.
    pub fn due(&self) -> Option<Time> {
        let unserved = self.unserved.front().map(|(since, _)| *since + PATIENCE);
        let moves = self.moves.first().map(|(until, _)| *until);
        unserved.into_iter().chain(moves).min()
    }

    /// Asks once more for what was not taken, if the keys are served now, and refuses what has
    /// waited for too long. To be called after each batch.
    pub fn look_again(&mut self, now: Now, keys: &Keys, counter: &mut impl Counter) {
        let serves = keys.serves(now.time);
        for (since, token) in std::mem::take(&mut self.unserved) {
            let Some(waiting) = self.waiting.remove(&token) else { continue };
            if serves {
                self.ask(now, waiting, Some(token), counter);
            } else if now.time < since + PATIENCE {
                self.waiting.insert(token, waiting);
                self.unserved.push_back((since, token));
            } else {
                self.end(now, waiting, crate::desk::not_serving(), keys, counter);
            }
        }
        while let Some((until, token)) = self.moves.first().copied()
            && until <= now.time
        {
            self.moves.remove(&(until, token));
            let Some(waiting) = self.waiting.remove(&token) else { continue };
            counter.ask(Command::Forget { token });
            let reply = steps::lacks(&waiting.step, keys);
            self.end(now, waiting, reply, keys, counter);
        }
    }

    fn end(
        &mut self,
        now: Now,
        waiting: Waiting,
        reply: Reply,
        keys: &Keys,
        counter: &mut impl Counter,
    ) {
        self.settle(waiting.who, waiting.index, reply, counter);
        self.go_on(now, waiting.who, keys, counter);
    }
}

#[cfg(test)]
mod tests;
