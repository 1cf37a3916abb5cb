//! Updates that one inode decides alone: they are done or refused where they are delivered.

use crate::FsError;
use crate::acl;
use crate::apply::Moment;
use crate::durability::{self, Durability};
use crate::inode::{Content, Inode, SET_GID};
use crate::locking;
use crate::mutation::Mutation;
use crate::operation::{Access, Changes, Done, NewNode, Piece, Update, WriteAt, XattrMode};
use crate::regions;
use crate::settled::{self, Made};
use crate::tree::{Tree, check_name};
use crate::types::{
    Entry, Ino, Kind, NAME_MAX, Name, Place, Rank, SYMLINK_MAX, Timestamp, XATTR_MAX,
    XATTR_VALUE_MAX,
};
use bytes::Bytes;
use imbl::OrdMap;
use meridian_core::{ClientId, Stamp};

/// The extended attribute that shows in which partition an inode lives. It is not stored.
const PLACEMENT_XATTR: &[u8] = b"user.meridian.placement";
/// The one that shows where the cluster file is.
const CLUSTER_XATTR: &[u8] = b"user.meridian.cluster";
/// The one that shows how much may lie below a directory.
const QUOTA_XATTR: &[u8] = b"user.meridian.quota";

/// Does `update` or refuses it.
///
/// # Panics
/// If the update names several inodes.
pub(crate) fn execute(tree: &mut Tree, update: Update, moment: Moment) -> Result<Done, FsError> {
    match update {
        Update::Create { parent, name, node } => create(tree, parent, name, node, moment),
        Update::Make(made) => make(tree, *made, moment),
        Update::CreateUnnamed { parent, node } => create_unnamed(tree, parent, node, moment),
        Update::SetAttributes { inode, changes } => set_attributes(tree, inode, &changes, moment),
        Update::Write { inode, at, pieces } => write(tree, inode, at, &pieces, moment.time),
        Update::Settle { inode, at, pieces, written, settings } => {
            settled::settle(tree, inode, (at, &pieces, written), settings, moment.time)
        }
        Update::Merge { inode, offset, run, block } => {
            change_inode(tree, inode, |file| file_of(file)?.merge(offset, &run, block))
        }
        Update::Extend { inode, size } => change_inode(tree, inode, |file| {
            let extents = file_of(file)?;
            if extents.size() < size {
                extents.resize(size)?;
                file.drop_capability();
                file.touch(moment.time);
            }
            Ok(())
        }),
        Update::PunchHole { inode, offset, len } => {
            punch_hole(tree, inode, (offset, len), moment.time)
        }
        Update::SetXattr { inode, name, value, mode, drops_set_gid } => {
            change_inode(tree, inode, |inode| {
                set_any_xattr(inode, (name, value), mode, drops_set_gid, moment.time)
            })
        }
        Update::RemoveXattr { inode, name } => {
            change_inode(tree, inode, |inode| remove_xattr(inode, &name, moment.time))
        }
        Update::SetDurability { inode, durability: of } => set_durability(tree, inode, of, moment),
        Update::SetQuota { inode, parent, limits } => tree.set_quota(inode, parent, limits),
        Update::Count { root, number, stretches, rest } => {
            Ok(tree.count(root, number, &stretches, &rest))
        }
        Update::Lock { .. }
        | Update::Leave { .. }
        | Update::Unlock { .. }
        | Update::Expire { .. } => locking::execute(tree, update, moment),
        Update::Hold { client, inodes, .. } => Ok(hold(tree, client, &inodes, moment.rank)),
        Update::Forget { client, inodes, .. } => Ok(forget(tree, client, &inodes)),
        Update::Reap { inodes, .. } => Ok(reap(tree, &inodes)),
        Update::NoteReads { reads, .. } => Ok(note_reads(tree, &reads)),
        Update::NoteTop { attributes, ts, .. } => {
            tree.tops.note(attributes, ts);
            Ok(Done::Nothing)
        }
        Update::Renew { client, .. } => {
            tree.leases.renew(client, moment.rank);
            Ok(Done::Nothing)
        }
        update @ Update::AddRegion { .. } => regions::add(tree, update, moment),
        Update::Caps { client, step, .. } => Ok(crate::caps::step(tree, client, step, moment.rank)),
        Update::RaiseHorizon { horizon_ms, .. } => {
            tree.named.raise(moment.rank.1.client, horizon_ms)
        }
        Update::Link { .. }
        | Update::Unlink { .. }
        | Update::Rmdir { .. }
        | Update::Rename { .. }
        | Update::PlaceDirectory { .. }
        | Update::Mark { .. }
        | Update::RemoveRegion { .. }
        | Update::Untangle { .. } => panic!("{update:?} is decided by several inodes"),
        Update::Batch(_) => panic!("a batch is done part by part"),
    }
}

