//! The locks of one inode: `fcntl`'s ranges and `flock`'s whole files; who waits for one is in
//! [`crate::waits`].
//!
//! Invariants:
//! - L1: the ranges of one owner do not overlap, and touching ones differ in being exclusive.
//! - L2: an exclusive lock overlaps no lock of another owner of its family.
//! - L5: a client has a tenure exactly as long as it holds a lock or waits for one.

use crate::FsError;
use crate::types::{Lock, LockFamily, LockOwner, Rank};
use crate::waits::Waiter;
use imbl::OrdMap;
use meridian_core::{ClientId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Bound;

/// The locks of one inode.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Locks {
    /// By family, owner and first byte.
    pub(crate) held: OrdMap<(LockFamily, LockOwner, u64), Lock>,
    /// Who waits, in the order of arrival.
    pub(crate) waiting: OrdMap<Rank, Waiter>,
    /// Since which message clients have held or waited for locks without a break.
    pub(crate) tenures: OrdMap<ClientId, Stamp>,
}

impl Locks {
    /// A lock of another that `wanted` conflicts with. Those of its own owner are passed over
    /// without a look: one owner may hold many.
    pub fn in_the_way(&self, wanted: &Lock) -> Option<Lock> {
        let wanted = normal(wanted);
        let first = (wanted.family, wanted.owner, 0);
        let last = (wanted.family, wanted.owner, u64::MAX);
        let conflicts = |held: &&Lock| conflict(held, &wanted);
        let before = self.held.range(..first);
        let after = self.held.range((Bound::Excluded(last), Bound::Unbounded));
        before.chain(after).map(|(_, lock)| lock).find(conflicts).copied()
    }

    /// What this would be with `wanted` taken.
    pub fn with(&self, wanted: &Lock) -> Result<Locks, FsError> {
        if wanted.start > wanted.end {
            return Err(FsError::Invalid);
        }
        if self.in_the_way(wanted).is_some() {
            return Err(FsError::WouldBlock);
        }
        let mut lock = normal(wanted);
        let mut after = self.without(lock.owner, lock.family, lock.start, lock.end)?;
        let key = |start| (lock.family, lock.owner, start);
        // Touching locks of the same sort are one.
        let before = (lock.start > 0)
            .then(|| after.held.range(key(0)..key(lock.start)).next_back())
            .flatten()
            .map(|(_, before)| *before);
        if let Some(before) = before
            && before.end.checked_add(1) == Some(lock.start)
            && before.exclusive == lock.exclusive
        {
            after.held.remove(&key(before.start));
            lock.start = before.start;
        }
        let next = lock.end.checked_add(1).and_then(|start| after.held.get(&key(start)).copied());
        if let Some(next) = next
            && next.exclusive == lock.exclusive
        {
            after.held.remove(&key(next.start));
            lock.end = next.end;
        }
        after.held.insert((lock.family, lock.owner, lock.start), lock);
        Ok(after)
    }

    /// What this would be without what `owner` holds from `start` to `end`.
    pub fn without(
        &self,
        owner: LockOwner,
        family: LockFamily,
        start: u64,
        end: u64,
    ) -> Result<Locks, FsError> {
        if start > end {
            return Err(FsError::Invalid);
        }
        let (start, end) = match family {
            LockFamily::Posix => (start, end),
            LockFamily::Flock | LockFamily::Pages => (0, u64::MAX),
        };
        let mut after = self.clone();
        // Locks of one owner do not overlap: of those that start before, only the last can reach
        // in.
        let key = |start| (family, owner, start);
        let before = self.held.range(key(0)..key(start)).next_back();
        let within = self.held.range(key(start)..=key(end));
        let overlapping: Vec<Lock> = before
            .into_iter()
            .chain(within)
            .map(|(_, lock)| *lock)
            .filter(|lock| lock.end >= start)
            .collect();
        for lock in overlapping {
            after.held.remove(&(family, owner, lock.start));
            if lock.start < start {
                let head = Lock { end: start - 1, ..lock };
                after.held.insert((family, owner, head.start), head);
            }
            if lock.end > end {
                let tail = Lock { start: end + 1, ..lock };
                after.held.insert((family, owner, tail.start), tail);
            }
        }
        Ok(after)
    }

