//! Two mounts that change the same things at the same time, over a cluster in this process.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::names::Named;
use meridian_client::files::{Handle, OpenMode};
use meridian_core::GroupId;
use meridian_fs::Update;
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::types::{Ino, Kind, Name};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

fn node(kind: Kind) -> NewNode {
    NewNode::new(kind, 0o600)
}

/// A new file in the root directory.
async fn create(files: &Arc<Files>, text: &str) -> (Ino, Handle) {
    let made = files.create_open(Ino::ROOT, &name(text), node(Kind::File), false, PLAIN).await;
    let (attributes, handle) = made.unwrap();
    (attributes.place.ino, handle)
}

fn hold_back(cluster: &Cluster, updates: fn(&Update) -> bool) {
    *cluster.shared.gate_holds.lock().unwrap() = updates;
    cluster.shared.gated.store(true, Ordering::Relaxed);
}

fn let_go(cluster: &Cluster) {
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(1000);
}

#[tokio::test]
async fn who_is_told_of_blocks_that_are_freed_reads_what_came_after() {
    let cluster = Cluster::start(2, 0).await;
    let (here, there) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
    let (ino, handle) = create(&here, "f").await;
    here.write(handle, 0, &[1; 50_000]).await.unwrap();
    here.sync(handle).await.unwrap();
    let before = cluster.blocks();
    cluster.lag();
    here.write(handle, 0, &[2; 50_000]).await.unwrap();
    here.sync(handle).await.unwrap();
    assert!(!before.is_empty() && cluster.blocks().is_disjoint(&before), "they are freed");
    let other = there.open(ino, PLAIN).await.unwrap();
    assert!(there.read(other, 0, 60_000).await.unwrap() == [2; 50_000]);
}

#[tokio::test]
async fn an_allocation_does_not_cut_what_another_wrote_meanwhile() {
    let cluster = Cluster::start(1, 0).await;
    let (here, there) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
    let (ino, handle) = create(&here, "f").await;
    hold_back(&cluster, |update| !matches!(update, Update::Write { .. }));
    let files = here.clone();
    let extending = tokio::spawn(async move { files.extend(handle, 100).await });
    cluster.at_gate(1).await;
    let other = there.open(ino, PLAIN).await.unwrap();
    there.write(other, 0, &[7; 5000]).await.unwrap();
    there.sync(other).await.unwrap();
    let_go(&cluster);
    extending.await.unwrap().unwrap();
    assert_eq!(here.attributes(ino).await.unwrap().size, 5000);
    here.extend(handle, 6000).await.unwrap();
    assert_eq!(there.attributes(ino).await.unwrap().size, 6000);
}

/// The kernel would take it for a new one, and check no permission.
#[tokio::test]
async fn a_file_that_another_made_first_is_not_opened_as_a_new_one() {
    let cluster = Cluster::start(1, 0).await;
    let (here, there) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
    let (_, handle) = create(&here, "f").await;
    here.write(handle, 0, b"text").await.unwrap();
    here.sync(handle).await.unwrap();
    let name_f = name("f");
    let again =
        |exclusive| there.create_open(Ino::ROOT, &name_f, node(Kind::File), exclusive, PLAIN);
    assert_eq!(again(false).await.unwrap_err().errno(), 116, "look again");
    assert_eq!(again(true).await.unwrap_err().errno(), 17);
    here.unlink(Ino::ROOT, &name("f")).await.unwrap();
    again(false).await.unwrap();
}

