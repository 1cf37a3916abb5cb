//! The rules of the tree, one test each.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{ME, World, name, node, regions, top};
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Position, Stamp};
use meridian_fs::operation::{Changes, NewNode, Piece, RenameMode, WriteAt, XattrMode};
use meridian_fs::types::{
    Data, FILE_MAX, INLINE_MAX, LINK_MAX, Lock, LockFamily, LockOwner, SYMLINK_MAX, XATTR_VALUE_MAX,
};
use meridian_fs::{
    Answer, Done, Effect, Extent, FsError, Ino, Kind, Operation, Partition, Place, Query, Stand,
    Standing, Timestamp, Update, Vector,
};
use std::collections::BTreeSet;

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const YOU: ClientId = ClientId(8);

fn unlink(parent: Place, text: &str, child: Place, keep_for: Option<ClientId>) -> Update {
    Update::Unlink { parent, name: name(text), child, keep_for }
}

fn rmdir(parent: Place, text: &str, child: Place) -> Update {
    Update::Rmdir { parent, name: name(text), child }
}

fn link(target: Place, parent: Place, text: &str) -> Update {
    Update::Link { target, parent, name: name(text) }
}

fn inline(bytes: &[u8]) -> Vec<Piece> {
    let len = u32::try_from(bytes.len()).unwrap();
    let data = Data::Inline(Bytes::copy_from_slice(bytes));
    vec![Piece { offset: 0, extent: Extent { len, data } }]
}

fn lock(client: ClientId, start: u64, end: u64) -> Lock {
    let owner = LockOwner { client, owner: 1 };
    Lock { owner, family: LockFamily::Posix, start, end, exclusive: true, pid: 9 }
}

fn set(inode: Place, changes: Changes) -> Update {
    Update::SetAttributes { inode, changes }
}

/// A world with the directory `d` in `us` and the file `f` in it.
fn small() -> (World, Place, Place) {
    let mut world = World::new(2);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let file = world.create(directory, "f", Kind::File).unwrap();
    (world, directory, file)
}

/// As [`small`], and `e` in `us`, which lives in `eu`, with the file `g` in it.
fn two_partitions() -> (World, Place, Place) {
    let (mut world, _, _) = small();
    world.create(top(1), "e", Kind::Directory).unwrap();
    let placed = world.place(top(1), "e", EU.0).unwrap();
    let file = world.create(placed, "g", Kind::File).unwrap();
    assert_eq!((placed.partition, file.partition), (EU, EU));
    (world, placed, file)
}

#[test]
fn the_root_leads_to_a_top_directory_of_each_region() {
    let world = World::new(2);
    let names: Vec<_> = world.list(Place::ROOT).unwrap();
    assert_eq!(
        names,
        [("eu".to_string(), top(2), Kind::Directory), ("us".to_string(), top(1), Kind::Directory)]
    );
    let root = world.attributes(Place::ROOT).unwrap();
    assert_eq!((root.mode, root.nlink, root.uid), (0o755, 4, 0));
    assert_eq!(world.attributes(top(1)).unwrap().mode, 0o777);
    assert_eq!(world.lookup(top(1), "..").unwrap().0, Place::ROOT);
    assert_eq!(world.lookup(Place::ROOT, "..").unwrap().0, Place::ROOT);
    world.check();
}

#[test]
fn tops_stay_where_they_are() {
    let mut world = World::new(2);
    world.create(Place::ROOT, "d", Kind::Directory).unwrap();
    assert_eq!(world.submit(rmdir(Place::ROOT, "us", top(1))), Err(FsError::Busy));
    let result = world.rename((Place::ROOT, "us"), (Place::ROOT, "x"), RenameMode::Replace, None);
    assert_eq!(result, Err(FsError::Busy));
    let result = world.rename((Place::ROOT, "d"), (Place::ROOT, "us"), RenameMode::Replace, None);
    assert_eq!(result, Err(FsError::Busy));
    assert_eq!(world.place(Place::ROOT, "us", 2), Err(FsError::NotPermitted));
    let unlinked = world.submit(unlink(Place::ROOT, "us", top(1), None));
    assert_eq!(unlinked, Err(FsError::IsDirectory));
}

#[test]
fn names_are_checked() {
    let (mut world, directory, _) = small();
    for bad in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(world.create(directory, bad, Kind::File), Err(FsError::Invalid), "{bad:?}");
    }
    let long = "x".repeat(256);
    assert_eq!(world.create(directory, &long, Kind::File), Err(FsError::NameTooLong));
    assert_eq!(world.lookup(directory, &long), Err(FsError::NameTooLong));
    world.create(directory, &long[1..], Kind::File).unwrap();
    assert_eq!(world.create(directory, "f", Kind::File), Err(FsError::Exists));
}

#[test]
fn symbolic_links_have_targets_of_1_to_4095_bytes() {
    let (mut world, parent, _) = small();
    let mut symlink = |text: &str, len: usize| {
        let target = Bytes::from(vec![b't'; len]);
        let node = NewNode { target, ..node(Kind::Symlink) };
        world.submit(Update::Create { parent, name: name(text), node })
    };
    assert_eq!(symlink("0", 0), Err(FsError::NotFound));
    assert_eq!(symlink("1", SYMLINK_MAX + 1), Err(FsError::NameTooLong));
    let Ok(Done::Attributes(made)) = symlink("2", SYMLINK_MAX) else { panic!() };
    assert_eq!((made.size, made.mode), (4095, 0o777));
    let read = world.read(&Query::Symlink { inode: made.place });
    assert_eq!(read, Ok(Answer::Bytes(Bytes::from(vec![b't'; SYMLINK_MAX]))));
}