    /// Drops all that `client` holds and waits for.
    pub fn drop_client(&mut self, client: ClientId) {
        let of_client: Vec<_> = self.of(client).collect();
        for key in &of_client {
            self.held.remove(key);
        }
        self.waiting = self
            .waiting
            .iter()
            .filter(|(_, of)| of.lock.owner.client != client)
            .map(|(rank, of)| (*rank, *of))
            .collect();
        self.tenures.remove(&client);
    }

    /// Whether `client` holds any, or waits for one.
    pub fn holds(&self, client: ClientId) -> bool {
        self.tenures.contains_key(&client)
    }

    /// How many there are; who waits counts for what its lock may split another into.
    pub fn len(&self) -> usize {
        self.held.len() + 2 * self.waiting.len()
    }

    fn of(&self, client: ClientId) -> impl Iterator<Item = (LockFamily, LockOwner, u64)> + '_ {
        let owner = move |owner| LockOwner { client, owner };
        let families = [LockFamily::Posix, LockFamily::Flock, LockFamily::Pages];
        families.into_iter().flat_map(move |family| {
            let all = (family, owner(0), 0)..=(family, owner(u64::MAX), u64::MAX);
            self.held.range(all).map(|(key, _)| *key)
        })
    }

    /// What the owner holds of a family, from the one in which `start` may lie on.
    pub(crate) fn held_by(
        &self,
        family: LockFamily,
        owner: LockOwner,
        start: u64,
    ) -> impl Iterator<Item = &Lock> {
        let key = |start| (family, owner, start);
        let before = self.held.range(key(0)..key(start)).next_back();
        let after = self.held.range(key(start)..=key(u64::MAX));
        before.into_iter().chain(after).map(|(_, lock)| lock)
    }

    /// The client's tenure begins at `ts` unless it has one, or ends if it has nothing left.
    pub fn keep_tenure(&mut self, client: ClientId, ts: Stamp) {
        let waits = self.waiting.values().any(|waiter| waiter.lock.owner.client == client);
        if waits || self.of(client).next().is_some() {
            self.tenures.entry(client).or_insert(ts);
        } else {
            self.tenures.remove(&client);
        }
    }

    /// Who holds locks, or waits for one.
    pub fn holders(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.tenures.keys().copied()
    }

    /// Whether nobody holds any.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Panics unless L1, L2 and L5 hold.
    pub fn check_invariants(&self) {
        let mut before: Option<&Lock> = None;
        for ((family, owner, start), lock) in &self.held {
            assert_eq!((*family, *owner, *start), (lock.family, lock.owner, lock.start), "L1");
            assert!(lock.start <= lock.end, "L1: {lock:?}");
            if let Some(before) = before
                && (before.family, before.owner) == (lock.family, lock.owner)
            {
                assert!(before.end < lock.start, "L1: {before:?} and {lock:?}");
                let touch = before.end + 1 == lock.start;
                assert!(!touch || before.exclusive != lock.exclusive, "L1: {before:?}, {lock:?}");
            }
            assert_eq!(self.in_the_way(lock), None, "L2: {lock:?}");
            before = Some(lock);
        }
        let waits = self.waiting.values().map(|waiter| waiter.lock.owner.client);
        let held = self.held.values().map(|lock| lock.owner.client);
        let all: BTreeSet<_> = held.chain(waits).collect();
        assert!(all.iter().eq(self.tenures.keys()), "L5: {all:?}, {:?}", self.tenures);
    }
}

/// Whether two locks of different owners exclude each other.
pub(crate) fn conflict(one: &Lock, other: &Lock) -> bool {
    one.family == other.family
        && (one.exclusive || other.exclusive)
        && one.start <= other.end
        && other.start <= one.end
}

