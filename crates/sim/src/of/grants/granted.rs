//! What versions of the configuration grant, and what requests need: said apart from the code that
//! is tried.

use crate::world::Random;
use bytes::Bytes;
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::BTreeSet;

/// All keys.
pub const KEYS: [&str; 7] = ["x:1", "x:12", "x:2", "y:1", "y:2", "z:1", "x"];
/// What may be granted: one within another, and one of which there is one key.
pub const PREFIXES: [&str; 4] = ["x:", "x:1", "y:", "z:"];

/// What a client may do with keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// All: it has no grant.
    All,
    /// What its grant says.
    Some {
        /// It may use the keys that begin so; without any it may do nothing.
        prefixes: BTreeSet<String>,
        /// It changes nothing.
        read_only: bool,
    },
}

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing of keys: it is about the connection, or walks through what the client may use.
    Any,
    /// It tells of the keys of all.
    All,
    /// These keys, or all that begin so.
    Keys {
        /// Which.
        keys: Vec<&'static str>,
        /// Whether it changes them.
        changes: bool,
    },
}

impl Granted {
    /// Whether the client may use the key, or all keys that begin so.
    pub fn has(&self, key: &[u8]) -> bool {
        match self {
            Granted::All => true,
            Granted::Some { prefixes, .. } => {
                prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
            }
        }
    }

    /// Whether the client may ask for what needs that.
    pub fn may(&self, need: &Need) -> bool {
        let (prefixes, read_only) = match self {
            Granted::All => return true,
            Granted::Some { prefixes, read_only } => (prefixes, *read_only),
        };
        match need {
            Need::Any => !prefixes.is_empty(),
            Need::All => false,
            Need::Keys { keys, changes } => {
                keys.iter().all(|key| self.has(key.as_bytes())) && !(*changes && read_only)
            }
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// As it is sent.
    pub line: String,
    /// What it needs.
    pub need: Need,
    /// What it writes, which nothing else does.
    pub values: Vec<Bytes>,
    /// Whether it is a walk, of which each key is to be granted.
    pub walks: bool,
}

impl Request {
    /// One of this connection.
    pub fn of_connection(line: String) -> Request {
        Request { line, need: Need::Any, values: Vec::new(), walks: false }
    }

    /// A look at some keys.
    pub fn reads(line: String, keys: Vec<&'static str>) -> Request {
        let need = Need::Keys { keys, changes: false };
        Request { line, need, values: Vec::new(), walks: false }
    }

    fn changes(line: String, keys: Vec<&'static str>, values: Vec<Bytes>) -> Request {
        let need = Need::Keys { keys, changes: true };
        Request { line, need, values, walks: false }
    }

    /// To be told of changes.
    pub fn watch(random: &mut Random) -> (Request, String) {
        let (form, watched) = match random.random() {
            true => ("key", *KEYS.choose(random).expect("some")),
            false => ("prefix", *PREFIXES.choose(random).expect("some")),
        };
        let line = format!("meridian.watch {form} {watched}");
        (Request::reads(line, vec![watched]), watched.into())
    }

    /// Any other. `number` is that of no request before, `cursor` where a walk goes on.
    pub fn draw(random: &mut Random, number: u64, cursor: u64) -> Request {
        let count = random.random_range(2..4);
        let keys: Vec<_> = KEYS.sample(random, count).copied().collect();
        let (key, value) = (keys[0], |at: usize| format!("v{number}.{at}"));
        let written = |count: usize| (0..count).map(|at| Bytes::from(value(at))).collect();
        let one = |line: &str| line.replace('K', key).replace('V', &value(0));
        let reads = ["get K", "exists K", "strlen K", "type K", "ttl K", "meridian.settled 0 1 K"];
        let sets = ["set K V", "set K V get", "getset K V", "setnx K V"];
        match random.random_range(0..16) {
            0..3 => Request::reads(one(reads.choose(random).expect("some")), vec![key]),
            3..6 => {
                let line = one(sets.choose(random).expect("some"));
                Request::changes(line, vec![key], written(1))
            }
            6 => Request::changes(one("getdel K"), vec![key], Vec::new()),
            7 => Request::changes(format!("del {}", keys.join(" ")), keys, Vec::new()),
            8..10 => Request::reads(format!("mget {}", keys.join(" ")), keys),
            10..12 => {
                let pair = |(at, key): (usize, &&str)| format!(" {key} {}", value(at));
                let pairs: String = keys.iter().enumerate().map(pair).collect();
                Request::changes(format!("mset{pairs}"), keys.clone(), written(keys.len()))
            }
            12 => {
                let line = one(&format!("meridian.once {number} set K V"));
                Request::changes(line, vec![key], written(1))
            }
            13 | 14 => {
                let line = format!("scan {cursor} count 3");
                Request { walks: true, ..Request::of_connection(line) }
            }
            _ => {
                let line = if random.random() { "dbsize" } else { "info" };
                Request { need: Need::All, ..Request::of_connection(line.into()) }
            }
        }
    }
}
