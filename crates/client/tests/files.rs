//! Files over a cluster in this process.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::Files;
use meridian_client::files::names::Named;
use meridian_client::files::read::Seek;
use meridian_client::files::write::Wrote;
use meridian_client::files::{Handle, OpenMode};
use meridian_fs::operation::{Changes, NewNode, RenameMode, XattrMode};
use meridian_fs::types::{Ino, Kind, Name};
use meridian_fs::{FsError, Update};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn name(text: &str) -> Name {
    Bytes::copy_from_slice(text.as_bytes())
}

fn node(kind: Kind) -> NewNode {
    NewNode::new(kind, 0o755)
}

fn named(parent: Ino, text: &str) -> Named {
    Named { parent, name: name(text) }
}

const PLAIN: OpenMode = OpenMode { write: true, append: false, noatime: false, sync: false };
const APPEND: OpenMode = OpenMode { write: true, append: true, noatime: false, sync: false };

async fn create(files: &Arc<Files>, parent: Ino, text: &str) -> (Ino, Handle) {
    let made = files.create_open(parent, &name(text), node(Kind::File), true, PLAIN).await;
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
    let files = Files::new(cluster.client("eu"));
    let attributes = files.resolve(path).await.unwrap();
    let handle = files.open(attributes.place.ino, PLAIN).await.unwrap();
    files.read(handle, 0, attributes.size as usize + 1).await.unwrap()
}

#[tokio::test]
async fn what_is_written_is_visible_at_once_here_and_elsewhere_after_close() {
    let cluster = Cluster::start(2, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"hello").await;
    write(&files, handle, 8, b"world").await;
    let attributes = files.attributes(ino).await.unwrap();
    assert_eq!(attributes.size, 13);
    assert_eq!(files.read(handle, 0, 100).await.unwrap(), b"hello\0\0\0world");
    assert_eq!(files.read(handle, 9, 2).await.unwrap(), b"or");
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"");
    files.close(handle).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"hello\0\0\0world");
    let after = files.attributes(ino).await.unwrap();
    assert_eq!((after.mtime, after.size), (attributes.mtime, 13), "stat does not change by close");
    let world = cluster.shared.world.lock().unwrap();
    assert!(world.blocks.iter().all(|blocks| blocks.is_empty()), "a small file lies inline");
}

#[tokio::test]
async fn a_long_file_lies_in_blocks_on_two_nodes_of_its_region() {
    let cluster = Cluster::start(3, 0).await;
    let files = Files::new(cluster.client("eu"));
    for (directory, copies) in [("eu", [0, 2, 0]), ("", [2, 2, 2])] {
        let parent = files.resolve(directory).await.unwrap().place.ino;
        let (_, handle) = create(&files, parent, "long").await;
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
        for (index, part) in data.chunks(100_000).enumerate() {
            write(&files, handle, index as u64 * 100_000, part).await;
        }
        files.sync(handle).await.unwrap();
        assert_eq!(elsewhere(&cluster, &format!("{directory}/long")).await, data);
        assert_eq!(files.read(handle, 1_234_567, 1000).await.unwrap(), data[1_234_567..1_235_567]);
        let mut world = cluster.shared.world.lock().unwrap();
        let blocks: usize = world.blocks.iter().map(|blocks| blocks.len()).sum();
        for (region, copies) in copies.into_iter().enumerate() {
            let of_region = &world.blocks[region * 3..][..3];
            let held: usize = of_region.iter().map(|blocks| blocks.len()).sum();
            let all: usize = blocks / if directory.is_empty() { 6 } else { 2 };
            assert_eq!(held, copies * all, "{directory} in region {region}");
        }
        world.blocks.iter_mut().for_each(|blocks| blocks.clear());
    }
}

