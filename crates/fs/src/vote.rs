//! How partitions agree on an update that concerns several of them.
//!
//! Each partition looks at its part and votes ([`prepare`]): no, with an error, or yes, with the
//! [`Evidence`] that others need. With all votes at hand each comes to the same conclusion
//! ([`conclude`]). An update of one partition goes the same way, with one vote.

use crate::FsError;
use crate::access::Sticky;
use crate::apply::Moment;
use crate::operation::{RenameMode, Update};
use crate::regions;
use crate::tree::{Tree, check_name};
use crate::types::{Attributes, Ino, Kind, LINK_MAX, Name, Place, Timestamp};
use crate::waits;
use bytes::Bytes;
use meridian_core::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What one partition says of an update that concerns several, having executed all messages before
/// it that conflict with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vote {
    /// Yes with what others need to know, or no.
    pub result: Result<Evidence, FsError>,
    /// Whether others hold what the update changes here: then it is not acknowledged without an
    /// answer of this partition.
    pub held: bool,
}

/// What partitions tell each other with a vote: each what it knows, the rest is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Evidence {
    /// For `link`: what gets a name, as it is after it.
    target: Option<Attributes>,
    /// For `rename`: what is moved.
    moved: Option<Kind>,
    /// For `rename`: what is at the new name.
    replaced: Option<Kind>,
    /// For `rename`: that is a directory with entries.
    replaced_full: bool,
    /// For `rename`: the directories that live elsewhere than their new names, as they are then.
    tops: Vec<Attributes>,
    /// For a directory that is placed elsewhere: all of it.
    directory: Option<Box<EmptyDirectory>>,
    /// For a cycle of waits: the first who waits only as another came first.
    passes: Option<usize>,
    /// What the client's rights need that no partition may know alone.
    pub(crate) sticky: Sticky,
}

/// A directory without entries, on its way to another partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EmptyDirectory {
    pub attributes: Attributes,
    pub xattrs: BTreeMap<Name, Bytes>,
}

/// What the partitions together found, and so what is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// Nothing changes.
    Nothing,
    /// The target of a link, as it is after it.
    Link(Attributes),
    /// A name goes, and perhaps what it led to.
    Remove,
    /// What is moved, what was there, and the directories that live elsewhere than their new names.
    Rename { moved: Kind, replaced: Option<Kind>, tops: Vec<Attributes> },
    /// The directory that gets another place.
    Place(EmptyDirectory),
    /// A cycle of waits is there; who waits in it only as another came first, if anybody does.
    Untangle(Option<usize>),
}

fn check_rmdir(tree: &Tree, (parent, name): (Place, &Name), child: Place) -> Result<(), FsError> {
    let here = |place: Place| place.partition == tree.group;
    if here(parent) && tree.entry(parent, name, child)?.kind != Kind::Directory {
        return Err(FsError::NotDirectory);
    }
    if child.ino.is_top() {
        return Err(FsError::Busy);
    }
    if here(child) { check_removable(tree, child) } else { Ok(()) }
}