/// Changes one inode, or nothing if `change` refuses.
///
/// `change` may refuse only before it has changed anything.
fn change_inode(
    tree: &mut Tree,
    place: Place,
    change: impl FnOnce(&mut Inode) -> Result<(), FsError>,
) -> Result<Done, FsError> {
    tree.inode(place)?;
    tree.change(place.ino, |inode| {
        change(inode)?;
        Ok(Done::Attributes(inode.attributes(place)))
    })
}

fn punch_hole(
    tree: &mut Tree,
    place: Place,
    (offset, len): (u64, u64),
    time: Timestamp,
) -> Result<Done, FsError> {
    offset.checked_add(len).ok_or(FsError::TooLarge)?;
    if len == 0 {
        return Err(FsError::Invalid);
    }
    change_inode(tree, place, |file| {
        file_of(file)?.punch(offset, len);
        file.drop_capability();
        file.touch(time);
        Ok(())
    })
}

fn file_of(inode: &mut Inode) -> Result<&mut crate::extents::Extents, FsError> {
    match &mut inode.content {
        Content::File(extents) => Ok(extents),
        Content::Directory(_) => Err(FsError::IsDirectory),
        Content::Symlink(_) | Content::Nothing => Err(FsError::Invalid),
    }
}

fn create(
    tree: &mut Tree,
    parent: Place,
    name: Name,
    node: NewNode,
    moment: Moment,
) -> Result<Done, FsError> {
    check_name(&name)?;
    if tree.directory(parent)?.entries.contains_key(&name) {
        return Err(FsError::Exists);
    }
    let place = tree.place(Ino::made(tree.group, moment.rank.1));
    let inode = new_inode(tree, parent, node, (place, moment.time))?;
    let attributes = inode.attributes(place);
    insert_named(tree, (parent, name), (place, inode), moment.time);
    Ok(Done::Attributes(attributes))
}

fn insert_named(
    tree: &mut Tree,
    (parent, name): (Place, Name),
    (place, inode): (Place, Inode),
    time: Timestamp,
) {
    let entry = Entry { place, kind: inode.kind };
    tree.insert(place.ino, inode);
    tree.change_directory(parent.ino, |directory, nlink| directory.set(nlink, name, entry));
    tree.change(parent.ino, |inode| inode.touch(time));
}

/// Makes a file with all that it has, or nothing.
fn make(tree: &mut Tree, made: Made, moment: Moment) -> Result<Done, FsError> {
    let place = made.place();
    let Made { parent, name, node, ino, made, at, pieces, written, settings } = made;
    check_name(&name)?;
    if tree.directory(parent)?.entries.contains_key(&name) {
        return Err(FsError::Exists);
    }
    if node.kind != Kind::File || ino.birthplace() != tree.group || ino.is_top() {
        return Err(FsError::Invalid);
    }
    let mut inode = new_inode(tree, parent, node, (place, made))?;
    let wrote = (at, &pieces[..], written);
    let (offset, merge_from) =
        settled::fill(&mut inode, wrote, settings, moment.time, tree.mutation)?;
    inode.take_changes(); // All its blocks are new to the tree.
    let attributes = inode.attributes(place);
    insert_named(tree, (parent, name), (place, inode), moment.time);
    Ok(Done::Written { offset, attributes, merge_from })
}