#[tokio::test]
async fn a_write_during_a_flush_comes_after_it() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"aaaa").await;
    cluster.shared.gated.store(true, Ordering::Relaxed);
    let flush = {
        let files = files.clone();
        tokio::spawn(async move { files.sync(handle).await })
    };
    cluster.at_gate(1).await;
    write(&files, handle, 1, b"bb").await;
    assert_eq!(files.read(handle, 0, 9).await.unwrap(), b"abba");
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(1);
    flush.await.unwrap().unwrap();
    assert_eq!(files.read(handle, 0, 9).await.unwrap(), b"abba");
    files.sync(handle).await.unwrap();
    assert_eq!(cluster.writes(), 2);
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"abba");
}

#[tokio::test]
async fn an_append_whose_answer_was_lost_is_appended_once() {
    let cluster = Cluster::start(3, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, first) = create(&files, us, "log").await;
    let handle = files.open(ino, APPEND).await.unwrap();
    write(&files, handle, 0, b"one\n").await;
    for node in &cluster.shared.nodes {
        node.lose_answers.store(2, Ordering::Relaxed);
    }
    files.sync(handle).await.unwrap();
    write(&files, handle, 0, b"two\n").await;
    assert_eq!(files.attributes(ino).await.unwrap().size, 8);
    assert_eq!(files.read(first, 2, 4).await.unwrap(), b"e\ntw");
    files.close(handle).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/log").await, b"one\ntwo\n");
}

#[tokio::test]
async fn an_append_that_timed_out_is_sent_again_under_its_name() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 300));
    let us = top(&files, "us").await;
    let (ino, _) = create(&files, us, "log").await;
    let handle = files.open(ino, APPEND).await.unwrap();
    let other = files.open(ino, PLAIN).await.unwrap();
    write(&files, handle, 0, b"one\n").await;
    cluster.shared.gated.store(true, Ordering::Relaxed);
    let error = files.sync(handle).await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    cluster.shared.gated.store(false, Ordering::Relaxed);
    cluster.shared.gate.add_permits(100);
    let error = files.write_now(other, 9, b"x").unwrap_err();
    assert_eq!(error.errno(), 110, "the other handle is told, too: {error}");
    files.sync(other).await.unwrap();
    files.sync(handle).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/log").await, b"one\n");
    assert_eq!(cluster.writes(), 1);
}

#[tokio::test]
async fn a_refused_flush_is_told_once_to_each_handle_and_loses_nothing() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, first) = create(&files, us, "f").await;
    let second = files.open(ino, PLAIN).await.unwrap();
    write(&files, first, 0, b"data").await;
    cluster.refuse_writes(Some(FsError::NoSpace));
    assert_eq!(files.sync(first).await.unwrap_err().errno(), 28);
    cluster.refuse_writes(None);
    assert_eq!(files.write_now(second, 0, b"x").unwrap_err().errno(), 28);
    assert_eq!(files.write_now(second, 1, b"A").unwrap(), Wrote::Done);
    assert_eq!(files.read(second, 0, 9).await.unwrap(), b"dAta");
    files.sync(first).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"dAta");
}

#[tokio::test]
async fn truncation_keeps_its_place_among_writes() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"0123456789").await;
    let cut = Changes { size: Some(4), ..Changes::default() };
    assert_eq!(files.set_attributes(ino, cut).await.unwrap().size, 4);
    write(&files, handle, 6, b"x").await;
    assert_eq!(files.read(handle, 0, 20).await.unwrap(), b"0123\0\0x");
    files.close(handle).await.unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"0123\0\0x");
    files.extend(handle, 10).await.unwrap();
    files.punch_hole(handle, 1, 2).await.unwrap();
    assert_eq!(files.read(handle, 0, 20).await.unwrap(), b"0\0\x003\0\0x\0\0\0");
}

