//! Answers that many calls share, and what they read from a request.

use crate::calls::{ATTRIBUTES_TTL, GENERATION, TTL};
use crate::convert::{attributes, errno, permissions};
use bytes::Bytes;
use fuser::{OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, Request, WriteFlags};
use meridian_client::ClientError;
use meridian_client::files::OpenMode;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Kind};

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
