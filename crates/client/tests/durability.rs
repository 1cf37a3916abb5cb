//! Directories and files that say when what is done there is durable.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::files::durability::DURABILITY;
use meridian_client::files::write::Wrote;
use meridian_client::files::{Handle, OpenMode};
use meridian_client::{ClientError, ClientOptions, Durability, Files};
use meridian_core::level::Level;
use meridian_fs::operation::{NewNode, XattrMode};
use meridian_fs::types::{Ino, Kind, Name};
use meridian_fs::{FsError, Update};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A directory in `us` with that mode.
async fn directory(files: &Files, text: &str, own: Option<Durability>) -> Ino {
    let us = files.lookup(Ino::ROOT, &name("us")).await.unwrap().place.ino;
    let node = NewNode::new(Kind::Directory, 0o755);
    let made = files.create(us, &name(text), node).await.unwrap().place.ino;
    files.set_durability(made, own).await.unwrap();
    made
}

async fn create(files: &Arc<Files>, parent: Ino, text: &str) -> (Ino, Handle) {
    let node = NewNode::new(Kind::File, 0o644);
    let made = files.create_open(parent, &name(text), node, true, PLAIN).await;
    let (attributes, handle) = made.unwrap();
    (attributes.place.ino, handle)
}

/// Whether a write through that handle waits until it is stored; it is written.
async fn waits(files: &Arc<Files>, handle: Handle, cluster: &Cluster) -> bool {
    let before = cluster.writes();
    if files.write_now(handle, 0, b"text").unwrap() == Wrote::Done {
        assert_eq!(cluster.writes(), before, "it is kept back");
        files.sync(handle).await.unwrap();
        return false;
    }
    files.write(handle, 0, b"text").await.unwrap();
    assert_eq!(cluster.writes(), before + 1, "it is stored when the call returns");
    true
}

#[tokio::test]
async fn writes_in_a_synchronous_directory_are_durable_when_they_return() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    for (text, own, is_sync) in [
        ("sync", Some(Durability::Sync), true),
        ("close", Some(Durability::Close), false),
        ("fsync", Some(Durability::Fsync), false),
        ("none", None, false),
    ] {
        let parent = directory(&files, text, own).await;
        let (ino, handle) = create(&files, parent, "f").await;
        assert_eq!(waits(&files, handle, &cluster).await, is_sync, "{text}: made");
        let there = Files::new(cluster.client("eu"));
        let other = there.open(ino, PLAIN).await.unwrap();
        assert_eq!(waits(&there, other, &cluster).await, is_sync, "{text}: opened by another");
    }
}

#[tokio::test]
async fn a_directory_goes_before_its_mount() {
    let cluster = Cluster::start(1, 0).await;
    let options = ClientOptions { durability: Durability::Sync, ..ClientOptions::new("us") };
    let files = Files::new(cluster.client_with(options));
    let own = directory(&files, "own", Some(Durability::Close)).await;
    let none = directory(&files, "none", None).await;
    let (_, handle) = create(&files, own, "f").await;
    assert!(!waits(&files, handle, &cluster).await, "its directory says so");
    let (_, handle) = create(&files, none, "f").await;
    assert!(waits(&files, handle, &cluster).await, "its mount says so");
}

/// The kernel has just looked the file up: nobody is asked once more.
#[tokio::test]
async fn who_has_seen_a_file_opens_it_without_asking() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let parent = directory(&files, "d", Some(Durability::Sync)).await;
    let (ino, handle) = create(&files, parent, "f").await;
    files.release(handle).await;
    let seen = files.lookup(parent, &name("f")).await.unwrap();
    let asked = || -> usize {
        cluster.shared.nodes.iter().map(|of| of.requests.load(Ordering::Relaxed)).sum()
    };
    let before = asked();
    assert_eq!(files.open_now(ino, PLAIN, None), None, "it is not known");
    let handle = files.open_now(ino, PLAIN, Some(files.durability_of(&seen))).unwrap();
    assert_eq!(asked(), before);
    assert!(waits(&files, handle, &cluster).await);
}

#[tokio::test]
async fn an_open_file_keeps_what_counted_when_it_was_opened() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let parent = directory(&files, "d", Some(Durability::Sync)).await;
    let (ino, handle) = create(&files, parent, "f").await;
    files.set_durability(ino, Some(Durability::Close)).await.unwrap();
    assert!(waits(&files, handle, &cluster).await, "it is open still");
    files.release(handle).await;
    let handle = files.open(ino, PLAIN).await.unwrap();
    assert!(!waits(&files, handle, &cluster).await, "it was opened anew");
}

#[tokio::test]
async fn modes_are_extended_attributes() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let ino = directory(&files, "d", None).await;
    let attribute = || Bytes::from_static(DURABILITY);
    assert_eq!(files.xattr(ino, attribute()).await.unwrap(), b"inherit close"[..]);
    for (value, shown) in [("fsync", "fsync"), ("sync", "sync"), ("inherit", "inherit close")] {
        let value = name(value);
        files.set_xattr(ino, attribute(), value, XattrMode::Any, false).await.unwrap();
        assert_eq!(files.xattr(ino, attribute()).await.unwrap(), shown.as_bytes());
    }
    let wrong = files.set_xattr(ino, attribute(), name("never"), XattrMode::Any, false).await;
    assert_eq!(wrong, Err(FsError::Invalid.into()));
    files.set_durability(ino, Some(Durability::Sync)).await.unwrap();
    files.remove_xattr(ino, attribute()).await.unwrap();
    assert_eq!(files.attributes(ino).await.unwrap().durability(), None);
    assert_eq!(files.xattrs(ino).await.unwrap(), Vec::<Name>::new(), "it is in no list");
}

#[tokio::test]
async fn modes_wait_until_all_nodes_know_of_them() {
    let mut cluster = Cluster::start(1, 0).await;
    cluster.topology.levels.now = Level::MADE;
    let files = Files::new(cluster.client("us"));
    let us = files.lookup(Ino::ROOT, &name("us")).await.unwrap().place.ino;
    let refused = files.set_durability(us, Some(Durability::Sync)).await.unwrap_err();
    assert!(matches!(refused, ClientError::Level { .. }), "{refused}");
    assert_eq!((refused.errno(), refused.is_unknown()), (95, false));
    assert!(refused.to_string().contains("needs feature level 10"), "{refused}");
    let is_mode = |update: &Update| matches!(update, Update::SetDurability { .. });
    assert!(!cluster.applied().iter().any(is_mode), "nothing is sent");
}
