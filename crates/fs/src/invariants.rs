//! Walks over a partition, and over all partitions together, that panic if something contradicts
//! itself. For the simulator and for tests.

use crate::acl::{self, Acl};
use crate::counting::Counting;
use crate::inode::{Content, Inode};
use crate::partition::Partition;
use crate::quota::Stage;
use crate::tree::{Tree, waits_of};
use crate::types::{Entry, Ino, Kind, LINK_MAX, Name, Place};
use meridian_core::{BlockId, ClientId, GroupId};
use std::collections::{BTreeMap, BTreeSet};

/// Panics if one partition contradicts itself; see [`Partition::check_invariants`].
pub(crate) fn check_partition(partition: &Partition) {
    let tree = &partition.tree;
    partition.pending.check_invariants();
    tree.check_moved();
    tree.caps.check_invariants();
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut stored = 0;
    for (ino, inode) in tree.iter() {
        check_inode(tree, ino, inode);
        stored += inode.stored();
        for (_, entry) in inode.as_directory().into_iter().flat_map(|dir| &dir.entries) {
            if entry.place.partition == tree.group {
                *names.entry(entry.place.ino).or_default() += 1;
                let child = tree.get(entry.place.ino);
                let child = child.unwrap_or_else(|| panic!("{entry:?} leads to nothing"));
                check_child(tree.place(ino), entry, child);
            }
        }
    }
    check_tops(tree);
    assert_eq!(tree.totals().1, stored, "bytes stored in {:?}", tree.group);
    for (ino, inode) in tree.iter() {
        let names = names.get(&ino).copied().unwrap_or_default();
        let most = if inode.kind == Kind::Directory { 1 } else { inode.nlink };
        assert!(names <= most, "{ino:?} has {names} names here, nlink {}", inode.nlink);
        let parent = inode.as_directory().map(|directory| directory.parent);
        if parent.is_some_and(|parent| parent.partition == tree.group) && !ino.is_top() {
            assert_eq!(names, 1, "{ino:?} is not where its parent {parent:?} should have it");
        }
    }
    check_leases(tree);
    check_quotas(tree);
    let gone = tree.nameless().keys().find(|ino| tree.get(**ino).is_none());
    assert_eq!(gone, None, "a file without a name that is not there");
    let mut extents: BTreeMap<BlockId, u32> = BTreeMap::new();
    for block in tree.iter().flat_map(|(_, inode)| inode.blocks()) {
        *extents.entry(block).or_default() += 1;
    }
    assert!(tree.named.extents().iter().eq(&extents), "N1: blocks in {:?}", tree.group);
}

fn check_tops(tree: &Tree) {
    let entries = tree.iter().flat_map(|(_, inode)| inode.as_directory());
    let entries = entries.flat_map(|directory| directory.entries.values());
    let away =
        |entry: &&Entry| entry.kind == Kind::Directory && entry.place.partition != tree.group;
    let named: BTreeSet<Place> = entries.filter(away).map(|entry| entry.place).collect();
    let kept: BTreeSet<Place> = tree.tops.iter().map(|of| of.place).collect();
    assert_eq!(kept, named, "T1: in {:?}", tree.group);
}

fn check_inode(tree: &Tree, ino: Ino, inode: &Inode) {
    match (&inode.content, inode.kind) {
        (Content::File(extents), Kind::File) => extents.check_invariants(),
        (Content::Directory(directory), Kind::Directory) => {
            let is_directory = |entry: &&Entry| entry.kind == Kind::Directory;
            let below = directory.entries.values().filter(is_directory).count();
            assert_eq!(inode.nlink as usize, 2 + below, "nlink of the directory {ino:?}");
            let parent = directory.parent;
            if parent.partition == tree.group {
                let above = tree.get(parent.ino).and_then(Inode::as_directory);
                assert!(above.is_some(), "{ino:?} is below {parent:?}, which is no directory here");
            }
        }
        (Content::Symlink(_), Kind::Symlink)
        | (Content::Nothing, Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice) => {}
        (content, kind) => panic!("{ino:?} is a {kind:?} with {content:?}"),
    }
    assert!(inode.mode <= 0o7777, "mode of {ino:?}: {:o}", inode.mode);
    if inode.kind != Kind::Directory {
        assert!(inode.nlink <= LINK_MAX, "nlink of {ino:?}: {}", inode.nlink);
    }
    assert_eq!(inode.nlink == 0, inode.nameless.is_some(), "{ino:?} without a name is noted");
    assert_eq!(inode.nameless, tree.nameless().get(&ino).copied(), "{ino:?} has lost its names");
    inode.locks.check_invariants();
    if let Some(list) = inode.xattrs.get(acl::ACCESS) {
        let acl = Acl::read(list).unwrap_or_else(|_| panic!("A1: the list of {ino:?}"));
        assert_eq!(acl.permissions(), inode.mode & 0o777, "A1: permissions of {ino:?}");
        assert!(!acl.is_plain(), "A1: the list of {ino:?} says no more than its permissions");
    }
}

