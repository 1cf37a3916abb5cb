//! What an update does that names several inodes, once its partitions have agreed on it: each
//! partition does its part, and none can fail.

use crate::inode::{Content, Directory, Inode};
use crate::locks::Locks;
use crate::mutation::Mutation;
use crate::operation::{Done, NewNode, RenameMode, Update, Whiteout};
use crate::regions;
use crate::tree::Tree;
use crate::types::{Attributes, Entry, Ino, Kind, Name, Place, Rank, Timestamp};
use crate::vote::{Conclusion, EmptyDirectory};
use crate::waits;
use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId};

/// When an update is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The rank of its message.
    pub rank: Rank,
    /// The wall clock of its client.
    pub time: Timestamp,
}

/// Does this partition's part of `update`.
///
/// # Panics
/// If the partitions agreed on something that is not possible here.
pub(crate) fn apply(
    tree: &mut Tree,
    update: &Update,
    conclusion: Conclusion,
    moment: Moment,
) -> Done {
    let here = |tree: &Tree, place: &Place| place.partition == tree.group;
    match (update, conclusion) {
        (_, Conclusion::Nothing) => {}
        (Update::Link { target, parent, name }, Conclusion::Link(attributes)) => {
            if here(tree, parent) {
                let entry = Entry { place: *target, kind: attributes.kind };
                set_entry(tree, parent.ino, name, entry, moment.time);
            }
            if here(tree, target) {
                let is_first = tree.change(target.ino, |inode| {
                    inode.nlink += 1;
                    inode.ctime = moment.time;
                    inode.unnamed
                });
                if is_first {
                    let above = if here(tree, parent) { tree.get(parent.ino) } else { None };
                    let quota = above.and_then(|above| above.quota);
                    tree.gain_name(target.ino, quota);
                } else {
                    tree.settle_link(*target, *parent);
                }
            }
            return Done::Attributes(attributes);
        }
        (Update::Unlink { parent, name, child, keep_for }, Conclusion::Remove) => {
            if here(tree, parent) {
                unset_entry(tree, parent.ino, name, moment.time);
            }
            if here(tree, child) {
                drop_name(tree, child.ino, *keep_for, moment);
            }
        }
        (Update::Rmdir { parent, name, child }, Conclusion::Remove) => {
            if here(tree, parent) {
                unset_entry(tree, parent.ino, name, moment.time);
                tree.tops.remove(child.ino);
            }
            if here(tree, child) {
                tree.remove(child.ino);
            }
        }
        (Update::RemoveRegion { partition, name }, Conclusion::Remove) => {
            regions::remove(tree, *partition, name, moment);
        }
        (Update::Rename { .. }, Conclusion::Rename { moved, replaced, tops }) => {
            settle_quotas(tree, update);
            rename(tree, update, moved, replaced, moment);
            name_tops(tree, update, &tops, moment);
        }
        (Update::PlaceDirectory { parent, name, child, to }, Conclusion::Place(directory)) => {
            let attributes = place(tree, (*parent, name), *child, *to, directory, moment);
            return Done::Attributes(attributes);
        }
        (Update::Untangle { cycle }, Conclusion::Untangle(passes)) => {
            waits::untangle(tree, cycle, passes);
        }
        (_, conclusion) => panic!("{update:?} cannot end with {conclusion:?}"),
    }
    Done::Nothing
}

fn set_entry(tree: &mut Tree, parent: Ino, name: &Name, entry: Entry, time: Timestamp) {
    tree.change_directory(parent, |directory, nlink| directory.set(nlink, name.clone(), entry));
    tree.change(parent, |inode| inode.touch(time));
}

fn unset_entry(tree: &mut Tree, parent: Ino, name: &Name, time: Timestamp) {
    tree.change_directory(parent, |directory, nlink| directory.unset(nlink, name));
    tree.change(parent, |inode| inode.touch(time));
}

/// A file loses a name. Without any it stays for those who have it open: they may yet say so.
fn drop_name(tree: &mut Tree, ino: Ino, keep_for: Option<ClientId>, moment: Moment) {
    let nlink = tree.change(ino, |inode| {
        inode.nlink -= 1;
        inode.ctime = moment.time;
        inode.nlink
    });
    if nlink == 0 {
        tree.lose_name(ino, moment.rank.0);
        if let Some(client) = keep_for {
            tree.hold(client, ino, moment.rank);
        }
    }
}

