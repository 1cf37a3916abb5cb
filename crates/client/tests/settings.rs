//! What programs set of files that they have open: together with what they write.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::{Handle, OpenMode};
use meridian_fs::operation::{Changes, NewNode, XattrMode};
use meridian_fs::types::{Attributes, INLINE_MAX, Ino, Kind, Name};
use meridian_fs::{FsError, Setting, Timestamp, Update};
use std::sync::Arc;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn top(files: &Files) -> Ino {
    files.lookup(Ino::ROOT, &name("us")).await.unwrap().place.ino
}

async fn create(files: &Arc<Files>, text: &str) -> (Ino, Handle) {
    let node = NewNode::new(Kind::File, 0o644);
    let made = files.create_open(top(files).await, &name(text), node, true, PLAIN).await;
    let (attributes, handle) = made.unwrap();
    (attributes.place.ino, handle)
}

fn mode(mode: u16) -> Changes {
    Changes { mode: Some(mode), ..Changes::default() }
}

fn owner(uid: u32) -> Changes {
    Changes { uid: Some(uid), gid: Some(uid), ..Changes::default() }
}

fn times(seconds: i64) -> Changes {
    let time = Some(Timestamp { seconds, nanos: 0 });
    Changes { atime: time, mtime: time, ..Changes::default() }
}

/// What another mount shows of it.
async fn elsewhere(cluster: &Cluster, path: &str) -> Attributes {
    Files::new(cluster.client("eu")).resolve(path).await.unwrap()
}

async fn finish(files: &Files, handle: Handle) {
    files.close(handle).await.unwrap();
    files.release(handle).await;
}

/// As `cp -a` does it: bytes, times, owner, attributes, rights.
async fn copy(files: &Arc<Files>, text: &str, len: usize) -> Ino {
    let (ino, handle) = create(files, text).await;
    if len > 0 {
        files.write(handle, 0, &vec![b'x'; len]).await.unwrap();
    }
    files.set_attributes(ino, times(99)).await.unwrap();
    files.set_attributes(ino, owner(1000)).await.unwrap();
    let value = Bytes::from_static(b"v");
    files.set_xattr(ino, name("user.x"), value, XattrMode::Any, false).await.unwrap();
    let seen = files.set_attributes(ino, mode(0o4750)).await.unwrap();
    assert_eq!((seen.mode, seen.uid, seen.mtime.seconds), (0o4750, 1000, 99));
    assert_eq!(files.attributes(ino).await.unwrap(), seen, "it is seen here at once");
    finish(files, handle).await;
    ino
}

#[tokio::test]
async fn a_copied_file_costs_two_updates() {
    let cluster = Cluster::start(2, 0).await;
    let files = Files::new(cluster.client("us"));
    for (text, len) in [("empty", 0), ("small", 100), ("long", 3 * INLINE_MAX)] {
        let before = cluster.applied().len();
        let ino = copy(&files, text, len).await;
        let sent = cluster.applied().split_off(before);
        assert!(
            matches!(&sent[..], [Update::Create { .. }, Update::Settle { .. }]),
            "{text}: {sent:?}"
        );
        let there = elsewhere(&cluster, &format!("/us/{text}")).await;
        assert_eq!(there, files.attributes(ino).await.unwrap());
        let seen = (there.mode, there.uid, there.mtime.seconds, there.size);
        assert_eq!(seen, (0o4750, 1000, 99, len as u64));
        let value = files.xattr(ino, name("user.x")).await.unwrap();
        assert_eq!(value, b"v"[..]);
    }
}

#[tokio::test]
async fn others_see_it_when_the_file_is_synced() {
    let cluster = Cluster::start(2, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    files.write(handle, 0, b"data").await.unwrap();
    files.set_attributes(ino, mode(0o600)).await.unwrap();
    let there = elsewhere(&cluster, "/us/f").await;
    assert_eq!((there.mode, there.size), (0o644, 0), "neither bytes nor mode");
    files.sync(handle).await.unwrap();
    let there = elsewhere(&cluster, "/us/f").await;
    assert_eq!((there.mode, there.size), (0o600, 4), "both");
    let before = cluster.applied().len();
    files.set_attributes(ino, mode(0o640)).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await.mode, 0o640, "nothing is kept: it goes at once");
    let at_once = cluster.applied().split_off(before);
    assert!(matches!(&at_once[..], [Update::SetAttributes { .. }]), "{at_once:?}");
    finish(&files, handle).await;
}