#[test]
fn a_set_group_id_directory_hands_down_its_group() {
    let (mut world, directory, _) = small();
    let changes = Changes { mode: Some(0o2755), gid: Some(44), ..Changes::default() };
    world.submit(set(directory, changes)).unwrap();
    let file = world.create(directory, "g", Kind::File).unwrap();
    let below = world.create(directory, "s", Kind::Directory).unwrap();
    let (file, below) = (world.attributes(file).unwrap(), world.attributes(below).unwrap());
    assert_eq!((file.gid, file.mode), (44, 0o755));
    assert_eq!((below.gid, below.mode), (44, 0o2755));
}

#[test]
fn a_new_owner_clears_the_set_id_bits_of_a_file() {
    let (mut world, directory, file) = small();
    for inode in [directory, file] {
        world.submit(set(inode, Changes { mode: Some(0o6755), ..Changes::default() })).unwrap();
        world.submit(set(inode, Changes { uid: Some(5), ..Changes::default() })).unwrap();
    }
    assert_eq!(world.attributes(file).unwrap().mode, 0o755);
    assert_eq!(world.attributes(directory).unwrap().mode, 0o6755);
    let both = Changes { uid: Some(6), mode: Some(0o4711), ..Changes::default() };
    world.submit(set(file, both)).unwrap();
    assert_eq!(world.attributes(file).unwrap().mode, 0o4711, "the mode that the kernel sends");
}

#[test]
fn what_was_removed_is_gone_and_nothing_is_made_in_it() {
    let (mut world, directory, file) = small();
    assert_eq!(world.submit(rmdir(top(1), "d", directory)), Err(FsError::NotEmpty));
    world.submit(unlink(directory, "f", file, None)).unwrap();
    world.reap(US);
    world.submit(rmdir(top(1), "d", directory)).unwrap();
    assert_eq!(world.create(directory, "x", Kind::File), Err(FsError::NotFound));
    assert_eq!(world.lookup(directory, "x"), Err(FsError::NotFound));
    assert_eq!(world.attributes(directory), Err(FsError::Gone));
    assert_eq!(world.submit(set(file, Changes::default())), Err(FsError::Gone));
    let write = Update::Write { inode: file, at: WriteAt::End, pieces: inline(b"x") };
    assert_eq!(world.submit(write), Err(FsError::Gone));
    assert_eq!(world.submit(link(file, top(1), "l")), Err(FsError::NotFound));
    assert_eq!(world.attributes(top(1)).unwrap().nlink, 2);
    world.check();
}

#[test]
fn an_entry_that_leads_elsewhere_is_stale_and_a_missing_one_not_found() {
    let (mut world, directory, file) = small();
    let other = world.create(directory, "o", Kind::File).unwrap();
    assert_eq!(world.submit(unlink(directory, "f", other, None)), Err(FsError::Stale));
    assert_eq!(world.submit(unlink(directory, "x", other, None)), Err(FsError::NotFound));
    assert_eq!(world.submit(rmdir(directory, "f", other)), Err(FsError::Stale));
    let rename = |moved, replaced, mode| Update::Rename {
        from: directory,
        from_name: name("f"),
        to: directory,
        to_name: name("t"),
        moved,
        replaced,
        mode,
        ancestors: Vec::new(),
        keep_for: None,
        whiteout: None,
    };
    let mut submit = |update| world.submit(update);
    assert_eq!(submit(rename(other, None, RenameMode::Replace)), Err(FsError::Stale));
    // The client believes that something is replaced that is gone: a program must not hear of it.
    assert_eq!(submit(rename(file, Some(other), RenameMode::Replace)), Err(FsError::Stale));
    assert_eq!(submit(rename(file, Some(other), RenameMode::Exchange)), Err(FsError::NotFound));
    submit(rename(file, None, RenameMode::NoReplace)).unwrap();
    assert_eq!(submit(rename(file, None, RenameMode::Replace)), Err(FsError::NotFound));
}

#[test]
fn links_count_and_have_a_limit() {
    let (mut world, directory, file) = small();
    assert_eq!(world.submit(link(directory, top(1), "l")), Err(FsError::NotPermitted));
    for number in 1..LINK_MAX {
        world.submit(link(file, directory, &format!("l{number}"))).unwrap();
    }
    assert_eq!(world.attributes(file).unwrap().nlink, LINK_MAX);
    assert_eq!(world.submit(link(file, directory, "more")), Err(FsError::TooManyLinks));
    assert_eq!(world.submit(link(file, directory, "l1")), Err(FsError::Exists));
    world.check();
}

#[test]
fn names_over_partitions_count_too() {
    let (mut world, placed, file) = two_partitions();
    let Ok(Done::Attributes(linked)) = world.submit(link(file, top(1), "l")) else { panic!() };
    assert_eq!((linked.nlink, linked.place), (2, file));
    assert_eq!(world.attributes(top(1)).unwrap().nlink, 4, "d and e");
    world.submit(unlink(placed, "g", file, None)).unwrap();
    assert_eq!(world.attributes(file).unwrap().nlink, 1);
    world.submit(rmdir(top(1), "e", placed)).unwrap();
    assert_eq!(world.attributes(top(1)).unwrap().nlink, 3);
    assert_eq!(world.lookup(top(1), "l"), Ok((file, Kind::File)));
    world.check();
}

