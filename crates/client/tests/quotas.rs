//! Quotas, as programs meet them.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::OpenMode;
use meridian_fs::Update;
use meridian_fs::operation::{NewNode, XattrMode};
use meridian_fs::types::{INLINE_MAX, Ino, Kind, Name};
use std::sync::Arc;

const QUOTA: &[u8] = b"user.meridian.quota";

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

fn node(kind: Kind) -> NewNode {
    NewNode::new(kind, 0o755)
}

async fn make(files: &Files, parent: Ino, text: &str, kind: Kind) -> Result<Ino, i32> {
    let made = files.create(parent, &name(text), node(kind)).await;
    made.map(|made| made.place.ino).map_err(|error| error.errno())
}

/// Writes so many bytes into a file, and waits until they are stored.
async fn write(files: &Arc<Files>, file: Ino, bytes: usize) -> Result<(), i32> {
    let handle = files.open(file, OpenMode::default()).await.unwrap();
    let written = files.write(handle, 0, &vec![1; bytes]).await;
    let synced = written.and(files.sync(handle).await).map_err(|error| error.errno());
    files.release(handle).await;
    synced
}

async fn shown(files: &Files, ino: Ino) -> String {
    let value = files.xattr(ino, Bytes::from_static(QUOTA)).await.unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

#[tokio::test]
async fn a_quota_holds_for_all_clients() {
    let cluster = Cluster::start(1, 0).await;
    let (files, other) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
    let us = files.lookup(Ino::ROOT, &name("us")).await.unwrap().place.ino;
    let q = make(&files, us, "q", Kind::Directory).await.unwrap();
    assert_eq!(files.xattr(q, Bytes::from_static(QUOTA)).await.unwrap_err().errno(), 61);
    let set = |value: &'static str| {
        files.set_xattr(q, Bytes::from_static(QUOTA), value.into(), XattrMode::Any, false)
    };
    set("bytes=100000 inodes=3").await.unwrap();
    let file = make(&files, q, "f", Kind::File).await.unwrap();
    write(&files, file, 3 * INLINE_MAX).await.unwrap();
    let theirs = make(&other, q, "g", Kind::File).await.unwrap();
    assert_eq!(make(&other, q, "h", Kind::File).await, Err(122));
    write(&other, theirs, 50_000).await.unwrap();
    assert_eq!(write(&other, theirs, 52_000).await, Err(122));
    let used = 3 * INLINE_MAX + 50_000;
    assert_eq!(shown(&other, file).await, format!("bytes={used}/100000 inodes=3/3"));
    let totals = files.totals_at(q).await.unwrap();
    assert_eq!((totals.bytes, totals.inodes, totals.inodes_max), (used as u64, 3, Some(3)));
    assert!(totals.room <= 100_000 - used as u64, "{totals:?}");
    set("none").await.unwrap_err();
    set("bytes=none").await.unwrap();
    write(&other, theirs, 60_000).await.unwrap();
    files.unlink(q, &name("f")).await.unwrap();
    assert_eq!(shown(&files, q).await, "bytes=60000/none inodes=2/none");
}

/// Whoever works below a quota is told once of it, and names it from then on.
#[tokio::test]
async fn what_is_made_is_known_to_count() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = files.lookup(Ino::ROOT, &name("us")).await.unwrap().place.ino;
    let q = make(&files, us, "q", Kind::Directory).await.unwrap();
    let value = Bytes::from_static(b"inodes=100");
    files.set_xattr(q, Bytes::from_static(QUOTA), value, XattrMode::Any, false).await.unwrap();
    make(&files, q, "first", Kind::File).await.unwrap();
    let before = cluster.applied().len();
    let below = make(&files, q, "d", Kind::Directory).await.unwrap();
    let file = make(&files, below, "f", Kind::File).await.unwrap();
    write(&files, file, 2 * INLINE_MAX).await.unwrap();
    let after: Vec<_> = cluster.applied().split_off(before);
    let mine = |update: &&Update| matches!(update, Update::Create { .. } | Update::Write { .. });
    assert_eq!(after.iter().filter(mine).count(), 3, "none was refused: {after:?}");
}