#[tokio::test]
async fn the_order_of_calls_counts() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    files.set_attributes(ino, mode(0o4755)).await.unwrap();
    files.set_attributes(ino, times(99)).await.unwrap();
    files.write(handle, 0, b"data").await.unwrap();
    files.set_attributes(ino, owner(7)).await.unwrap();
    let seen = files.attributes(ino).await.unwrap();
    assert_eq!((seen.mode, seen.uid), (0o755, 7), "the new owner takes the bit");
    assert_ne!(seen.mtime.seconds, 99, "the write came later");
    assert_eq!(seen.atime.seconds, 99);
    files.set_attributes(ino, mode(0o640)).await.unwrap();
    let seen = files.attributes(ino).await.unwrap();
    finish(&files, handle).await;
    let there = elsewhere(&cluster, "/us/f").await;
    assert_eq!((there.mode, there.uid, there.mtime), (0o640, 7, seen.mtime));
}

#[tokio::test]
async fn attributes_are_looked_at_as_they_were_set() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    let set = |value: &'static [u8], mode| {
        files.set_xattr(ino, name("user.x"), Bytes::from_static(value), mode, false)
    };
    set(b"1", XattrMode::Any).await.unwrap();
    assert_eq!(files.xattr(ino, name("user.x")).await.unwrap(), b"1"[..]);
    set(b"2", XattrMode::Any).await.unwrap();
    assert_eq!(files.xattrs(ino).await.unwrap(), [name("user.x")]);
    let again = set(b"3", XattrMode::Create).await.unwrap_err();
    assert_eq!(again, FsError::Exists.into(), "that needs an answer");
    files.remove_xattr(ino, name("user.x")).await.unwrap();
    assert!(files.xattrs(ino).await.unwrap().is_empty());
    finish(&files, handle).await;
}

#[tokio::test]
async fn what_a_file_cannot_have_is_refused_at_once() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    files.write(handle, 0, b"data").await.unwrap();
    let set = |text: &'static str, value: Vec<u8>| {
        files.set_xattr(ino, name(text), value.into(), XattrMode::Any, false)
    };
    let list = set("system.posix_acl_access", b"junk".to_vec()).await.unwrap_err();
    assert_eq!(list, FsError::Invalid.into());
    let long = set("user.x", vec![0; (64 << 10) + 1]).await.unwrap_err();
    assert_eq!(long, FsError::NoSpace.into());
    finish(&files, handle).await;
    let applied = cluster.applied();
    assert!(matches!(&applied[..], [Update::Create { .. }, Update::Write { .. }]), "{applied:?}");
}

/// A program that fills an inode with attributes hears of it when it closes the file, and its bytes
/// are stored all the same.
#[tokio::test]
async fn what_is_refused_later_is_told_by_close_and_loses_no_bytes() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    for at in 0..5 {
        // More than goes with bytes, so each goes at once.
        let value = Bytes::from(vec![0; 51 << 10]);
        let name = name(&format!("user.{at}"));
        files.set_xattr(ino, name, value, XattrMode::Any, false).await.unwrap();
    }
    files.write(handle, 0, b"data").await.unwrap();
    let value = Bytes::from(vec![0; 10 << 10]);
    files.set_xattr(ino, name("user.more"), value, XattrMode::Any, false).await.unwrap();
    assert_eq!(files.close(handle).await.unwrap_err(), FsError::NoSpace.into());
    assert_eq!(files.close(handle).await, Ok(()));
    files.release(handle).await;
    assert_eq!(elsewhere(&cluster, "/us/f").await.size, 4);
    let names = files.xattrs(ino).await.unwrap();
    assert_eq!(names.len(), 5, "{names:?}");
    let settles = |update: &Update| match update {
        Update::Settle { settings, .. } => settings.iter().any(|setting| match setting {
            Setting::Xattr { name, .. } => &name[..] == b"user.more",
            Setting::Attributes(_) => false,
        }),
        _ => false,
    };
    assert!(cluster.applied().iter().any(settles), "they were tried together first");
}