/// Makes a file in the partition of a directory, which does not change.
fn create_unnamed(
    tree: &mut Tree,
    parent: Place,
    node: NewNode,
    moment: Moment,
) -> Result<Done, FsError> {
    tree.directory(parent)?;
    if node.kind != Kind::File {
        return Err(FsError::Invalid);
    }
    let place = tree.place(Ino::made(tree.group, moment.rank.1));
    let inode = new_inode(tree, parent, node, (place, moment.time))?;
    let before = inode.quota;
    tree.insert(place.ino, Inode { nlink: 0, unnamed: true, quota: None, before, ..inode });
    tree.lose_name(place.ino, moment.rank.0);
    Ok(Done::Attributes(tree.attributes(place).expect("inserted above")))
}

/// What `node` asks for, made in the directory `parent`, which is here; it is not in the tree yet.
fn new_inode(
    tree: &Tree,
    parent: Place,
    mut node: NewNode,
    (place, time): (Place, Timestamp),
) -> Result<Inode, FsError> {
    match (node.kind, node.target.len()) {
        (Kind::Symlink, 0) => return Err(FsError::NotFound), // As Linux has it.
        (Kind::Symlink, 1..=SYMLINK_MAX) | (_, 0) => {}
        (Kind::Symlink, _) => return Err(FsError::NameTooLong),
        (_, _) => return Err(FsError::Invalid),
    }
    let above = tree.inode(parent)?;
    if above.mode & SET_GID != 0 {
        node.gid = above.gid;
        if node.kind == Kind::Directory {
            node.mode |= SET_GID;
        }
    }
    if tree.is_taken(place.ino) {
        return Err(FsError::Stale); // Another message will have another number.
    }
    let xattrs = match tree.mutation.is(Mutation::InheritsNothing) {
        true => OrdMap::new(),
        false => acl::inherit(above, &mut node),
    };
    let (quota, mode) = (above.quota, durability::of_directory(above));
    let mut inode = Inode { quota, xattrs, ..Inode::new(node, parent, time) };
    durability::hand_down(mode, &mut inode);
    Ok(inode)
}

fn set_attributes(
    tree: &mut Tree,
    place: Place,
    changes: &Changes,
    Moment { time, .. }: Moment,
) -> Result<Done, FsError> {
    change_inode(tree, place, |inode| {
        if let Some(size) = changes.size {
            file_of(inode)?.resize(size)?;
            inode.mtime = time;
            inode.drop_capability();
        }
        change_attributes(inode, changes, time);
        Ok(())
    })
}

fn set_durability(
    tree: &mut Tree,
    place: Place,
    durability: Option<Durability>,
    Moment { time, .. }: Moment,
) -> Result<Done, FsError> {
    change_inode(tree, place, |inode| durability::set(inode, durability, time))
}

/// Changes what `stat` shows, except for the length.
pub(crate) fn change_attributes(inode: &mut Inode, changes: &Changes, time: Timestamp) {
    if changes.uid.is_some() || changes.gid.is_some() {
        inode.drop_capability();
    }
    inode.settable().change(changes, time);
    if changes.mode.is_some() {
        acl::follow_mode(inode);
    }
}

fn write(
    tree: &mut Tree,
    place: Place,
    at: WriteAt,
    pieces: &[Piece],
    time: Timestamp,
) -> Result<Done, FsError> {
    tree.inode(place)?;
    let mutation = tree.mutation;
    tree.change(place.ino, |inode| {
        let (offset, merge_from) = write_into(inode, at, pieces, time, mutation)?;
        Ok(Done::Written { offset, attributes: inode.attributes(place), merge_from })
    })
}

/// Writes to a file, or changes nothing. Where the write went, and from where on there are short
/// blocks to be merged.
pub(crate) fn write_into(
    inode: &mut Inode,
    at: WriteAt,
    pieces: &[Piece],
    time: Timestamp,
    mutation: Mutation,
) -> Result<(u64, Option<u64>), FsError> {
    let file = file_of(inode)?;
    let offset = match at {
        WriteAt::Offset(offset) => offset,
        WriteAt::End => file.size(),
    };
    file.write(offset, pieces)?;
    let end = pieces.last().map(|last| offset + last.offset + u64::from(last.extent.len));
    let merge_from = end.and_then(|end| file.short_run(end));
    if !pieces.is_empty() {
        if !mutation.is(Mutation::KeepsCapability) {
            inode.drop_capability();
        }
        inode.touch(time);
    }
    Ok((offset, merge_from))
}

