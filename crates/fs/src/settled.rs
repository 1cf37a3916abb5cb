//! What a program sets of a file while its mount keeps what was written to it: mode, owner, times,
//! extended attributes. One [`Update::Settle`](crate::Update::Settle) brings the bytes, and after
//! them what was set, in the order in which it was set. So a file that is copied with all that it
//! has costs one update beside that which makes it; or it comes with that ([`Made`]).
//!
//! Invariant T1: an `Update::Settle` leaves the file as its write and its settings leave it that
//! come one by one, or, if one of them is refused, as it was.

use crate::FsError;
use crate::acl::{self, Acl};
use crate::execute::{change_attributes, check_xattr_name, set_any_xattr, write_into};
use crate::inode::{CAPABILITY, GROUP_EXEC, Inode, MODE_BITS, SET_GID, SET_UID};
use crate::mutation::Mutation;
use crate::operation::{Changes, Done, NewNode, Piece, WriteAt, XattrMode};
use crate::tree::Tree;
use crate::types::{Attributes, Ino, Kind, Name, Place, Timestamp, XATTR_VALUE_MAX};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// So many settings come with one update: what copies a file sets five or six things.
pub const SETTINGS_MAX: usize = 16;

/// A new file that its client has kept back: see [`crate::Update::Make`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Made {
    /// The directory.
    pub parent: Place,
    /// Its name.
    pub name: Name,
    /// What it was when it was made: a file.
    pub node: NewNode,
    /// Its number, which its client has chosen ([`Ino::chosen`]).
    pub ino: Ino,
    /// When it was made.
    pub made: Timestamp,
    /// Where the program wrote.
    pub at: WriteAt,
    /// What, if anything.
    pub pieces: Vec<Piece>,
    /// When it wrote. It set something at the operation's time, or before.
    pub written: Timestamp,
    /// What it set: at most [`SETTINGS_MAX`].
    pub settings: Vec<Setting>,
}

impl Made {
    /// Where the file lives.
    pub fn place(&self) -> Place {
        Place { ino: self.ino, ..self.parent }
    }
}

/// Something that is set of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Setting {
    /// `chmod`, `chown`, `utimens`: no length.
    Attributes(Changes),
    /// `setxattr`, whether or not it is there.
    Xattr {
        /// The attribute.
        name: Name,
        /// Its value.
        value: Bytes,
        /// As in [`crate::Update::SetXattr`].
        drops_set_gid: bool,
    },
}

/// What settings change of an inode, and of what is shown of it.
pub(crate) struct Settable<'a> {
    pub kind: Kind,
    pub mode: &'a mut u16,
    pub uid: &'a mut u32,
    pub gid: &'a mut u32,
    pub atime: &'a mut Timestamp,
    pub mtime: &'a mut Timestamp,
    pub ctime: &'a mut Timestamp,
}

impl Settable<'_> {
    /// All but the length.
    pub fn change(&mut self, changes: &Changes, time: Timestamp) {
        let owner_given = changes.uid.is_some() || changes.gid.is_some();
        if owner_given && self.kind != Kind::Directory {
            *self.mode &= !SET_UID;
            if *self.mode & GROUP_EXEC != 0 {
                *self.mode &= !SET_GID; // Without it the bit does not mean set-group-id.
            }
        }
        *self.mode = changes.mode.map_or(*self.mode, |mode| mode & MODE_BITS);
        *self.uid = changes.uid.unwrap_or(*self.uid);
        *self.gid = changes.gid.unwrap_or(*self.gid);
        *self.atime = changes.atime.unwrap_or(*self.atime);
        *self.mtime = changes.mtime.unwrap_or(*self.mtime);
        *self.ctime = time;
    }
}

impl Inode {
    pub(crate) fn settable(&mut self) -> Settable<'_> {
        let Inode { kind, mode, uid, gid, atime, mtime, ctime, .. } = self;
        Settable { kind: *kind, mode, uid, gid, atime, mtime, ctime }
    }
}