fn forget(client: ClientId, file: Place) -> Update {
    Update::Forget { client, partition: file.partition, inodes: vec![file.ino] }
}

fn hold(client: ClientId, file: Place) -> Update {
    Update::Hold { client, partition: file.partition, inodes: vec![file.ino] }
}

#[test]
fn a_file_outlives_its_name_where_it_is_open() {
    let (mut world, directory, file) = small();
    let data = || inline(b"as it was");
    world.submit(Update::Write { inode: file, at: WriteAt::End, pieces: data() }).unwrap();
    world.submit(hold(ME, file)).unwrap();
    let other = world.create(directory, "o", Kind::File).unwrap();
    world.rename((directory, "o"), (directory, "f"), RenameMode::Replace, None).unwrap();
    assert_eq!(world.lookup(directory, "f"), Ok((other, Kind::File)));
    world.submit(hold(YOU, file)).unwrap();
    for client in [ME, YOU] {
        world.reap(US);
        assert_eq!(world.contents(file).unwrap(), b"as it was");
        world.check();
        world.submit(forget(client, file)).unwrap();
    }
    assert_eq!(world.attributes(file).unwrap().nlink, 0, "another may yet say so");
    world.reap(US);
    assert_eq!(world.attributes(file), Err(FsError::Gone));
    world.submit(hold(ME, file)).unwrap();
    assert_eq!(world.partitions[&US].leases().count(), 0, "it is too late");
    world.check();
}

#[test]
fn a_late_reaping_takes_no_file_that_has_lost_another_name_since() {
    let (mut world, directory, file) = small();
    world.submit(unlink(directory, "f", file, None)).unwrap();
    let ((ino, ts), _) = world.partitions[&US].nameless().next().unwrap();
    let inodes = vec![(ino, Stamp(ts.0 + 1)), (Ino::top(US), ts), (Ino(99), ts)];
    world.submit(Update::Reap { partition: US, inodes }).unwrap();
    assert_eq!(world.attributes(file).unwrap().nlink, 0);
    world.check();
}

#[test]
fn nobody_holds_a_directory_open() {
    let (mut world, directory, file) = small();
    world.submit(hold(ME, directory)).unwrap();
    assert_eq!(world.partitions[&US].leases().count(), 0);
    world.submit(hold(ME, file)).unwrap();
    world.submit(Update::Lock { inode: file, lock: lock(ME, 0, 9), ticket: None }).unwrap();
    world.submit(forget(ME, file)).unwrap();
    assert_eq!(world.partitions[&US].held_by(ME).count(), 1, "it has a lock");
    world.check();
}

#[test]
fn a_file_without_a_name_is_kept_until_it_is_forgotten() {
    let (mut world, directory, file) = small();
    let write = |pieces| Update::Write { inode: file, at: WriteAt::End, pieces };
    world.submit(unlink(directory, "f", file, Some(ME))).unwrap();
    world.submit(write(inline(b"still"))).unwrap();
    assert_eq!(world.attributes(file).unwrap().nlink, 0);
    assert_eq!(world.submit(link(file, directory, "again")), Err(FsError::NotFound));
    world.check();
    world.submit(forget(YOU, file)).unwrap();
    world.reap(US);
    assert_eq!(world.contents(file).unwrap(), b"still", "forgotten by another");
    world.submit(forget(ME, file)).unwrap();
    world.reap(US);
    assert_eq!(world.attributes(file), Err(FsError::Gone));
    assert_eq!(world.partitions[&US].leases().count(), 0);
    assert_eq!(
        world.read(&Query::Totals { partition: US }),
        Ok(Answer::Totals { inodes: 2, bytes: 0 })
    );
}

#[test]
fn a_replaced_file_is_kept_too() {
    let (mut world, directory, file) = small();
    let other = world.create(directory, "o", Kind::File).unwrap();
    let names = ((directory, "o"), (directory, "f"));
    world.rename(names.0, names.1, RenameMode::Replace, Some(ME)).unwrap();
    assert_eq!(world.lookup(directory, "f"), Ok((other, Kind::File)));
    assert_eq!(world.attributes(file).unwrap().nlink, 0);
    world.check();
}

