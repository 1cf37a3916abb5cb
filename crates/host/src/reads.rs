//! Reads that wait at a replica until they can be answered.
//!
//! A read waits, first, until no message up to the timestamp that its client has seen can still
//! come; then, until those of them that touch the inode asked for are applied. What touches other
//! inodes may be undecided for as long as it likes.
//!
//! Nothing here is looked at without a reason: those of the first kind lie in the order of their
//! timestamps, those of the second under the keys that they need, and are looked at when a message
//! that touched one was decided. A message may also become later than the timestamp, or vanish in a
//! change of epochs, and a read may grow old: so a few are looked at from time to time.
//!
//! Invariants:
//! - W1: `by_key` holds exactly the blocked reads, under the keys of their queries.
//! - W2: `arrived` holds exactly the reads that wait.

use crate::replica::{ConnectionId, Waiter};
use meridian_core::{ClientId, Stamp, Time};
use meridian_fs::{Query, Rights};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A read, what its client has seen of the partition, and since when it waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub waiter: Waiter,
    /// Under which name its client holds capabilities.
    pub by: ClientId,
    pub query: Query,
    /// Whether entries of the directory that it shows are to come along, and of those below it.
    pub along: bool,
    /// What its client may do; none if that is all.
    pub rights: Option<Rights>,
    pub seen: Stamp,
    pub since: Time,
}

/// All that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reads {
    /// Numbers them.
    next: u64,
    by_ts: BTreeMap<(Stamp, u64), Read>,
    blocked: BTreeMap<u64, Read>,
    by_key: BTreeSet<(u64, u64)>,
    /// By number, in the order of their arrival, with what their clients have seen.
    arrived: BTreeMap<u64, Stamp>,
    /// Keys that blocked reads need and that messages touched that were decided since the last
    /// look.
    touched: BTreeSet<u64>,
    /// Up to which read was looked at without a reason.
    looked: u64,
}

impl Reads {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// One more.
    pub fn add(&mut self, read: Read) {
        self.next += 1;
        self.arrived.insert(self.next, read.seen);
        self.by_ts.insert((read.seen, self.next), read);
    }

    /// Nobody waits on that connection any more.
    pub fn close(&mut self, connection: ConnectionId) {
        let elsewhere = |read: &Read| read.waiter.connection != connection;
        self.by_ts.retain(|_, read| elsewhere(read));
        self.blocked.retain(|_, read| elsewhere(read));
        self.by_key.retain(|(_, number)| self.blocked.contains_key(number));
        let (by_ts, blocked) = (&self.by_ts, &self.blocked);
        self.arrived.retain(|number, seen| {
            blocked.contains_key(number) || by_ts.contains_key(&(*seen, *number))
        });
    }

    /// A message that touches these keys was decided.
    pub fn touch(&mut self, keys: &[u64]) {
        if self.blocked.is_empty() {
            return;
        }
        for key in keys {
            if self.under(*key).next().is_some() {
                self.touched.insert(*key);
            }
        }
    }

