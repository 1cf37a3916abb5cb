//! Who waits for locks, who gets them, and what is refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{World, top};
use meridian_core::{ClientId, GroupId, Stamp};
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::types::{Data, Extent, Lock, LockFamily, LockOwner};
use meridian_fs::{
    Done, FsError, Kind, Operation, Place, Stand, Standing, Under, Update, cycle_of,
};

const US: GroupId = GroupId(1);

/// A lock of client `who` on bytes `start` to `end`.
fn lock(who: u64, start: u64, end: u64) -> Lock {
    let owner = LockOwner { client: ClientId(who), owner: who };
    Lock { owner, family: LockFamily::Posix, start, end, exclusive: true, pid: 9 }
}

fn ticket(lock: &Lock) -> u64 {
    lock.owner.owner * 100 + lock.start
}

fn shared(who: u64, start: u64, end: u64) -> Lock {
    Lock { exclusive: false, ..lock(who, start, end) }
}

struct Locks {
    world: World,
    file: Place,
    other: Place,
    /// In another partition.
    far: Place,
}

impl Locks {
    fn new() -> Locks {
        let mut world = World::new(2);
        let mut create = |group, name| world.create(top(group), name, Kind::File).unwrap();
        let (file, other, far) = (create(1, "f"), create(1, "o"), create(2, "f"));
        Locks { world, file, other, far }
    }

    fn submit(&mut self, update: Update) -> Stand {
        let result = self.world.submit(update);
        self.world.check();
        match result.unwrap() {
            Done::Lock(stand) => stand,
            other => panic!("{other:?}"),
        }
    }

    /// Waits, under a name that follows from the lock.
    fn wait(&mut self, inode: Place, lock: Lock) -> Standing {
        let ticket = Some(ticket(&lock));
        self.submit(Update::Lock { inode, lock, ticket }).lock
    }

    fn unlock(&mut self, inode: Place, lock: Lock) {
        let Lock { owner, family, start, end, .. } = lock;
        self.submit(Update::Unlock { inode, owner, family, start, end });
    }

