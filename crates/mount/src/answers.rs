//! Answers that many calls share, and what they read from a request.

use crate::calls::{ATTRIBUTES_TTL, GENERATION, Opened, TTL};
use crate::convert::{attributes, errno, type_bits};
use crate::listing::Line;
use bytes::Bytes;
use meridian_client::ClientError;
use meridian_client::files::OpenMode;
use meridian_client::files::attributes::Totals;
use meridian_fs::types::{Attributes, Lock, NAME_MAX};
use meridian_fuse::{Directory, Entry, Lifetime, Reply, Room};
use std::time::Duration;

/// What `statfs` calls a block, in bytes.
const STATFS_BLOCK: u32 = 4096;
/// Inodes that `statfs` shows in all: no disk says how many there may be.
const STATFS_INODES: u64 = 1 << 38;

/// What a name leads to.
pub(crate) fn entry_of(found: &Attributes, name: Duration, kept: Duration) -> Entry {
    let lifetime = Lifetime { name, attributes: kept };
    Entry { attributes: attributes(found), generation: GENERATION, lifetime }
}

pub(crate) fn entry(result: Result<Attributes, ClientError>, reply: Reply) {
    match result {
        Ok(found) => reply.entry(&entry_of(&found, TTL, ATTRIBUTES_TTL)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn attr(result: Result<Attributes, ClientError>, reply: Reply) {
    match result {
        Ok(found) => reply.attributes(ATTRIBUTES_TTL, &attributes(&found)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn empty(result: Result<(), ClientError>, reply: Reply) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn data(result: Result<impl AsRef<[u8]>, ClientError>, reply: Reply) {
    match result {
        Ok(bytes) => reply.data(bytes.as_ref()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn written(result: Result<u32, ClientError>, reply: Reply) {
    match result {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn opened(result: Result<Opened, ClientError>, reply: Reply) {
    match result {
        Ok(opened) => {
            let (handle, pages) = opened.hand_over();
            reply.opened(handle, pages);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn created(result: Result<(Attributes, Opened), ClientError>, reply: Reply) {
    match result {
        Ok((made, opened)) => {
            let (handle, pages) = opened.hand_over();
            reply.created(&entry_of(&made, TTL, ATTRIBUTES_TTL), handle, pages);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// As many of the lines, of which the first stands at `offset`, as the kernel has room for.
pub(crate) fn listed(
    result: Result<Vec<Line>, ClientError>,
    (offset, size): (u64, u32),
    reply: Reply,
) {
    match result {
        Ok(lines) => {
            let mut entries = Directory::new(size);
            for (line, next) in lines.iter().zip(offset + 1..) {
                let (ino, kind) = (line.entry.place.ino.0, type_bits(line.entry.kind));
                if !entries.add(ino, next, kind, &line.name) {
                    break;
                }
            }
            reply.directory(&entries);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// A value, or its length if the caller has no room yet.
pub(crate) fn xattr(result: Result<Bytes, ClientError>, size: u32, reply: Reply) {
    match result {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// How many inodes and bytes there are, and how many bytes more there may be.
pub(crate) fn totals_of(result: Result<Totals, ClientError>, reply: Reply) {
    match result {
        Ok(Totals { inodes, bytes, room, inodes_max }) => {
            let most = inodes_max.unwrap_or(STATFS_INODES);
            let used = bytes.div_ceil(u64::from(STATFS_BLOCK));
            let free = room / u64::from(STATFS_BLOCK);
            reply.room(&Room {
                block_size: STATFS_BLOCK,
                blocks: used + free,
                free,
                available: free,
                inodes: most,
                free_inodes: most.saturating_sub(inodes),
                name_max: NAME_MAX as u32,
            });
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// `F_GETLK`.
pub(crate) fn in_the_way(result: Result<Option<Lock>, ClientError>, reply: Reply) {
    match result {
        Ok(None) => reply.lock((0, 0), libc::F_UNLCK, 0),
        Ok(Some(lock)) => {
            let kind = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            reply.lock((lock.start, lock.end.min(i64::MAX as u64)), kind, lock.pid);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// Where data or a hole is.
pub(crate) fn found(result: Result<Option<u64>, ClientError>, reply: Reply) {
    match result {
        Ok(Some(found)) => reply.offset(found),
        Ok(None) => reply.error(libc::ENXIO),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn open_mode(flags: i32) -> OpenMode {
    // O_SYNC contains O_DSYNC.
    OpenMode {
        write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        noatime: flags & libc::O_NOATIME != 0,
        sync: flags & libc::O_DSYNC != 0,
    }
}

/// How one write is to be done: as the file is open now, which `fcntl` may have changed. Pages that
/// are written back have their place, also when the kernel uses a file opened with `O_APPEND`.
pub(crate) fn write_mode(flags: i32, cached: bool) -> OpenMode {
    let mode = open_mode(flags);
    OpenMode { append: mode.append && !cached, ..mode }
}