#[test]
fn a_client_that_expires_loses_what_it_holds_unless_it_renewed() {
    let (mut world, directory, file) = small();
    let open = world.create(directory, "o", Kind::File).unwrap();
    let take = |client, start| Update::Lock {
        inode: file,
        lock: lock(client, start, start),
        ticket: None,
    };
    world.submit(take(ME, 1)).unwrap();
    world.submit(take(YOU, 2)).unwrap();
    world.submit(unlink(directory, "o", open, Some(ME))).unwrap();
    let renewed = |world: &World| {
        let leases: Vec<_> = world.partitions[&US].leases().collect();
        leases.iter().find(|(client, _)| *client == ME).map(|(_, renewed)| *renewed)
    };
    let seen = renewed(&world).unwrap();
    let held: Vec<_> = world.partitions[&US].held_by(ME).collect();
    assert_eq!(BTreeSet::from_iter(held.clone()), BTreeSet::from([file.ino, open.ino]));
    let expire = |renewed, inodes| Update::Expire { client: ME, partition: US, renewed, inodes };
    world.submit(Update::Renew { client: ME, partition: US }).unwrap();
    assert_eq!(world.submit(expire(seen, held.clone())), Ok(Done::Nothing));
    assert_eq!(world.submit(take(YOU, 1)), Err(FsError::WouldBlock), "it had renewed");
    // In two parts, as if it were too much for one message.
    let later = renewed(&world).unwrap();
    assert_eq!(world.submit(expire(later, vec![file.ino, file.ino])), Ok(Done::Nothing));
    world.submit(take(YOU, 1)).unwrap();
    assert_eq!(renewed(&world), Some(later));
    world.reap(US);
    assert_eq!(world.attributes(open).unwrap().nlink, 0);
    assert_eq!(world.submit(expire(later, held)), Ok(Done::Nothing));
    world.reap(US);
    assert_eq!(world.attributes(open), Err(FsError::Gone));
    assert_eq!(renewed(&world), None);
    // A later lease is another one: a late message does not end it. To take something renews.
    world.submit(take(ME, 7)).unwrap();
    let again = renewed(&world).unwrap();
    assert!(again > later);
    world.submit(take(ME, 8)).unwrap();
    assert!(renewed(&world).unwrap() > again);
    assert_eq!(
        world.submit(Update::Renew { client: ClientId(99), partition: US }),
        Ok(Done::Nothing)
    );
    world.check();
}

#[test]
fn locks_end_with_their_inode_and_have_a_limit() {
    let (mut world, directory, file) = small();
    let wanted = lock(YOU, 0, u64::MAX);
    for number in 0..65_536 {
        let lock = Lock { exclusive: number % 2 == 0, ..lock(ME, number, number) };
        world.submit(Update::Lock { inode: file, lock, ticket: None }).unwrap();
    }
    let more = Update::Lock { inode: file, lock: lock(ME, 70_000, 70_000), ticket: None };
    assert_eq!(world.submit(more), Err(FsError::NoSpace));
    let read = world.read(&Query::LockInTheWay { inode: file, lock: wanted });
    assert_eq!(read, Ok(Answer::Lock(Some(lock(ME, 0, 0)))));
    let owner = lock(ME, 0, 0).owner;
    let family = LockFamily::Posix;
    let unlock = Update::Unlock { inode: file, owner, family, start: 0, end: 9 };
    world.submit(unlock.clone()).unwrap();
    world.submit(unlink(directory, "f", file, None)).unwrap();
    world.reap(US);
    assert_eq!(world.partitions[&US].leases().count(), 0);
    let gone = Stand { lock: Standing::Gone, before: None, since: None };
    assert_eq!(world.submit(unlock), Ok(Done::Lock(gone)), "nothing is left to give back");
    world.check();
}

/// Two messages with equal numbers: the second one is refused, and its client takes another number.
#[test]
fn a_number_that_is_taken_is_not_given_again() {
    let (mut world, directory, _) = small();
    let id = world.next_id();
    let create = |text: &str| Update::Create {
        parent: directory,
        name: name(text),
        node: node(Kind::Directory),
    };
    let operation = world.operation(create("one"));
    let Ok(Done::Attributes(one)) = world.submit_as(id, operation) else { panic!() };
    assert_eq!(one.place.ino, Ino::made(US, id));
    let operation = world.operation(create("two"));
    let again = |world: &World| {
        let (mut partition, mut out) = (world.partitions[&US].clone(), Vec::new());
        partition.deliver(id, Stamp(100), operation.clone(), &mut out);
        partition.check_invariants();
        out.pop()
    };
    let stale = Err(FsError::Stale);
    assert!(matches!(again(&world), Some(Effect::Done { result, .. }) if result == stale));
    // Also while it lives elsewhere.
    world.place(directory, "one", EU.0).unwrap();
    assert!(matches!(again(&world), Some(Effect::Done { result, .. }) if result == stale));
}

#[test]
fn numbers_of_inodes_name_their_partition_and_are_not_the_tops() {
    for (partition, sequence) in [(0, 1), (1, 2), (2047, u64::MAX)] {
        let made = Ino::made(GroupId(partition), MessageId { client: ME, sequence });
        assert_eq!(made.birthplace(), GroupId(partition));
        assert!(made > Ino::top(GroupId(partition)), "{made:?}");
    }
    assert_eq!(Ino::top(GroupId::GLOBAL), Ino::ROOT);
}

#[test]
fn rename_follows_the_types() {
    let (mut world, directory, _) = small();
    let empty = world.create(top(1), "empty", Kind::Directory).unwrap();
    let file = world.create(top(1), "file", Kind::File).unwrap();
    let at = top(1);
    let mut rename =
        |from: &str, to: &str| world.rename((at, from), (at, to), RenameMode::Replace, None);
    assert_eq!(rename("file", "empty"), Err(FsError::IsDirectory));
    assert_eq!(rename("empty", "file"), Err(FsError::NotDirectory));
    assert_eq!(rename("empty", "d"), Err(FsError::NotEmpty));
    assert_eq!(rename("d", "empty"), Ok(Done::Nothing));
    assert_eq!(world.lookup(at, "empty"), Ok((directory, Kind::Directory)));
    assert_eq!(world.attributes(empty), Err(FsError::Gone));
    let no_replace = world.rename((at, "file"), (at, "empty"), RenameMode::NoReplace, None);
    assert_eq!(no_replace, Err(FsError::Exists));
    world.rename((at, "file"), (at, "empty"), RenameMode::Exchange, None).unwrap();
    assert_eq!(world.lookup(at, "empty"), Ok((file, Kind::File)));
    assert_eq!(world.lookup(at, "file"), Ok((directory, Kind::Directory)));
    world.check();
}

