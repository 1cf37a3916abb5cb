//! Who waits for locks, who gets them, and what is refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{World, top};
use meridian_core::{ClientId, GroupId, Stamp};
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::types::{Data, Extent, Lock, LockFamily, LockOwner};
use meridian_fs::{Done, FsError, Kind, Operation, Place, Stand, Standing, Under, Update};

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
}

impl Locks {
    fn new() -> Locks {
        let mut world = World::new(1);
        let file = world.create(top(1), "f", Kind::File).unwrap();
        let other = world.create(top(1), "o", Kind::File).unwrap();
        Locks { world, file, other }
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

    /// Ends the cycles that a primary sees.
    fn untangle(&mut self) -> usize {
        let mut count = 0;
        while let Some(cycle) = self.world.partitions[&US].tangle() {
            let update = Update::Untangle { partition: US, cycle };
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
    // A message that comes late names a cycle that is not there.
    let late = Update::Untangle { partition: US, cycle: vec![(file.ino, (Stamp(5), common_id()))] };
    assert_eq!(locks.world.submit(late), Ok(Done::Nothing));
}

fn common_id() -> meridian_core::MessageId {
    meridian_core::MessageId { client: common::ME, sequence: 5 }
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
