//! What the tree is made of: inodes, entries, attributes, extents. Plain values.

use bytes::Bytes;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Stamp, mix};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of a directory entry: 1 to [`NAME_MAX`] bytes without `/` and NUL, not `.` or `..`.
pub type Name = Bytes;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// The largest file, in bytes: offsets are signed in POSIX.
pub const FILE_MAX: u64 = i64::MAX as u64;
/// How many bytes of one file may lie in its inode instead of in blocks. Small files are read and
/// written with their metadata in one message; more would make the tree heavy.
pub const INLINE_MAX: usize = 16 << 10;
/// The longest block, in bytes.
pub const BLOCK_MAX: usize = 1 << 20;
/// How many extents one answer tells of at most: some hundred KiB, far below what a frame holds.
pub const EXTENTS_MAX: usize = 8192;
/// The longest value of an extended attribute, in bytes: Linux has no longer ones.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// The most that the extended attributes of one inode may take in all, names and values. They are
/// in each replica's memory, and go along when a directory is placed.
pub const XATTR_MAX: usize = 4 * XATTR_VALUE_MAX;
/// Hard links of one inode.
pub const LINK_MAX: u32 = 65_000;

/// How many bits of an inode's number are not the partition's.
const NUMBER_BITS: u32 = 52;

/// The number of an inode. It never changes, wherever the inode moves.
///
/// The high 12 bits name the partition in which the inode was made, the low 52 come from the name
/// of the message that made it: so they are known before it is delivered, and no replica's order of
/// deliveries is in them. Two messages may come to the same number; the later one is refused with
/// [`crate::FsError::Stale`] while the first one's inode is there, and its client tries another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory, in the partition `global`.
    pub const ROOT: Ino = Ino(1);

    /// What a partition holds from the start: its top directory.
    pub fn top(partition: GroupId) -> Ino {
        Ino(u64::from(partition.0) << NUMBER_BITS | 1)
    }

    /// The inode made in `partition` by the message `id`.
    pub fn made(partition: GroupId, id: MessageId) -> Ino {
        let number = mix(mix(id.client.0) ^ id.sequence) >> (u64::BITS - NUMBER_BITS);
        Ino(u64::from(partition.0) << NUMBER_BITS | number.max(2)) // 1 is the top's.
    }

    /// The number of the file that a holder of capabilities makes in a partition as its `count`th
    /// that it keeps back. Holders and senders of messages draw their names from the same numbers.
    pub fn chosen(partition: GroupId, by: ClientId, count: u64) -> Ino {
        Ino::made(partition, MessageId { client: by, sequence: count })
    }

    /// The partition in which it was made, where it lives unless it was moved.
    pub fn birthplace(self) -> GroupId {
        GroupId((self.0 >> NUMBER_BITS) as u16)
    }

    /// What updates that touch it have among their [`crate::Update::keys`].
    pub fn key(self) -> u64 {
        self.0
    }

    /// Whether it is the root or the top directory of a region: they stay for ever where they are.
    pub fn is_top(self) -> bool {
        self == Ino::top(self.birthplace())
    }
}

/// The place of a message in the order: its final timestamp, ties broken by its name. Messages that
/// conflict are executed in this order.
pub type Rank = (Stamp, MessageId);

/// An inode and the partition in which it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The inode.
    pub ino: Ino,
    /// Where it lives.
    pub partition: GroupId,
}

impl Place {
    /// Where the root directory lives, for ever.
    pub const ROOT: Place = Place { ino: Ino::ROOT, partition: GroupId::GLOBAL };

