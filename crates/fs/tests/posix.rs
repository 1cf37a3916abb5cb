//! The rules of access rights, files without a name, whiteouts and times of reading.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{ME, World, name, node, top};
use meridian_core::GroupId;
use meridian_fs::operation::{
    Access, Changes, NewNode, Piece, RenameMode, Whiteout, WriteAt, XattrMode,
};
use meridian_fs::types::{Attributes, Data};
use meridian_fs::{Answer, Done, Extent, FsError, Kind, Place, Query, Timestamp, Update};

const US: GroupId = GroupId(1);

fn set(inode: Place, changes: Changes) -> Update {
    Update::SetAttributes { inode, changes }
}

fn link(target: Place, parent: Place, text: &str) -> Update {
    Update::Link { target, parent, name: name(text) }
}

fn unlink(parent: Place, text: &str, child: Place) -> Update {
    Update::Unlink { parent, name: name(text), child, keep_for: None }
}

/// A world with the directory `d` in `us` and the file `f` in it.
fn small() -> (World, Place, Place) {
    let mut world = World::new(2);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let file = world.create(directory, "f", Kind::File).unwrap();
    (world, directory, file)
}

/// A list of access rights: owner, a named user, owning group, mask, others.
fn access_list(bits: [u8; 5]) -> Bytes {
    let mut list = vec![2, 0, 0, 0];
    for ((tag, id), bits) in [(1, 0), (2, 9), (4, 0), (16, 0), (32, 0)].into_iter().zip(bits) {
        list.extend([tag, 0, bits, 0, id, 0, 0, 0]);
    }
    list.into()
}

fn set_list(inode: Place, text: &str, value: Bytes) -> Update {
    let (name, mode) = (name(text), XattrMode::Any);
    Update::SetXattr { inode, name, value, mode, drops_set_gid: text.ends_with("access") }
}

#[test]
fn a_list_of_access_rights_and_the_mode_are_one() {
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let (mut world, directory, file) = small();
    let mode = |bits| Changes { mode: Some(bits), ..Changes::default() };
    world.submit(set(file, mode(0o2640))).unwrap();
    world.submit(set_list(file, access, access_list([6, 7, 5, 5, 0]))).unwrap();
    let found = world.attributes(file).unwrap();
    assert_eq!((found.mode, found.marks.access_list), (0o650, true), "the mask is shown");
    world.submit(set(file, mode(0o604))).unwrap();
    let list = Query::Xattr { inode: file, name: name(access) };
    assert_eq!(world.read(&list), Ok(Answer::Bytes(access_list([6, 7, 5, 0, 4]))));
    assert_eq!(world.submit(set_list(file, access, name("junk"))), Err(FsError::Invalid));
    let refused = world.submit(set_list(file, default, access_list([7; 5])));
    assert_eq!(refused, Err(FsError::Invalid), "a file hands nothing down");
    world.submit(set_list(directory, default, access_list([7, 6, 5, 7, 0]))).unwrap();
    let mut make = |text, kind, mode| {
        let node = NewNode { mode, umask: 0o77, ..node(kind) };
        let made = Update::Create { parent: directory, name: name(text), node };
        let Ok(Done::Attributes(made)) = world.submit(made) else { panic!() };
        (made.mode, made.marks.access_list, made.marks.default_list)
    };
    assert_eq!(make("made", Kind::File, 0o664), (0o660, true, false));
    assert_eq!(make("below", Kind::Directory, 0o1755), (0o1750, true, true));
    assert_eq!(make("link", Kind::Symlink, 0o777), (0o777, false, false));
    world.submit(Update::RemoveXattr { inode: directory, name: name(default) }).unwrap();
    let node = NewNode { mode: 0o4666, umask: 0o27, ..node(Kind::File) };
    let made = Update::Create { parent: directory, name: name("plain"), node };
    let made = world.submit(made).unwrap();
    assert!(matches!(made, Done::Attributes(made) if made.mode == 0o4640), "{made:?}");
    world.check();
}

/// The attributes of what an update made.
fn made(world: &mut World, update: Update) -> Attributes {
    match world.submit(update) {
        Ok(Done::Attributes(made)) => made,
        other => panic!("{other:?}"),
    }
}

