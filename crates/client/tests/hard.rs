//! Files when something goes wrong meanwhile.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::locks::{Owner, Wanted};
use meridian_client::files::write::Wrote;
use meridian_client::files::{Handle, OpenMode};
use meridian_fs::operation::{Changes, NewNode};
use meridian_fs::types::{Ino, Kind, Name};
use meridian_fs::{FsError, Update};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };
const APPEND: OpenMode = OpenMode { write: true, append: true, noatime: false, sync: false };

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn create(files: &Arc<Files>, parent: Ino, text: &str) -> (Ino, Handle) {
    let (kind, target) = (Kind::File, Bytes::new());
    let node = NewNode { target, ..NewNode::new(kind, 0o644) };
    let made = files.create_open(parent, &name(text), node, true, PLAIN).await;
    let (attributes, handle) = made.unwrap();
    (attributes.place.ino, handle)
}

async fn top(files: &Files, region: &str) -> Ino {
    files.lookup(Ino::ROOT, &name(region)).await.unwrap().place.ino
}

async fn write(files: &Arc<Files>, handle: Handle, offset: u64, data: &[u8]) {
    if files.write_now(handle, offset, data).unwrap() == Wrote::MustWait {
        files.write(handle, offset, data).await.unwrap();
    }
}

/// What another mount reads of it.
async fn elsewhere(cluster: &Cluster, path: &str) -> Vec<u8> {
    let files = Files::new(cluster.client("us"));
    let attributes = files.resolve(path).await.unwrap();
    let handle = files.open(attributes.place.ino, PLAIN).await.unwrap();
    files.read(handle, 0, attributes.size as usize + 1).await.unwrap()
}

fn cut(size: u64) -> Changes {
    Changes { size: Some(size), ..Changes::default() }
}

/// One name of two goes, and nobody can tell just then whether it was the last.
#[tokio::test]
async fn a_file_that_may_have_another_name_is_stored_by_close() {
    for closes in [true, false] {
        let cluster = Cluster::start(1, 0).await;
        let files = Files::new(cluster.impatient("us", 300));
        let us = top(&files, "us").await;
        let (ino, handle) = create(&files, us, "a").await;
        files.link(ino, us, &name("b")).await.unwrap();
        write(&files, handle, 0, b"data").await;
        cluster.shared.hides_attributes.store(true, Ordering::Relaxed);
        files.unlink(us, &name("a")).await.unwrap();
        cluster.shared.hides_attributes.store(false, Ordering::Relaxed);
        if closes {
            files.close(handle).await.unwrap();
            assert_eq!(elsewhere(&cluster, "/us/b").await, b"data");
        }
        files.release(handle).await;
        assert_eq!(elsewhere(&cluster, "/us/b").await, b"data");
        let forgets = cluster.applied().into_iter();
        assert_eq!(forgets.filter(|one| matches!(one, Update::Forget { .. })).count(), 1);
    }
}

#[tokio::test]
async fn a_file_whose_append_timed_out_can_be_looked_at() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 300));
    let us = top(&files, "us").await;
    let (ino, _) = create(&files, us, "log").await;
    let handle = files.open(ino, APPEND).await.unwrap();
    write(&files, handle, 0, b"one\n").await;
    cluster.shared.gated.store(true, Ordering::Relaxed);
    assert_eq!(files.sync(handle).await.unwrap_err().errno(), 110);
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(100);
    assert_eq!(files.attributes(ino).await.unwrap().size, 4);
    assert_eq!(cluster.writes(), 1);
}

#[tokio::test]
async fn a_file_whose_append_was_refused_can_be_looked_at() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, plain) = create(&files, us, "log").await;
    let handle = files.open(ino, APPEND).await.unwrap();
    write(&files, handle, 0, b"one\n").await;
    cluster.refuse_writes(Some(FsError::NoSpace));
    assert_eq!(files.sync(handle).await.unwrap_err().errno(), 28);
    assert_eq!(files.attributes(ino).await.unwrap().size, 4);
    assert_eq!(files.write_now(plain, 0, b"").unwrap_err().errno(), 28);
    write(&files, handle, 0, b"two\n").await;
    assert_eq!(files.attributes(ino).await.unwrap().size, 8);
    cluster.refuse_writes(None);
    assert_eq!(files.read(handle, 0, 9).await.unwrap(), b"one\ntwo\n");
}