#[tokio::test]
async fn data_and_holes_are_found() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    write(&files, handle, 200 << 20, b"data").await;
    write(&files, handle, 0, b"data").await;
    let seek = |offset, what| {
        let files = files.clone();
        async move { files.seek(handle, offset, what).await.unwrap() }
    };
    let far = 200 << 20;
    assert_eq!(seek(0, Seek::Data).await, Some(0));
    assert_eq!(seek(1, Seek::Hole).await, Some(4));
    assert_eq!(seek(4, Seek::Data).await, Some(far));
    assert_eq!(seek(far + 1, Seek::Hole).await, Some(far + 4));
    assert_eq!(seek(far + 4, Seek::Data).await, None);
    assert_eq!(seek(far + 4, Seek::Hole).await, None);
}

#[tokio::test]
async fn a_removed_file_that_is_open_stays_until_it_is_closed() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"data").await;
    files.unlink(us, &name("f")).await.unwrap();
    let gone = files.lookup(us, &name("f")).await.unwrap_err();
    assert_eq!(gone.errno(), 2);
    assert_eq!(files.read(handle, 0, 9).await.unwrap(), b"data");
    files.sync(handle).await.unwrap();
    assert_eq!(files.attributes(ino).await.unwrap().nlink, 0);
    let (_, other) = create(&files, us, "g").await;
    files.rename(&named(us, "g"), &named(us, "f"), RenameMode::Replace, None).await.unwrap();
    files.release(other).await;
    assert_eq!(cluster.reap(us.birthplace()), 1, "it is open");
    files.release(handle).await;
    assert_eq!(cluster.reap(us.birthplace()), 0);
    assert_eq!(files.attributes(ino).await.unwrap_err().errno(), 116);
}

#[tokio::test]
async fn a_file_that_another_mount_removes_stays_until_it_is_closed() {
    let cluster = Cluster::start(1, 0).await;
    let (files, other) = (Files::new(cluster.client("us")), Files::new(cluster.client("eu")));
    let us = top(&files, "us").await;
    let (ino, handle) = create(&files, us, "f").await;
    write(&files, handle, 0, b"data").await;
    files.sync(handle).await.unwrap();
    other.unlink(us, &name("f")).await.unwrap();
    // Within a moment the partition hears that it is open.
    let held = || cluster.applied().iter().any(|one| matches!(one, Update::Hold { .. }));
    while !held() {
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster.reap(us.birthplace()), 1);
    assert_eq!(files.read(handle, 0, 9).await.unwrap(), b"data");
    write(&files, handle, 4, b" and more").await;
    files.sync(handle).await.unwrap();
    let attributes = files.attributes(ino).await.unwrap();
    assert_eq!((attributes.nlink, attributes.size), (0, 13));
    files.release(handle).await;
    while cluster.reap(us.birthplace()) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(files.attributes(ino).await.unwrap_err().errno(), 116);
}

#[tokio::test]
async fn a_rename_takes_what_was_written_along() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, _old) = create(&files, us, "f").await;
    let (_, handle) = create(&files, us, "f.new").await;
    write(&files, handle, 0, b"new").await;
    files
        .rename(&named(us, "f.new"), &named(Ino::ROOT, "f"), RenameMode::NoReplace, None)
        .await
        .unwrap();
    assert_eq!(elsewhere(&cluster, "/f").await, b"new");
    files
        .rename(&named(Ino::ROOT, "f"), &named(us, "f"), RenameMode::Exchange, None)
        .await
        .unwrap();
    assert_eq!(elsewhere(&cluster, "/us/f").await, b"new");
    assert_eq!(elsewhere(&cluster, "/f").await, b"");
    let taken =
        files.rename(&named(us, "f"), &named(Ino::ROOT, "f"), RenameMode::NoReplace, None).await;
    assert_eq!(taken.unwrap_err().errno(), 17);
}