#[test]
fn rename_onto_the_same_inode_changes_nothing() {
    let (mut world, directory, file) = small();
    world.submit(link(file, directory, "l")).unwrap();
    let before = world.attributes(file).unwrap();
    world.rename((directory, "f"), (directory, "l"), RenameMode::Replace, None).unwrap();
    assert_eq!(world.attributes(file), Ok(before));
    let result = world.rename((directory, "f"), (directory, "l"), RenameMode::NoReplace, None);
    assert_eq!(result, Err(FsError::Exists));
}

#[test]
fn a_directory_cannot_come_below_itself() {
    let (mut world, placed, _) = two_partitions();
    let below = world.create(placed, "b", Kind::Directory).unwrap();
    let deep = world.create(below, "c", Kind::Directory).unwrap();
    for to in [placed, below, deep] {
        let result = world.rename((top(1), "e"), (to, "x"), RenameMode::Replace, None);
        assert_eq!(result, Err(FsError::Invalid));
    }
    let result = world.rename((top(1), "e"), (below, "c"), RenameMode::Exchange, None);
    assert_eq!(result, Err(FsError::Invalid));
    let result = world.rename((below, "c"), (top(1), "e"), RenameMode::Exchange, None);
    assert_eq!(result, Err(FsError::Invalid));
    world.check();
}

#[test]
fn a_rename_needs_the_true_ancestors() {
    let (mut world, placed, _) = two_partitions();
    let other = world.create(top(2), "o", Kind::Directory).unwrap();
    let names = ((top(1), "d"), (other, "x"));
    let good = world.rename_update(names.0, names.1, RenameMode::Replace, None).unwrap();
    let with = |ancestors: &[Place]| {
        let mut update = good.clone();
        let Update::Rename { ancestors: list, .. } = &mut update else { panic!() };
        *list = ancestors.to_vec();
        update
    };
    for wrong in [&[][..], &[other], &[top(2)], &[other, placed], &[placed, top(2)]] {
        assert_eq!(world.submit(with(wrong)), Err(FsError::Stale), "{wrong:?}");
    }
    assert_eq!(world.submit(with(&[other, top(2)])), Ok(Done::Nothing));
    assert_eq!(
        world.lookup(other, "x").map(|(place, _)| world.lookup(place, "..")),
        Ok(Ok((other, Kind::Directory)))
    );
    world.check();
}

#[test]
fn an_exchange_of_directories_needs_the_ancestors_of_both() {
    let (mut world, placed, _) = two_partitions();
    let (directory, _) = world.lookup(top(1), "d").unwrap();
    let (a, b) = (
        world.create(directory, "a", Kind::Directory).unwrap(),
        world.create(placed, "b", Kind::Directory).unwrap(),
    );
    let names = ((directory, "a"), (placed, "b"));
    let good = world.rename_update(names.0, names.1, RenameMode::Exchange, None).unwrap();
    for missing in [placed, directory] {
        let mut update = good.clone();
        let Update::Rename { ancestors, .. } = &mut update else { panic!() };
        ancestors.retain(|place| *place != missing);
        assert_eq!(world.submit(update), Err(FsError::Stale));
    }
    world.submit(good).unwrap();
    assert_eq!(world.lookup(placed, "b"), Ok((a, Kind::Directory)));
    assert_eq!(world.lookup(b, ".."), Ok((directory, Kind::Directory)));
    world.check();
}

/// Each is possible alone; together they would be a cycle.
#[test]
fn of_two_renames_into_each_other_one_is_refused() {
    let mut world = World::new(2);
    let a = world.create(top(1), "a", Kind::Directory).unwrap();
    let b = world.create(top(2), "b", Kind::Directory).unwrap();
    let mode = RenameMode::Replace;
    let first = world.rename_update((top(1), "a"), (b, "a"), mode, None).unwrap();
    let second = world.rename_update((top(2), "b"), (a, "b"), mode, None).unwrap();
    let (one, two) = (world.next_id(), world.next_id());
    for (id, update) in [(one, first), (two, second)] {
        let operation = world.operation(update);
        world.deliver(US, id, operation.clone());
        world.deliver(EU, id, operation);
    }
    while !world.letters.is_empty() {
        world.hand_over(0);
    }
    assert_eq!(world.results[&(one, US)], Ok(Done::Nothing));
    assert_eq!(world.results[&(two, EU)], Err(FsError::Stale));
    world.check();
}

