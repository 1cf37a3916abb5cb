//! Clients of keys at real nodes, which remember what they asked, when, and what was answered.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::harness::eventually;
use meridian_core::mix;
use meridian_keys::resp::answer::{Answered, read, write_request};
use meridian_sim::checkers::linearizable::Call;
use meridian_sim::checkers::recorded::{Operation, Recorded};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many keys are fought for.
pub const KEYS: u64 = 3;
/// How long who stays at a node waits for an answer: longer than any node is down.
const STAYS: Duration = Duration::from_secs(120);
/// How long who goes elsewhere then waits: longer than it takes to exclude a node.
const ROVES: Duration = Duration::from_millis(600);

/// One connection, on which one request at a time is under way.
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// To a node on this machine; `patience` is for each answer.
    pub fn new(port: u16, patience: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Connection { stream, received: Vec::new() })
    }

    /// Asks, and waits for the answer. After an error the connection is of no use.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Answered> {
        let mut bytes = Vec::new();
        write_request(words.iter().map(|word| word.as_bytes()), &mut bytes);
        self.stream.write_all(&bytes)?;
        self.answer()
    }

    /// Waits for an answer.
    fn answer(&mut self) -> io::Result<Answered> {
        loop {
            let found = read(&self.received).map_err(io::Error::other)?;
            if let Some((answered, len)) = found {
                self.received.drain(..len);
                return Ok(answered);
            }
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.received.extend_from_slice(&piece[..len]),
            }
        }
    }
}

/// A call, and which node was asked.
#[derive(Clone, Debug)]
pub struct Told {
    pub node: usize,
    pub key: String,
    pub call: Call<Operation, Value>,
}

impl Told {
    /// Whether it was answered, and changes the key by an agreement of the nodes.
    pub fn is_update(&self) -> bool {
        self.call.answered.is_some()
            && matches!(self.call.operation, Operation::Write(_) | Operation::Add(_))
    }
}

/// What all clients were told, by one clock.
pub struct History {
    begun: Instant,
    told: Mutex<Vec<Told>>,
    more: Condvar,
}

impl History {
    /// Nothing yet.
    pub fn new() -> History {
        History { begun: Instant::now(), told: Mutex::default(), more: Condvar::new() }
    }

    /// Nanoseconds since it began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, told: Told) {
        self.told().push(told);
        self.more.notify_all();
    }

    /// Waits for a call like this; when it was answered.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Told) -> bool) -> u64 {
        let (mut told, mut seen) = (self.told(), 0);
        loop {
            let found = told[seen..].iter().find(|told| wanted(told));
            if let Some((end, _)) = found.and_then(|told| told.call.answered.as_ref()) {
                return *end;
            }
            seen = told.len();
            let (next, waited) = self.more.wait_timeout(told, STAYS).unwrap();
            assert!(!waited.timed_out(), "no client is answered any more: {what}");
            assert!(self.begun.elapsed() < STAYS, "not within {STAYS:?}: {what}");
            told = next;
        }
    }

    /// All calls, for the judge.
    pub fn recorded(&self) -> Recorded {
        let told = self.told();
        let calls = told.iter().enumerate().map(|(number, told)| {
            (format!("call {number} at {}", told.node), told.key.clone(), told.call.clone())
        });
        Recorded { calls: calls.collect() }
    }

    /// Asks, and remembers it; whether the connection is still of use.
    pub fn ask(
        &self,
        connection: &mut Connection,
        node: usize,
        key: &str,
        operation: Operation,
    ) -> bool {
        let words = words(key, &operation);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let called = self.now();
        let answered = connection.ask(&words);
        let end = self.now();
        let is_sound = answered.is_ok();
        let outcome = match answered {
            // Nobody knows: a broken connection, or an answer that came too late.
            Err(_) => None,
            Ok(Answered::Error(why)) if why.starts_with("UNKNOWN ") => None,
            Ok(Answered::Error(why)) => {
                let nothing_was_done = ["CLUSTERDOWN ", "BUSY ", "TRYAGAIN "];
                assert!(nothing_was_done.iter().any(|word| why.starts_with(word)), "{why}");
                return true;
            }
            Ok(answered) => Some((end, outcome(&operation, answered))),
        };
        let call = Call { operation, called, answered: outcome };
        self.add(Told { node, key: key.into(), call });
        is_sound
    }
}