impl Setting {
    /// Whether a file can get it, as far as that is known without the file.
    ///
    /// # Errors
    /// As the tree would refuse it.
    pub fn check(&self) -> Result<(), FsError> {
        match self {
            Setting::Attributes(changes) if changes.size.is_some() => Err(FsError::Invalid),
            Setting::Attributes(_) => Ok(()),
            Setting::Xattr { name, .. } if &name[..] == acl::DEFAULT => Err(FsError::Invalid),
            Setting::Xattr { name, value, .. } if &name[..] == acl::ACCESS => {
                Acl::read(value).map(drop)
            }
            Setting::Xattr { value, .. } if value.len() > XATTR_VALUE_MAX => Err(FsError::NoSpace),
            Setting::Xattr { name, .. } => check_xattr_name(name),
        }
    }

    /// What `stat` shows of the file after it, if it was set at `time`.
    pub fn show(&self, shown: &mut Attributes, time: Timestamp) {
        match self {
            Setting::Attributes(changes) => {
                let owner_given = changes.uid.is_some() || changes.gid.is_some();
                shown.marks.capability &= !owner_given;
                let Attributes { kind, mode, uid, gid, atime, mtime, ctime, .. } = shown;
                let mut all = Settable { kind: *kind, mode, uid, gid, atime, mtime, ctime };
                all.change(changes, time);
            }
            Setting::Xattr { name, value, drops_set_gid } => {
                shown.ctime = time;
                if &name[..] == acl::ACCESS
                    && let Ok(acl) = Acl::read(value)
                {
                    shown.mode = shown.mode & !0o777 | acl.permissions();
                    shown.mode &= if *drops_set_gid { !SET_GID } else { MODE_BITS };
                    shown.marks.access_list = !acl.is_plain();
                }
                shown.marks.capability |= &name[..] == CAPABILITY;
            }
        }
    }

    /// What is left of it after a write, which gives the file another time and takes its capability
    /// for programs.
    pub fn after_write(self) -> Option<Setting> {
        match self {
            Setting::Attributes(changes) => {
                let left = Changes { mtime: None, ..changes };
                (left != Changes::default()).then_some(Setting::Attributes(left))
            }
            Setting::Xattr { name, .. } if &name[..] == CAPABILITY => None,
            setting @ Setting::Xattr { .. } => Some(setting),
        }
    }

    fn set(self, inode: &mut Inode, time: Timestamp) -> Result<(), FsError> {
        match self {
            Setting::Attributes(Changes { size: Some(_), .. }) => Err(FsError::Invalid),
            Setting::Attributes(changes) => {
                change_attributes(inode, &changes, time);
                Ok(())
            }
            Setting::Xattr { name, value, drops_set_gid } => {
                set_any_xattr(inode, (name, value), XattrMode::Any, drops_set_gid, time)
            }
        }
    }
}

/// T1.
pub(crate) fn settle(
    tree: &mut Tree,
    place: Place,
    wrote: (WriteAt, &[Piece], Timestamp),
    settings: Vec<Setting>,
    time: Timestamp,
) -> Result<Done, FsError> {
    tree.inode(place)?;
    let mutation = tree.mutation;
    tree.change(place.ino, |inode| {
        let before = inode.clone();
        let result = fill(inode, wrote, settings, time, mutation);
        if result.is_err() {
            *inode = before;
        }
        let (offset, merge_from) = result?;
        Ok(Done::Written { offset, attributes: inode.attributes(place), merge_from })
    })
}

/// Writes to a file and sets what comes after that: what is refused may be done in part. Answers
/// where the write went, and from where on there are short blocks to be merged.
pub(crate) fn fill(
    inode: &mut Inode,
    (at, pieces, written): (WriteAt, &[Piece], Timestamp),
    mut settings: Vec<Setting>,
    time: Timestamp,
    mutation: Mutation,
) -> Result<(u64, Option<u64>), FsError> {
    if settings.len() > SETTINGS_MAX {
        return Err(FsError::Invalid);
    }
    if mutation.is(Mutation::SettlesBackwards) {
        settings.reverse();
    }
    let wrote = write_into(inode, at, pieces, written, mutation)?;
    settings.into_iter().try_for_each(|setting| setting.set(inode, time))?;
    // Bytes alone may have come later than what was set before them.
    inode.ctime = inode.ctime.max(time);
    Ok(wrote)
}