fn rename(
    tree: &mut Tree,
    update: &Update,
    moved_kind: Kind,
    replaced_kind: Option<Kind>,
    moment: Moment,
) {
    let Update::Rename {
        from,
        from_name,
        to,
        to_name,
        moved,
        replaced,
        mode,
        keep_for,
        whiteout,
        ..
    } = update
    else {
        panic!("{update:?} is not a rename");
    };
    let group = tree.group;
    let here = |place: &Place| place.partition == group;
    let exchanged = replaced
        .zip(replaced_kind)
        .filter(|_| *mode == RenameMode::Exchange)
        .map(|(place, kind)| Entry { place, kind });
    if here(from) {
        let left = whiteout.filter(|_| !tree.mutation.is(Mutation::LeavesNoWhiteout));
        let left = left.map(|owner| leave_whiteout(tree, *from, owner, moment));
        match exchanged.or(left) {
            Some(entry) => set_entry(tree, from.ino, from_name, entry, moment.time),
            None => unset_entry(tree, from.ino, from_name, moment.time),
        }
    }
    if here(to) {
        let entry = Entry { place: *moved, kind: moved_kind };
        set_entry(tree, to.ino, to_name, entry, moment.time);
    }
    if here(moved) {
        set_parent(tree, moved.ino, *to, moment.time);
    }
    let Some(replaced) = replaced.filter(here) else { return };
    match (mode, replaced_kind) {
        (RenameMode::Exchange, _) => set_parent(tree, replaced.ino, *from, moment.time),
        (_, Some(Kind::Directory)) => drop(tree.remove(replaced.ino)),
        (_, _) => drop_name(tree, replaced.ino, *keep_for, moment),
    }
}

/// What moves counts against the quota of where it comes, as far as that is being counted.
fn settle_quotas(tree: &mut Tree, update: &Update) {
    let Update::Rename { from, to, moved, replaced, mode, ancestors, .. } = update else {
        panic!("{update:?} is not a rename");
    };
    let listed = ancestors.iter().copied().collect();
    tree.settle_move(*moved, *from, *to, &listed);
    if let Some(back) = replaced.filter(|_| *mode == RenameMode::Exchange) {
        tree.settle_move(back, *to, *from, &listed);
    }
}

/// Directories that live elsewhere have lost their names here, or got others.
fn name_tops(tree: &mut Tree, update: &Update, tops: &[Attributes], moment: Moment) {
    let Update::Rename { from, to, moved, replaced, .. } = update else {
        panic!("{update:?} is not a rename");
    };
    let group = tree.group;
    let here = |place: &Place| place.partition == group;
    let left = here(from).then_some(*moved);
    for gone in left.into_iter().chain(replaced.filter(|_| here(to))) {
        tree.tops.remove(gone.ino);
    }
    if tree.mutation.is(Mutation::LosesTops) {
        return;
    }
    for top in tops {
        if here(if top.place == *moved { to } else { from }) {
            tree.tops.set(*top, moment.rank.0);
        }
    }
}

/// Makes what takes the place of a renamed inode in the directory that it leaves.
fn leave_whiteout(tree: &mut Tree, from: Place, owner: Whiteout, moment: Moment) -> Entry {
    let Whiteout { uid, gid } = owner;
    let (kind, target) = (Kind::CharDevice, Bytes::new());
    let node = NewNode { uid, gid, target, ..NewNode::new(kind, 0) };
    let quota = tree.get(from.ino).expect("its partition voted").quota;
    let place = tree.place(Ino::made(tree.group, moment.rank.1));
    tree.insert(place.ino, Inode { quota, ..Inode::new(node, from, moment.time) });
    Entry { place, kind }
}

/// A renamed inode is now named in `parent`.
fn set_parent(tree: &mut Tree, ino: Ino, parent: Place, time: Timestamp) {
    tree.change(ino, |inode| {
        inode.ctime = time;
        if let Some(directory) = inode.as_directory_mut() {
            directory.parent = parent;
        }
    });
}

/// What a directory is once it lives in `to`.
pub(crate) fn placed(
    directory: &EmptyDirectory,
    child: Place,
    to: GroupId,
    time: Timestamp,
) -> Attributes {
    if to == child.partition {
        return directory.attributes;
    }
    let place = Place { ino: child.ino, partition: to };
    Attributes { place, ctime: time, ..directory.attributes }
}

fn place(
    tree: &mut Tree,
    (parent, name): (Place, &Name),
    child: Place,
    to: GroupId,
    directory: EmptyDirectory,
    Moment { rank, time }: Moment,
) -> Attributes {
    let attributes = placed(&directory, child, to, time);
    if to == child.partition {
        return attributes;
    }
    let new = attributes.place;
    if parent.partition == tree.group {
        let entry = Entry { place: new, kind: Kind::Directory };
        tree.change_directory(parent.ino, |directory, nlink| {
            directory.set(nlink, name.clone(), entry);
        });
        match to == tree.group {
            true => tree.tops.remove(child.ino),
            false => tree.tops.set(attributes, rank.0),
        }
    }
    if child.partition == tree.group {
        tree.remove_moved(child.ino, to);
    }
    if to == tree.group {
        let inode = Inode {
            kind: Kind::Directory,
            mode: attributes.mode,
            nlink: 2,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: time,
            btime: attributes.btime,
            xattrs: directory.xattrs.into_iter().collect(),
            content: Content::Directory(Directory { parent, entries: OrdMap::new() }),
            locks: Locks::default(),
            quota: None,
            before: None,
            open_at: OrdSet::new(),
            nameless: None,
            unnamed: false,
        };
        tree.insert(child.ino, inode);
    }
    attributes
}
