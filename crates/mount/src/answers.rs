//! Answers that many calls share, and what they read from a request.

use crate::calls::{ATTRIBUTES_TTL, GENERATION, Opened, TTL};
use crate::convert::{attributes, errno, file_type, permissions};
use crate::listing::Line;
use bytes::Bytes;
use fuser::{
    Errno, FopenFlags, INodeNo, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, WriteFlags,
};
use meridian_client::ClientError;
use meridian_client::files::OpenMode;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Kind, Lock, NAME_MAX};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What `statfs` calls a block, in bytes.
const STATFS_BLOCK: u32 = 4096;
/// Blocks and inodes that `statfs` shows in all: nodes do not tell how much room they have.
const STATFS_TOTAL: u64 = 1 << 38;

/// The way to answer one call of the kernel.
pub(crate) trait Reply {
    /// The call fails.
    fn refuse(self, error: Errno);
}

macro_rules! replies {
    ($($reply:ty),*) => {
        $(impl Reply for $reply {
            fn refuse(self, error: Errno) {
                self.error(error);
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

pub(crate) fn entry(result: Result<Attributes, ClientError>, reply: ReplyEntry) {
    match result {
        Ok(found) => {
            reply.entry_with_ttls(&ATTRIBUTES_TTL, &TTL, &attributes(&found), GENERATION);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn attr(result: Result<Attributes, ClientError>, reply: ReplyAttr) {
    match result {
        Ok(found) => reply.attr(&ATTRIBUTES_TTL, &attributes(&found)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn empty(result: Result<(), ClientError>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn data(result: Result<impl AsRef<[u8]>, ClientError>, reply: ReplyData) {
    match result {
        Ok(bytes) => reply.data(bytes.as_ref()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn written(result: Result<u32, ClientError>, reply: ReplyWrite) {
    match result {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn opened(result: Result<Opened, ClientError>, reply: ReplyOpen) {
    match result {
        Ok(opened) => reply.opened(opened.hand_over(), FopenFlags::empty()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn created(result: Result<(Attributes, Opened), ClientError>, reply: ReplyCreate) {
    match result {
        Ok((made, opened)) => {
            let (made, handle) = (attributes(&made), opened.hand_over());
            reply.created(&TTL, &made, GENERATION, handle, FopenFlags::empty());
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// As many of the lines, of which the first stands at `offset`, as the kernel has room for.
pub(crate) fn listed(
    result: Result<Vec<Line>, ClientError>,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    match result {
        Ok(lines) => {
            for (line, next) in lines.iter().zip(offset + 1..) {
                let (ino, kind) = (INodeNo(line.entry.place.ino.0), file_type(line.entry.kind));
                if reply.add(ino, next, kind, OsStr::from_bytes(&line.name)) {
                    break;
                }
            }
            reply.ok();
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// A value, or its length if the caller has no room yet.
pub(crate) fn xattr(result: Result<Bytes, ClientError>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// How many inodes and bytes there are.
pub(crate) fn totals_of(result: Result<(u64, u64), ClientError>, reply: ReplyStatfs) {
    match result {
        Ok((inodes, bytes)) => {
            let used = bytes.div_ceil(u64::from(STATFS_BLOCK));
            let (free, free_inodes) =
                (STATFS_TOTAL.saturating_sub(used), STATFS_TOTAL.saturating_sub(inodes));
            let (block, longest) = (STATFS_BLOCK, NAME_MAX as u32);
            let (blocks, files) = (STATFS_TOTAL, STATFS_TOTAL);
            reply.statfs(blocks, free, free, files, free_inodes, block, longest, block);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// `F_GETLK`.
pub(crate) fn in_the_way(result: Result<Option<Lock>, ClientError>, reply: ReplyLock) {
    match result {
        Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
        Ok(Some(lock)) => {
            let typ = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            reply.locked(lock.start, lock.end.min(i64::MAX as u64), typ, lock.pid);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// Where data or a hole is.
pub(crate) fn found(result: Result<Option<u64>, ClientError>, reply: ReplyLseek) {
    match result {
        Ok(Some(found)) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        Ok(None) => reply.error(Errno::ENXIO),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn new_node(request: &Request, kind: Kind, mode: u32) -> NewNode {
    let (uid, gid) = (request.uid(), request.gid());
    NewNode { kind, mode: permissions(mode), uid, gid, rdev: 0, target: Bytes::new() }
}

pub(crate) fn open_mode(flags: i32) -> OpenMode {
    // O_SYNC contains O_DSYNC.
    OpenMode { append: flags & libc::O_APPEND != 0, sync: flags & libc::O_DSYNC != 0 }
}

/// How one write is to be done: as the file is open now, which `fcntl` may have changed. Pages that
/// are written back have their place, also when the kernel uses a file opened with `O_APPEND`.
pub(crate) fn write_mode(flags: OpenFlags, how: WriteFlags) -> OpenMode {
    let mode = open_mode(flags.0);
    OpenMode { append: mode.append && !how.contains(WriteFlags::FUSE_WRITE_CACHE), ..mode }
}