pub(crate) fn check_xattr_name(name: &Name) -> Result<(), FsError> {
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if [PLACEMENT_XATTR, CLUSTER_XATTR, QUOTA_XATTR].contains(&&name[..]) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Sets an extended attribute, or a list of access rights, or changes nothing.
pub(crate) fn set_any_xattr(
    inode: &mut Inode,
    (name, value): (Name, Bytes),
    mode: XattrMode,
    drops_set_gid: bool,
    time: Timestamp,
) -> Result<(), FsError> {
    match acl::is_list(&name) {
        true => set_list(inode, name, value, drops_set_gid)?,
        false => set_xattr(inode, name, value, mode)?,
    }
    inode.ctime = time;
    Ok(())
}

fn set_xattr(inode: &mut Inode, name: Name, value: Bytes, mode: XattrMode) -> Result<(), FsError> {
    check_xattr_name(&name)?;
    let before = inode.xattrs.get(&name);
    match (mode, before) {
        (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
        (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
        (XattrMode::Any | XattrMode::Create, None)
        | (XattrMode::Any | XattrMode::Replace, Some(_)) => {}
    }
    let len = |name: &Name, value: &Bytes| name.len() + value.len();
    let others: usize = inode.xattrs.iter().map(|(name, value)| len(name, value)).sum();
    let before = before.map_or(0, |value| len(&name, value));
    let long = value.len() > XATTR_VALUE_MAX;
    if long || others - before + len(&name, &value) > XATTR_MAX {
        return Err(FsError::NoSpace);
    }
    inode.xattrs.insert(name, value);
    Ok(())
}

fn remove_xattr(inode: &mut Inode, name: &Name, time: Timestamp) -> Result<(), FsError> {
    check_xattr_name(name)?;
    inode.xattrs.remove(name).ok_or(FsError::NoAttribute)?;
    inode.ctime = time;
    Ok(())
}

/// Sets a list of access rights, and with it the permission bits.
fn set_list(
    inode: &mut Inode,
    name: Name,
    value: Bytes,
    drops_set_gid: bool,
) -> Result<(), FsError> {
    let before = (inode.mode, inode.xattrs.clone());
    let kept = acl::set(inode, &name, value)?;
    if drops_set_gid && &name[..] == acl::ACCESS {
        inode.mode &= !SET_GID;
    }
    let result = match kept {
        Some(value) => set_xattr(inode, name, value, XattrMode::Any),
        None => {
            inode.xattrs.remove(&name);
            Ok(())
        }
    };
    if result.is_err() {
        (inode.mode, inode.xattrs) = before;
    }
    result
}

/// Notes that the client has these files open. Directories need no such note: a removed one is
/// empty for ever.
fn hold(tree: &mut Tree, client: ClientId, inodes: &[Ino], rank: Rank) -> Done {
    let is_file = |inode: &Inode| inode.kind != Kind::Directory;
    for ino in inodes {
        if tree.get(*ino).is_some_and(is_file) {
            tree.hold(client, *ino, rank);
        }
    }
    Done::Nothing
}

/// Notes that the client has these files open no more.
fn forget(tree: &mut Tree, client: ClientId, inodes: &[Ino]) -> Done {
    for ino in inodes {
        if tree.get(*ino).is_some_and(|inode| inode.open_at.contains(&client)) {
            tree.forget(client, *ino);
        }
    }
    Done::Nothing
}

/// Notes when what is here was read.
fn note_reads(tree: &mut Tree, reads: &[Access]) -> Done {
    for Access { inode, seen, at } in reads {
        let any = tree.mutation.is(Mutation::NotesAnyRead);
        if tree.get(*inode).is_some_and(|inode| any || inode.atime == *seen) {
            tree.change(*inode, |inode| inode.atime = *at);
        }
    }
    Done::Nothing
}

/// Removes those that lost their last names with these messages and that nobody has open.
fn reap(tree: &mut Tree, inodes: &[(Ino, Stamp)]) -> Done {
    for (ino, ts) in inodes {
        let is_unused = |inode: &Inode| inode.open_at.is_empty();
        if tree.nameless().get(ino) == Some(ts) && tree.get(*ino).is_some_and(is_unused) {
            tree.remove(*ino);
        }
    }
    Done::Nothing
}