    fn under(&self, key: u64) -> impl Iterator<Item = u64> + '_ {
        self.by_key.range((key, 0)..=(key, u64::MAX)).map(|(_, number)| *number)
    }

    /// Takes out those that are ready, of those that may have become so. `passed` tells whether
    /// nothing can come any more up to a timestamp.
    pub fn take_ready(
        &mut self,
        passed: impl Fn(Stamp) -> bool,
        ready: impl Fn(&Read) -> bool,
    ) -> Vec<Read> {
        let mut all = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let under: Vec<_> = self.under(key).collect();
            self.take_of(under, &ready, &mut all);
        }
        while let Some(first) = self.by_ts.first_entry().filter(|first| passed(first.key().0)) {
            let ((_, number), read) = first.remove_entry();
            if ready(&read) {
                self.arrived.remove(&number);
                all.push(read);
            } else {
                self.by_key.extend(read.query.keys().into_iter().map(|key| (key, number)));
                self.blocked.insert(number, read);
            }
        }
        all
    }

    /// Takes out those that are ready of the next `count`, which have given no reason.
    pub fn take_ready_of_next(&mut self, count: usize, ready: impl Fn(&Read) -> bool) -> Vec<Read> {
        let next: Vec<_> =
            self.arrived.range(self.looked + 1..).map(|(number, _)| *number).take(count).collect();
        // From the front again, once all were looked at.
        self.looked = if next.len() < count { 0 } else { next.last().copied().unwrap_or(0) };
        let mut all = Vec::new();
        self.take_of(next, &ready, &mut all);
        all
    }

    /// Takes out those that have waited for longer than `limit`.
    pub fn take_old(&mut self, now: Time, limit: Duration) -> Vec<Read> {
        let mut all = Vec::new();
        while let Some(first) = self.arrived.first_key_value().map(|(number, _)| *number) {
            self.take_of(vec![first], &|read| now.since(read.since) > limit, &mut all);
            if self.arrived.contains_key(&first) {
                break; // Those after it have come later.
            }
        }
        all
    }

    fn take_of(&mut self, numbers: Vec<u64>, ready: &impl Fn(&Read) -> bool, out: &mut Vec<Read>) {
        for number in numbers {
            let Some(seen) = self.arrived.get(&number).copied() else { continue };
            let read = self.blocked.get(&number).or_else(|| self.by_ts.get(&(seen, number)));
            if !read.is_some_and(ready) {
                continue;
            }
            self.arrived.remove(&number);
            if let Some(read) = self.blocked.remove(&number) {
                for key in read.query.keys() {
                    self.by_key.remove(&(key, number));
                }
                out.push(read);
            } else {
                out.extend(self.by_ts.remove(&(seen, number)));
            }
        }
    }

    /// Panics unless W1 and W2 hold.
    pub fn check_invariants(&self) {
        let keys = |(number, read): (&u64, &Read)| {
            read.query.keys().into_iter().map(|key| (key, *number)).collect::<Vec<_>>()
        };
        let expected: BTreeSet<_> = self.blocked.iter().flat_map(keys).collect();
        assert_eq!(self.by_key, expected, "W1");
        let blocked = self.blocked.iter().map(|(number, read)| (*number, read.seen));
        let all: BTreeMap<_, _> =
            blocked.chain(self.by_ts.keys().map(|(seen, number)| (*number, *seen))).collect();
        assert_eq!(self.arrived, all, "W2");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::GroupId;
    use meridian_fs::{Ino, Place};
    use std::cell::Cell;

    fn read(request: u64, ino: u64, seen: u64) -> Read {
        let inode = Place { ino: Ino(ino), partition: GroupId(1) };
        let waiter = Waiter { connection: ConnectionId(request % 2), request };
        let since = Time(request * 1000);
        Read {
            waiter,
            by: ClientId(0),
            query: Query::Attributes { inode },
            along: false,
            rights: None,
            seen: Stamp(seen),
            since,
        }
    }

    fn numbers(reads: Vec<Read>) -> Vec<u64> {
        reads.into_iter().map(|read| read.waiter.request).collect()
    }

    #[test]
    fn only_what_may_be_ready_is_looked_at() {
        let mut reads = Reads::default();
        (1..=9).for_each(|n| reads.add(read(n, n, n * 10)));
        let looks = Cell::new(0);
        let ready = |wanted: u64| {
            let looks = &looks;
            move |read: &Read| {
                looks.set(looks.get() + 1);
                read.waiter.request == wanted
            }
        };
        assert_eq!(numbers(reads.take_ready(|ts| ts <= Stamp(50), ready(4))), [4]);
        assert_eq!(looks.replace(0), 5);
        reads.check_invariants();
        reads.touch(&[77, 9]);
        assert!(reads.take_ready(|ts| ts <= Stamp(50), ready(1)).is_empty());
        assert_eq!(looks.replace(0), 0, "nothing that they wait for has happened");
        reads.touch(&[2]);
        assert_eq!(numbers(reads.take_ready(|_| false, ready(2))), [2]);
        assert_eq!((looks.replace(0), reads.len()), (1, 7));
        reads.check_invariants();
    }

    #[test]
    fn all_are_looked_at_in_turn() {
        let mut reads = Reads::default();
        (1..=5).for_each(|n| reads.add(read(n, 1, 0)));
        assert!(reads.take_ready(|_| true, |_| false).is_empty());
        let seen = Cell::new(Vec::new());
        let note = |read: &Read| {
            let mut all = seen.take();
            all.push(read.waiter.request);
            seen.set(all);
            false
        };
        (0..3).for_each(|_| drop(reads.take_ready_of_next(2, note)));
        assert_eq!(seen.take(), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(reads.take_ready_of_next(2, |read| read.waiter.request == 2)), [2]);
        reads.close(ConnectionId(1));
        reads.check_invariants();
        assert_eq!(reads.len(), 1);
        assert_eq!(numbers(reads.take_ready_of_next(9, |_| true)), [4]);
    }

    #[test]
    fn who_waits_for_too_long_goes() {
        let mut reads = Reads::default();
        (1..=3).for_each(|n| reads.add(read(n, n, 40 - n * 10)));
        assert!(reads.take_ready(|ts| ts <= Stamp(15), |_| false).is_empty());
        let limit = Duration::from_nanos(900);
        assert!(reads.take_old(Time(1900), limit).is_empty());
        assert_eq!(numbers(reads.take_old(Time(2950), limit)), [1, 2]);
        reads.check_invariants();
        assert_eq!(numbers(reads.take_old(Time(9000), limit)), [3], "also one that is blocked");
        reads.check_invariants();
        assert_eq!(reads.len(), 0);
    }
}