    fn stands(&self, inode: Place, lock: Lock) -> Standing {
        let ticket = ticket(&lock);
        let query = meridian_fs::Query::Awaited { inode, lock, ticket };
        match self.world.read(&query).unwrap() {
            meridian_fs::Answer::Awaited(stand) => stand.lock,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the cycles that one sees who asks all partitions.
    fn untangle(&mut self) -> usize {
        let mut count = 0;
        while let Some(cycle) = cycle_of(&self.world.waits()) {
            let update = Update::Untangle { cycle };
            assert_eq!(self.world.submit(update), Ok(Done::Nothing));
            self.world.check();
            count += 1;
        }
        count
    }

    fn expire(&mut self, client: u64) {
        let client = ClientId(client);
        let partition = &self.world.partitions[&US];
        let renewed = partition.leases().find(|(of, _)| *of == client).unwrap().1;
        let inodes = partition.held_by(client).collect();
        self.world.submit(Update::Expire { client, partition: US, renewed, inodes }).unwrap();
        self.world.check();
    }

    /// Writes, as a client that believes in that tenure.
    fn write(&mut self, client: u64, since: Option<Stamp>) -> Result<Done, FsError> {
        let data = Data::Inline(Bytes::from_static(b"x"));
        let pieces = vec![Piece { offset: 0, extent: Extent { len: 1, data } }];
        let update = Update::Write { inode: self.file, at: WriteAt::Offset(0), pieces };
        let under = since.map(|since| Under { client: ClientId(client), since });
        let id = self.world.next_id();
        let operation = Operation { under, ..self.world.operation(update) };
        self.world.submit_as(id, operation)
    }
}

#[test]
fn who_waits_is_granted_the_lock_in_the_order_of_arrival() {
    let mut locks = Locks::new();
    let file = locks.file;
    assert_eq!(locks.wait(file, lock(1, 0, 9)), Standing::Held, "it is free");
    for who in 2..=4 {
        assert_eq!(locks.wait(file, lock(who, 0, 9)), Standing::Waits);
    }
    for who in 1..4 {
        assert_eq!(locks.stands(file, lock(who + 1, 0, 9)), Standing::Waits);
        locks.unlock(file, lock(who, 0, 9));
        assert_eq!(locks.stands(file, lock(who, 0, 9)), Standing::Gone);
        assert_eq!(locks.stands(file, lock(who + 1, 0, 9)), Standing::Held);
    }
    locks.unlock(file, lock(4, 0, 9));
    assert_eq!(locks.world.partitions[&US].leases().count(), 0);
}

#[test]
fn who_wants_all_does_not_wait_behind_those_who_come_later() {
    let mut locks = Locks::new();
    let file = locks.file;
    assert_eq!(locks.wait(file, shared(1, 0, 9)), Standing::Held);
    assert_eq!(locks.wait(file, lock(2, 0, 9)), Standing::Waits);
    assert_eq!(locks.wait(file, shared(3, 5, 5)), Standing::Waits, "2 came first");
    assert_eq!(locks.wait(file, shared(4, 90, 99)), Standing::Held, "nobody wants that");
    assert_eq!(locks.wait(file, shared(1, 5, 19)), Standing::Held, "it holds one already");
    locks.unlock(file, lock(1, 0, 99));
    assert_eq!(locks.stands(file, lock(2, 0, 9)), Standing::Held);
    assert_eq!(locks.stands(file, shared(3, 5, 5)), Standing::Waits);
    locks.unlock(file, lock(2, 0, 9));
    assert_eq!(locks.stands(file, shared(3, 5, 5)), Standing::Held);
}

#[test]
fn who_goes_leaves_the_queue() {
    let mut locks = Locks::new();
    let file = locks.file;
    locks.wait(file, lock(1, 0, 9));
    for who in 2..=4 {
        locks.wait(file, lock(who, 0, 9));
    }
    let leave = Update::Leave { inode: file, lock: lock(2, 0, 9), ticket: 200 };
    assert_eq!(locks.submit(leave).lock, Standing::Gone);
    locks.expire(3);
    assert_eq!(locks.stands(file, lock(3, 0, 9)), Standing::Gone);
    locks.expire(1);
    assert_eq!(locks.stands(file, lock(4, 0, 9)), Standing::Held, "the holder is gone");
    let leave = Update::Leave { inode: file, lock: lock(4, 0, 9), ticket: 400 };
    assert_eq!(locks.submit(leave).lock, Standing::Held, "it has it already");
}

#[test]
fn a_cycle_is_refused_to_who_closed_it() {
    let mut locks = Locks::new();
    let (file, other) = (locks.file, locks.other);
    locks.wait(file, lock(1, 0, 9));
    locks.wait(other, lock(2, 0, 9));
    assert_eq!(locks.wait(file, lock(2, 5, 5)), Standing::Waits);
    assert_eq!(locks.untangle(), 0);
    assert_eq!(locks.wait(other, lock(1, 9, 20)), Standing::Waits);
    assert_eq!(locks.untangle(), 1);
    assert_eq!(locks.stands(other, lock(1, 9, 20)), Standing::Deadlock);
    let leave = Update::Leave { inode: other, lock: lock(1, 9, 20), ticket: 109 };
    assert_eq!(locks.submit(leave).lock, Standing::Gone);
    locks.unlock(file, lock(1, 0, 9));
    assert_eq!(locks.stands(file, lock(2, 5, 5)), Standing::Held);
}

/// 1 waits in one partition for 2, which waits in another for 1.
#[test]
fn a_cycle_over_two_partitions_is_refused_to_who_closed_it() {
    let mut locks = Locks::new();
    let (here, there) = (locks.file, locks.far);
    locks.wait(here, lock(1, 0, 9));
    locks.wait(there, lock(2, 0, 9));
    assert_eq!(locks.wait(here, lock(2, 5, 5)), Standing::Waits);
    assert_eq!(locks.untangle(), 0);
    assert_eq!(locks.wait(there, lock(1, 0, 0)), Standing::Waits);
    assert_eq!(locks.untangle(), 1);
    assert_eq!(locks.stands(there, lock(1, 0, 0)), Standing::Deadlock);
    assert_eq!(locks.stands(here, lock(2, 5, 5)), Standing::Waits);
    let leave = Update::Leave { inode: there, lock: lock(1, 0, 0), ticket: 100 };
    assert_eq!(locks.submit(leave).lock, Standing::Gone);
    locks.unlock(here, lock(1, 0, 9));
    assert_eq!(locks.stands(here, lock(2, 5, 5)), Standing::Held);
}

/// What somebody saw in one partition first, and later in the other, was never there at one time;
/// and of what was there one has gone before the message comes.
#[test]
fn nobody_is_refused_for_a_cycle_that_is_not_there() {
    let mut locks = Locks::new();
    let (here, there) = (locks.file, locks.far);
    locks.wait(there, lock(1, 0, 9));
    locks.wait(there, lock(2, 0, 9));
    let before = locks.world.waits().pop().unwrap();
    locks.unlock(there, lock(1, 0, 9));
    assert_eq!(locks.stands(there, lock(2, 0, 9)), Standing::Held);
    locks.wait(here, lock(2, 0, 9));
    locks.wait(here, lock(1, 0, 9));
    let mut seen = locks.world.waits();
    assert_eq!(cycle_of(&seen), None);
    *seen.last_mut().unwrap() = before;
    let cycle = cycle_of(&seen).unwrap();
    assert_eq!(locks.world.submit(Update::Untangle { cycle }), Err(FsError::Stale));
    assert_eq!(locks.stands(here, lock(1, 0, 9)), Standing::Waits);

    locks.unlock(here, lock(2, 0, 9));
    locks.unlock(here, lock(1, 0, 9));
    locks.unlock(there, lock(2, 0, 9));
    locks.wait(here, lock(1, 0, 9));
    locks.wait(there, lock(2, 0, 9));
    locks.wait(here, lock(2, 0, 9));
    locks.wait(there, lock(1, 0, 9));
    let cycle = cycle_of(&locks.world.waits()).unwrap();
    let leave = Update::Leave { inode: here, lock: lock(2, 0, 9), ticket: 200 };
    assert_eq!(locks.submit(leave).lock, Standing::Gone);
    assert_eq!(locks.world.submit(Update::Untangle { cycle }), Err(FsError::Stale));
    assert_eq!(locks.stands(there, lock(1, 0, 9)), Standing::Waits);
}

#[test]
fn two_that_share_and_both_want_all_are_a_cycle() {
    let mut locks = Locks::new();
    let file = locks.file;
    locks.wait(file, shared(1, 0, 9));
    locks.wait(file, shared(2, 0, 9));
    assert_eq!(locks.wait(file, lock(1, 0, 9)), Standing::Waits);
    assert_eq!(locks.wait(file, lock(2, 0, 9)), Standing::Waits);
    assert_eq!(locks.untangle(), 1);
    assert_eq!(locks.stands(file, lock(2, 0, 9)), Standing::Deadlock);
    locks.unlock(file, lock(2, 0, 9));
    assert_eq!(locks.stands(file, lock(1, 0, 9)), Standing::Held);
}

/// 3 waits only as 2 came first, and 2 for 1, and 1 for 3: nothing but the order is in the way.
#[test]
fn who_waits_for_the_order_alone_passes_in_a_cycle() {
    let mut locks = Locks::new();
    let (file, other) = (locks.file, locks.other);
    locks.wait(file, shared(1, 0, 9));
    locks.wait(file, lock(2, 0, 9));
    locks.wait(other, lock(3, 0, 9));
    assert_eq!(locks.wait(file, shared(3, 0, 9)), Standing::Waits);
    assert_eq!(locks.wait(other, lock(1, 0, 9)), Standing::Waits);
    assert_eq!(locks.untangle(), 1);
    assert_eq!(locks.stands(file, shared(3, 0, 9)), Standing::Held);
    assert_eq!(locks.stands(other, lock(1, 0, 9)), Standing::Waits);
    locks.unlock(other, lock(3, 0, 9));
    assert_eq!(locks.stands(other, lock(1, 0, 9)), Standing::Held);
}

/// As on Linux: who wants another lock of `flock` gives up that which it has.
#[test]
fn two_open_files_that_share_and_both_want_all_get_it_one_after_the_other() {
    let mut locks = Locks::new();
    let file = locks.file;
    let flock =
        |who, exclusive| Lock { exclusive, family: LockFamily::Flock, ..lock(who, 0, u64::MAX) };
    locks.wait(file, flock(1, false));
    locks.wait(file, flock(2, false));
    assert_eq!(locks.wait(file, flock(1, true)), Standing::Waits);
    assert_eq!(locks.wait(file, flock(2, true)), Standing::Waits);
    assert_eq!(locks.stands(file, flock(1, true)), Standing::Held);
    locks.unlock(file, flock(1, true));
    assert_eq!(locks.stands(file, flock(2, true)), Standing::Held);
}

#[test]
fn what_was_written_under_a_lost_lock_does_not_count() {
    let mut locks = Locks::new();
    let take = Update::Lock { inode: locks.file, lock: lock(1, 0, 9), ticket: None };
    let first = locks.submit(take.clone());
    assert_eq!(first.before, None);
    locks.write(1, first.since).unwrap();
    locks.write(1, None).unwrap();
    locks.expire(1);
    assert_eq!(locks.write(1, first.since), Err(FsError::LockLost));
    let second = locks.submit(take);
    assert_eq!(second.before, None, "it had none any more");
    assert_eq!(locks.write(1, first.since), Err(FsError::LockLost), "that is another");
    locks.write(1, second.since).unwrap();
}

#[test]
fn a_tenure_lasts_as_long_as_anything_is_held() {
    let mut locks = Locks::new();
    let file = locks.file;
    let take = |start| Update::Lock { inode: file, lock: lock(1, start, start), ticket: None };
    let first = locks.submit(take(1)).since;
    assert_eq!(locks.submit(take(5)).since, first);
    locks.unlock(file, lock(1, 1, 1));
    locks.write(1, first).unwrap();
    locks.unlock(file, lock(1, 0, 9));
    assert_eq!(locks.write(1, first), Err(FsError::LockLost));
}