#[tokio::test]
async fn a_directory_never_comes_under_itself() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let mut at = top(&files, "us").await;
    let us = at;
    for part in ["a", "b", "c"] {
        at = files.create(at, &name(part), node(Kind::Directory)).await.unwrap().place.ino;
    }
    let under = files.rename(&named(us, "a"), &named(at, "x"), RenameMode::Replace, None).await;
    assert_eq!(under.unwrap_err().errno(), 22);
    let b = files.resolve("/us/a/b").await.unwrap().place.ino;
    files.rename(&named(b, "c"), &named(Ino::ROOT, "c"), RenameMode::Replace, None).await.unwrap();
    files.rename(&named(us, "a"), &named(at, "a"), RenameMode::Replace, None).await.unwrap();
    assert_eq!(files.resolve("/c/a/b").await.unwrap().place.ino, b);
}

#[tokio::test]
async fn an_empty_directory_is_placed_elsewhere_and_found_by_all() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.client("us"));
    let other = Files::new(cluster.client("us"));
    let made = files.create(Ino::ROOT, &name("d"), node(Kind::Directory)).await.unwrap();
    let ino = made.place.ino;
    other.resolve("/d").await.unwrap();
    let (attribute, value) = (name("user.meridian.placement"), name("eu"));
    assert_eq!(files.xattr(ino, attribute.clone()).await.unwrap(), "global");
    files.set_xattr(ino, attribute.clone(), value, XattrMode::Any, false).await.unwrap();
    assert_eq!(files.where_is(ino).await.unwrap(), "eu");
    let child = other.create(ino, &name("f"), node(Kind::File)).await.unwrap();
    assert_eq!(other.where_is(child.place.ino).await.unwrap(), "eu");
    let full = files.place(ino, meridian_core::GroupId::GLOBAL).await;
    assert_eq!(full.unwrap_err().errno(), 39);
    let bad = files.set_xattr(ino, attribute, name("mars"), XattrMode::Any, false).await;
    assert_eq!(bad.unwrap_err().errno(), 22);
}

