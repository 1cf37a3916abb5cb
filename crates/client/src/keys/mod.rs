//! The client of keys: any node of a region is asked, another if it does not answer. Keys are
//! linearizable; a change is made once, however often it had to be asked.
//!
//! ```no_run
//! use meridian_client::keys::{Change, Keys, KeysOptions, Watched};
//!
//! # async fn example() -> Result<(), meridian_client::keys::KeysError> {
//! let keys = Keys::new(KeysOptions::new(["127.0.0.1:7400", "127.0.0.1:7401"]))?;
//! keys.set("color", "blue").await?;
//! assert_eq!(keys.get("color").await?.as_deref(), Some(&b"blue"[..]));
//! assert!(keys.cas("color", "blue", "green").await?);
//! assert_eq!(keys.add("visits", 1).await?, 1);
//! assert!(keys.remove("visits").await?);
//!
//! let mut scan = keys.scan("co*");
//! while let Some(page) = scan.next().await? {
//!     println!("{page:?}");
//! }
//!
//! let mut watch = keys.watch(Watched::prefix("co"));
//! loop {
//!     match watch.next().await? {
//!         Change::Began => println!("a node tells, first what there is"),
//!         Change::Set(key, value) => println!("{key:?} has {value:?}"),
//!         Change::Removed(key) => println!("{key:?} has nothing"),
//!         Change::Away { why } => println!("no node answers: {why}"),
//!     }
//! }
//! # }
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | `course` | whom a line asks, and when another: without sockets |
//! | `line` | one request after the other |
//! | `connection` | a connection with a node |
//! | `watch` | changes as they are committed |

mod connection;
mod course;
mod error;
mod line;
mod watch;

use crate::random::Random;
use bytes::Bytes;
use course::Kind;
pub use error::KeysError;
use line::{Line, Request};
use meridian_keys::resp::answer::Answered;
use meridian_transport::Security;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
pub use watch::{Change, Watch};

/// So many requests are under way at once at most; more wait.
const LINES_MAX: usize = 64;
/// So many keys are looked at for one page of a scan.
const PAGE: &[u8] = b"1000";

/// How a client of keys shall be.
#[derive(Clone, Debug)]
pub struct KeysOptions {
    /// Nodes of one region, as HOST:PORT. The first is asked as long as it answers.
    pub addresses: Vec<String>,
    /// How connections are secured, as the nodes have it.
    pub security: Security,
    /// After how long a call gives up.
    pub timeout: Duration,
}

impl KeysOptions {
    /// The nodes at these addresses, in plain text; calls give up after 10 s.
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> KeysOptions {
        let addresses = addresses.into_iter().map(Into::into).collect();
        let (security, timeout) = (Security::default(), Duration::from_secs(10));
        KeysOptions { addresses, security, timeout }
    }
}

/// Which keys are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// This one.
    Key(Bytes),
    /// All that begin so.
    Prefix(Bytes),
}

impl Watched {
    /// This one.
    pub fn key(key: impl AsRef<[u8]>) -> Watched {
        Watched::Key(Bytes::copy_from_slice(key.as_ref()))
    }

    /// All that begin so.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Watched {
        Watched::Prefix(Bytes::copy_from_slice(prefix.as_ref()))
    }
}

/// A client of keys; its copies are the same client.
#[derive(Clone, Debug)]
pub struct Keys {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: KeysOptions,
    random: Random,
    /// Lines that nobody uses now. One that was given up in the middle of a request is not among
    /// them: what it asked for may still happen.
    free: Mutex<VecDeque<Line>>,
    lines: Semaphore,
}

impl Keys {
    /// A client. Connections are opened when they are needed.
    ///
    /// # Errors
    /// If there is no address.
    pub fn new(options: KeysOptions) -> Result<Keys, KeysError> {
        if options.addresses.is_empty() {
            return Err(KeysError::Nobody);
        }
        let random = Random::new().map_err(|error| KeysError::Refused(error.to_string()))?;
        let (free, lines) = (Mutex::default(), Semaphore::new(LINES_MAX));
        Ok(Keys { inner: Arc::new(Inner { options, random, free, lines }) })
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// [`KeysError::Unreachable`] if no node answers in time.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, KeysError> {
        let key = key.as_ref();
        match self.ask(Kind::Read, key, &[b"GET", key]).await? {
            Answered::Bulk(value) => Ok(Some(value)),
            Answered::Null => Ok(None),
            other => Err(strange(&other)),
        }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// [`KeysError::Unreachable`] if no node answers in time, [`KeysError::Unknown`] if the change
    /// may have been made, or may still be.
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), KeysError> {
        let key = key.as_ref();
        self.ask(Kind::Change, key, &[b"SET", key, value.as_ref()]).await.map(drop)
    }

