//! What the tree keeps of an inode.

use crate::acl;
use crate::extents::Extents;
use crate::locks::Locks;
use crate::operation::NewNode;
use crate::types::{Attributes, Data, Entry, Ino, Kind, Marks, Name, Place, Timestamp};
use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use meridian_core::{BlockId, ClientId, Stamp};
use serde::{Deserialize, Serialize};

/// The set-user-id bit.
pub(crate) const SET_UID: u16 = 0o4000;
/// The set-group-id bit.
pub(crate) const SET_GID: u16 = 0o2000;
/// "Executable by the group".
pub(crate) const GROUP_EXEC: u16 = 0o0010;
/// The extended attribute that gives a program rights of root.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// The bits of a mode that an inode keeps.
pub(crate) const MODE_BITS: u16 = 0o7777;

/// An inode: what `stat` shows, and its contents.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub kind: Kind,
    pub mode: u16,
    /// Names that lead to it, of all partitions. Of a directory 2 and one for each directory in it.
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a device its number, of a file or directory its mode: see [`crate::durability`].
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// When it was made.
    pub btime: Timestamp,
    pub xattrs: OrdMap<Name, Bytes>,
    pub content: Content,
    pub locks: Locks,
    /// The directory against whose quota it counts: itself, or one above in this partition.
    pub quota: Option<Ino>,
    /// Of a file without a name the quota against which it counted while it had one, or would
    /// count with one: who reached it then reaches it now.
    pub before: Option<Ino>,
    /// Who has said that it has it open: it stays for them when its last name goes.
    pub open_at: OrdSet<ClientId>,
    /// Of a file without a name the message that took its last one, or made it so.
    pub nameless: Option<Stamp>,
    /// It has never had a name, and may get one.
    pub unnamed: bool,
}

/// What an inode holds, by its kind.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Content {
    File(Extents),
    Directory(Directory),
    Symlink(Bytes),
    /// A device, a FIFO, a socket.
    Nothing,
}

/// The entries of a directory, and the one above.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// The directory above; of the root itself.
    pub parent: Place,
    pub entries: OrdMap<Name, Entry>,
}

impl Inode {
    /// A directory without entries.
    pub fn directory(parent: Place, mode: u16, time: Timestamp) -> Inode {
        Inode {
            kind: Kind::Directory,
            mode,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs: OrdMap::new(),
            content: Content::Directory(Directory { parent, entries: OrdMap::new() }),
            locks: Locks::default(),
            quota: None,
            before: None,
            open_at: OrdSet::new(),
            nameless: None,
            unnamed: false,
        }
    }

    /// What `node` asks for, to be named in the directory `parent`.
    pub fn new(node: NewNode, parent: Place, time: Timestamp) -> Inode {
        let (content, nlink) = match node.kind {
            Kind::File => (Content::File(Extents::default()), 1),
            Kind::Directory => {
                (Content::Directory(Directory { parent, entries: OrdMap::new() }), 2)
            }
            Kind::Symlink => (Content::Symlink(node.target), 1),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                (Content::Nothing, 1)
            }
        };
        let device = matches!(node.kind, Kind::CharDevice | Kind::BlockDevice);
        Inode {
            kind: node.kind,
            mode: if node.kind == Kind::Symlink { 0o777 } else { node.mode & MODE_BITS },
            nlink,
            uid: node.uid,
            gid: node.gid,
            rdev: if device { node.rdev } else { 0 },
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs: OrdMap::new(),
            content,
            locks: Locks::default(),
            quota: None,
            before: None,
            open_at: OrdSet::new(),
            nameless: None,
            unnamed: false,
        }
    }

    /// What `stat` shows of it.
    pub fn attributes(&self, place: Place) -> Attributes {
        let size = match &self.content {
            Content::File(extents) => extents.size(),
            Content::Directory(directory) => directory.entries.len() as u64,
            Content::Symlink(target) => target.len() as u64,
            Content::Nothing => 0,
        };
        Attributes {
            place,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            stored: self.stored(),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            marks: self.marks(),
        }
    }

    fn marks(&self) -> Marks {
        let has = |name: &[u8]| self.xattrs.contains_key(name);
        Marks {
            access_list: has(acl::ACCESS),
            default_list: has(acl::DEFAULT),
            capability: has(CAPABILITY),
        }
    }

    /// Its contents or its owner have changed: what it may do when it is run was said of others.
    pub fn drop_capability(&mut self) {
        self.xattrs.remove(CAPABILITY);
    }

    /// Whether the client holds anything of it.
    pub fn is_held_by(&self, client: ClientId) -> bool {
        self.open_at.contains(&client) || self.locks.holds(client)
    }

    /// The bytes that it stores.
    pub fn stored(&self) -> u64 {
        match &self.content {
            Content::File(extents) => extents.stored(),
            Content::Directory(_) | Content::Symlink(_) | Content::Nothing => 0,
        }
    }

    /// The blocks that its extents lie in.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        let extents = match &self.content {
            Content::File(extents) => Some(extents),
            Content::Directory(_) | Content::Symlink(_) | Content::Nothing => None,
        };
        let extents = extents.into_iter().flat_map(Extents::iter);
        extents.filter_map(|(_, extent)| match &extent.data {
            Data::Block { block, .. } => Some(*block),
            Data::Inline(_) => None,
        })
    }

    /// The blocks of extents that came (`true`) and went since this was asked last.
    pub fn take_changes(&mut self) -> Vec<(BlockId, bool)> {
        match &mut self.content {
            Content::File(extents) => extents.take_changes(),
            Content::Directory(_) | Content::Symlink(_) | Content::Nothing => Vec::new(),
        }
    }

    /// Its contents if it is a directory.
    pub fn as_directory(&self) -> Option<&Directory> {
        match &self.content {
            Content::Directory(directory) => Some(directory),
            Content::File(_) | Content::Symlink(_) | Content::Nothing => None,
        }
    }

    /// Its contents if it is a directory.
    pub fn as_directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.content {
            Content::Directory(directory) => Some(directory),
            Content::File(_) | Content::Symlink(_) | Content::Nothing => None,
        }
    }

    /// Notes that its contents, and so the inode, changed.
    pub fn touch(&mut self, time: Timestamp) {
        self.mtime = time;
        self.ctime = time;
    }
}