#[tokio::test]
async fn the_next_node_answers_when_one_is_gone() {
    let cluster = Cluster::start(3, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    let (_, handle) = create(&files, us, "f").await;
    for node in 0..3 {
        cluster.set_down(node, true);
        let data = vec![node as u8; 50_000];
        write(&files, handle, node as u64 * 50_000, &data).await;
        files.sync(handle).await.unwrap();
        cluster.set_down(node, false);
    }
    let read = elsewhere(&cluster, "/us/f").await;
    assert_eq!(read.len(), 150_000);
    assert!(read.chunks(50_000).enumerate().all(|(n, part)| part.iter().all(|b| *b == n as u8)));
}

#[tokio::test]
async fn an_unreachable_region_is_listed_and_its_files_time_out() {
    let cluster = Cluster::start(1, 0).await;
    let files = Files::new(cluster.impatient("us", 500));
    cluster.set_down(1, true);
    let page = files.list(Ino::ROOT, &Bytes::new(), true).await.unwrap();
    let known: Vec<_> =
        page.entries.iter().map(|(name, _, known)| (&name[..], known.is_some())).collect();
    // The root's partition knows what the top of eu was.
    assert_eq!(known, [(&b"ap"[..], true), (b"eu", true), (b"us", true)]);
    let top = files.lookup(Ino::ROOT, &name("eu")).await.unwrap().place.ino;
    let error = files.lookup(top, &name("f")).await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    assert!(error.to_string().contains("group eu"), "{error}");
}

#[tokio::test]
async fn another_region_is_as_far_as_the_topology_says() {
    let cluster = Cluster::start(1, 100).await;
    let files = Files::new(cluster.client("us"));
    files.resolve("/us").await.unwrap();
    files.resolve("/eu").await.unwrap();
    let begun = Instant::now();
    files.resolve("/us").await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(60), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let eu = files.resolve("/eu").await.unwrap().place.ino;
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let all = (0..50).map(|number| {
        let files = files.clone();
        tokio::spawn(async move {
            files.create(eu, &name(&number.to_string()), node(Kind::File)).await.unwrap();
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(1000), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_update_that_is_given_up_is_not_sent_again() {
    let cluster = Cluster::start(1, 0).await;
    let client = cluster.impatient("us", 300);
    let files = Files::new(client.clone());
    let us = top(&files, "us").await;
    cluster.set_down(0, true);
    let error = files.create(us, &name("late"), node(Kind::File)).await.unwrap_err();
    assert_eq!(error.errno(), 110, "{error}");
    cluster.set_down(0, false);
    files.create(us, &name("later"), node(Kind::File)).await.unwrap();
    let applied = cluster.applied();
    assert!(matches!(&applied[..], [Update::Create { name, .. }] if &name[..] == b"later"));
}

/// Known fault 3: what a region out of reach leaves behind stops no update to the others, nor to it
/// once it is back.
#[tokio::test]
async fn any_number_of_updates_given_up_in_one_region_stops_no_other() {
    let cluster = Cluster::start(1, 0).await;
    let client = cluster.impatient("us", 20);
    let patient = Files::new(cluster.client("us"));
    let (us, eu) = (top(&patient, "us").await, top(&patient, "eu").await);
    let parent = |ino| meridian_fs::Place { ino, partition: ino.birthplace() };
    let create = |ino, text: String| Update::Create {
        parent: parent(ino),
        name: name(&text),
        node: node(Kind::File),
    };
    cluster.set_down(1, true);
    for round in 0..5 {
        let all = (0..256).map(|number| {
            let (client, update) = (client.clone(), create(eu, format!("{round}-{number}")));
            tokio::spawn(async move { client.update(&update).await.unwrap_err() })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap();
        }
    }
    client.update(&create(us, "here".into())).await.unwrap();
    cluster.set_down(1, false);
    let back = async {
        let mut tried = 0;
        while client.update(&create(eu, format!("back-{tried}"))).await.is_err() {
            tried += 1;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), back).await.unwrap();
}

/// Random writes, reads, cuts and flushes against a plain vector.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_as_a_vector_of_bytes() {
    use rand::{Rng, SeedableRng};
    let cluster = Cluster::start(2, 0).await;
    let files = Files::new(cluster.client("us"));
    let us = top(&files, "us").await;
    for seed in 0..8 {
        let mut random = rand_chacha::ChaCha12Rng::seed_from_u64(seed);
        let mut below = |limit: u64| random.next_u64() % limit;
        let (ino, plain) = create(&files, us, &format!("f{seed}")).await;
        let append = files.open(ino, APPEND).await.unwrap();
        let mut model: Vec<u8> = Vec::new();
        let span = if seed % 2 == 0 { 3_000 } else { 200_000 };
        for step in 0..120u64 {
            let (offset, data) = (below(span), vec![step as u8 + 1; 1 + below(span / 8) as usize]);
            match below(10) {
                0..4 => {
                    write(&files, plain, offset, &data).await;
                    let end = offset as usize + data.len();
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&data);
                }
                4 => {
                    write(&files, append, 0, &data).await;
                    model.extend_from_slice(&data);
                }
                5 => {
                    let size = below(span);
                    let changes = Changes { size: Some(size), ..Changes::default() };
                    assert_eq!(files.set_attributes(ino, changes).await.unwrap().size, size);
                    model.resize(size as usize, 0);
                }
                6 => {
                    let (files, handle) = (files.clone(), plain);
                    tokio::spawn(async move { files.sync(handle).await });
                }
                7 => files.sync(append).await.unwrap(),
                _ => {}
            }
            assert_eq!(files.attributes(ino).await.unwrap().size, model.len() as u64);
            let from = offset.min(model.len() as u64) as usize;
            let to = (from + data.len()).min(model.len());
            let read = files.read(plain, offset, data.len()).await.unwrap();
            assert!(read == model[from..to], "seed {seed}, step {step}");
        }
        files.close(append).await.unwrap();
        assert!(elsewhere(&cluster, &format!("/us/f{seed}")).await == model, "seed {seed}");
    }
}
