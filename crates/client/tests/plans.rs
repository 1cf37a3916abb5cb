//! A client that plans tells what others would send, and sends nothing.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::files::OpenMode;
use meridian_client::files::names::Named;
use meridian_client::plan::Asked;
use meridian_client::{ClientError, ClientOptions, Files};
use meridian_core::GroupId;
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::types::{INLINE_MAX, Ino, Kind, Name};
use meridian_fs::{Mode, Update};
use std::sync::Arc;

const EU: GroupId = GroupId(2);

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

/// What is done with the files of `us` and `eu`, in order; each step can be done in the state after
/// those before.
const STEPS: usize = 8;

async fn step(files: &Arc<Files>, number: usize) -> Result<(), ClientError> {
    let at = async |parent: Ino, of: &str| files.lookup(parent, &name(of)).await.unwrap().place.ino;
    let (us, eu) = (at(Ino::ROOT, "us").await, at(Ino::ROOT, "eu").await);
    let named = |parent, of| Named { parent, name: name(of) };
    let node = |kind| NewNode::new(kind, 0o755);
    match number {
        0 => files.create(us, &name("f"), node(Kind::File)).await.map(drop),
        1 => files.create(us, &name("d"), node(Kind::Directory)).await.map(drop),
        2 => {
            let mode = OpenMode { write: true, ..OpenMode::default() };
            let handle = files.open(at(us, "f").await, mode).await?;
            files.write(handle, 0, &vec![1; 2 * INLINE_MAX]).await?;
            let synced = files.sync(handle).await;
            files.release(handle).await;
            synced
        }
        3 => files.link(at(us, "f").await, eu, &name("l")).await.map(drop),
        4 => {
            let (from, to) = (named(us, "d"), named(eu, "d"));
            files.rename(&from, &to, RenameMode::Replace, None).await
        }
        5 => files.unlink(eu, &name("l")).await,
        6 => files.place(at(eu, "d").await, EU).await,
        7 => files.rmdir(eu, &name("d")).await,
        other => panic!("no step {other}"),
    }
}

/// What was multicast, without what differs from client to client: the names of blocks.
fn plain(update: Update) -> Update {
    match update {
        Update::Write { inode, at, .. } => Update::Write { inode, at, pieces: Vec::new() },
        other => other,
    }
}

#[tokio::test]
async fn what_is_planned_is_what_others_send_and_nothing_is_sent() {
    let cluster = Cluster::start(1, 0).await;
    let options = ClientOptions { plans: true, ..ClientOptions::new("us") };
    let mut modes = Vec::new();
    let real = Files::new(cluster.client("us"));
    for number in 0..STEPS {
        let planning = Files::new(cluster.client_with(options.clone()));
        let before = cluster.applied();
        assert_eq!(step(&planning, number).await, Err(ClientError::NotSent), "{number}");
        assert_eq!(cluster.applied(), before, "nothing is sent: {number}");
        let planned = planning.client().planned();
        let updates = planned.iter().filter_map(|asked| match asked {
            Asked::Update(update) => Some(update.clone()),
            _ => None,
        });
        let updates: Vec<_> = updates.collect();
        let [update] = &updates[..] else { panic!("{number}: {updates:?}") };
        modes.push(update.mode());
        let stores = |asked: &Asked| matches!(asked, Asked::Store { bytes, .. } if *bytes > 0);
        assert_eq!(planned.iter().any(stores), number == 2, "{planned:?}");
        step(&real, number).await.unwrap();
        let sent = cluster.applied().into_iter().map(plain).nth(before.len());
        assert_eq!(sent, Some(plain(update.clone())), "{number}");
        assert_eq!(planning.client().planned(), [], "it was told once");
    }
    let one = Mode::SinglePartition;
    let several = Mode::Coordinated;
    assert_eq!(modes, [one, one, one, several, several, several, several, one]);
    assert_eq!(real.client().planned(), [], "who sends plans nothing");
}
