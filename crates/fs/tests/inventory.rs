//! What partitions hold, by paths, where some are missing or have not applied the same.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{ME, World, name, rename, top};
use meridian_core::{GroupId, Stamp};
use meridian_fs::inventory::{Inventory, Partitions, Why};
use meridian_fs::operation::XattrMode;
use meridian_fs::{Kind, Place, Update};

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);

/// What the partitions of these groups hold.
fn of(world: &World, groups: &[GroupId]) -> Inventory {
    let here = world.partitions.iter().filter(|(group, _)| groups.contains(group));
    let partitions: Partitions<'_> = here.map(|(group, of)| (*group, of)).collect();
    Inventory::of(&partitions, |group| name(["global", "us", "eu"][usize::from(group.0)]))
}

fn all(world: &World) -> Inventory {
    of(world, &[GroupId::GLOBAL, US, EU])
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn paths(found: &Inventory) -> Vec<String> {
    found.items.iter().map(|item| text(&item.path)).collect()
}

fn astray(found: &Inventory) -> Vec<(String, Why)> {
    found.astray.iter().map(|name| (text(&name.path), name.why)).collect()
}

/// A directory in us with two files, one of which has its only name in eu.
fn world() -> (World, Place, Place) {
    let mut world = World::new(2);
    let dir = world.create(top(1), "dir", Kind::Directory).unwrap();
    let file = world.create(dir, "file", Kind::File).unwrap();
    world.create(dir, "link", Kind::Symlink).unwrap();
    world.create(Place::ROOT, "everywhere", Kind::File).unwrap();
    world.submit(rename((dir, "file"), (top(2), "moved"), file)).unwrap();
    (world, dir, file)
}

#[test]
fn paths_lead_through_all_partitions_that_are_here() {
    let (mut world, dir, file) = world();
    let update = Update::Link { target: file, parent: dir, name: name("second") };
    world.submit(update).unwrap();
    let found = all(&world);
    let expected = [
        "/",
        "/eu",
        "/eu/moved",
        "/everywhere",
        "/us",
        "/us/dir",
        "/us/dir/link",
        "/us/dir/second",
    ];
    assert_eq!(paths(&found), expected);
    assert!(found.astray.is_empty(), "{:?}", found.astray);
    let firsts: Vec<_> = found.items.iter().map(|item| item.first).collect();
    assert_eq!(firsts[7], Some(2), "it is the file that was moved");
    assert!(firsts[..7].iter().all(Option::is_none));
    assert_eq!(found.path_of(file).map(text), Some("/eu/moved".into()));
    assert_eq!(found.items[2].attributes, world.attributes(file).unwrap());
    let names: u64 = world.partitions.values().map(meridian_fs::Partition::names).sum();
    assert_eq!(names, 7);
}

#[test]
fn what_is_alone_is_told_without_the_rest() {
    let (mut world, dir, file) = world();
    let found = of(&world, &[US]);
    let number = format!("/by-number/{}", file.ino.0);
    assert_eq!(paths(&found), ["/us", "/us/dir", "/us/dir/link", &number]);
    assert!(found.astray.is_empty(), "{:?}", found.astray);
    let found = of(&world, &[EU]);
    assert_eq!(paths(&found), ["/eu"]);
    assert_eq!(astray(&found), [("/eu/moved".into(), Why::Elsewhere)]);
    assert_eq!(paths(&of(&world, &[GroupId::GLOBAL])), ["/", "/everywhere"]);
    // A file that is removed and still open has no name.
    let update =
        Update::Unlink { parent: top(2), name: name("moved"), child: file, keep_for: Some(ME) };
    world.submit(update).unwrap();
    let found = all(&world);
    assert_eq!(paths(&found).last(), Some(&number));
    assert_eq!(found.items.last().unwrap().attributes.nlink, 0);
    assert!(world.lookup(dir, "file").is_err());
}

/// A directory has moved from us to eu, and one of them has not applied that.
#[test]
fn partitions_that_have_not_applied_the_same_are_told_as_they_are() {
    let (mut world, dir, _) = world();
    let (us, eu) = (world.partitions[&US].clone(), world.partitions[&EU].clone());
    world.submit(rename((top(1), "dir"), (top(2), "dir"), dir)).unwrap();
    // It has no name: us has let go of it, and eu has not heard of it.
    let ahead = world.partitions.insert(EU, eu).unwrap();
    let number = format!("/by-number/{}", dir.ino.0);
    let found = paths(&all(&world));
    assert!(found.ends_with(&[number.clone(), format!("{number}/link")]), "{found:?}");
    // It has two: each has it.
    world.partitions.insert(EU, ahead);
    world.partitions.insert(US, us);
    let found = all(&world);
    assert_eq!(astray(&found), [("/us/dir".into(), Why::Twice)]);
    assert!(paths(&found).contains(&"/eu/dir/link".to_string()), "{:?}", paths(&found));
    // It is not made yet.
    let fresh = World::new(2).partitions.remove(&US).unwrap();
    world.partitions.insert(US, fresh);
    let missing = |path: &str| (path.to_string(), Why::Missing);
    assert_eq!(astray(&all(&world)), [missing("/eu/dir"), missing("/eu/moved")]);
}

#[test]
fn what_has_no_name_is_told_beside_an_entry_that_is_called_so() {
    let (mut world, dir, _) = world();
    world.create(Place::ROOT, "by-number", Kind::Directory).unwrap();
    let update = Update::CreateUnnamed { parent: dir, node: common::node(Kind::File) };
    world.submit(update).unwrap();
    let found = paths(&all(&world));
    assert!(found.contains(&"/by-number".to_string()));
    assert!(found.last().unwrap().starts_with("/by-number_/"), "{found:?}");
}

#[test]
fn an_inode_is_told_with_its_bytes_and_attributes() {
    let mut world = World::new(1);
    let file = world.create(top(1), "file", Kind::File).unwrap();
    let mut rng = common::Rng(7);
    world.write(file, meridian_fs::operation::WriteAt::End, &[9; 7000], false, &mut rng).unwrap();
    let set = Update::SetXattr {
        inode: file,
        name: name("user.a"),
        value: name("b"),
        mode: XattrMode::Any,
        drops_set_gid: false,
    };
    world.submit(set).unwrap();
    let contents = world.partitions[&US].contents(file.ino).unwrap();
    assert_eq!(contents.xattrs, [(name("user.a"), name("b"))]);
    let bytes: u64 = contents.extents.iter().map(|(_, extent)| u64::from(extent.len)).sum();
    assert_eq!(bytes, 7000);
    assert_eq!(contents.missing(|_| false), [(0, 7000)]);
    let changed = world.attributes(file).unwrap().ctime;
    assert_eq!(world.partitions[&US].changed(), Some(changed));
    let link = world.create(top(1), "link", Kind::Symlink).unwrap();
    assert_eq!(world.partitions[&US].contents(link.ino).unwrap().target, name("nowhere"));
    assert_eq!(world.partitions[&US].contents(meridian_fs::Ino(99)), None);
}

#[test]
fn updates_that_wait_for_another_partition_are_told_with_what_they_are_about() {
    let (mut world, dir, file) = world();
    let update = rename((dir, "link"), (top(2), "link"), world.lookup(dir, "link").unwrap().0);
    let (id, operation) = (world.next_id(), world.operation(update.clone()));
    world.deliver(US, id, operation);
    let us = &world.partitions[&US];
    let told: Vec<_> = us.undecided().collect();
    assert_eq!(told.len(), 1);
    let (waits, operation, missing) = &told[0];
    assert_eq!((*waits, &operation.update, &missing[..]), (id, &update, &[EU][..]));
    let about = |found: Inventory, update| -> Vec<String> {
        found.about(update).iter().map(|path| text(path)).collect()
    };
    assert_eq!(about(all(&world), &update), ["/us/dir/link", "/eu/link"]);
    assert_eq!(about(of(&world, &[US]), &update), ["/us/dir/link", "?/link"]);
    let update = Update::Extend { inode: file, size: 1 };
    assert_eq!(about(all(&world), &update), ["/eu/moved"]);
    assert_eq!(us.latest(), Stamp(id.sequence));
}
