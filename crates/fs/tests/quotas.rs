//! Quotas of directories, one rule each.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::counted::{make, set, submit, write};
use common::{World, name, node, top};
use meridian_core::GroupId;
use meridian_fs::operation::{Changes, RenameMode, Whiteout};
use meridian_fs::quota::{Limits, Quota};
use meridian_fs::{Answer, Done, FsError, Kind, Place, Query, Update};

const US: GroupId = GroupId(1);

fn limits(bytes: Option<u64>, inodes: Option<u64>) -> Limits {
    Limits { bytes, inodes }
}

fn unlink(parent: Place, text: &str, child: Place) -> Update {
    Update::Unlink { parent, name: name(text), child, keep_for: None }
}

fn used(world: &World, inode: Place) -> Option<(u64, u64)> {
    match world.read(&Query::Quota { inode }).unwrap() {
        Answer::Quota(quota) => quota.map(|Quota { bytes, inodes, .. }| (bytes, inodes)),
        other => panic!("{other:?}"),
    }
}

/// A world with the directory `q` in `us`, which has these limits.
fn limited(of: Limits) -> (World, Place) {
    let mut world = World::new(2);
    let directory = make(&mut world, top(1), "q", Kind::Directory).unwrap();
    set(&mut world, directory, Some(of)).unwrap();
    (world, directory)
}

#[test]
fn a_file_counts_from_its_first_name_on_and_a_whiteout_at_once() {
    let mut world = World::new(1);
    let directory = world.create(top(1), "q", Kind::Directory).unwrap();
    let limits = Limits { inodes: Some(2), ..Limits::default() };
    set(&mut world, directory, Some(limits)).unwrap();
    let unnamed = |world: &mut World| {
        let update = Update::CreateUnnamed { parent: directory, node: node(Kind::File) };
        let Ok(Done::Attributes(made)) = submit(world, update) else { panic!() };
        made.place
    };
    let (first, second) = (unnamed(&mut world), unnamed(&mut world));
    let link = |target, parent, text: &str| Update::Link { target, parent, name: name(text) };
    assert!(submit(&mut world, link(first, directory, "first")).is_ok());
    let full = submit(&mut world, link(second, directory, "second"));
    assert_eq!(full, Err(FsError::OverQuota));
    assert!(submit(&mut world, link(second, top(1), "elsewhere")).is_ok());
    let rename = Update::Rename {
        from: directory,
        from_name: name("first"),
        to: directory,
        to_name: name("renamed"),
        moved: first,
        replaced: None,
        mode: RenameMode::Replace,
        ancestors: Vec::new(),
        keep_for: None,
        whiteout: Some(Whiteout { uid: 0, gid: 0 }),
    };
    assert_eq!(submit(&mut world, rename.clone()), Err(FsError::OverQuota));
    let limits = Limits { inodes: Some(3), ..Limits::default() };
    set(&mut world, directory, Some(limits)).unwrap();
    submit(&mut world, rename).unwrap();
    world.check();
}

#[test]
fn inodes_are_counted_and_limited() {
    let (mut world, q) = limited(limits(None, Some(3)));
    let below = make(&mut world, q, "d", Kind::Directory).unwrap();
    let file = make(&mut world, below, "f", Kind::File).unwrap();
    assert_eq!(used(&world, file), Some((0, 3)));
    assert_eq!(make(&mut world, below, "g", Kind::Symlink), Err(FsError::OverQuota));
    assert_eq!(make(&mut world, q, "g", Kind::File), Err(FsError::OverQuota));
    make(&mut world, top(1), "outside", Kind::File).unwrap();
    let link = Update::Link { target: file, parent: q, name: name("l") };
    submit(&mut world, link).unwrap();
    assert_eq!(used(&world, q), Some((0, 3)), "another name is no other file");
    submit(&mut world, unlink(below, "f", file)).unwrap();
    assert_eq!(used(&world, q), Some((0, 3)));
    submit(&mut world, unlink(q, "l", file)).unwrap();
    assert_eq!((used(&world, q), used(&world, file)), (Some((0, 2)), None), "it only lingers");
    write(&mut world, file, 99).unwrap();
    make(&mut world, q, "g", Kind::File).unwrap();
}

