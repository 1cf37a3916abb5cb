//! When what is done somewhere is durable: directories and files have modes, which are handed down.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::swaps::{self, Here};
use common::{Rng, World, name, node, rename, top};
use meridian_core::{ClientId, GroupId};
use meridian_fs::operation::{NewNode, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::{Done, Durability, FsError, Ino, Kind, Operation, Place, Timestamp, Update};

const US: GroupId = GroupId(1);
const A: ClientId = ClientId(21);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn set(inode: Place, durability: Option<Durability>) -> Update {
    Update::SetDurability { inode, durability }
}

fn mode(world: &World, inode: Place) -> Option<Durability> {
    world.attributes(inode).unwrap().durability()
}

fn made(parent: Place, text: &str, number: u64) -> Update {
    let time = Timestamp::default();
    Update::Make(Box::new(Made {
        parent,
        name: name(text),
        node: NewNode::new(Kind::File, 0o640),
        ino: Ino::chosen(US, A, number),
        made: time,
        at: WriteAt::Offset(0),
        pieces: Vec::new(),
        written: time,
        settings: Vec::new(),
    }))
}

/// A world with the directory `d` in `us`, which has that mode.
fn with(own: Durability) -> (World, Place) {
    let mut world = World::new(2);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    world.submit(set(directory, Some(own))).unwrap();
    (world, directory)
}

#[test]
fn what_is_made_in_a_directory_takes_its_mode() {
    for own in Durability::ALL {
        let (mut world, directory) = with(own);
        assert_eq!((mode(&world, directory), mode(&world, top(1))), (Some(own), None));
        let file = world.create(directory, "f", Kind::File).unwrap();
        let below = world.create(directory, "below", Kind::Directory).unwrap();
        let deep = world.create(below, "deep", Kind::File).unwrap();
        assert_eq!([file, below, deep].map(|of| mode(&world, of)), [Some(own); 3]);
        world.submit(made(directory, "whole", 1)).unwrap();
        let (whole, _) = world.lookup(directory, "whole").unwrap();
        assert_eq!(mode(&world, whole), Some(own));
        for kind in [Kind::Symlink, Kind::Fifo, Kind::CharDevice] {
            let other = world.create(directory, &format!("{kind:?}"), kind).unwrap();
            let found = world.attributes(other).unwrap();
            assert_eq!((found.durability(), found.device()), (None, 0), "{kind:?}");
        }
        world.check();
    }
}

/// A client that keeps a new file back shows what it will be.
#[test]
fn a_client_foretells_the_mode_of_a_new_file() {
    let (mut world, directory) = with(Durability::Fsync);
    let above = world.attributes(directory).unwrap();
    let node = node(Kind::File);
    let update = Update::Create { parent: directory, name: name("f"), node: node.clone() };
    let Ok(Done::Attributes(found)) = world.submit(update) else { panic!("it is made") };
    assert_eq!(node.attributes_in(&above, found.place, found.btime), Some(found));
    assert_eq!(found.durability(), Some(Durability::Fsync));
}

#[test]
fn what_is_there_already_keeps_its_mode_and_so_does_what_is_moved() {
    let (mut world, directory) = with(Durability::Sync);
    let file = world.create(directory, "f", Kind::File).unwrap();
    world.submit(set(directory, Some(Durability::Fsync))).unwrap();
    assert_eq!(mode(&world, file), Some(Durability::Sync), "it was there");
    world.submit(rename((directory, "f"), (top(1), "moved"), file)).unwrap();
    assert_eq!(mode(&world, file), Some(Durability::Sync), "it was moved");
    let empty = world.create(directory, "empty", Kind::Directory).unwrap();
    assert_eq!(mode(&world, empty), Some(Durability::Fsync));
    let placed = world.place(directory, "empty", 2).unwrap();
    assert_eq!(mode(&world, placed), Some(Durability::Fsync), "it was placed elsewhere");
    let there = world.create(placed, "f", Kind::File).unwrap();
    assert_eq!(mode(&world, there), Some(Durability::Fsync));
    world.check();
}

#[test]
fn a_mode_goes_again_and_changes_the_time_of_change() {
    let (mut world, directory) = with(Durability::Close);
    let before = world.attributes(directory).unwrap();
    let Ok(Done::Attributes(after)) = world.submit(set(directory, None)) else {
        panic!("it is set")
    };
    assert_eq!(after.durability(), None);
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    let file = world.create(directory, "f", Kind::File).unwrap();
    assert_eq!(mode(&world, file), None);
    world.submit(set(file, Some(Durability::Sync))).unwrap();
    assert_eq!(mode(&world, file), Some(Durability::Sync), "a file may have one of its own");
}

#[test]
fn only_directories_and_files_have_modes() {
    let mut world = World::new(1);
    for kind in [Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice] {
        let other = world.create(top(1), &format!("{kind:?}"), kind).unwrap();
        let before = world.attributes(other).unwrap();
        assert_eq!(world.submit(set(other, Some(Durability::Sync))), Err(FsError::Invalid));
        assert_eq!(world.attributes(other).unwrap(), before, "{kind:?}");
    }
    let file = world.create(top(1), "f", Kind::File).unwrap();
    let unlink = Update::Unlink { parent: top(1), name: name("f"), child: file, keep_for: None };
    world.submit(unlink).unwrap();
    world.reap(US);
    assert_eq!(world.submit(set(file, None)), Err(FsError::Gone));
}

fn random(rng: &mut Rng, here: &Here) -> (ClientId, bool, Update) {
    let (parent, text) = (here.directory, *rng.pick(&NAMES));
    let own = (!rng.chance(20)).then(|| *rng.pick(&Durability::ALL));
    let last = Place { ino: Ino::made(US, here.last), ..parent };
    let update = match rng.below(6) {
        0 | 1 => set(*rng.pick(&[parent, last]), own),
        2 => Update::Create { parent, name: name(text), node: node(Kind::File) },
        3 => made(*rng.pick(&[parent, last]), text, 1 + rng.below(5)),
        4 => Update::Create { parent: last, name: name(text), node: node(Kind::Directory) },
        _ => Update::CreateUnnamed { parent, node: node(Kind::File) },
    };
    (A, false, update)
}

/// What is made in a directory depends on its mode: so their order matters, and keys say so.
#[test]
fn what_has_no_common_key_commutes() {
    let keys = |operation: &Operation, id| operation.update.keys(id).into_iter().collect();
    let runs = (0..400).map(|seed| swaps::swap(seed, "Attributes", random, keys));
    let (swapped, done) = runs.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(swapped > 100 && done > 1000, "{swapped} swapped, {done} done");
}

/// The check above finds it if setting a mode has no key of the directory.
#[test]
fn a_mode_needs_the_key_of_its_directory() {
    let bare = |operation: &Operation, id| match operation.update {
        Update::SetDurability { .. } => Vec::new(),
        _ => operation.update.keys(id).into_iter().collect(),
    };
    let is_found =
        |seed| std::panic::catch_unwind(|| swaps::swap(seed, "Attributes", random, bare)).is_err();
    assert!((0..400).any(is_found));
}