/// This partition's part in an update: is it possible? Whoever may only work `below` a directory
/// names what is above another no further than that.
///
/// # Panics
/// If the update is not one of those that name several inodes.
pub(crate) fn prepare(
    tree: &Tree,
    update: &Update,
    below: Option<Place>,
    moment: Moment,
) -> Result<Evidence, FsError> {
    let here = |place: &Place| place.partition == tree.group;
    let mut found = Evidence::default();
    match update {
        Update::Link { target, parent, name } => {
            if here(parent) {
                check_free(tree, *parent, name)?;
            }
            if here(target) {
                found.target = Some(check_target(tree, *target, moment.time)?);
            }
            tree.check_link_quota(*target, *parent)?;
        }
        Update::Unlink { parent, name, child, .. } => {
            if here(parent) && tree.entry(*parent, name, *child)?.kind == Kind::Directory {
                return Err(FsError::IsDirectory);
            }
            if here(child) && tree.inode(*child).or(Err(FsError::Stale))?.as_directory().is_some() {
                return Err(FsError::IsDirectory);
            }
        }
        Update::Rmdir { parent, name, child } => check_rmdir(tree, (*parent, name), *child)?,
        Update::Rename { .. } => return prepare_rename(tree, update, below, moment),
        Update::PlaceDirectory { .. } => return prepare_place(tree, update),
        Update::Untangle { cycle } => found.passes = waits::check(tree, cycle)?,
        Update::Mark { .. } => {}
        Update::RemoveRegion { partition, name } => regions::check(tree, *partition, name)?,
        Update::Create { .. }
        | Update::Make(_)
        | Update::Batch(_)
        | Update::CreateUnnamed { .. }
        | Update::SetAttributes { .. }
        | Update::Write { .. }
        | Update::Settle { .. }
        | Update::Merge { .. }
        | Update::Extend { .. }
        | Update::PunchHole { .. }
        | Update::SetXattr { .. }
        | Update::RemoveXattr { .. }
        | Update::SetDurability { .. }
        | Update::Lock { .. }
        | Update::Leave { .. }
        | Update::Unlock { .. }
        | Update::Hold { .. }
        | Update::Forget { .. }
        | Update::Reap { .. }
        | Update::NoteReads { .. }
        | Update::NoteTop { .. }
        | Update::AddRegion { .. }
        | Update::Renew { .. }
        | Update::Caps { .. }
        | Update::RaiseHorizon { .. }
        | Update::SetQuota { .. }
        | Update::Count { .. }
        | Update::Expire { .. } => panic!("{update:?} is decided by one inode"),
    }
    Ok(found)
}

/// This partition's part in giving a directory another place.
fn prepare_place(tree: &Tree, update: &Update) -> Result<Evidence, FsError> {
    let Update::PlaceDirectory { parent, name, child, to } = update else {
        panic!("{update:?} places no directory")
    };
    let here = |place: &Place| place.partition == tree.group;
    if child.ino.is_top() {
        return Err(FsError::NotPermitted);
    }
    if here(parent) && tree.entry(*parent, name, *child)?.kind != Kind::Directory {
        return Err(FsError::NotDirectory);
    }
    if *to == tree.group && tree.get(Ino::top(*to)).is_none() {
        return Err(FsError::NotFound); // The region goes.
    }
    if here(parent) && parent.partition == *to && child.partition != *to {
        tree.check_same_quota(*child, *parent)?; // It would come back uncounted.
    }
    let mut found = Evidence::default();
    if here(child) {
        found.directory = Some(Box::new(check_placeable(tree, *child, *to)?));
    }
    Ok(found)
}

/// `parent` is a directory without the name.
fn check_free(tree: &Tree, parent: Place, name: &Name) -> Result<(), FsError> {
    check_name(name)?;
    let taken = tree.directory(parent)?.entries.contains_key(name);
    if taken { Err(FsError::Exists) } else { Ok(()) }
}

/// What `target` is with one more name, if it has one.
fn check_target(tree: &Tree, target: Place, time: Timestamp) -> Result<Attributes, FsError> {
    let gone = |error| if error == FsError::Gone { FsError::NotFound } else { error };
    let inode = tree.inode(target).map_err(gone)?;
    if inode.nlink == 0 && !inode.unnamed {
        return Err(FsError::NotFound);
    }
    Ok(Attributes { nlink: inode.nlink + 1, ctime: time, ..inode.attributes(target) })
}

/// Nothing is in the directory, nor does its own quota count anything else.
pub(crate) fn check_removable(tree: &Tree, directory: Place) -> Result<(), FsError> {
    check_empty(tree, directory)?;
    tree.check_unused(directory.ino)
}

fn check_empty(tree: &Tree, child: Place) -> Result<(), FsError> {
    let inode = tree.inode(child).or(Err(FsError::Stale))?;
    let directory = inode.as_directory().ok_or(FsError::NotDirectory)?;
    if directory.entries.is_empty() { Ok(()) } else { Err(FsError::NotEmpty) }
}

