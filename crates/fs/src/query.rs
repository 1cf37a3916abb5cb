//! Questions that one replica answers, and their answers.

use crate::quota::Quota;
use crate::types::{Attributes, Entry, Extent, Ino, Lock, Name, Place};
use crate::waits::{Stand, Waits};
use bytes::Bytes;
use meridian_core::GroupId;
use serde::{Deserialize, Serialize};

/// A question that one replica of `partition` answers from its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Query {
    /// What a name leads to; its attributes too if it lives in the same partition.
    Lookup {
        /// The directory.
        parent: Place,
        /// The name; `..` is answered with the directory above.
        name: Name,
    },
    /// `stat`.
    Attributes {
        /// Of what.
        inode: Place,
    },
    /// The entries of a directory, in order of their names, after `after`.
    Directory {
        /// Which.
        inode: Place,
        /// Only names greater than this; empty for all.
        after: Name,
        /// At most so many.
        limit: u32,
    },
    /// `readlink`.
    Symlink {
        /// Which.
        inode: Place,
    },
    /// The extents that cover a range of a file; what none covers is a hole.
    Contents {
        /// Which.
        inode: Place,
        /// From this byte.
        offset: u64,
        /// So many at most.
        len: u64,
    },
    /// `getxattr`.
    Xattr {
        /// Of what.
        inode: Place,
        /// The attribute.
        name: Name,
    },
    /// `listxattr`.
    Xattrs {
        /// Of what.
        inode: Place,
    },
    /// `fcntl(F_GETLK)`: a lock that stands in the way of this one.
    LockInTheWay {
        /// The file.
        inode: Place,
        /// The lock that is wanted.
        lock: Lock,
    },
    /// How it stands with a lock that is waited for. A replica keeps the question for a while, as
    /// long as the answer is that it is.
    Awaited {
        /// The file.
        inode: Place,
        /// The lock.
        lock: Lock,
        /// Under which name it is waited for.
        ticket: u64,
    },
    /// The quota that a directory has, or else that an inode counts against, if any.
    Quota {
        /// Which.
        inode: Place,
    },
    /// The quota that a directory has itself, if any.
    OwnQuota {
        /// Which.
        inode: Place,
    },
    /// `statfs`: how much the partition holds.
    Totals {
        /// Which.
        partition: GroupId,
    },
    /// Who waits for locks of `fcntl`, and what they wait for.
    Waits {
        /// Where.
        partition: GroupId,
    },
}

impl Query {
    /// The inode that it is about; [`Query::Totals`] and [`Query::Waits`] are about none.
    fn place(&self) -> Option<Place> {
        match self {
            Query::Lookup { parent: inode, .. }
            | Query::Attributes { inode }
            | Query::Directory { inode, .. }
            | Query::Symlink { inode }
            | Query::Contents { inode, .. }
            | Query::Xattr { inode, .. }
            | Query::Xattrs { inode }
            | Query::Quota { inode }
            | Query::OwnQuota { inode }
            | Query::Awaited { inode, .. }
            | Query::LockInTheWay { inode, .. } => Some(*inode),
            Query::Totals { .. } | Query::Waits { .. } => None,
        }
    }

    /// The directory of whose entries or times the answer tells: what its exclusive holder may have
    /// changed and kept back.
    pub fn shows_entries_of(&self) -> Option<Ino> {
        match self {
            Query::Lookup { .. } | Query::Attributes { .. } | Query::Directory { .. } => {
                self.inode()
            }
            Query::Symlink { .. }
            | Query::Contents { .. }
            | Query::Xattr { .. }
            | Query::Xattrs { .. }
            | Query::LockInTheWay { .. }
            | Query::Awaited { .. }
            | Query::Quota { .. }
            | Query::OwnQuota { .. }
            | Query::Totals { .. }
            | Query::Waits { .. } => None,
        }
    }

    /// The partition whose replica can answer.
    pub fn partition(&self) -> GroupId {
        match self {
            Query::Totals { partition } | Query::Waits { partition } => *partition,
            other => other.place().expect("all others are about an inode").partition,
        }
    }

    /// The inode that it is about.
    pub fn inode(&self) -> Option<Ino> {
        self.place().map(|place| place.ino)
    }
}

/// An entry as a listing shows it: name, what it leads to, and its attributes if it lives in the
/// partition that was asked.
pub type Listed = (Name, Entry, Option<Attributes>);

/// The answer to a [`Query`] of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Query::Lookup`].
    Entry {
        /// What the name leads to.
        entry: Entry,
        /// If it lives in the partition that was asked.
        attributes: Option<Attributes>,
        /// Of a directory that lives elsewhere: what it was when it was placed, named or noted last
        /// ([`crate::Update::NoteTop`]).
        top: Option<Box<Attributes>>,
    },
    /// To [`Query::Attributes`].
    Attributes(Attributes),
    /// To [`Query::Directory`].
    Directory {
        /// In the order of names.
        entries: Vec<Listed>,
        /// Whether there are no more after these.
        end: bool,
        /// The directory above (of the root: the root).
        parent: Place,
        /// Of those among the entries that are directories and live elsewhere, as in
        /// [`Answer::Entry`].
        tops: Vec<Attributes>,
    },
    /// To [`Query::Symlink`] and [`Query::Xattr`].
    Bytes(Bytes),
    /// To [`Query::Contents`].
    Contents {
        /// The file's attributes: its length above all.
        attributes: Attributes,
        /// Offset in the file and extent, in order, cut to the range that was asked for; at most
        /// [`crate::types::EXTENTS_MAX`].
        extents: Vec<(u64, Extent)>,
        /// Up to here the answer tells all; what comes after must be asked for again.
        end: u64,
    },
    /// To [`Query::Xattrs`].
    Names(Vec<Name>),
    /// To [`Query::LockInTheWay`].
    Lock(Option<Lock>),
    /// To [`Query::Awaited`].
    Awaited(Stand),
    /// To [`Query::Quota`] and [`Query::OwnQuota`].
    Quota(Option<Quota>),
    /// To [`Query::Totals`].
    Totals {
        /// Inodes.
        inodes: u64,
        /// Bytes stored in files, each counted once.
        bytes: u64,
    },
    /// To [`Query::Waits`].
    Waits(Waits),
}

impl Answer {
    /// Attributes that it may leave out, as who asks can ask for them: of what names lead to.
    pub fn attributes_beside(&mut self) -> Vec<&mut Option<Attributes>> {
        match self {
            Answer::Entry { attributes, .. } => vec![attributes],
            Answer::Directory { entries, .. } => {
                entries.iter_mut().map(|(_, _, attributes)| attributes).collect()
            }
            Answer::Attributes(_)
            | Answer::Bytes(_)
            | Answer::Contents { .. }
            | Answer::Names(_)
            | Answer::Lock(_)
            | Answer::Awaited(_)
            | Answer::Quota(_)
            | Answer::Totals { .. }
            | Answer::Waits(_) => Vec::new(),
        }
    }

    /// Leaves out those of such inodes.
    pub(crate) fn hide(&mut self, such: impl Fn(&Attributes) -> bool) {
        for attributes in self.attributes_beside() {
            attributes.take_if(|of| such(of));
        }
    }
}