#[test]
fn bytes_are_counted_and_limited() {
    let (mut world, q) = limited(limits(Some(100), None));
    let file = make(&mut world, q, "f", Kind::File).unwrap();
    write(&mut world, file, 60).unwrap();
    assert_eq!(write(&mut world, file, 41), Err(FsError::OverQuota));
    assert_eq!(world.attributes(file).unwrap().size, 60, "nothing of it was done");
    write(&mut world, file, 40).unwrap();
    assert_eq!(used(&world, q), Some((100, 2)));
    // A hole takes nothing, and what is cut or overwritten comes back.
    let resize = |size| {
        let changes = Changes { size: Some(size), ..Changes::default() };
        Update::SetAttributes { inode: file, changes }
    };
    submit(&mut world, resize(1000)).unwrap();
    assert_eq!(used(&world, q), Some((100, 2)));
    submit(&mut world, Update::PunchHole { inode: file, offset: 0, len: 50 }).unwrap();
    assert_eq!(used(&world, q), Some((50, 2)));
    submit(&mut world, resize(0)).unwrap();
    assert_eq!(used(&world, q), Some((0, 2)));
    // Who is over a new limit may use less, and not more.
    write(&mut world, file, 80).unwrap();
    set(&mut world, q, Some(limits(Some(10), Some(1)))).unwrap();
    assert_eq!(write(&mut world, file, 1), Err(FsError::OverQuota));
    submit(&mut world, resize(70)).unwrap();
    assert_eq!(make(&mut world, q, "g", Kind::File), Err(FsError::OverQuota));
    set(&mut world, q, Some(Limits::default())).unwrap();
    write(&mut world, file, 1000).unwrap();
    assert_eq!(used(&world, q), Some((1070, 2)));
}

#[test]
fn nothing_comes_under_another_quota() {
    let (mut world, q) = limited(Limits::default());
    let inside = make(&mut world, q, "f", Kind::File).unwrap();
    let other = make(&mut world, top(1), "other", Kind::Directory).unwrap();
    let outside = make(&mut world, other, "o", Kind::File).unwrap();
    let replace = RenameMode::Replace;
    let mut rename = |from: (Place, &str), to: (Place, &str), mode| {
        let update = world.rename_update(from, to, mode, None).unwrap();
        submit(&mut world, update)
    };
    assert_eq!(rename((q, "f"), (other, "f"), replace), Err(FsError::OtherQuota));
    assert_eq!(rename((other, "o"), (q, "o"), replace), Err(FsError::OtherQuota));
    assert_eq!(rename((other, "o"), (q, "f"), RenameMode::Exchange), Err(FsError::OtherQuota));
    assert_eq!(rename((q, "f"), (top(2), "f"), replace), Err(FsError::OtherQuota));
    rename((q, "f"), (q, "g"), replace).unwrap();
    rename((top(1), "q"), (other, "q"), replace).unwrap();
    rename((other, "q"), (top(2), "q"), replace).unwrap();
    for (target, parent) in [(inside, other), (outside, q), (inside, top(2))] {
        let link = Update::Link { target, parent, name: name("l") };
        assert_eq!(submit(&mut world, link), Err(FsError::OtherQuota));
    }
}

#[test]
fn a_directory_gets_a_quota_while_it_is_empty_and_keeps_it() {
    let mut world = World::new(2);
    let directory = make(&mut world, top(1), "q", Kind::Directory).unwrap();
    let file = make(&mut world, directory, "f", Kind::File).unwrap();
    assert_eq!(set(&mut world, file, Some(Limits::default())), Err(FsError::NotDirectory));
    submit(&mut world, unlink(directory, "f", file)).unwrap();
    set(&mut world, directory, Some(Limits::default())).unwrap();
    // One below another counts for itself.
    let below = make(&mut world, directory, "b", Kind::Directory).unwrap();
    assert_eq!(used(&world, directory), Some((0, 2)));
    set(&mut world, below, Some(limits(Some(5), None))).unwrap();
    assert_eq!((used(&world, directory), used(&world, below)), (Some((0, 1)), Some((0, 1))));
    let place = |name: &'static str, child, to| Update::PlaceDirectory {
        parent: directory,
        name: common::name(name),
        child,
        to,
    };
    assert_eq!(submit(&mut world, place("b", below, GroupId(2))), Err(FsError::Busy));
    let plain = make(&mut world, directory, "p", Kind::Directory).unwrap();
    submit(&mut world, place("p", plain, GroupId(2))).unwrap();
    assert_eq!(used(&world, directory), Some((0, 1)), "it lives elsewhere now");
    let away = Place { partition: GroupId(2), ..plain };
    assert_eq!(submit(&mut world, place("p", away, US)), Err(FsError::OtherQuota));
    let rmdir = Update::Rmdir { parent: directory, name: name("b"), child: below };
    submit(&mut world, rmdir).unwrap();
    assert_eq!(used(&world, directory), Some((0, 1)));
}