/// All of `child`, which can go to `to`, or lives there already.
fn check_placeable(tree: &Tree, child: Place, to: GroupId) -> Result<EmptyDirectory, FsError> {
    let inode = tree.inode(child).or(Err(FsError::Stale))?;
    if inode.as_directory().is_none() {
        return Err(FsError::NotDirectory);
    }
    if to != child.partition {
        check_empty(tree, child)?;
        let is_counted = tree.quotas.get(child.ino).is_some() || tree.is_open(child.ino);
        if !inode.locks.is_empty() || is_counted {
            return Err(FsError::Busy);
        }
    }
    Ok(EmptyDirectory {
        attributes: inode.attributes(child),
        xattrs: inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    })
}

fn prepare_rename(
    tree: &Tree,
    update: &Update,
    below: Option<Place>,
    moment: Moment,
) -> Result<Evidence, FsError> {
    let Update::Rename { from, from_name, to, to_name, moved, replaced, mode, ancestors, .. } =
        update
    else {
        panic!("{update:?} is not a rename");
    };
    let here = |place: &Place| place.partition == tree.group;
    let mut found = Evidence::default();
    check_name(from_name)?;
    check_name(to_name)?;
    if here(from) {
        found.moved = Some(tree.entry(*from, from_name, *moved)?.kind);
    }
    if here(to) {
        let entry = tree.directory(*to)?.entries.get(to_name);
        found.replaced = match (entry, replaced, mode) {
            (Some(_), _, RenameMode::NoReplace) => return Err(FsError::Exists),
            (Some(entry), Some(place), _) if entry.place == *place => Some(entry.kind),
            (None, None, RenameMode::Replace | RenameMode::NoReplace) => None,
            (None, _, RenameMode::Exchange) => return Err(FsError::NotFound),
            // The client believed otherwise; to a program all of this is no error.
            (Some(_), _, _) | (None, Some(_), _) => return Err(FsError::Stale),
        };
    }
    if moved.ino.is_top() || replaced.is_some_and(|replaced| replaced.ino.is_top()) {
        return Err(FsError::Busy);
    }
    if here(moved) {
        found.tops.extend(top_under(tree, *moved, *to, moment)?);
    }
    if matches!(update, Update::Rename { whiteout: Some(_), .. }) {
        check_whiteout(tree, *from, *mode, moment)?;
    }
    let listed: BTreeSet<Place> = ancestors.iter().copied().collect();
    if from != to {
        match mode {
            RenameMode::Exchange => tree.check_same_quota(*moved, *to)?,
            _ => tree.check_move(*moved, *to, &listed)?,
        }
        let back = replaced.filter(|_| *mode == RenameMode::Exchange);
        back.map_or(Ok(()), |back| tree.check_same_quota(back, *from))?;
    }
    if let Some(replaced) = replaced.as_ref().filter(|place| here(place)) {
        let inode = tree.inode(*replaced).or(Err(FsError::Stale))?;
        found.replaced_full =
            inode.as_directory().is_some_and(|directory| !directory.entries.is_empty());
        match mode {
            RenameMode::Exchange => found.tops.extend(top_under(tree, *replaced, *from, moment)?),
            _ if found.replaced_full => {} // It stays.
            _ => tree.check_unused(replaced.ino)?,
        }
    }
    // Its own name is out of reach then, so it moves nowhere, and closes no cycle.
    let ends = |place: &Place| Some(*place) == below;
    for place in listed.iter().filter(|place| here(place) && !ends(place)) {
        let above = tree.inode(*place).or(Err(FsError::Stale))?.as_directory();
        let above = above.ok_or(FsError::Stale)?.parent;
        if above != Place::ROOT && !listed.contains(&above) {
            return Err(FsError::Stale);
        }
    }
    Ok(found)
}

/// What `moved` will be, which is here, if it is a directory and `parent`, which it comes under, is
/// elsewhere.
fn top_under(
    tree: &Tree,
    moved: Place,
    parent: Place,
    moment: Moment,
) -> Result<Option<Attributes>, FsError> {
    let inode = tree.inode(moved).or(Err(FsError::Stale))?;
    let is_top = parent.partition != tree.group && inode.kind == Kind::Directory;
    Ok(is_top.then(|| Attributes { ctime: moment.time, ..inode.attributes(moved) }))
}