#[test]
fn an_empty_directory_gets_another_place_and_keeps_its_number() {
    let (mut world, directory, file) = small();
    let changes = Changes { mode: Some(0o2711), uid: Some(3), gid: Some(4), ..Changes::default() };
    let empty = world.create(directory, "s", Kind::Directory).unwrap();
    world.submit(set(empty, changes)).unwrap();
    let (key, value) = (name("user.k"), name("v"));
    let mode = XattrMode::Any;
    let update = Update::SetXattr {
        inode: empty,
        name: key.clone(),
        value: value.clone(),
        mode,
        drops_set_gid: false,
    };
    world.submit(update).unwrap();
    assert_eq!(world.place(top(1), "d", 2), Err(FsError::NotEmpty));
    let place = |world: &mut World, text: &str, child| {
        let update = Update::PlaceDirectory { parent: directory, name: name(text), child, to: EU };
        world.submit(update)
    };
    assert_eq!(place(&mut world, "f", file), Err(FsError::NotDirectory));
    let take = Update::Lock { inode: empty, lock: lock(ME, 0, 0), ticket: None };
    world.submit(take).unwrap();
    assert_eq!(place(&mut world, "s", empty), Err(FsError::Busy));
    let owner = lock(ME, 0, 0).owner;
    let family = LockFamily::Posix;
    world.submit(Update::Unlock { inode: empty, owner, family, start: 0, end: 9 }).unwrap();
    let Ok(Done::Attributes(moved)) = place(&mut world, "s", empty) else { panic!() };
    assert_eq!(moved.place, Place { ino: empty.ino, partition: EU });
    assert_eq!(world.attributes(moved.place), Ok(moved));
    assert_eq!((moved.mode, moved.uid, moved.gid), (0o2711, 3, 4));
    let xattr = Query::Xattr { inode: moved.place, name: key };
    assert_eq!(world.read(&xattr), Ok(Answer::Bytes(value)));
    assert_eq!(world.attributes(empty), Err(FsError::Stale), "it was moved away");
    assert_eq!(world.create(empty, "x", Kind::File), Err(FsError::Stale));
    assert_eq!(world.create(moved.place, "x", Kind::File).unwrap().partition, EU);
    assert_eq!(world.lookup(moved.place, "..").unwrap().0, directory);
    world.check();
    assert_eq!(world.place(directory, "s", 1), Err(FsError::NotEmpty));
    let same = world.place(directory, "s", 2);
    assert_eq!(same, Ok(moved.place), "it is there already");
    world.create(top(1), "again", Kind::Directory).unwrap();
    assert_eq!(world.place(top(1), "again", 1).unwrap().partition, US, "it was there already");
}

#[test]
fn an_inode_comes_back_to_where_it_was() {
    let (mut world, _, _) = small();
    let made = world.create(top(1), "e", Kind::Directory).unwrap();
    for to in [2, 0, 1] {
        assert_eq!(world.place(top(1), "e", to).unwrap().ino, made.ino);
        world.check();
    }
    assert_eq!(world.lookup(top(1), "e"), Ok((made, Kind::Directory)));
}

#[test]
fn writes_and_sizes_have_limits() {
    let (mut world, directory, file) = small();
    let write = |inode, at, pieces| Update::Write { inode, at, pieces };
    let done = world.submit(write(file, WriteAt::Offset(3), inline(b"abc"))).unwrap();
    assert!(matches!(done, Done::Written { offset: 3, attributes, .. } if attributes.size == 6));
    let done = world.submit(write(file, WriteAt::End, inline(b"de"))).unwrap();
    assert!(matches!(done, Done::Written { offset: 6, attributes, .. } if attributes.stored == 5));
    assert_eq!(world.contents(file).unwrap(), b"\0\0\0abcde");
    let result = world.submit(write(file, WriteAt::End, inline(&vec![1; INLINE_MAX])));
    assert_eq!(result, Err(FsError::InlineFull));
    let result = world.submit(write(file, WriteAt::Offset(FILE_MAX), inline(b"x")));
    assert_eq!(result, Err(FsError::TooLarge));
    let result = world.submit(write(directory, WriteAt::End, inline(b"x")));
    assert_eq!(result, Err(FsError::IsDirectory));
    let size = |size| Changes { size: Some(size), ..Changes::default() };
    assert_eq!(world.submit(set(file, size(FILE_MAX + 1))), Err(FsError::TooLarge));
    assert_eq!(world.submit(set(directory, size(0))), Err(FsError::IsDirectory));
    world.submit(set(file, size(FILE_MAX))).unwrap();
    world.submit(set(file, size(4))).unwrap();
    assert_eq!(world.contents(file).unwrap(), b"\0\0\0a");
    let punch = Update::PunchHole { inode: file, offset: 3, len: 99 };
    world.submit(punch).unwrap();
    let attributes = world.attributes(file).unwrap();
    assert_eq!((attributes.size, attributes.stored), (4, 0));
    world.check();
}

