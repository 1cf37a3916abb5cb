//! What a client may do that may not do all (decision 93).
//!
//! Who may do all, and what nodes send themselves, comes without [`Rights`]: there the kernel of
//! the client decides who may do what. For others the tree decides here, where updates are ordered
//! and queries answered:
//!
//! - **Reach.** Who works below one directory touches nothing but what counts against that
//!   directory's quota. Each inode tells by itself which quota that is, so neither a link nor a
//!   rename leads out, and numbers of inodes that were guessed lead nowhere.
//! - **Permissions**, as POSIX has them. A machine speaks for all who work on it, and nothing that
//!   it says tells them apart. So what it asks is done if anybody could do it as whom it may act:
//!   the owner, the mode, the groups and the list of access rights are asked for each of them.
//! - **Root is nobody** unless the rights say otherwise: what it makes belongs to who it is
//!   squashed to, and what only root may do is refused.
//!
//! Invariants:
//! - N1: no update with rights changes an inode that these do not reach.
//! - N2: no update with rights that squash root makes root the owner of anything.

use crate::FsError;
use crate::acl::{self, Acl};
use crate::inode::{GROUP_EXEC, Inode, SET_GID, SET_UID};
use crate::keys::inodes_of;
use crate::mutation::Mutation;
use crate::operation::{Changes, Done, NewNode, Update};
use crate::query::{Answer, Query};
use crate::settled::Setting;
use crate::tree::Tree;
use crate::types::{Ino, Kind, Name, Place};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// "Only owners remove and rename what is in it."
const STICKY: u16 = 0o1000;
const READ: u16 = 0o4;
const WRITE: u16 = 0o2;
const SEARCH: u16 = 0o1;

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights {
    /// Only what counts against the quota of this directory, which it may not move or remove.
    pub below: Option<Place>,
    /// It may look and lock, and change nothing.
    pub read_only: bool,
    /// Its root is root here: permissions are its kernel's affair.
    pub root: bool,
    /// The users as whom it may act; all but root if there are none.
    pub users: BTreeSet<u32>,
    /// The groups as which it may act; all but root's if there are none.
    pub groups: BTreeSet<u32>,
    /// The user and the group that its root becomes.
    pub squash: (u32, u32),
}

/// The user and the group that root becomes if nothing else is said: nobody's.
pub const NOBODY: (u32, u32) = (65_534, 65_534);

/// Whether a name is in a sticky directory of another, and leads to what is another's: only both
/// together are refused, and two partitions may know them. For what is removed or moved, and for
/// what is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Sticky {
    guarded: [bool; 2],
    foreign: [bool; 2],
}

impl Sticky {
    /// Adds what another partition knows.
    pub fn join(&mut self, other: &Sticky) {
        for at in 0..2 {
            self.guarded[at] |= other.guarded[at];
            self.foreign[at] |= other.foreign[at];
        }
    }

    /// Whether the names may go, all that is known.
    pub fn check(&self) -> Result<(), FsError> {
        let kept = (0..2).any(|at| self.guarded[at] && self.foreign[at]);
        permitted(!kept)
    }
}

fn permitted(may: bool) -> Result<(), FsError> {
    if may { Ok(()) } else { Err(FsError::NotPermitted) }
}

fn allowed(may: bool) -> Result<(), FsError> {
    if may { Ok(()) } else { Err(FsError::Denied) }
}

impl Rights {
    /// Gives what root would own to who it is squashed to. What it would run as its owner it may
    /// not any more.
    pub(crate) fn squash(&self, update: &mut Update) {
        if self.root {
            return;
        }
        let (uid, gid) = self.squash;
        match update {
            Update::Create { node, .. } | Update::CreateUnnamed { node, .. } => {
                let was_root = (node.uid == 0, node.gid == 0);
                let is_file = node.kind != Kind::Directory;
                if was_root.0 {
                    node.uid = uid;
                }
                if was_root.1 {
                    node.gid = gid;
                }
                if is_file && was_root.0 {
                    node.mode &= !SET_UID;
                }
                if is_file && (was_root.0 || was_root.1) {
                    node.mode &= !SET_GID;
                }
            }
            Update::Rename { whiteout: Some(owner), .. } => {
                owner.uid = if owner.uid == 0 { uid } else { owner.uid };
                owner.gid = if owner.gid == 0 { gid } else { owner.gid };
            }
            _ => {}
        }
    }