/// The command for an operation.
fn words(key: &str, operation: &Operation) -> Vec<String> {
    match operation {
        Operation::Read => vec!["GET".into(), key.into()],
        Operation::Write(value) => vec!["SET".into(), key.into(), value.to_string()],
        Operation::Swap(Value::Null) => vec!["GETDEL".into(), key.into()],
        Operation::Swap(value) => {
            vec!["SET".into(), key.into(), value.to_string(), "GET".into()]
        }
        Operation::CompareAndSwap(Value::Null, new) => {
            vec!["SETNX".into(), key.into(), new.to_string()]
        }
        Operation::CompareAndSwap(old, new) => {
            vec!["MERIDIAN.CAS".into(), key.into(), old.to_string(), new.to_string()]
        }
        Operation::Add(more) => vec!["INCRBY".into(), key.into(), more.to_string()],
        Operation::Delete => vec!["DEL".into(), key.into()],
        Operation::Append(_) => panic!("values are numbers"),
    }
}

/// What an answer means.
fn outcome(operation: &Operation, answered: Answered) -> Value {
    match (operation, answered) {
        (Operation::Read | Operation::Swap(_), Answered::Null) => Value::Null,
        (Operation::Read | Operation::Swap(_), Answered::Bulk(bytes)) => {
            serde_json::from_slice(&bytes).unwrap()
        }
        (Operation::Write(_), Answered::Line(word)) if word == "OK" => "ok".into(),
        (Operation::Add(_), Answered::Integer(sum)) => sum.into(),
        (Operation::CompareAndSwap(..) | Operation::Delete, Answered::Integer(count)) => {
            (count == 1).into()
        }
        (operation, answered) => panic!("{answered:?} in answer to {operation:?}"),
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It only reads, at one node, and waits for it.
    Reads,
    /// It does everything, at one node, and waits for it.
    Stays,
    /// It does everything, and goes to another node when one does not answer.
    Roves,
}

/// A client of some nodes.
pub struct Client<'a> {
    pub history: &'a History,
    pub ports: &'a [u16],
    pub stop: &'a AtomicBool,
    pub habit: Habit,
    /// Its first node.
    pub node: usize,
    /// No other client of the history has the same.
    pub number: u64,
    /// Each has keys of its own.
    pub round: u64,
    /// So long it thinks before each request, so that long histories can be judged.
    pub pause: Duration,
}

/// The name of a key of a round.
pub fn key_of(round: u64, key: u64) -> String {
    format!("round-{round}-key-{key}")
}

impl Client<'_> {
    /// Asks until it is told to stop.
    pub fn run(mut self) {
        let patience = if self.habit == Habit::Roves { ROVES } else { STAYS };
        let (mut connection, mut asked, mut seen) = (None, 0, Value::Null);
        while !self.stop.load(Ordering::Relaxed) {
            let open = connection.take().or_else(|| self.connect(patience));
            let Some(mut open) = open else { continue };
            asked += 1;
            std::thread::sleep(self.pause);
            let draw = mix(self.number << 32 | asked);
            let key = key_of(self.round, draw % KEYS);
            let operation = self.operation(draw / KEYS, asked, &seen);
            if self.history.ask(&mut open, self.node, &key, operation) {
                connection = Some(open);
            } else if self.habit == Habit::Roves {
                self.node = (self.node + 1) % self.ports.len();
            }
            if let Some(Told { call: Call { answered: Some((_, value)), .. }, .. }) =
                self.history.told().iter().rev().find(|told| told.key == key)
            {
                seen = value.clone();
            }
        }
    }

    /// A new connection, if it is not told to stop meanwhile.
    fn connect(&mut self, patience: Duration) -> Option<Connection> {
        let mut connection = None;
        eventually("a node listens", || {
            connection = Connection::new(self.ports[self.node], patience).ok();
            if connection.is_none() && self.habit == Habit::Roves {
                self.node = (self.node + 1) % self.ports.len();
            }
            connection.is_some() || self.stop.load(Ordering::Relaxed)
        });
        connection
    }

    fn operation(&self, draw: u64, asked: u64, seen: &Value) -> Operation {
        // No two writes are of the same number, so that a read tells which of them it saw.
        let new = Value::from((self.number << 32 | asked) * 1000);
        match draw % 12 {
            _ if self.habit == Habit::Reads => Operation::Read,
            0..4 => Operation::Read,
            4..6 => Operation::Write(new),
            6 => Operation::Swap(new),
            7 => Operation::Swap(Value::Null),
            8 => Operation::CompareAndSwap(Value::Null, new),
            9 if seen.is_i64() => Operation::CompareAndSwap(seen.clone(), new),
            9 | 10 => Operation::Add(1),
            _ => Operation::Delete,
        }
    }
}
