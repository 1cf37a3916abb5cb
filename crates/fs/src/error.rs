//! Why an operation on the tree is refused, and which errno that is.

use crate::types::Place;
use serde::{Deserialize, Serialize};

/// Why an operation is refused; nothing of it was done.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    thiserror::Error,
)]
pub enum FsError {
    /// `ENOENT`.
    #[error("no such file or directory")]
    NotFound,
    /// `EEXIST`.
    #[error("file exists")]
    Exists,
    /// `ENOTDIR`.
    #[error("not a directory")]
    NotDirectory,
    /// `EISDIR`.
    #[error("is a directory")]
    IsDirectory,
    /// `ENOTEMPTY`.
    #[error("directory not empty")]
    NotEmpty,
    /// `EINVAL`.
    #[error("invalid argument")]
    Invalid,
    /// `ENAMETOOLONG`.
    #[error("name too long")]
    NameTooLong,
    /// `EFBIG`.
    #[error("file too large")]
    TooLarge,
    /// `EMLINK`.
    #[error("too many links")]
    TooManyLinks,
    /// `EPERM`.
    #[error("operation not permitted")]
    NotPermitted,
    /// `EACCES`: whoever asks may not do that here.
    #[error("permission denied")]
    Denied,
    /// `EROFS`: whoever asks may only read.
    #[error("read-only")]
    ReadOnly,
    /// `ENODATA`.
    #[error("no such attribute")]
    NoAttribute,
    /// `ENOSPC`: the attributes of this inode, or what one client may hold, are full.
    #[error("no space")]
    NoSpace,
    /// `EDQUOT`: more than the quota of a directory above allows.
    #[error("disk quota exceeded")]
    OverQuota,
    /// `EXDEV`: what counts against one quota cannot get a name under another.
    #[error("it counts against another quota")]
    OtherQuota,
    /// The update counts against a quota that its client did not name: it names it and repeats.
    /// Never shown to a program.
    #[error("it counts against the quota of {quota:?}")]
    UnnamedQuota {
        /// The directory whose quota it is.
        quota: Place,
    },
    /// `EAGAIN`: another holds a lock.
    #[error("locked by another")]
    WouldBlock,
    /// `EIO`: the locks under which it was written were lost.
    #[error("a lock was lost")]
    LockLost,
    /// `EDEADLK`: who waits would wait for itself.
    #[error("a deadlock of locks")]
    Deadlock,
    /// `EBUSY`.
    #[error("busy")]
    Busy,
    /// `ESTALE`: the inode is gone, though it is still open somewhere.
    #[error("stale file handle")]
    Gone,
    /// `EIO`: its client gave the update up before it came, or is forgotten: it may be a repeat.
    /// Nothing was done now.
    #[error("the client's session has expired")]
    Expired,
    /// Something is not where the client believed: it looks again and repeats. Never shown to a
    /// program.
    #[error("the tree has changed: look again")]
    Stale,
    /// Blocks that the update names were named too long ago: they may have been freed. The client
    /// stores the bytes under new names and repeats. Never shown to a program.
    #[error("its blocks were named before {horizon_ms}")]
    Late {
        /// Since when blocks must be named, in milliseconds since 1970.
        horizon_ms: u64,
    },
    /// The bytes do not fit into the inode: the client stores them in blocks and repeats. Never
    /// shown to a program.
    #[error("too much inline data: use blocks")]
    InlineFull,
    /// Another client holds the directory exclusively: the client has it taken back and repeats.
    /// Never shown to a program. Of
    /// [`Level::EXCLUSIVE`](meridian_core::level::Level::EXCLUSIVE).
    #[error("held exclusively by another client")]
    Held,
    /// `EIO`: a new file that its client had kept back could not be made. Clients tell their
    /// programs so, the tree never does.
    #[error(
        "its name was taken, or its directory removed, while its mount was cut off or stood still \
         for longer than its lease"
    )]
    Unmade,
}

impl FsError {
    /// Whether an update that is answered so has had no effect, and never will under that name.
    pub fn is_final(self) -> bool {
        self != FsError::Expired
    }

    /// The errno that Linux has for it.
    pub fn errno(self) -> i32 {
        match self {
            FsError::NotPermitted => 1,
            FsError::NotFound => 2,
            FsError::Expired
            | FsError::LockLost
            | FsError::Unmade
            | FsError::Late { .. }
            | FsError::UnnamedQuota { .. } => 5,
            FsError::WouldBlock => 11,
            FsError::Denied => 13,
            FsError::Busy | FsError::Held => 16,
            FsError::Exists => 17,
            FsError::OtherQuota => 18,
            FsError::NotDirectory => 20,
            FsError::IsDirectory => 21,
            FsError::Invalid => 22,
            FsError::TooLarge | FsError::InlineFull => 27,
            FsError::NoSpace => 28,
            FsError::ReadOnly => 30,
            FsError::TooManyLinks => 31,
            FsError::Deadlock => 35,
            FsError::NameTooLong => 36,
            FsError::NotEmpty => 39,
            FsError::NoAttribute => 61,
            FsError::Gone | FsError::Stale => 116,
            FsError::OverQuota => 122,
        }
    }
}