/// All locks but those of `fcntl` are on the whole file, whatever the range says.
pub(crate) fn normal(lock: &Lock) -> Lock {
    match lock.family {
        LockFamily::Posix => *lock,
        LockFamily::Flock | LockFamily::Pages => Lock { start: 0, end: u64::MAX, ..*lock },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    const END: u64 = 40;

    fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        let owner = LockOwner { client: ClientId(owner / 2), owner };
        Lock { owner, family: LockFamily::Posix, start, end, exclusive, pid: 0 }
    }

    fn ranges(locks: &Locks) -> Vec<(u64, u64, u64, bool)> {
        let one = |lock: &Lock| (lock.owner.owner, lock.start, lock.end, lock.exclusive);
        locks.held.values().map(one).collect()
    }

    #[test]
    fn ranges_of_one_owner_are_split_merged_and_converted() {
        let locks = Locks::default().with(&lock(1, 0, 9, true)).unwrap();
        let locks = locks.with(&lock(1, 10, 19, true)).unwrap();
        assert_eq!(ranges(&locks), [(1, 0, 19, true)]);
        let locks = locks.with(&lock(1, 5, 9, false)).unwrap();
        assert_eq!(ranges(&locks), [(1, 0, 4, true), (1, 5, 9, false), (1, 10, 19, true)]);
        let locks = locks.with(&lock(2, 6, 7, false)).unwrap();
        assert_eq!(locks.with(&lock(2, 6, 10, false)), Err(FsError::WouldBlock));
        assert_eq!(locks.with(&lock(1, 0, u64::MAX, true)), Err(FsError::WouldBlock));
        let locks =
            locks.without(lock(1, 0, 0, true).owner, LockFamily::Posix, 3, u64::MAX).unwrap();
        assert_eq!(ranges(&locks), [(1, 0, 2, true), (2, 6, 7, false)]);
        assert_eq!(locks.with(&lock(1, 5, 4, true)), Err(FsError::Invalid));
    }

    #[test]
    fn the_families_do_not_see_each_other() {
        let flock = |owner| Lock { family: LockFamily::Flock, ..lock(owner, 5, 6, true) };
        let pages = |owner| Lock { family: LockFamily::Pages, ..lock(owner, 5, 6, true) };
        let locks = Locks::default().with(&flock(1)).unwrap();
        assert_eq!(locks.with(&flock(2)), Err(FsError::WouldBlock), "flock is on the whole file");
        let locks = locks.with(&lock(2, 0, u64::MAX, true)).unwrap();
        assert_eq!(locks.len(), 2);
        let locks = locks.with(&pages(3)).unwrap();
        assert_eq!(locks.with(&pages(1)), Err(FsError::WouldBlock));
        let mut without = locks.clone();
        without.drop_client(ClientId(1));
        assert!(!without.holds(ClientId(1)) && without.len() == 1, "{without:?}");
        let locks = locks.without(pages(3).owner, LockFamily::Pages, 7, 7).unwrap();
        let shared = Lock { exclusive: false, ..flock(1) };
        let locks = locks.with(&shared).unwrap().with(&Lock { exclusive: false, ..flock(2) });
        assert_eq!(locks.unwrap().of(ClientId(0)).count(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 300,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        /// The model: who holds each byte, and how.
        #[test]
        fn locks_are_those_of_each_byte(
            steps in proptest::collection::vec((0..4u64, 0..END, 0..END, 0..3u8), 1..60)
        ) {
            let mut locks = Locks::default();
            let mut model = vec![[None; 4]; usize::try_from(END).unwrap()];
            for (owner, a, b, what) in steps {
                let lock = lock(owner, a.min(b), a.max(b), what == 0);
                let [start, end] = [lock.start, lock.end].map(|at| usize::try_from(at).unwrap());
                let bytes = start..=end;
                let own = usize::try_from(owner).unwrap();
                if what == 2 {
                    locks = locks.without(lock.owner, lock.family, lock.start, lock.end).unwrap();
                    model[bytes].iter_mut().for_each(|byte| byte[own] = None);
                } else {
                    let stands = |byte: &[Option<bool>; 4]| (0..4).any(|other| {
                        other != own && byte[other].is_some_and(|held| held || lock.exclusive)
                    });
                    let blocked = model[bytes.clone()].iter().any(stands);
                    match locks.with(&lock) {
                        Ok(after) => {
                            prop_assert!(!blocked);
                            locks = after;
                            let held = Some(lock.exclusive);
                            model[bytes].iter_mut().for_each(|byte| byte[own] = held);
                        }
                        Err(error) => {
                            prop_assert_eq!(error, FsError::WouldBlock);
                            prop_assert!(blocked);
                        }
                    }
                }
                locks.keep_tenure(lock.owner.client, Stamp(1));
                locks.check_invariants();
                for (at, byte) in model.iter().enumerate() {
                    for (owner, held) in byte.iter().enumerate() {
                        let covers = |lock: &&Lock| {
                            lock.owner.owner == owner as u64
                                && (lock.start..=lock.end).contains(&(at as u64))
                        };
                        let found = locks.held.values().find(covers).map(|lock| lock.exclusive);
                        prop_assert_eq!(found, *held);
                    }
                }
            }
        }
    }
}