    /// Where the top directory of a partition lives.
    pub fn top(partition: GroupId) -> Place {
        Place { ino: Ino::top(partition), partition }
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A time of the wall clock, as `stat` shows it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl Timestamp {
    /// So many milliseconds after the beginning of 1970.
    pub fn from_millis(ms: u64) -> Timestamp {
        let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: (ms % 1000) as u32 * 1_000_000 }
    }
}

/// Which extended attributes an inode has that kernels ask for all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marks {
    /// `system.posix_acl_access`.
    pub access_list: bool,
    /// `system.posix_acl_default`.
    pub default_list: bool,
    /// `security.capability`.
    pub capability: bool,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode and where it lives.
    pub place: Place,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-id and sticky: the low 12 bits of `st_mode`.
    pub mode: u16,
    /// Names that lead to it; of a directory 2 and one for each directory in it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
    /// The device that a device node stands for; of a file or directory when what is done there is
    /// durable. See [`Attributes::device`] and [`Attributes::durability`].
    pub rdev: u32,
    /// Length in bytes: of a file's contents, a link's target; of a directory its number of
    /// entries.
    pub size: u64,
    /// Bytes that are stored (a hole has none).
    pub stored: u64,
    /// Last read, as far as clients tell: late, and only the first read after a change, or in a day
    /// ([`crate::Update::NoteReads`]).
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// When it was made.
    pub btime: Timestamp,
    /// Not for `stat`: what the kernel need not ask for.
    pub marks: Marks,
}

impl Attributes {
    /// Of an inode with one name, that is empty, nobody's but root's, and as old as time: where
    /// most of what `stat` shows does not matter.
    pub fn bare(place: Place, kind: Kind) -> Attributes {
        let (time, marks) = (Timestamp::default(), Marks::default());
        let (mode, nlink, uid, gid, rdev, size, stored) = (0, 1, 0, 0, 0, 0, 0);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        Attributes {
            place,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            stored,
            atime,
            mtime,
            ctime,
            btime,
            marks,
        }
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// What the name leads to.
    pub place: Place,
    /// What that is.
    pub kind: Kind,
}

impl Entry {
    /// What is shown where it leads, once that was lost with its region: nobody may do anything
    /// with it but remove the name. It is not empty: of an empty file a kernel reads nothing, so
    /// that a copy of it would succeed.
    pub fn lost(&self) -> Attributes {
        Attributes { size: 1, ..Attributes::bare(self.place, self.kind) }
    }
}

/// Where a run of a file's bytes lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Data {
    /// Here.
    Inline(Bytes),
    /// In a block, from byte `start` of it.
    Block {
        /// Which.
        block: BlockId,
        /// Where in it.
        start: u32,
    },
}

/// A run of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// How many bytes; more than 0. For [`Data::Inline`] the length of the bytes.
    pub len: u32,
    /// Where they lie.
    pub data: Data,
}

/// For each partition the timestamp up to which its messages were seen; absent means 0. The
/// thesis's vector (section 3.4.1), sparse. It may say more than what was seen: who waits for it
/// waits for what touches the inode asked for, not for all messages up to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vector(pub BTreeMap<GroupId, Stamp>);

impl Vector {
    /// What was seen of `partition`.
    pub fn get(&self, partition: GroupId) -> Stamp {
        self.0.get(&partition).copied().unwrap_or_default()
    }

    /// Notes that messages of `partition` up to `ts` were seen.
    pub fn raise(&mut self, partition: GroupId, ts: Stamp) {
        if ts > self.get(partition) {
            self.0.insert(partition, ts);
        }
    }

    /// Notes all that `other` has seen.
    pub fn merge(&mut self, other: &Vector) {
        for (partition, ts) in &other.0 {
            self.raise(*partition, *ts);
        }
    }
}

/// The holder of a lock: for `fcntl` a process of a client, for `flock` an open file of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockOwner {
    /// The client through which it was taken.
    pub client: ClientId,
    /// The kernel's name of the owner on that client.
    pub owner: u64,
}

/// The families of locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockFamily {
    /// `fcntl`: ranges, of a process.
    Posix,
    /// `flock`: the whole file, of an open file.
    Flock,
    /// The whole file, of a client: its kernel's pages of the file are memory that programs share.
    Pages,
}

/// A lock on a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lock {
    /// Who holds it.
    pub owner: LockOwner,
    /// `fcntl` or `flock`.
    pub family: LockFamily,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` for "to the end".
    pub end: u64,
    /// Whether others are shut out; otherwise shared.
    pub exclusive: bool,
    /// The process that asked, for `F_GETLK`.
    pub pid: u32,
}