    /// Whether the client may do this, as far as that is known here.
    ///
    /// # Errors
    /// [`FsError::Denied`], [`FsError::NotPermitted`] or [`FsError::ReadOnly`] if not.
    pub(crate) fn check(&self, tree: &Tree, update: &Update) -> Result<Sticky, FsError> {
        self.check_kind(update)?;
        let inodes = inodes_of(update, tree.group);
        let strange = |ino: &Ino| tree.get(*ino).is_some_and(|inode| !self.reaches(tree, inode));
        allowed(!inodes.iter().any(strange))?;
        if self.root {
            return Ok(Sticky::default());
        }
        let here = |place: &Place| tree.get(place.ino).filter(|_| place.partition == tree.group);
        match update {
            Update::Create { parent, node, .. } | Update::CreateUnnamed { parent, node } => {
                here(parent).map_or(Ok(()), |parent| self.check_new(parent, node))?;
            }
            Update::Link { target, parent, .. } => {
                here(parent).map_or(Ok(()), |parent| self.check_directory(parent))?;
                permitted(here(target).is_none_or(|target| self.may_link(target)))?;
            }
            Update::Unlink { parent, child, .. } | Update::Rmdir { parent, child, .. } => {
                here(parent).map_or(Ok(()), |parent| self.check_directory(parent))?;
                let guarded = [here(parent).is_some_and(|of| self.is_guarded(of)), false];
                let foreign = [here(child).is_some_and(|child| !self.owns(child)), false];
                return Ok(Sticky { guarded, foreign });
            }
            Update::Rename { .. } => return self.check_rename(update, here),
            Update::SetAttributes { inode, changes } => {
                here(inode).map_or(Ok(()), |inode| self.check_changes(inode, changes))?;
            }
            Update::Write { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. } => {
                allowed(here(inode).is_none_or(|inode| self.may_use(inode, WRITE)))?;
            }
            Update::Settle { inode, pieces, settings, .. } => {
                let Some(inode) = here(inode) else { return Ok(Sticky::default()) };
                allowed(pieces.is_empty() || self.may_use(inode, WRITE))?;
                settings.iter().try_for_each(|setting| self.check_setting(inode, setting))?;
            }
            Update::SetXattr { inode, name, .. } | Update::RemoveXattr { inode, name } => {
                here(inode).map_or(Ok(()), |inode| self.check_xattr(inode, name))?;
            }
            Update::SetDurability { inode, .. } => self.check_owner(here(inode))?,
            Update::Lock { inode, .. } => {
                let may = |inode| self.may_use(inode, READ) || self.may_use(inode, WRITE);
                allowed(here(inode).is_none_or(may))?;
            }
            Update::Leave { .. }
            | Update::Untangle { .. }
            | Update::Unlock { .. }
            | Update::Hold { .. }
            | Update::Forget { .. }
            | Update::NoteReads { .. }
            | Update::Renew { .. }
            | Update::Caps { .. } => {}
            // They may set what their client may not set: that keeps nothing back.
            Update::Make(_)
            | Update::Batch(_)
            | Update::NoteTop { .. }
            | Update::AddRegion { .. }
            | Update::RemoveRegion { .. }
            | Update::Reap { .. }
            | Update::Expire { .. }
            | Update::RaiseHorizon { .. }
            | Update::Mark { .. }
            | Update::SetQuota { .. }
            | Update::Count { .. }
            | Update::PlaceDirectory { .. } => return Err(FsError::NotPermitted),
        }
        Ok(Sticky::default())
    }

    fn check_setting(&self, inode: &Inode, setting: &Setting) -> Result<(), FsError> {
        match setting {
            Setting::Attributes(changes) => self.check_changes(inode, changes),
            Setting::Xattr { name, .. } => self.check_xattr(inode, name),
        }
    }