/// A whiteout can be left in `from`.
fn check_whiteout(
    tree: &Tree,
    from: Place,
    mode: RenameMode,
    moment: Moment,
) -> Result<(), FsError> {
    if mode == RenameMode::Exchange {
        return Err(FsError::Invalid);
    }
    if from.partition != tree.group {
        return Ok(());
    }
    if tree.is_taken(Ino::made(tree.group, moment.rank.1)) {
        return Err(FsError::Stale); // Another message will have another number.
    }
    tree.check_room(from, 0)
}

/// What follows from all votes on `update`: the same in every partition.
///
/// # Panics
/// If a partition did not say what was its part to say: it runs other code.
pub(crate) fn conclude(
    update: &Update,
    votes: &BTreeMap<GroupId, &Result<Evidence, FsError>>,
) -> Result<Conclusion, FsError> {
    let mut all = Evidence::default();
    let mut refusal = None;
    for vote in votes.values() {
        match vote {
            Ok(evidence) => {
                all.target = all.target.or(evidence.target);
                all.moved = all.moved.or(evidence.moved);
                all.replaced = all.replaced.or(evidence.replaced);
                all.replaced_full |= evidence.replaced_full;
                all.tops.extend(&evidence.tops);
                all.sticky.join(&evidence.sticky);
                all.directory = all.directory.or_else(|| evidence.directory.clone());
                all.passes = [all.passes, evidence.passes].into_iter().flatten().min();
            }
            Err(FsError::Stale) => return Err(FsError::Stale),
            Err(error) => refusal = refusal.or(Some(*error)),
        }
    }
    if let Some(error) = refusal {
        return Err(error);
    }
    all.sticky.check()?;
    match update {
        Update::Link { .. } => {
            let target = all.target.expect("the target's partition told its attributes");
            match target.kind {
                // After what the directory said: a name that is taken comes first.
                Kind::Directory => Err(FsError::NotPermitted),
                _ if target.nlink > LINK_MAX => Err(FsError::TooManyLinks),
                _ => Ok(Conclusion::Link(target)),
            }
        }
        Update::Rename { .. } => conclude_rename(update, all),
        Update::PlaceDirectory { .. } => {
            let directory = all.directory.expect("the directory's partition told all of it");
            Ok(Conclusion::Place(*directory))
        }
        Update::Untangle { .. } => Ok(Conclusion::Untangle(all.passes)),
        Update::Mark { .. } => Ok(Conclusion::Nothing),
        _ => Ok(Conclusion::Remove),
    }
}

/// The rules that need the kinds of both inodes, which no partition may know alone.
fn conclude_rename(update: &Update, all: Evidence) -> Result<Conclusion, FsError> {
    let Update::Rename { from, to, moved: moved_place, replaced: at, mode, ancestors, .. } = update
    else {
        panic!("{update:?} is not a rename");
    };
    let moved = all.moved.expect("the partition it leaves told what it is");
    let replaced = all.replaced;
    assert_eq!(at.is_some(), replaced.is_some(), "all votes were yes: {update:?}");
    if *at == Some(*moved_place) {
        return Ok(Conclusion::Nothing);
    }
    let listed = |place: &Place| *place == Place::ROOT || ancestors.contains(place);
    let comes_under_to = moved == Kind::Directory && from != to;
    let comes_under_from =
        *mode == RenameMode::Exchange && replaced == Some(Kind::Directory) && from != to;
    if comes_under_to && !listed(to) || comes_under_from && !listed(from) {
        return Err(FsError::Stale); // The client knew less than it must, or a wrong kind.
    }
    let cycle = comes_under_to && ancestors.contains(moved_place)
        || comes_under_from && at.is_some_and(|at| ancestors.contains(&at));
    if cycle {
        return Err(FsError::Invalid);
    }
    if *mode == RenameMode::Replace {
        match (moved, replaced) {
            (Kind::Directory, Some(Kind::Directory)) if all.replaced_full => {
                return Err(FsError::NotEmpty);
            }
            (Kind::Directory, None | Some(Kind::Directory)) => {}
            (Kind::Directory, Some(_)) => return Err(FsError::NotDirectory),
            (_, Some(Kind::Directory)) => return Err(FsError::IsDirectory),
            (_, _) => {}
        }
    }
    Ok(Conclusion::Rename { moved, replaced, tops: all.tops })
}