fn make_unnamed(world: &mut World, parent: Place) -> Place {
    made(world, Update::CreateUnnamed { parent, node: node(Kind::File) }).place
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    let (mut world, directory, file) = small();
    let before = world.attributes(directory).unwrap();
    let unnamed = make_unnamed(&mut world, directory);
    assert_eq!(world.attributes(directory), Ok(before), "the directory does not change");
    let found = world.attributes(unnamed).unwrap();
    assert_eq!((found.nlink, found.mode, unnamed.partition), (0, 0o755, US));
    let lost = make_unnamed(&mut world, directory);
    let all: Vec<_> = world.partitions[&US].nameless().map(|(which, _)| which).collect();
    let reap = Update::Reap { partition: US, inodes: all.clone() };
    world.submit(Update::Hold { client: ME, partition: US, inodes: vec![unnamed.ino] }).unwrap();
    world.submit(reap.clone()).unwrap();
    assert_eq!(world.attributes(lost), Err(FsError::Gone));
    world.check();
    assert_eq!(world.submit(link(unnamed, directory, "f")), Err(FsError::Exists));
    let named = made(&mut world, link(unnamed, top(2), "over there"));
    assert_eq!((named.nlink, named.place), (1, unnamed));
    world.submit(Update::Forget { client: ME, partition: US, inodes: vec![unnamed.ino] }).unwrap();
    world.submit(reap).unwrap();
    assert_eq!(world.attributes(unnamed).unwrap().nlink, 1, "it has a name now");
    world.check();
    world.submit(unlink(top(2), "over there", unnamed)).unwrap();
    let again = world.submit(link(unnamed, directory, "again"));
    assert_eq!(again, Err(FsError::NotFound), "it has lost its last name");
    let device = Update::CreateUnnamed { parent: directory, node: node(Kind::Fifo) };
    assert_eq!(world.submit(device), Err(FsError::Invalid));
    let below = Update::CreateUnnamed { parent: file, node: node(Kind::File) };
    assert_eq!(world.submit(below), Err(FsError::NotDirectory));
}

#[test]
fn a_whiteout_takes_the_old_name() {
    let (mut world, directory, file) = small();
    let rename = |to: Place, mode| Update::Rename {
        from: directory,
        from_name: name("f"),
        to,
        to_name: name("g"),
        moved: file,
        replaced: None,
        mode,
        ancestors: Vec::new(),
        keep_for: None,
        whiteout: Some(Whiteout { uid: 5, gid: 6 }),
    };
    let exchanged = world.submit(rename(top(2), RenameMode::Exchange));
    assert_eq!(exchanged, Err(FsError::Invalid));
    world.submit(rename(top(2), RenameMode::NoReplace)).unwrap();
    assert_eq!(world.lookup(top(2), "g"), Ok((file, Kind::File)));
    let (left, kind) = world.lookup(directory, "f").unwrap();
    let found = world.attributes(left).unwrap();
    assert_eq!((kind, left.partition), (Kind::CharDevice, directory.partition));
    assert_eq!((found.rdev, found.mode, found.uid, found.gid, found.nlink), (0, 0, 5, 6, 1));
    world.check();
    world.submit(unlink(directory, "f", left)).unwrap();
    world.check();
}

#[test]
fn a_read_is_noted_unless_another_time_was_set() {
    let (mut world, _, file) = small();
    let before = world.attributes(file).unwrap();
    assert_eq!(before.btime, before.ctime);
    let at = |seconds| Timestamp { seconds, nanos: 5 };
    let read = |seen, at| {
        let reads = vec![Access { inode: file.ino, seen, at }];
        Update::NoteReads { partition: file.partition, reads }
    };
    world.submit(read(before.atime, at(1000))).unwrap();
    let now = Attributes { atime: at(1000), ..before };
    assert_eq!(world.attributes(file), Ok(now), "nothing else changes");
    world.submit(read(before.atime, at(2000))).unwrap();
    assert_eq!(world.attributes(file), Ok(now), "it was seen before that");
}

#[test]
fn a_change_takes_a_capability_away() {
    let (mut world, _, file) = small();
    let changes = |of: fn(&mut Changes)| {
        let mut changes = Changes::default();
        of(&mut changes);
        set(file, changes)
    };
    let data = Data::Inline(Bytes::from_static(b"x"));
    let piece = Piece { offset: 0, extent: Extent { len: 1, data } };
    let takes = [
        Update::Write { inode: file, at: WriteAt::End, pieces: vec![piece] },
        Update::Extend { inode: file, size: 99 },
        Update::PunchHole { inode: file, offset: 0, len: 1 },
        changes(|changes| changes.size = Some(1)),
        changes(|changes| changes.uid = Some(1)),
        changes(|changes| changes.gid = Some(1)),
    ];
    let leaves = [
        Update::Write { inode: file, at: WriteAt::End, pieces: Vec::new() },
        Update::Extend { inode: file, size: 0 },
        changes(|changes| changes.mode = Some(0o711)),
        changes(|changes| changes.mtime = Some(Timestamp::default())),
    ];
    let all = takes.iter().map(|update| (update, false));
    for (update, stays) in all.chain(leaves.iter().map(|update| (update, true))) {
        let (value, mode) = (name("\x01"), XattrMode::Any);
        let name = name("security.capability");
        let set = Update::SetXattr { inode: file, name, value, mode, drops_set_gid: false };
        world.submit(set).unwrap();
        world.submit(update.clone()).unwrap();
        assert_eq!(world.attributes(file).unwrap().marks.capability, stays, "{update:?}");
    }
}
