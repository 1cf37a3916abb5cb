//! Files of very many short pieces, over a cluster in this process.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::read::Seek;
use meridian_client::files::{Handle, OpenMode};
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::types::{Attributes, Data, Extent, INLINE_MAX, Ino, Kind, Place};
use meridian_fs::{Answer, Query, Update};
use meridian_session::Block;
use std::sync::Arc;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };

async fn create(files: &Arc<Files>) -> (Place, Handle) {
    let node = NewNode::new(Kind::File, 0o644);
    let name = Bytes::from_static(b"f");
    let made = files.create_open(Ino::ROOT, &name, node, true, PLAIN).await.unwrap();
    (made.0.place, made.1)
}

/// How many extents a replica has of it.
fn extents(cluster: &Cluster, inode: Place) -> usize {
    let world = cluster.shared.world.lock().unwrap();
    let query = Query::Contents { inode, offset: 0, len: u64::MAX };
    match world.partitions[&inode.partition].read(&query).unwrap() {
        Answer::Contents { extents, .. } => extents.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_hundred_thousand_extents_are_read() {
    const COUNT: u64 = 200_000;
    let cluster = Cluster::start(1, 0).await;
    let client = cluster.client("us");
    let files = Files::new(client.clone());
    let (inode, handle) = create(&files).await;
    let data: Vec<u8> = (0..3 * COUNT).map(|at| (at / 5) as u8).collect();
    let block = client.new_block(inode.partition);
    let stored = Block { name: block, data: Bytes::from(data.clone()) };
    client.put_blocks(inode.partition, vec![stored]).await.unwrap();
    let numbers: Vec<u64> = (0..COUNT).collect();
    for part in numbers.chunks(20_000) {
        let piece = |number: &u64| {
            let data = Data::Block { block, start: 3 * *number as u32 };
            Piece { offset: 3 * (number - part[0]), extent: Extent { len: 3, data } }
        };
        let pieces = part.iter().map(piece).collect();
        let update = Update::Write { inode, at: WriteAt::Offset(3 * part[0]), pieces };
        client.update(&update).await.unwrap();
    }
    let read = files.read(handle, 0, data.len() + 1).await.unwrap();
    assert!(read == data, "{} bytes", read.len());
    assert_eq!(files.read(handle, 300_001, 4).await.unwrap(), data[300_001..300_005]);
    assert_eq!(files.seek(handle, 5, Seek::Data).await.unwrap(), Some(5));
    assert_eq!(files.seek(handle, 5, Seek::Hole).await.unwrap(), Some(3 * COUNT));
}

#[tokio::test]
async fn short_pieces_are_merged_while_they_come() {
    const LINES: usize = 500;
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (inode, handle) = create(&files).await;
    let mut data = vec![b'x'; INLINE_MAX + 1];
    files.write(handle, 0, &data).await.unwrap();
    files.sync(handle).await.unwrap();
    for number in 0..LINES {
        let line = format!("{number}\n");
        files.write(handle, data.len() as u64, line.as_bytes()).await.unwrap();
        data.extend(line.bytes());
        files.sync(handle).await.unwrap();
    }
    let most = extents(&cluster, inode);
    assert!(most < LINES / 4, "{most} extents");
    assert_eq!(cluster.writes(), LINES + 1);
    let there = Files::new(cluster.client("eu"));
    let other = there.open(inode.ino, PLAIN).await.unwrap();
    assert!(there.read(other, 0, data.len() + 1).await.unwrap() == data);
    let (here, there) = (files.attributes(inode.ino), there.attributes(inode.ino));
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    assert_eq!(here, Attributes { atime: here.atime, ..there }, "it was read there only");
}
