//! Locks over a cluster in this process.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::files::locks::{Owner, Wanted};
use meridian_client::files::{Handle, OpenMode};
use meridian_client::{ClientError, Files};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Ino, Kind};
use meridian_fs::{FsError, Update};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };

/// A lock of the whole file.
fn whole(owner: u64) -> Wanted {
    Wanted { owner: Owner::process(owner), start: 0, end: u64::MAX, exclusive: true, pid: 1 }
}

/// A file that is open twice on one mount, and once on another.
struct World {
    cluster: Cluster,
    here: Arc<Files>,
    first: Handle,
    second: Handle,
    there: Arc<Files>,
    other: Handle,
}

async fn world() -> World {
    let cluster = Cluster::start(1, 0).await;
    let here = Files::new(cluster.client("us"));
    let there = Files::new(cluster.client("eu"));
    let node = NewNode::new(Kind::File, 0o644);
    let name = Bytes::from_static(b"f");
    let made = here.create_open(Ino::ROOT, &name, node, true, PLAIN).await.unwrap();
    let (ino, first) = (made.0.place.ino, made.1);
    let second = here.open(ino, PLAIN).await.unwrap();
    let other = there.open(ino, PLAIN).await.unwrap();
    World { cluster, here, first, second, there, other }
}

impl World {
    /// Whether the other mount gets the lock.
    async fn is_free(&self) -> bool {
        match self.there.lock(self.other, whole(1)).await {
            Ok(()) => true,
            Err(ClientError::Fs(FsError::WouldBlock)) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The kernel gives a new open file the name of one whose close is still being worked off.
#[tokio::test]
async fn a_lock_is_taken_after_its_owner_gave_back_what_it_held_before() {
    let world = world().await;
    let (here, first) = (world.here.clone(), world.first);
    here.lock(first, whole(7)).await.unwrap();
    world.cluster.shared.gated.store(true, Ordering::Relaxed);
    let closing = tokio::spawn(async move {
        here.unlock(first, Owner::process(7), 0, u64::MAX).await.unwrap();
        here.release(first).await;
    });
    world.cluster.at_gate(1).await;
    let (here, second) = (world.here.clone(), world.second);
    let locking = tokio::spawn(async move { here.lock(second, whole(7)).await });
    // Longer than a lock takes that need not wait.
    world.there.attributes(Ino::ROOT).await.unwrap();
    world.there.attributes(Ino::ROOT).await.unwrap();
    world.cluster.shared.gated.store(false, Ordering::Relaxed);
    world.cluster.shared.gate.add_permits(1);
    closing.await.unwrap();
    locking.await.unwrap().unwrap();
    assert!(!world.is_free().await, "it is held through the second open file");
    world.here.release(second).await;
    assert!(world.is_free().await);
}

#[tokio::test]
async fn a_close_gives_back_what_was_locked_through_it_and_no_more() {
    let world = world().await;
    world.here.lock(world.first, whole(7)).await.unwrap();
    world.here.lock(world.second, whole(7)).await.unwrap(); // The close of the first comes late.
    world.here.release(world.first).await;
    assert!(!world.is_free().await);
    world.here.release(world.second).await;
    assert!(world.is_free().await);
}

/// The close could not give back what its owner held, and the next open file has the owner's name:
/// it must not come by a range that it never asked for.
#[tokio::test]
async fn what_a_close_left_behind_is_given_back_before_its_owner_locks_again() {
    let world = world().await;
    let ino = world.here.inode_of(world.first).unwrap();
    let impatient = Files::new(world.cluster.impatient("ap", 200));
    let handle = impatient.open(ino, PLAIN).await.unwrap();
    impatient.lock(handle, Wanted { end: 9, ..whole(7) }).await.unwrap();
    world.cluster.shared.gated.store(true, Ordering::Relaxed);
    impatient.release(handle).await;
    world.cluster.shared.gated.store(false, Ordering::Relaxed); // What waits there waits for ever.
    let again = impatient.open(ino, PLAIN).await.unwrap();
    impatient.lock(again, Wanted { start: 100, ..whole(7) }).await.unwrap();
    world.there.lock(world.other, Wanted { end: 99, ..whole(1) }).await.unwrap();
    let beyond = Wanted { start: 100, ..whole(1) };
    let error = world.there.lock(world.other, beyond).await.unwrap_err();
    assert!(matches!(error, ClientError::Fs(FsError::WouldBlock)), "{error}");
}

/// The node that should give it back is away when the file is closed.
#[tokio::test]
async fn a_lock_that_could_not_be_given_back_is_given_back_later() {
    let mut world = world().await;
    let ino = world.here.inode_of(world.first).unwrap();
    let impatient = Files::new(world.cluster.impatient("ap", 200));
    let handle = impatient.open(ino, PLAIN).await.unwrap();
    impatient.lock(handle, whole(7)).await.unwrap();
    world.here = impatient;
    world.cluster.shared.gated.store(true, Ordering::Relaxed);
    world.here.release(handle).await;
    assert!(!world.is_free().await);
    world.cluster.shared.gated.store(false, Ordering::Relaxed);
    world.cluster.shared.gate.add_permits(100);
    while !world.is_free().await {
        tokio::task::yield_now().await;
    }
}

/// Ends never: nobody interrupts who waits.
fn never() -> std::future::Pending<()> {
    std::future::pending()
}

#[tokio::test]
async fn who_waits_has_the_lock_when_it_is_given_back_and_asks_nobody_meanwhile() {
    let world = world().await;
    world.there.lock(world.other, whole(1)).await.unwrap();
    let (here, first) = (world.here.clone(), world.first);
    let waiting = tokio::spawn(async move { here.lock_waiting(first, whole(7), never()).await });
    let waits = |update: &&Update| matches!(update, Update::Lock { ticket: Some(_), .. });
    while world.cluster.applied().iter().filter(waits).count() == 0 {
        tokio::task::yield_now().await;
    }
    let before = world.cluster.applied().len();
    world.there.unlock(world.other, Owner::process(1), 0, u64::MAX).await.unwrap();
    assert!(waiting.await.unwrap().unwrap());
    assert_eq!(world.cluster.applied().len(), before + 1, "only the other's unlock");
    assert!(!world.is_free().await);
}

#[tokio::test]
async fn who_waits_no_more_leaves_the_queue() {
    let world = world().await;
    world.there.lock(world.other, whole(1)).await.unwrap();
    // By a signal that its program handles, and by one that ends it.
    let signal = async { tokio::time::sleep(std::time::Duration::from_millis(50)).await };
    assert!(!world.here.lock_waiting(world.first, whole(7), signal).await.unwrap());
    let (here, second) = (world.here.clone(), world.second);
    let waiting = tokio::spawn(async move { here.lock_waiting(second, whole(8), never()).await });
    let waits = |update: &&Update| matches!(update, Update::Lock { ticket: Some(_), .. });
    while world.cluster.applied().iter().filter(waits).count() < 2 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    let left = |update: &&Update| matches!(update, Update::Leave { .. });
    while world.cluster.applied().iter().filter(left).count() < 2 {
        tokio::task::yield_now().await;
    }
    world.there.unlock(world.other, Owner::process(1), 0, u64::MAX).await.unwrap();
    assert!(world.is_free().await);
}

/// The lease of the first mount runs out, as the cluster sees it.
#[tokio::test]
async fn what_was_written_under_a_lost_lock_does_not_land() {
    let world = world().await;
    let (here, first, second) = (&world.here, world.first, world.second);
    here.lock(first, whole(7)).await.unwrap();
    here.write(first, 0, b"mine").await.unwrap();
    world.cluster.expire(here.client().id());
    world.there.lock(world.other, whole(1)).await.unwrap();
    world.there.write(world.other, 0, b"next").await.unwrap();
    world.there.sync(world.other).await.unwrap();
    let lost = |result: Result<(), ClientError>| {
        assert!(matches!(result, Err(ClientError::Fs(FsError::LockLost))), "{result:?}");
    };
    lost(here.sync(first).await);
    lost(here.write(first, 0, b"late").await);
    lost(here.lock(first, whole(7)).await);
    lost(here.unlock(first, Owner::process(7), 0, 9).await);
    lost(here.close(first).await);
    lost(here.close(second).await); // It is told once of what was dropped.
    here.write(second, 4, b"+").await.unwrap();
    here.sync(second).await.unwrap();
    here.release(first).await;
    let read = here.read(second, 0, 9).await.unwrap();
    assert_eq!(read, b"next+"[..]);
}

/// The answer to the next lock tells it, also if nothing was written.
#[tokio::test]
async fn a_lock_that_was_lost_is_not_taken_back_in_silence() {
    let world = world().await;
    let (here, first, second) = (&world.here, world.first, world.second);
    here.lock(first, Wanted { end: 9, ..whole(7) }).await.unwrap();
    world.cluster.expire(here.client().id());
    here.lock(second, Wanted { start: 50, ..whole(8) }).await.unwrap();
    let error = here.write(first, 0, b"late").await.unwrap_err();
    assert_eq!(error.errno(), 5);
    here.write(second, 50, b"mine").await.unwrap();
    here.sync(second).await.unwrap();
}

/// What was written is on its way for so long that the lock is given back before: that is no loss.
#[tokio::test]
async fn what_was_written_lands_after_its_lock_was_given_back_as_it_should() {
    let world = world().await;
    let ino = world.here.inode_of(world.first).unwrap();
    let impatient = Files::new(world.cluster.impatient("ap", 200));
    let handle = impatient.open(ino, PLAIN).await.unwrap();
    impatient.lock(handle, whole(7)).await.unwrap();
    impatient.write(handle, 0, b"mine").await.unwrap();
    *world.cluster.shared.gate_holds.lock().unwrap() =
        |update| matches!(update, Update::Write { .. });
    world.cluster.shared.gated.store(true, Ordering::Relaxed);
    let error = impatient.unlock(handle, Owner::process(7), 0, u64::MAX).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(world.is_free().await, "it is given back all the same");
    world.cluster.shared.gated.store(false, Ordering::Relaxed);
    world.cluster.shared.gate.add_permits(100);
    impatient.sync(handle).await.unwrap();
    assert_eq!(world.there.read(world.other, 0, 9).await.unwrap(), b"mine"[..]);
}