#[test]
fn attributes_have_a_limit_and_placement_is_not_one() {
    let (mut world, _, inode) = small();
    let mut set = |text: &str, len: usize, mode| {
        let value = Bytes::from(vec![1; len]);
        world.submit(Update::SetXattr {
            inode,
            name: name(text),
            value,
            mode,
            drops_set_gid: false,
        })
    };
    assert_eq!(set("user.a", XATTR_VALUE_MAX + 1, XattrMode::Any), Err(FsError::NoSpace));
    assert!(set("user.a", XATTR_VALUE_MAX, XattrMode::Create).is_ok());
    let full = XATTR_VALUE_MAX;
    for (text, len) in [("user.c", full), ("user.d", full), ("user.e", full - 4 * 6)] {
        set(text, len, XattrMode::Create).unwrap();
    }
    assert_eq!(set("user.a", 1, XattrMode::Create), Err(FsError::Exists));
    assert_eq!(set("user.b", 1, XattrMode::Replace), Err(FsError::NoAttribute));
    assert_eq!(set("user.b", 1, XattrMode::Any), Err(FsError::NoSpace));
    assert!(set("user.a", 1, XattrMode::Replace).is_ok());
    assert!(set("user.b", 1, XattrMode::Any).is_ok());
    let placement = "user.meridian.placement";
    assert_eq!(set(placement, 1, XattrMode::Any), Err(FsError::NotPermitted));
    let names = world.read(&Query::Xattrs { inode });
    let all = ["a", "b", "c", "d", "e"].map(|letter| name(&format!("user.{letter}")));
    assert_eq!(names, Ok(Answer::Names(all.to_vec())));
    world.submit(Update::RemoveXattr { inode, name: name("user.a") }).unwrap();
    let again = world.submit(Update::RemoveXattr { inode, name: name("user.a") });
    assert_eq!(again, Err(FsError::NoAttribute));
}

#[test]
fn times_change_as_posix_says() {
    let (mut world, directory, file) = small();
    let mut times = |update: Option<Update>, inode| {
        update.map(|update| world.submit(update).unwrap());
        let now = i64::try_from(world.messages).unwrap();
        let attributes = world.attributes(inode).unwrap();
        let is_now = |time: Timestamp| time.seconds == now;
        (is_now(attributes.atime), is_now(attributes.mtime), is_now(attributes.ctime))
    };
    let write = Update::Write { inode: file, at: WriteAt::End, pieces: inline(b"x") };
    assert_eq!(times(Some(write), file), (false, true, true));
    let chmod = set(file, Changes { mode: Some(0o600), ..Changes::default() });
    assert_eq!(times(Some(chmod), file), (false, false, true));
    assert_eq!(times(Some(link(file, directory, "l")), file), (false, false, true));
    assert_eq!(times(None, directory), (false, true, true));
    assert_eq!(times(Some(unlink(directory, "l", file, None)), file), (false, false, true));
    assert_eq!(times(None, directory), (false, true, true));
    let truncate = set(file, Changes { size: Some(0), ..Changes::default() });
    assert_eq!(times(Some(truncate), file), (false, true, true));
    let time = Timestamp { seconds: 1, nanos: 5 };
    let utimens = Changes { atime: Some(time), mtime: Some(time), ..Changes::default() };
    assert_eq!(times(Some(set(file, utimens)), file), (false, false, true));
    assert_eq!(world.attributes(file).unwrap().mtime, time);
}

#[test]
fn a_message_waits_for_votes_and_others_go_on() {
    let (mut world, placed, file) = two_partitions();
    let id = world.next_id();
    let operation = world.operation(link(file, top(1), "l"));
    world.deliver(US, id, operation.clone());
    let partition = &world.partitions[&US];
    assert_eq!(partition.waiting(), [(id, vec![EU])]);
    let (delivered, applied) = (partition.delivered(), partition.applied());
    assert_eq!(applied.0 + 1, delivered.0);
    let settled = |world: &World, ino, ts| world.partitions[&US].is_settled(ino, Stamp(ts));
    assert!(!settled(&world, top(1).ino, id.sequence));
    assert!(settled(&world, top(1).ino, id.sequence - 1));
    assert!(partition.own_vote(id).is_some());
    // It touches another directory: done at once.
    let (directory, _) = world.lookup(top(1), "d").unwrap();
    world.create(directory, "new", Kind::File).unwrap();
    assert_eq!(world.partitions[&US].applied(), Position(applied.0 + 1));
    assert!(settled(&world, directory.ino, id.sequence + 1));
    // It touches the same directory: waits.
    let waits = world.next_id();
    let update = Update::Create { parent: top(1), name: name("l"), node: node(Kind::File) };
    let next = world.operation(update);
    world.deliver(US, waits, next);
    assert!(!world.results.contains_key(&(waits, US)));
    assert_eq!(world.lookup(top(1), "l"), Err(FsError::NotFound), "not applied yet");
    world.deliver(EU, id, operation);
    while !world.letters.is_empty() {
        world.hand_over(0);
    }
    assert_eq!(world.results[&(waits, US)], Err(FsError::Exists));
    assert_eq!(world.partitions[&US].applied(), Position(delivered.0 + 2));
    let seen = world.partitions[&US].vector();
    assert_eq!(seen.get(EU), Stamp(id.sequence), "the timestamp is the same there");
    assert_eq!(seen.get(US), Stamp(waits.sequence));
    let partition = world.partitions.get_mut(&US).unwrap();
    partition.forget_vote(id);
    assert_eq!(partition.own_vote(id), None);
    assert_eq!(world.lookup(placed, "g"), Ok((file, Kind::File)));
    world.check();
}

