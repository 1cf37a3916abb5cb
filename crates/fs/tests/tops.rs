//! What a partition keeps of directories that live elsewhere, one rule each.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{World, name, node, rename, top};
use meridian_core::{GroupId, Stamp};
use meridian_fs::operation::{Changes, RenameMode};
use meridian_fs::{Answer, Attributes, Done, FsError, Kind, Place, Query, Update};

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const AP: GroupId = GroupId(3);

fn submit(world: &mut World, update: Update) -> Done {
    let done = world.submit(update).unwrap();
    world.check();
    done
}

fn make(world: &mut World, parent: Place, text: &str) -> Place {
    let update = Update::Create { parent, name: name(text), node: node(Kind::Directory) };
    match submit(world, update) {
        Done::Attributes(made) => made.place,
        other => panic!("{other:?}"),
    }
}

fn place(world: &mut World, parent: Place, text: &str, child: Place, to: GroupId) -> Place {
    submit(world, Update::PlaceDirectory { parent, name: name(text), child, to });
    Place { partition: to, ..child }
}

fn chmod(world: &mut World, inode: Place, mode: u16) -> Attributes {
    let changes = Changes { mode: Some(mode), uid: Some(7), ..Changes::default() };
    match submit(world, Update::SetAttributes { inode, changes }) {
        Done::Attributes(changed) => changed,
        other => panic!("{other:?}"),
    }
}

/// The mode that the partition of the name keeps; both questions tell the same.
fn kept(world: &World, parent: Place, text: &str) -> Option<u16> {
    let query = Query::Lookup { parent, name: name(text) };
    let Answer::Entry { entry, top, .. } = world.read(&query).unwrap() else { panic!() };
    let query = Query::Directory { inode: parent, after: name(""), limit: 100 };
    let Answer::Directory { tops, .. } = world.read(&query).unwrap() else { panic!() };
    let top = top.map(|top| *top);
    assert_eq!(top, tops.into_iter().find(|of| of.place == entry.place));
    top.map(|of| of.mode)
}

#[test]
fn a_placed_directory_is_known_where_its_name_is() {
    let mut world = World::new(3);
    assert_eq!(kept(&world, Place::ROOT, "us"), Some(0o777), "as it began");
    let directory = make(&mut world, top(1), "d");
    assert_eq!(kept(&world, top(1), "d"), None, "it lives here");
    chmod(&mut world, directory, 0o750);
    let away = place(&mut world, top(1), "d", directory, EU);
    assert_eq!(kept(&world, top(1), "d"), Some(0o750));
    let further = place(&mut world, top(1), "d", away, AP);
    assert_eq!(kept(&world, top(1), "d"), Some(0o750));
    place(&mut world, top(1), "d", further, US);
    assert_eq!(kept(&world, top(1), "d"), None);
}

#[test]
fn who_gives_it_another_name_learns_what_it_is_now() {
    let mut world = World::new(3);
    let directory = make(&mut world, top(1), "d");
    let away = place(&mut world, top(1), "d", directory, EU);
    chmod(&mut world, away, 0o700);
    assert_eq!(kept(&world, top(1), "d"), Some(0o755), "as of when it was placed");
    submit(&mut world, rename((top(1), "d"), (top(1), "e"), away));
    assert_eq!(kept(&world, top(1), "e"), Some(0o700));
    submit(&mut world, rename((top(1), "e"), (top(3), "f"), away));
    assert_eq!(kept(&world, top(3), "f"), Some(0o700));
    // Where it lives itself nobody else needs to know.
    submit(&mut world, rename((top(3), "f"), (top(2), "g"), away));
    assert_eq!(kept(&world, top(2), "g"), None);
}

#[test]
fn two_that_change_places_are_known_where_they_come() {
    let mut world = World::new(3);
    let (one, two) = (make(&mut world, top(1), "one"), make(&mut world, top(2), "two"));
    let one = place(&mut world, top(1), "one", one, AP);
    chmod(&mut world, two, 0o711);
    let mut exchange = rename((top(1), "one"), (top(2), "two"), one);
    if let Update::Rename { replaced, mode, ancestors, .. } = &mut exchange {
        (*replaced, *mode) = (Some(two), RenameMode::Exchange);
        ancestors.push(top(1));
    }
    submit(&mut world, exchange);
    assert_eq!(kept(&world, top(1), "one"), Some(0o711), "what lives in eu");
    assert_eq!(kept(&world, top(2), "two"), Some(0o755), "what lives in ap");
    submit(&mut world, Update::Rmdir { parent: top(2), name: name("two"), child: one });
}

#[test]
fn a_client_tells_what_it_became() {
    let mut world = World::new(3);
    let note =
        |attributes, ts| Update::NoteTop { partition: GroupId::GLOBAL, attributes, ts: Stamp(ts) };
    let (first, last) = (chmod(&mut world, top(1), 0o700), chmod(&mut world, top(1), 0o711));
    submit(&mut world, note(last, 2));
    assert_eq!(kept(&world, Place::ROOT, "us"), Some(0o711));
    submit(&mut world, note(first, 1));
    assert_eq!(kept(&world, Place::ROOT, "us"), Some(0o711), "T2: this was before");
    let directory = make(&mut world, Place::ROOT, "d");
    let here = chmod(&mut world, directory, 0o700);
    submit(&mut world, note(here, 99));
    assert_eq!(kept(&world, Place::ROOT, "d"), None, "it lives here");
    place(&mut world, Place::ROOT, "d", directory, EU);
    submit(&mut world, note(Attributes { mode: 0, ..here }, 99));
    assert_eq!(kept(&world, Place::ROOT, "d"), Some(0o700), "of another placement");
}

fn inodes_of(world: &World, partition: GroupId) -> u64 {
    let Answer::Totals { inodes, .. } = world.read(&Query::Totals { partition }).unwrap() else {
        panic!()
    };
    inodes
}

#[test]
fn a_region_is_added_and_removed_when_its_directory_is_empty() {
    let mut world = World::new(3);
    let (sa, made) = (GroupId(9), meridian_fs::Timestamp::from_millis(5));
    let add = Update::AddRegion { partition: sa, name: name("sa"), made };
    let before = world.attributes(Place::ROOT).unwrap().nlink;
    world.submit(add.clone()).unwrap();
    world.submit(add).unwrap();
    assert_eq!(world.attributes(Place::ROOT).unwrap().nlink, before + 1, "once");
    let taken = Update::AddRegion { partition: GroupId(8), name: name("us"), made };
    assert_eq!(world.submit(taken), Err(FsError::Exists));

    let mut world = World::new(3);
    let dir = make(&mut world, top(1), "dir");
    let remove = || Update::RemoveRegion { partition: US, name: name("us") };
    assert_eq!(world.submit(remove()), Err(FsError::NotEmpty));
    submit(&mut world, rename((top(1), "dir"), (Place::ROOT, "dir"), dir));
    submit(&mut world, remove());
    assert_eq!(world.submit(remove()), Err(FsError::Stale), "once");
    let empty = make(&mut world, top(2), "empty");
    let update =
        Update::PlaceDirectory { parent: top(2), name: name("empty"), child: empty, to: US };
    assert_eq!(world.submit(update), Err(FsError::NotFound), "nothing comes to it any more");
    assert_eq!(inodes_of(&world, US), 1, "but what was moved away stays");
    submit(&mut world, Update::Rmdir { parent: Place::ROOT, name: name("dir"), child: dir });
    assert_eq!(inodes_of(&world, US), 0);
}
