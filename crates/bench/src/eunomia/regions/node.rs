//! A process of a run: a server of a store, or all sessions of a region, which ask the servers of
//! their region over connections, one thing after the other.

use super::store::{Store, Told};
use crate::harness::draw::{Distribution, Draw};
use bytes::Bytes;
use meridian_core::{Embedding, Endpoint, Event, GroupId, Outbox, Process, RegionId, Time};
use meridian_eunomia::{Peer, Timestamp, Topology, place_of};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// After how long a session asks again what was refused.
const RETRY: Duration = Duration::from_millis(1);

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// A process of the store.
    Server(Peer),
    /// The sessions of a region.
    Sessions(RegionId),
}

impl Place {
    /// Where it is.
    pub fn region(self) -> RegionId {
        match self {
            Place::Server(peer) => peer.region,
            Place::Sessions(region) => region,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server(peer) => write!(f, "{peer}"),
            Place::Sessions(region) => write!(f, "sessions of region {}", region.0),
        }
    }
}

impl Endpoint for Place {
    fn group(&self) -> Option<GroupId> {
        None
    }
}

/// What is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message<M, S> {
    /// Between servers.
    Inner(M),
    /// To a server: to read, or to write a value.
    Ask { token: u64, key: Bytes, value: Option<Bytes>, seen: S },
    /// From a server.
    Answer { token: u64, value: Option<Bytes>, seen: S },
    /// From a server: ask again.
    Refused { token: u64 },
}

/// What sessions are told to do.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// To write each key once: those of all regions write a part each.
    Fill,
    /// To begin with the load.
    Load,
}

/// What is seen of a process.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// The region's part of all keys is written.
    Filled,
    /// A session was answered.
    Answered,
    /// A server shows an update of another region.
    Visible { origin: RegionId, ts: Timestamp },
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer<T> {
    Inner(T),
    /// This session goes on.
    Session(u32),
    /// This session asks again what it has asked.
    Again(u32),
}

/// What sessions do.
#[derive(Clone, Debug, Serialize)]
pub struct Workload {
    pub updates_percent: u32,
    pub distribution: Distribution,
    pub keys: u32,
    pub value_bytes: u32,
    /// Of each region; each asks for one thing at a time.
    pub sessions: u32,
    /// Between an answer and the next question, on average.
    pub think: Duration,
}

/// A process of a run.
#[allow(clippy::large_enum_variant)] // There is one of it for a process.
pub enum Node<P: Store> {
    Server(Server<P>),
    Sessions(Sessions<P>),
}

/// A process of the store, which sessions ask.
pub struct Server<P> {
    pub region: RegionId,
    pub process: P,
}

/// How the effects of a server's process are those of the server.
struct Inner(RegionId);

impl<P: Store> Embedding<P, Node<P>> for Inner {
    fn message(&mut self, to: Peer, message: P::Message) -> (Place, Message<P::Message, P::Seen>) {
        (Place::Server(to), Message::Inner(message))
    }

    fn record(&mut self, record: P::Record) -> P::Record {
        record
    }

    fn timer(&mut self, timer: P::Timer) -> Timer<P::Timer> {
        Timer::Inner(timer)
    }

    fn output(&mut self, output: P::Output, out: &mut Outbox<Node<P>>) {
        let sessions = Place::Sessions(self.0);
        match P::told(output) {
            Some(Told::Answer { token, value, seen }) => {
                out.send(sessions, Message::Answer { token, value, seen });
            }
            Some(Told::Refused { token }) => out.send(sessions, Message::Refused { token }),
            Some(Told::Visible { origin, ts }) => out.output(Output::Visible { origin, ts }),
            None => {}
        }
    }
}

impl<P: Store> Server<P> {
    fn step(&mut self, now: Time, event: Event<Node<P>>, out: &mut Outbox<Node<P>>) {
        let event = match event {
            Event::Started => Event::Started,
            Event::Idle => Event::Idle,
            Event::Timer(Timer::Inner(timer)) => Event::Timer(timer),
            Event::Restarted(Place::Server(peer)) => Event::Restarted(peer),
            Event::Message { from: Place::Server(from), message: Message::Inner(message) } => {
                Event::Message { from, message }
            }
            Event::Message { message: Message::Ask { token, key, value, seen }, .. } => {
                Event::Command(P::ask(token, key, value, seen))
            }
            // Not for a server.
            Event::Timer(Timer::Session(_) | Timer::Again(_)) => return,
            Event::Restarted(Place::Sessions(_)) => return,
            Event::Command(_) | Event::Message { .. } => return,
        };
        self.process.step_within(now, event, &mut Inner(self.region), out);
    }
}

/// What sessions do at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// They write each key once; this one is the next.
    Fill {
        next: u32,
    },
    Load,
}

/// The sessions of a region.
pub struct Sessions<P: Store> {
    /// How many regions write a part of the keys.
    regions: u32,
    workload: Workload,
    draw: Draw,
    random: ChaCha8Rng,
    /// Each key and its server.
    keys: Vec<(Bytes, Peer)>,
    value: Bytes,
    /// What each session has seen.
    seen: Vec<P::Seen>,
    /// Which key each session asks for, and whether to write it.
    asked: Vec<(u32, bool)>,
    phase: Phase,
    /// How many sessions still write their part of the keys.
    filling: u32,
}