/// A program that tries again and again fills no disk: the blocks of what was refused go.
#[tokio::test]
async fn blocks_of_refused_writes_are_discarded() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, &[1; 100_000]).await;
    cluster.refuse_writes(Some(FsError::OverQuota));
    for _ in 0..5 {
        assert_eq!(files.sync(handle).await.unwrap_err().errno(), 122);
    }
    cluster.discarded(5).await;
    assert_eq!(cluster.blocks().len(), 0);
    cluster.refuse_writes(None);
    files.sync(handle).await.unwrap();
    assert_eq!((cluster.blocks().len(), elsewhere(&cluster, "/us/f").await.len()), (1, 100_000));
}

/// An update without an answer may yet happen: its blocks stay, and it is sent with the same.
#[tokio::test]
async fn blocks_of_writes_without_an_answer_stay() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 300));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, &[1; 100_000]).await;
    cluster.shared.gated.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(files.sync(handle).await.unwrap_err().errno(), 110);
    }
    assert_eq!(cluster.blocks().len(), 1);
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(100);
    files.sync(handle).await.unwrap();
    assert_eq!((cluster.blocks().len(), elsewhere(&cluster, "/us/f").await.len()), (1, 100_000));
}

#[tokio::test]
async fn a_file_that_finds_no_room_can_be_cut_to_nothing() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 500));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, &[1; 100_000]).await;
    cluster.shared.is_full.store(true, Ordering::Relaxed);
    assert_eq!(files.sync(handle).await.unwrap_err().errno(), 28);
    assert_eq!(files.set_attributes(ino, cut(50_000)).await.unwrap_err().errno(), 28);
    assert_eq!(files.attributes(ino).await.unwrap().size, 100_000, "nothing is dropped");
    assert_eq!(files.set_attributes(ino, cut(0)).await.unwrap().size, 0);
    assert_eq!(files.attributes(ino).await.unwrap().size, 0);
    write(&files, handle, 0, b"new").await;
    files.close(handle).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"new");
}

#[tokio::test]
async fn what_is_written_while_a_file_is_extended_is_not_cut_off() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"x").await;
    cluster.shared.gated.store(true, Ordering::Relaxed);
    let extend = {
        let files = files.clone();
        tokio::spawn(async move { files.extend(handle, 10).await })
    };
    cluster.at_gate(1).await;
    write(&files, handle, 15, b"y").await;
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(1);
    extend.await.unwrap().unwrap();
    files.close(handle).await.unwrap();
    let mut wanted = [0; 16];
    (wanted[0], wanted[15]) = (b'x', b'y');
    assert_eq!(elsewhere(&cluster, "/us/f").await, wanted);
}

#[tokio::test]
async fn a_region_out_of_reach_lets_no_lease_in_another_run_out() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (us, eu) = (top(&files, "us").await, top(&files, "eu").await);
    let (_, locked) = create(&files, us, "locked").await;
    let wanted =
        Wanted { owner: Owner::process(1), start: 0, end: u64::MAX, exclusive: true, pid: 1 };
    files.lock(locked, wanted).await.unwrap();
    let (_, dirty) = create(&files, eu, "dirty").await;
    write(&files, dirty, 0, b"data").await;
    cluster.set_down(1, true);
    let renewed = async {
        while !cluster.applied().iter().any(|one| matches!(one, Update::Renew { .. })) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The lease is 30 s long, as is the wait for the region.
    tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
}

/// Known fault 1: a cut times out and is repeated with success; then what was written is cut by the
/// first one.
#[tokio::test]
async fn an_update_that_timed_out_takes_no_effect_after_a_later_one() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 300));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    cluster.shared.holds_changes.store(true, Ordering::Relaxed);
    assert_eq!(files.set_attributes(ino, cut(0)).await.unwrap_err().errno(), 110);
    cluster.shared.holds_changes.store(false, Ordering::Relaxed);
    files.set_attributes(ino, cut(0)).await.unwrap();
    write(&files, handle, 0, b"new").await;
    files.close(handle).await.unwrap();
    cluster.release_changes().await;
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"new");
}