    /// Whether the client may look at all of the tree.
    pub fn sees_all(&self) -> bool {
        self.root && self.below.is_none()
    }

    /// Whether the client may do such a thing at all.
    fn check_kind(&self, update: &Update) -> Result<(), FsError> {
        match update {
            of_nodes if of_nodes.is_of_nodes() => Err(FsError::NotPermitted),
            Update::Mark { .. } => permitted(self.sees_all()),
            Update::SetQuota { .. } | Update::PlaceDirectory { .. } => {
                permitted(self.sees_all())?;
                if self.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
            }
            Update::Lock { .. }
            | Update::Leave { .. }
            | Update::Untangle { .. }
            | Update::Unlock { .. }
            | Update::Hold { .. }
            | Update::Forget { .. }
            | Update::Renew { .. }
            | Update::Caps { .. } => Ok(()),
            Update::Create { .. }
            | Update::Make(_)
            | Update::Batch(_)
            | Update::CreateUnnamed { .. }
            | Update::Link { .. }
            | Update::Unlink { .. }
            | Update::Rmdir { .. }
            | Update::Rename { .. }
            | Update::SetAttributes { .. }
            | Update::Write { .. }
            | Update::Settle { .. }
            | Update::Merge { .. }
            | Update::Extend { .. }
            | Update::PunchHole { .. }
            | Update::SetXattr { .. }
            | Update::RemoveXattr { .. }
            | Update::SetDurability { .. }
            | Update::NoteReads { .. } => {
                if self.read_only {
                    Err(FsError::ReadOnly)
                } else {
                    Ok(())
                }
            }
            // What others would believe, and what only nodes say.
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Whether the client may have the answer.
    ///
    /// # Errors
    /// [`FsError::Denied`] if not; [`FsError::NoAttribute`] for one of root.
    pub(crate) fn check_query(&self, tree: &Tree, query: &Query) -> Result<(), FsError> {
        let inode = query.inode().filter(|_| query.partition() == tree.group);
        let Some(inode) = inode.and_then(|ino| tree.get(ino)) else { return Ok(()) };
        allowed(self.reaches(tree, inode))?;
        if self.root {
            return Ok(());
        }
        match query {
            Query::Lookup { .. } => allowed(self.may(inode, SEARCH)),
            Query::Directory { .. } => allowed(self.may(inode, READ)),
            // What may be run must be read for that.
            Query::Contents { .. } => allowed(self.may_use(inode, READ) || self.may(inode, SEARCH)),
            Query::Xattr { name, .. } if name.starts_with(b"trusted.") => Err(FsError::NoAttribute),
            Query::Xattr { name, .. } if name.starts_with(b"user.") => {
                allowed(self.may_use(inode, READ))
            }
            Query::Attributes { .. }
            | Query::Symlink { .. }
            | Query::Xattr { .. }
            | Query::Xattrs { .. }
            | Query::LockInTheWay { .. }
            | Query::Awaited { .. }
            | Query::Quota { .. }
            | Query::OwnQuota { .. }
            | Query::Totals { .. }
            | Query::Waits { .. } => Ok(()),
        }
    }

    /// Leaves out of an answer what the client may not know.
    pub(crate) fn leave_out(&self, tree: &Tree, answer: &mut Answer) {
        let reached =
            |place: Place| tree.get(place.ino).is_none_or(|inode| self.reaches(tree, inode));
        answer.hide(|of| !reached(of.place));
        let is_below = self.below.is_some();
        match answer {
            Answer::Entry { top, .. } => drop(top.take_if(|_| is_below)),
            Answer::Directory { tops, .. } => tops.retain(|_| !is_below),
            Answer::Names(names) if !self.root => {
                names.retain(|name| !name.starts_with(b"trusted."));
            }
            Answer::Waits(waits) => waits.retain(reached),
            Answer::Attributes(_)
            | Answer::Bytes(_)
            | Answer::Contents { .. }
            | Answer::Names(_)
            | Answer::Lock(_)
            | Answer::Awaited(_)
            | Answer::Quota(_)
            | Answer::Totals { .. } => {}
        }
    }

    /// The file of which the client changes what is run: its set-id bits go, as a kernel has it.
    pub(crate) fn drops_set_id(&self, update: &Update) -> Option<Ino> {
        let changed = match update {
            Update::Write { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. } => Some(inode),
            Update::Settle { inode, pieces, .. } => (!pieces.is_empty()).then_some(inode),
            Update::SetAttributes { inode, changes } => changes.size.map(|_| inode),
            _ => None,
        };
        changed.filter(|_| !self.root).map(|place| place.ino)
    }

    /// N1.
    fn reaches(&self, tree: &Tree, inode: &Inode) -> bool {
        let Some(below) = self.below else { return true };
        let counts = inode.quota.or(inode.before);
        tree.mutation.is(Mutation::ReachesAll)
            || below.partition == tree.group && counts == Some(below.ino)
    }

    fn is_user(&self, uid: u32) -> bool {
        let named = self.users.is_empty() || self.users.contains(&uid);
        uid == self.squash.0 || uid != 0 && named
    }

    fn is_group(&self, gid: u32) -> bool {
        let named = self.groups.is_empty() || self.groups.contains(&gid);
        gid == self.squash.1 || gid != 0 && named
    }

    /// Whether it may act as somebody who is none of these.
    fn is_other(&self, than: &BTreeSet<u32>) -> bool {
        let mut users = self.users.iter().chain([&self.squash.0]);
        self.users.is_empty() || users.any(|uid| !than.contains(uid))
    }

    fn owns(&self, inode: &Inode) -> bool {
        self.is_user(inode.uid)
    }

    /// Whether somebody as whom it may act has these permissions.
    fn may(&self, inode: &Inode, wanted: u16) -> bool {
        let has = |bits: u16| bits & wanted == wanted;
        if self.owns(inode) && has(inode.mode >> 6) {
            return true;
        }
        let list = inode.xattrs.get(acl::ACCESS).and_then(|value| Acl::read(value).ok());
        let Some(list) = list else {
            let other = self.is_other(&BTreeSet::from([inode.uid]));
            return other && (self.is_group(inode.gid) && has(inode.mode >> 3) || has(inode.mode));
        };
        if list.users().any(|(uid, bits)| uid != inode.uid && self.is_user(uid) && has(bits)) {
            return true;
        }
        let named = list.users().map(|(uid, _)| uid).chain([inode.uid]).collect();
        let group = list.groups(inode.gid).any(|(gid, bits)| self.is_group(gid) && has(bits));
        self.is_other(&named) && (group || has(inode.mode))
    }

    /// As [`Rights::may`], or it owns it: what is open stays so whatever its mode becomes, and
    /// who owns it may open it so.
    fn may_use(&self, inode: &Inode, wanted: u16) -> bool {
        self.may(inode, wanted) || self.owns(inode)
    }

    /// Names may come into the directory and go.
    fn check_directory(&self, directory: &Inode) -> Result<(), FsError> {
        allowed(self.may(directory, WRITE | SEARCH))
    }

    fn is_guarded(&self, directory: &Inode) -> bool {
        directory.mode & STICKY != 0 && !self.owns(directory)
    }

    fn check_new(&self, parent: &Inode, node: &NewNode) -> Result<(), FsError> {
        self.check_directory(parent)?;
        let inherits = parent.mode & SET_GID != 0;
        let is_own = self.is_user(node.uid) && (inherits || self.is_group(node.gid));
        let is_device = match node.kind {
            Kind::BlockDevice => true,
            Kind::CharDevice => node.rdev != 0, // Else it is a whiteout.
            Kind::File | Kind::Directory | Kind::Symlink | Kind::Fifo | Kind::Socket => false,
        };
        let gid = if inherits { parent.gid } else { node.gid };
        let runs_as_group = node.kind == Kind::File && node.mode & SET_GID != 0;
        permitted(is_own && !is_device && (!runs_as_group || self.is_group(gid)))
    }

    /// As Linux protects hard links.
    fn may_link(&self, target: &Inode) -> bool {
        let runs_as_group = target.mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
        let is_plain = target.kind == Kind::File && target.mode & SET_UID == 0 && !runs_as_group;
        self.owns(target) || is_plain && !target.unnamed && self.may(target, READ | WRITE)
    }

    fn check_rename<'a>(
        &self,
        update: &Update,
        here: impl Fn(&Place) -> Option<&'a Inode>,
    ) -> Result<Sticky, FsError> {
        let Update::Rename { from, to, moved, replaced, whiteout, mode, .. } = update else {
            panic!("{update:?} is not a rename");
        };
        for directory in [from, to].into_iter().filter_map(&here) {
            self.check_directory(directory)?;
        }
        let back = replaced.as_ref().filter(|_| *mode == crate::operation::RenameMode::Exchange);
        for comes in [Some(moved), back].into_iter().flatten().filter_map(&here) {
            // What is above a directory stands in it.
            allowed(from == to || comes.kind != Kind::Directory || self.may(comes, WRITE))?;
        }
        let is_own = |uid, gid| self.is_user(uid) && self.is_group(gid);
        permitted(whiteout.is_none_or(|owner| is_own(owner.uid, owner.gid)))?;
        let guarded = [from, to].map(|of| here(of).is_some_and(|of| self.is_guarded(of)));
        let foreign = [Some(moved), replaced.as_ref()];
        let foreign = foreign.map(|of| of.and_then(&here).is_some_and(|of| !self.owns(of)));
        Ok(Sticky { guarded, foreign })
    }

    fn check_changes(&self, inode: &Inode, changes: &Changes) -> Result<(), FsError> {
        let (owns, writes) = (self.owns(inode), self.may_use(inode, WRITE));
        if let Some(mode) = changes.mode {
            // A kernel takes the set-id bits away when others write.
            let drops = inode.mode & !mode & !(SET_UID | SET_GID) == 0 && mode & !inode.mode == 0;
            let gid = changes.gid.unwrap_or(inode.gid);
            let grants = mode & SET_GID & !inode.mode != 0 && inode.kind != Kind::Directory;
            permitted(owns && (!grants || self.is_group(gid)) || writes && drops)?;
        }
        let gives = changes.uid.is_some_and(|uid| uid != inode.uid);
        let regroups = changes.gid.is_some_and(|gid| gid != inode.gid && !self.is_group(gid));
        let names_owner = changes.uid.is_some() || changes.gid.is_some();
        permitted(!gives && !regroups && (owns || !names_owner))?;
        let times = changes.atime.is_some() || changes.mtime.is_some();
        allowed(writes || changes.size.is_none() && !times)
    }

    fn check_owner(&self, inode: Option<&Inode>) -> Result<(), FsError> {
        permitted(inode.is_none_or(|inode| self.owns(inode)))
    }

    fn check_xattr(&self, inode: &Inode, name: &Name) -> Result<(), FsError> {
        if acl::is_list(name) {
            return permitted(self.owns(inode));
        }
        permitted(name.starts_with(b"user."))?;
        let guarded = inode.kind == Kind::Directory && self.is_guarded(inode);
        permitted(matches!(inode.kind, Kind::File | Kind::Directory) && !guarded)?;
        allowed(self.may_use(inode, WRITE))
    }
}

/// Takes the set-id bits of a file that was changed, also in what its client is told.
pub(crate) fn drop_set_id(tree: &mut Tree, ino: Ino, done: &mut Done) {
    let Some(inode) = tree.get(ino).filter(|inode| inode.kind == Kind::File) else { return };
    let group = if inode.mode & GROUP_EXEC != 0 { SET_GID } else { 0 };
    let kept = inode.mode & !(SET_UID | group);
    if kept == inode.mode {
        return;
    }
    tree.change(ino, |inode| inode.mode = kept);
    if let Done::Attributes(attributes) | Done::Written { attributes, .. } = done {
        attributes.mode = kept;
    }
}