impl<P: Store> Sessions<P> {
    pub fn new(region: RegionId, topology: &Topology, workload: Workload) -> Sessions<P> {
        let key = |number: u32| {
            let key = Bytes::copy_from_slice(&number.to_be_bytes());
            let home = topology.home(region, place_of(&key));
            (key, home)
        };
        let sessions = workload.sessions as usize;
        Sessions {
            regions: topology.regions().count() as u32,
            draw: Draw::new(workload.distribution, workload.keys),
            random: ChaCha8Rng::seed_from_u64(1 + u64::from(region.0)),
            keys: (0..workload.keys).map(key).collect(),
            value: vec![region.0 as u8; workload.value_bytes as usize].into(),
            seen: vec![P::Seen::default(); sessions],
            asked: vec![(0, false); sessions],
            phase: Phase::Fill { next: u32::from(region.0) },
            filling: workload.sessions,
            workload,
        }
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Node<P>>) {
        let sessions = 0..self.workload.sessions;
        match command {
            Command::Fill => sessions.for_each(|session| self.go_on(session, out)),
            Command::Load => {
                self.phase = Phase::Load;
                sessions.for_each(|session| self.think(now, session, out));
            }
        }
    }

    fn think(&mut self, now: Time, session: u32, out: &mut Outbox<Node<P>>) {
        let most = 2 * self.workload.think.as_nanos() as u64;
        if most == 0 {
            return self.go_on(session, out);
        }
        let after = Duration::from_nanos(self.random.random_range(0..=most));
        out.timer(now + after, Timer::Session(session));
    }

    fn go_on(&mut self, session: u32, out: &mut Outbox<Node<P>>) {
        let asked = match &mut self.phase {
            Phase::Fill { next } if *next < self.workload.keys => {
                let key = *next;
                *next += self.regions;
                (key, true)
            }
            Phase::Fill { .. } => {
                self.filling -= 1;
                if self.filling == 0 {
                    out.output(Output::Filled);
                }
                return;
            }
            Phase::Load => {
                let key = self.draw.next(&mut self.random);
                (key, self.random.random_range(0..100) < self.workload.updates_percent)
            }
        };
        self.asked[session as usize] = asked;
        self.ask(session, out);
    }

    fn ask(&self, session: u32, out: &mut Outbox<Node<P>>) {
        let (key, updates) = self.asked[session as usize];
        let (key, home) = self.keys[key as usize].clone();
        let (value, seen) = (updates.then(|| self.value.clone()), self.seen[session as usize]);
        let message = Message::Ask { token: session.into(), key, value, seen };
        out.send(Place::Server(home), message);
    }

    fn step(&mut self, now: Time, event: Event<Node<P>>, out: &mut Outbox<Node<P>>) {
        match event {
            Event::Command(command) => self.on_command(now, command, out),
            Event::Message { message: Message::Answer { token, seen, .. }, .. } => {
                P::join(&mut self.seen[token as usize], &seen);
                out.output(Output::Answered);
                match self.phase {
                    Phase::Load => self.think(now, token as u32, out),
                    Phase::Fill { .. } => self.go_on(token as u32, out),
                }
            }
            Event::Message { message: Message::Refused { token }, .. } => {
                out.timer(now + RETRY, Timer::Again(token as u32));
            }
            Event::Timer(Timer::Session(session)) => self.go_on(session, out),
            Event::Timer(Timer::Again(session)) => self.ask(session, out),
            _ => {} // Not for sessions.
        }
    }
}

impl<P: Store> Process for Node<P> {
    type Peer = Place;
    type Message = Message<P::Message, P::Seen>;
    type Record = P::Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer<P::Timer>;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match self {
            Node::Server(server) => server.step(now, event, out),
            Node::Sessions(sessions) => sessions.step(now, event, out),
        }
    }

    fn replay(&mut self, record: P::Record) {
        if let Node::Server(server) = self {
            server.process.replay(record);
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = P::Record> + Send> {
        match self {
            Node::Server(server) => server.process.checkpoint(),
            Node::Sessions(_) => Box::new(std::iter::empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_baselines::{Eventual, Partition};
    use meridian_core::Effect;
    use meridian_eunomia::Site;

    type Tried = Node<Partition<Eventual>>;

    #[test]
    fn sessions_write_each_key_of_their_part_once_and_then_draw() {
        let topology = Topology::new(vec![Site { shards: 4, replicas: 1 }; 3]);
        let workload = Workload {
            updates_percent: 0,
            distribution: Distribution::Uniform,
            keys: 20,
            value_bytes: 3,
            sessions: 2,
            think: Duration::ZERO,
        };
        let mut node: Tried = Node::Sessions(Sessions::new(RegionId(1), &topology, workload));
        let (mut out, mut written, mut filled) = (Outbox::new(), Vec::new(), 0);
        node.step(Time(0), Event::Command(Command::Fill), &mut out);
        loop {
            let mut asked = Vec::new();
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, message: Message::Ask { token, key, value, .. } } => {
                        assert_eq!(to, Place::Server(topology.home(RegionId(1), place_of(&key))));
                        assert_eq!(value, Some(Bytes::from_static(&[1, 1, 1])));
                        written.push(u32::from_be_bytes(key[..].try_into().unwrap()));
                        asked.push((to, token));
                    }
                    Effect::Output(Output::Filled) => filled += 1,
                    Effect::Output(Output::Answered) => {}
                    _ => panic!("they only ask"),
                }
            }
            if asked.is_empty() {
                break;
            }
            for (from, token) in asked {
                let message = Message::Answer { token, value: None, seen: () };
                node.step(Time(0), Event::Message { from, message }, &mut out);
            }
        }
        assert_eq!((written, filled), (vec![1, 4, 7, 10, 13, 16, 19], 1));
        node.step(Time(0), Event::Command(Command::Load), &mut out);
        let reads = |effect| {
            matches!(effect, Effect::Send { message: Message::Ask { value: None, .. }, .. })
        };
        assert!(out.drain().map(reads).eq([true, true]));
    }
}
