//! Numbers of the protocol between the kernel and a FUSE file system (`linux/fuse.h`).

/// The version of the protocol that both must speak.
pub const MAJOR: u32 = 7;
/// The oldest minor version that is served: that of Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// The newest minor version that is known here.
pub const MINOR_MAX: u32 = 45;

/// Bytes before each request.
pub const REQUEST_HEADER: usize = 40;
/// Bytes before each reply.
pub const REPLY_HEADER: usize = 16;
/// Bytes of a page, in which the kernel counts how much it hands over.
pub const PAGE: usize = 4096;

/// What a request asks for.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// What both sides agree upon at first.
pub mod flag {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const POSIX_LOCKS: u32 = 1 << 1;
    pub const EXPORT_SUPPORT: u32 = 1 << 4;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const DONT_MASK: u32 = 1 << 6;
    pub const FLOCK_LOCKS: u32 = 1 << 10;
    pub const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const POSIX_ACL: u32 = 1 << 20;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const SETXATTR_EXT: u32 = 1 << 29;
    /// There are further flags, in a word of their own.
    pub const MORE: u32 = 1 << 30;
    /// Of those: requests may come over rings of `io_uring`.
    pub const RINGS: u32 = 1 << (41 - 32);
}

/// Requests over rings of `io_uring` (`struct fuse_uring_req_header`).
pub mod ring {
    use std::ops::Range;

    /// The command that gives the kernel a new entry.
    pub const REGISTER: u32 = 1;
    /// The command that gives it a reply, and the entry for another request.
    pub const COMMIT_AND_FETCH: u32 = 2;
    /// Bytes before the payload of an entry.
    pub const HEADER: usize = 288;
    /// Where, of those, the number of the request is.
    pub const UNIQUE: usize = 8;
    /// Where the fields of the request's own kind are.
    pub const FIELDS: Range<usize> = 128..256;
    /// Where the number is under which the request is to be answered.
    pub const COMMIT: usize = 264;
    /// Where the length of the payload is.
    pub const PAYLOAD_LENGTH: usize = 272;
    /// The least payload that there must be room for.
    pub const PAYLOAD_MIN: usize = 8192;
}

/// Which attributes a `SETATTR` sets.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// With a new list of access rights the set-group-id bit goes.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// A lock is one of `flock`, not of `fcntl`.
pub const LOCK_IS_FLOCK: u32 = 1;
/// Nothing of an open file is kept, and it cannot be mapped for sharing.
pub const OPEN_DIRECT_IO: u32 = 1;
/// What the kernel has of an opened file from before stays.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// A write brings pages of the kernel's cache.
pub const WRITE_IS_CACHE: u32 = 1;
/// A message that nobody asked for: attributes, and maybe pages, of a node are not to be kept.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// A message that nobody asked for: a name is not to be kept, nor what is below it.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// A message that nobody asked for: no name that the kernel has looked up, or looks up now, is to
/// be kept.
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// The first minor version that has it: that of Linux 6.16.
pub const MINOR_EPOCHS: u32 = 44;