fn check_child(parent: Place, entry: &Entry, child: &Inode) {
    assert_eq!(entry.kind, child.kind, "{entry:?} in {parent:?}");
    assert!(child.nlink > 0, "{entry:?} in {parent:?} leads to an inode without a name");
    if let Some(directory) = child.as_directory() {
        assert_eq!(directory.parent, parent, "the directory above {entry:?}");
    }
}

fn check_leases(tree: &Tree) {
    let mut held: BTreeMap<ClientId, BTreeSet<Ino>> = BTreeMap::new();
    for (ino, inode) in tree.iter() {
        let open_at = inode.open_at.iter().copied();
        for client in inode.locks.holders().chain(open_at) {
            held.entry(client).or_default().insert(ino);
        }
    }
    let leases: BTreeMap<_, _> = tree
        .leases
        .iter()
        .map(|(client, lease)| (client, lease.inodes.iter().copied().collect()))
        .collect();
    assert_eq!(leases, held, "L3");
    let waits: BTreeSet<_> =
        tree.iter().flat_map(|(ino, inode)| waits_of(ino, &inode.locks)).collect();
    assert!(waits.iter().eq(&tree.waits), "Q2: {waits:?}, {:?}", tree.waits);
}

fn check_quotas(tree: &Tree) {
    let mut used: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
    for (directory, quota) in tree.quotas.iter() {
        let own = tree.get(directory).map(|inode| inode.quota == Some(directory));
        let leaves = quota.stage == Stage::Leaves;
        assert_eq!(own, Some(!leaves), "the directory of a quota counts against it");
        used.insert(directory, (0, 0));
    }
    for (quota, bytes) in tree.iter().filter_map(|(_, inode)| inode.counted()) {
        let sum = used.get_mut(&quota).unwrap_or_else(|| panic!("U1: {quota:?} has no quota"));
        (sum.0, sum.1) = (sum.0 + bytes, sum.1 + 1);
    }
    for (directory, quota) in tree.quotas.iter() {
        assert_eq!((quota.bytes, quota.inodes), used[&directory], "U1: {directory:?}");
    }
    let counting = tree.quotas.counting.as_ref();
    for (directory, _) in counting.iter().flat_map(|counting| &counting.open) {
        let quota = tree.get(*directory).map(|inode| inode.quota);
        let to = counting.and_then(|counting| counting.to);
        assert!(quota.is_none_or(|quota| quota == to), "U5: {directory:?} is open: {quota:?}");
    }
    for (ino, inode) in tree.iter() {
        let Some(directory) = inode.as_directory() else { continue };
        for (name, entry) in &directory.entries {
            if entry.place.partition == tree.group {
                check_counted(tree, counting, (ino, inode.quota), (name, entry));
            }
        }
    }
}

/// That an entry counts against the quota of its directory, or what is being counted is why not; or
/// that it is a file with several names.
fn check_counted(
    tree: &Tree,
    counting: Option<&Counting>,
    (parent, above): (Ino, Option<Ino>),
    (name, entry): (&Name, &Entry),
) {
    let child = tree.get(entry.place.ino).expect("it was looked at before");
    let own = child.quota;
    if own == above || own == Some(entry.place.ino) {
        return;
    }
    let counting = counting.filter(|of| (own, above) == (of.from, of.to));
    let later = counting.and_then(|of| of.open.get(&parent)).is_some_and(|upto| name > upto);
    let shared = child.kind != Kind::Directory;
    assert!(later || shared, "U4: {entry:?} named {name:?} in {parent:?}: {own:?}, not {above:?}");
}

/// Panics unless all partitions together are one tree. They must have decided the same updates,
/// with none waiting.
pub fn check_tree<'a>(partitions: impl IntoIterator<Item = &'a Partition>) {
    let partitions: BTreeMap<GroupId, &Tree> = partitions
        .into_iter()
        .map(|partition| {
            partition.check_invariants();
            let waits = partition.pending.iter().next();
            assert_eq!(waits, None, "an update still waits");
            (partition.tree.group, &partition.tree)
        })
        .collect();
    let get = |place: Place| {
        let inode = partitions.get(&place.partition).and_then(|tree| tree.get(place.ino));
        inode.unwrap_or_else(|| panic!("nothing is at {place:?}"))
    };
    let mut names: BTreeMap<Place, u32> = BTreeMap::from([(Place::ROOT, 1)]);
    let mut below = vec![Place::ROOT];
    while let Some(parent) = below.pop() {
        let directory = get(parent).as_directory();
        let directory = directory.unwrap_or_else(|| panic!("{parent:?} is no directory"));
        for entry in directory.entries.values() {
            check_child(parent, entry, get(entry.place));
            let count = names.entry(entry.place).or_default();
            *count += 1;
            if entry.kind == Kind::Directory {
                assert_eq!(*count, 1, "{entry:?} has two names");
                below.push(entry.place);
            }
        }
    }
    for tree in partitions.values() {
        for (ino, inode) in tree.iter() {
            let place = tree.place(ino);
            let count = names.get(&place).copied().unwrap_or_default();
            let expected = if inode.kind == Kind::Directory { 1 } else { inode.nlink };
            assert_eq!(count, expected, "names that lead from the root to {place:?}");
        }
    }
}
