//! The entries of the root that lead to the tops of regions' partitions: those of regions that the
//! cluster was made with are there from the start, others come and go (decision 84).

use crate::apply::Moment;
use crate::error::FsError;
use crate::inode::Inode;
use crate::mutation::Mutation;
use crate::operation::{Done, Update};
use crate::tree::{Tree, check_name};
use crate::types::{Entry, Kind, Name, Place, Timestamp};
use crate::vote::check_removable;
use meridian_core::{GroupId, Stamp};

/// What the directory at the top of a partition allows, as a directory that everybody shares.
pub(crate) const MODE: u16 = 0o777;

/// The root, which is here, has an entry for that region from now on, which was made at `made`.
pub(crate) fn set(
    tree: &mut Tree,
    (partition, name): (GroupId, Name),
    made: Timestamp,
    since: Stamp,
) {
    let place = Place::top(partition);
    let top = Inode::directory(Place::ROOT, MODE, made);
    tree.tops.set(top.attributes(place), since);
    tree.change_directory(Place::ROOT.ino, |directory, nlink| {
        directory.set(nlink, name, Entry { place, kind: Kind::Directory });
    });
}

/// [`crate::Update::AddRegion`].
pub(crate) fn add(tree: &mut Tree, update: Update, moment: Moment) -> Result<Done, FsError> {
    let Update::AddRegion { partition, name, made } = update else {
        panic!("{update:?} adds no region")
    };
    check_name(&name)?;
    match tree.directory(Place::ROOT)?.entries.get(&name) {
        Some(entry) if entry.place == Place::top(partition) => return Ok(Done::Nothing),
        Some(_) => return Err(FsError::Exists),
        None => {}
    }
    set(tree, (partition, name), made, moment.rank.0);
    tree.change(Place::ROOT.ino, |root| root.touch(moment.time));
    Ok(Done::Nothing)
}

/// This partition's part in [`crate::Update::RemoveRegion`]. Inodes keep their partition when they
/// are renamed, so some may be left whose names are elsewhere. But without its top a partition gets
/// no new ones: once it has none it never has any again.
pub(crate) fn check(tree: &Tree, partition: GroupId, name: &Name) -> Result<(), FsError> {
    if tree.group == GroupId::GLOBAL {
        tree.entry(Place::ROOT, name, Place::top(partition))?;
    } else {
        if !tree.mutation.is(Mutation::RemovesFullRegions) {
            check_removable(tree, Place::top(partition))?;
        }
    }
    Ok(())
}

/// All partitions agree on [`crate::Update::RemoveRegion`].
pub(crate) fn remove(tree: &mut Tree, partition: GroupId, name: &Name, moment: Moment) {
    let top = Place::top(partition);
    if tree.group == GroupId::GLOBAL {
        tree.change_directory(Place::ROOT.ino, |directory, nlink| directory.unset(nlink, name));
        tree.change(Place::ROOT.ino, |root| root.touch(moment.time));
        tree.tops.remove(top.ino);
    } else {
        tree.remove(top.ino);
    }
}