    /// The same; after `left` the key has nothing any more.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub async fn set_for(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        left: Duration,
    ) -> Result<(), KeysError> {
        let (key, left) = (key.as_ref(), left.as_millis().max(1).to_string());
        let words = [b"SET", key, value.as_ref(), b"PX", left.as_bytes()];
        self.ask(Kind::Change, key, &words).await.map(drop)
    }

    /// Gives a key the value `new` if it has the value `expected`; whether it had.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub async fn cas(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<bool, KeysError> {
        let key = key.as_ref();
        let words = [b"MERIDIAN.CAS", key, expected.as_ref(), new.as_ref()];
        self.count(key, &words).await.map(|count| count == 1)
    }

    /// Adds to the number that a key's value spells, 0 if it has none; what it is then.
    ///
    /// # Errors
    /// As [`Keys::set`]; [`KeysError::Refused`] if the value is no number.
    pub async fn add(&self, key: impl AsRef<[u8]>, amount: i64) -> Result<i64, KeysError> {
        let (key, amount) = (key.as_ref(), amount.to_string());
        self.count(key, &[b"INCRBY", key, amount.as_bytes()]).await
    }

    /// Removes a key; whether it had a value.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool, KeysError> {
        let key = key.as_ref();
        self.count(key, &[b"DEL", key]).await.map(|count| count == 1)
    }

    /// The keys that match a pattern, such as `user:*`.
    pub fn scan(&self, pattern: impl AsRef<[u8]>) -> Scan {
        let pattern = Bytes::copy_from_slice(pattern.as_ref());
        Scan { keys: self.clone(), pattern, line: None, cursor: Some(Bytes::from_static(b"0")) }
    }

    /// The values of keys, and each change from now on.
    pub fn watch(&self, watched: Watched) -> Watch {
        Watch::new(self.inner.clone(), watched, 0)
    }

    async fn count(&self, key: &[u8], words: &[&[u8]]) -> Result<i64, KeysError> {
        match self.ask(Kind::Change, key, words).await? {
            Answered::Integer(count) => Ok(count),
            other => Err(strange(&other)),
        }
    }

    async fn ask(&self, kind: Kind, key: &[u8], words: &[&[u8]]) -> Result<Answered, KeysError> {
        let Inner { options, lines, .. } = &*self.inner;
        let deadline = Instant::now() + options.timeout;
        let _held = lines.acquire().await.expect("it is never closed");
        let mut line = self.inner.line();
        let request = Request { words, key, kind };
        let answer = line.ask(options, &request, deadline).await;
        if line.is_free() {
            crate::client::lock(&self.inner.free).push_back(line);
        }
        answer
    }
}

impl Inner {
    fn line(&self) -> Line {
        let free = crate::client::lock(&self.free).pop_back();
        free.unwrap_or_else(|| Line::new(self.options.addresses.len(), 0, self.random.number()))
    }
}

fn strange(answer: &Answered) -> KeysError {
    KeysError::Protocol(format!("{answer:?}"))
}

/// The keys that match a pattern, in pages. A key that is there all the time is shown, and perhaps
/// twice if another node had to be asked in between; one that comes or goes meanwhile may be.
#[derive(Debug)]
pub struct Scan {
    keys: Keys,
    pattern: Bytes,
    line: Option<Line>,
    cursor: Option<Bytes>,
}

impl Scan {
    /// Some more; none at the end.
    ///
    /// # Errors
    /// As [`Keys::get`].
    pub async fn next(&mut self) -> Result<Option<Vec<Bytes>>, KeysError> {
        let Inner { options, .. } = &*self.keys.inner;
        let Some(cursor) = self.cursor.clone() else { return Ok(None) };
        let deadline = Instant::now() + options.timeout;
        let line = self.line.get_or_insert_with(|| self.keys.inner.line());
        let before = line.connections();
        let words = [b"SCAN", &cursor[..], b"MATCH", &self.pattern[..], b"COUNT", PAGE];
        let request = Request { words: &words, key: b"", kind: Kind::Read };
        let answer = line.ask(options, &request, deadline).await?;
        let Answered::Array(answer) = answer else { return Err(strange(&answer)) };
        let [Answered::Bulk(next), Answered::Array(found)] = &answer[..] else {
            return Err(KeysError::Protocol(format!("{answer:?}")));
        };
        // Another node has other places: it is walked through from the beginning.
        let moved = line.connections() != before && cursor != "0";
        let next = if moved { Bytes::from_static(b"0") } else { next.clone() };
        self.cursor = (moved || next != "0").then_some(next);
        let mut keys = Vec::new();
        for key in found {
            let Answered::Bulk(key) = key else { return Err(strange(key)) };
            keys.push(key.clone());
        }
        Ok(Some(keys))
    }
}
