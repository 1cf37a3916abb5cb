//! How the threads of a node's keys hear each other: each has an inbox that the others fill.

use meridian_hermes::reliable;
use meridian_keys::desk::passing::Passed;
use meridian_keys::slots::Shard;
use meridian_keys::steward::{Report, Reported};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a shard is told.
pub(super) enum Said {
    /// By the desk of that shard.
    Desk(Shard, Passed),
    /// By the steward.
    Steward(reliable::Output),
}

/// What wakes a thread.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// What one thread is told. It arrives in order; all is bounded by what clients may have under way.
pub(super) struct Inbox<T> {
    said: Mutex<Vec<T>>,
    wake: OnceLock<Wake>,
}

impl<T> Default for Inbox<T> {
    fn default() -> Inbox<T> {
        Inbox { said: Mutex::default(), wake: OnceLock::new() }
    }
}

impl<T> Inbox<T> {
    /// This wakes its thread.
    pub fn open(&self, wake: Wake) {
        let _ = self.wake.set(wake); // A thread starts once.
    }

    /// Puts all that into it, in order.
    pub fn put(&self, all: impl IntoIterator<Item = T>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = said.is_empty();
        said.extend(all);
        let wakes = was_empty && !said.is_empty();
        drop(said);
        if wakes {
            self.wake();
        }
    }

    /// Its thread looks around, though nothing is said.
    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// What was said to its thread.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The inboxes of all threads.
pub(super) struct Exchange {
    shards: Vec<Inbox<Said>>,
    /// That of the thread with the membership.
    pub steward: Inbox<Reported>,
}

impl Exchange {
    pub fn new(shards: usize) -> Exchange {
        let shards = (0..shards).map(|_| Inbox::default()).collect();
        Exchange { shards, steward: Inbox::default() }
    }

    /// That of a shard's thread.
    pub fn shard(&self, shard: Shard) -> &Inbox<Said> {
        &self.shards[usize::from(shard.0)]
    }

    /// Those of all shards' threads.
    pub fn shards(&self) -> impl Iterator<Item = &Inbox<Said>> {
        self.shards.iter()
    }
}

/// What one thread has to say to the others when its batch ends, and what it is told.
pub(super) struct Post {
    me: Shard,
    exchange: Arc<Exchange>,
    outgoing: Vec<Vec<Said>>,
    reports: Vec<Reported>,
}

impl Post {
    /// Of the thread with that number.
    pub fn new(me: Shard, exchange: Arc<Exchange>) -> Post {
        let outgoing = exchange.shards().map(|_| Vec::new()).collect();
        Post { me, exchange, outgoing, reports: Vec::new() }
    }

    /// The desk of this thread says something to that of another.
    pub fn pass(&mut self, to: Shard, passed: Passed) {
        self.outgoing[usize::from(to.0)].push(Said::Desk(self.me, passed));
    }

    /// The replica of this thread reports to the steward.
    pub fn report(&mut self, report: Report) {
        self.reports.push(Reported(self.me, report));
    }

    /// The batch ends: the other threads hear what is for them.
    pub fn say(&mut self) {
        let ways = (0u8..).map(Shard).zip(&mut self.outgoing).filter(|(_, said)| !said.is_empty());
        for (to, said) in ways {
            self.exchange.shard(to).put(said.drain(..));
        }
        if !self.reports.is_empty() {
            self.exchange.steward.put(self.reports.drain(..));
        }
    }

    /// The other threads look around.
    pub fn wake(&self) {
        let me = usize::from(self.me.0);
        let others = self.exchange.shards().enumerate().filter(|(shard, _)| *shard != me);
        others.for_each(|(_, inbox)| inbox.wake());
    }

    /// What this thread is told.
    pub fn take(&self) -> Vec<Said> {
        self.exchange.shard(self.me).take()
    }

    /// This wakes the thread.
    pub fn open(&self, wake: Wake) {
        self.exchange.shard(self.me).open(wake);
    }
}