/// Two names of one file go at the same time: it may be opened again when both have gone.
#[tokio::test]
async fn an_open_waits_for_all_names_that_are_being_removed() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, handle) = create(&files, "f").await;
    files.link(ino, Ino::ROOT, &name("g")).await.unwrap();
    files.release(handle).await;
    hold_back(&cluster, |update| matches!(update, Update::Unlink { .. }));
    let removals = ["f", "g"].map(|text| {
        let files = files.clone();
        tokio::spawn(async move { files.unlink(Ino::ROOT, &name(text)).await.unwrap() })
    });
    cluster.at_gate(2).await;
    cluster.shared.gate.add_permits(1);
    let is_unlink = |update: &Update| matches!(update, Update::Unlink { .. });
    let mut removals = removals.into_iter().collect::<Vec<_>>();
    while !removals.iter().any(|removal| removal.is_finished()) {
        tokio::task::yield_now().await;
    }
    removals.retain(|removal| !removal.is_finished());
    assert_eq!(cluster.applied().iter().filter(|update| is_unlink(update)).count(), 1);
    assert_eq!(files.open_now(ino, PLAIN, None), None, "the other name is still being removed");
    let here = files.clone();
    let opening = tokio::spawn(async move { here.open(ino, PLAIN).await });
    tokio::task::yield_now().await; // It waits now.
    let_go(&cluster);
    for removal in removals {
        removal.await.unwrap();
    }
    assert_eq!(opening.await.unwrap().unwrap_err().errno(), 116);
}

/// The first name is looked up at a replica that lags behind, the second at one that does not.
#[tokio::test]
async fn what_another_has_moved_is_not_moved_once_more() {
    for kind in [Kind::File, Kind::Directory] {
        let cluster = Cluster::start(1, 0).await;
        let (here, there) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
        let us = here.lookup(Ino::ROOT, &name("us")).await.unwrap().place;
        let from = Named { parent: us.ino, name: name("a") };
        let to = Named { parent: Ino::ROOT, name: name("b") };
        here.create(us.ino, &from.name, node(kind)).await.unwrap();
        there.lookup(us.ino, &from.name).await.unwrap();
        cluster.lag();
        let replace = RenameMode::Replace;
        there.rename(&from, &to, replace, None).await.unwrap();
        let up_to_date = GroupId::GLOBAL;
        cluster.shared.world.lock().unwrap().lagging.remove(&up_to_date);
        let moved = here.rename(&from, &to, replace, None).await;
        assert_eq!(moved.unwrap_err().errno(), 2, "{kind:?}");
        there.lookup(Ino::ROOT, &to.name).await.unwrap();
    }
}

/// A file that has both names stays as it is.
#[tokio::test]
async fn a_name_that_leads_to_the_same_file_is_not_replaced() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let (ino, _) = create(&files, "a").await;
    files.link(ino, Ino::ROOT, &name("b")).await.unwrap();
    let [from, to] = ["a", "b"].map(|text| Named { parent: Ino::ROOT, name: name(text) });
    files.rename(&from, &to, RenameMode::Replace, None).await.unwrap();
    for named in [from, to] {
        assert_eq!(files.lookup(Ino::ROOT, &named.name).await.unwrap().nlink, 2);
    }
}

#[tokio::test]
async fn what_is_in_a_region_out_of_reach_is_not_taken_for_removed() {
    let cluster = Cluster::start(1, 0).await;
    let (here, there) =
        (Files::new(cluster.client("us")), Files::new(cluster.impatient("us", 400)));
    let made = here.create(Ino::ROOT, &name("d"), node(Kind::Directory)).await.unwrap();
    let ino = made.place.ino;
    assert_eq!(there.attributes(ino).await.unwrap().place.partition, GroupId::GLOBAL);
    here.place(ino, cluster.topology.group_named("eu").unwrap()).await.unwrap();
    cluster.set_down(1, true);
    let error = there.attributes(ino).await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    // By its name it is shown as it was placed, and what is below is out of reach.
    assert_eq!(there.lookup(Ino::ROOT, &name("d")).await.unwrap().place.ino, ino);
    let none = name("none");
    let below = || there.lookup(ino, &none);
    let error = below().await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    cluster.set_down(1, false);
    loop {
        match below().await.unwrap_err().errno() {
            2 => break,
            errno => assert_eq!(errno, 110), // Not there yet.
        }
    }
    here.rmdir(Ino::ROOT, &name("d")).await.unwrap();
    assert_eq!(here.attributes(ino).await.unwrap_err().errno(), 116);
}