#[test]
fn votes_may_come_early_and_again() {
    let (mut world, _, file) = two_partitions();
    let id = world.next_id();
    let operation = world.operation(link(file, top(1), "l"));
    world.deliver(EU, id, operation.clone());
    let letter = world.letters.pop().unwrap();
    let (mut partition, mut out) = (world.partitions[&US].clone(), Vec::new());
    for _ in 0..2 {
        partition.vote(id, EU, letter.vote.clone(), &mut out);
    }
    partition.vote(id, GroupId::GLOBAL, letter.vote.clone(), &mut out); // None of its partitions.
    assert!(out.is_empty());
    partition.check_invariants();
    partition.deliver(id, Stamp(id.sequence), operation, &mut out);
    assert!(matches!(&out[..], [Effect::Vote { to, .. }, Effect::Done { result: Ok(_), .. }]
        if *to == [EU]));
    assert_eq!(partition.waiting(), []);
    partition.check_invariants();
}

#[test]
fn all_partitions_give_the_same_error() {
    let (mut world, placed, _) = two_partitions();
    // `us` says that the name is taken, `eu` that the target is no longer there.
    let gone = Place { ino: Ino(0xdead), partition: EU };
    assert_eq!(
        world.submit(link(gone, top(1), "d")),
        Err(FsError::Exists),
        "the first partition's"
    );
    // Stale comes before all.
    assert_eq!(world.submit(unlink(top(1), "nothing", gone, None)), Err(FsError::Stale));
    assert_eq!(world.submit(rmdir(top(1), "e", placed)), Err(FsError::NotEmpty));
    world.check();
}

#[test]
fn a_skipped_message_counts() {
    let mut out = Vec::new();
    let mut partition = Partition::new(US, regions(1), Timestamp::default());
    let hash = partition.state_hash();
    let id = MessageId { client: ME, sequence: 1 };
    partition.skip(id, Stamp(8), &mut out);
    let refused = |id, ts| {
        let (ts, result) = (Stamp(ts), Err(FsError::Invalid));
        Effect::Done { id, ts, result, touched: Vec::new(), held: Vec::new() }
    };
    assert_eq!(std::mem::take(&mut out), [refused(id, 8)]);
    assert_eq!((partition.delivered(), partition.applied()), (Position(1), Position(1)));
    assert_ne!(partition.state_hash(), hash);
    // Misdirected: it does not concern this partition.
    let update = Update::Renew { client: ME, partition: EU };
    let (vector, time) = (Vector::default(), Timestamp::default());
    let id = MessageId { client: ME, sequence: 2 };
    partition.deliver(
        id,
        Stamp(7),
        Operation {
            vector,
            time,
            quotas: Vec::new(),
            update,
            by: ClientId(0),
            keeps: false,
            under: None,
            rights: None,
        },
        &mut out,
    );
    assert_eq!(out, [refused(id, 7)]);
    assert_eq!(partition.vector().get(US), Stamp(8));
    partition.check_invariants();
}

#[test]
fn what_the_client_had_seen_is_in_the_vector() {
    let mut world = World::new(2);
    let id = world.next_id();
    let update = Update::Create { parent: top(1), name: name("f"), node: node(Kind::File) };
    let mut operation = world.operation(update);
    operation.vector.raise(EU, Stamp(41));
    operation.vector.raise(US, Stamp(1_000));
    world.deliver(US, id, operation);
    let vector = world.partitions[&US].vector();
    assert_eq!((vector.get(EU), vector.get(US)), (Stamp(41), Stamp(id.sequence)));
}

#[test]
fn partitions_go_between_threads_and_clones_are_apart() {
    fn sent<T: Send + Sync>(_: &T) {}
    let (mut world, directory, _) = small();
    let before = world.partitions[&US].clone();
    sent(&before);
    assert_eq!(before.group(), US);
    world.create(directory, "new", Kind::File).unwrap();
    assert_ne!(before, world.partitions[&US]);
    let query = Query::Lookup { parent: directory, name: name("new") };
    assert_eq!(before.read(&query), Err(FsError::NotFound));
}

#[test]
fn blocks_are_those_of_all_files() {
    let (mut world, directory, file) = small();
    let data = Data::Block { block: BlockId::named(US, 0, 5), start: 0 };
    let block = vec![Piece { offset: 0, extent: Extent { len: 100, data } }];
    let write = |at, pieces| Update::Write { inode: file, at: WriteAt::Offset(at), pieces };
    world.submit(write(0, block)).unwrap();
    world.submit(write(50, inline(b"cut"))).unwrap();
    let blocks: Vec<_> = world.partitions[&US].blocks().collect();
    assert_eq!(blocks, [BlockId::named(US, 0, 5), BlockId::named(US, 0, 5)]);
    world.submit(unlink(directory, "f", file, None)).unwrap();
    world.reap(US);
    assert_eq!(world.partitions[&US].blocks().count(), 0);
}

#[test]
fn a_directory_is_read_in_parts() {
    let (mut world, directory, _) = small();
    for number in 0..9 {
        world.create(directory, &format!("n{number}"), Kind::File).unwrap();
    }
    let query = Query::Directory { inode: directory, after: name("n5"), limit: 2 };
    let Ok(Answer::Directory { entries, end, parent, .. }) = world.read(&query) else { panic!() };
    let names: Vec<_> = entries.iter().map(|(name, _, _)| name.clone()).collect();
    assert_eq!(names, [name("n6"), name("n7")]);
    assert!(!end && entries.iter().all(|(_, _, attributes)| attributes.is_some()));
    assert_eq!(parent, top(1));
}
