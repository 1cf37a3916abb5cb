//! Calls that need more than a translation.

use crate::answers::open_mode;
use crate::convert::{errno, file_type};
use crate::listing::Listing;
use bytes::Bytes;
use fuser::{Errno, Generation, INodeNo, ReplyDirectory, ReplyEmpty, ReplyLock, ReplyXattr};
use meridian_client::files::Handle;
use meridian_client::files::locks::Wanted;
use meridian_client::{ClientError, Files};
use meridian_fs::FsError;
use meridian_fs::operation::{Changes, NewNode};
use meridian_fs::types::{Attributes, Ino};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tokio::time::Instant;

/// How long the kernel may keep names: there are no leases, so not at all. Thus each path that is
/// opened or looked at is asked for, and the attributes come with it.
pub(crate) const TTL: Duration = Duration::ZERO;
/// How long it may keep attributes: two ticks of its clock, the least but nothing. So it does not
/// ask for them again for the call for which it has just looked the name up. Who takes a lock sees
/// none from before.
pub(crate) const ATTRIBUTES_TTL: Duration = Duration::from_nanos(1);
/// Numbers of inodes are never used twice.
pub(crate) const GENERATION: Generation = Generation(0);
/// How long a lock is waited for at most: the kernel cannot take back a call that waits here, so
/// the process could not be killed meanwhile.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How often a lock is asked for: at first, and in the end.
const LOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// A name as the client takes it.
pub(crate) fn name(of: &OsStr) -> Bytes {
    Bytes::copy_from_slice(of.as_bytes())
}

/// `open(O_CREAT)`: makes a file and opens it.
pub(crate) async fn create(
    files: &Files,
    parent: Ino,
    name: &Bytes,
    node: NewNode,
    flags: i32,
) -> Result<(Attributes, Handle), ClientError> {
    let exclusive = flags & libc::O_EXCL != 0;
    let (mut made, handle) =
        files.create_open(parent, name, node, exclusive, open_mode(flags)).await?;
    if flags & libc::O_TRUNC != 0 && made.size > 0 {
        // It was made elsewhere a moment ago; the kernel takes it for new.
        let changes = Changes { size: Some(0), ..Changes::default() };
        made = match files.set_attributes(made.place.ino, changes).await {
            Ok(made) => made,
            Err(error) => {
                files.release(handle).await;
                return Err(error);
            }
        };
    }
    Ok((made, handle))
}

/// `readdir`. Attributes with the names would be of no use: the kernel keeps no names, so it asks for
/// each again, and those of other partitions may be far away.
pub(crate) async fn list(
    files: &Files,
    listing: &tokio::sync::Mutex<Listing>,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let mut listing = listing.lock().await;
    let mut place = usize::try_from(offset).unwrap_or(usize::MAX);
    if place == 0 {
        listing.rewind();
    }
    loop {
        match listing.line(files, place).await {
            Ok(Some(line)) => {
                place += 1;
                let (ino, kind) = (INodeNo(line.entry.place.ino.0), file_type(line.entry.kind));
                if reply.add(ino, place as u64, kind, OsStr::from_bytes(&line.name)) {
                    return reply.ok();
                }
            }
            Ok(None) => return reply.ok(),
            Err(error) => return reply.error(errno(&error)),
        }
    }
}

/// Answers with a value, or with its length if the caller has no room yet.
pub(crate) fn give(reply: ReplyXattr, size: u32, value: Result<Bytes, ClientError>) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// What is answered without asking: the kernel asks for `security.capability` at each write, and
/// for access control lists at each look.
pub(crate) fn foreign_xattr(name: &OsStr) -> Option<Errno> {
    let name = name.as_bytes();
    if name.starts_with(b"security.") {
        Some(Errno::ENODATA)
    } else if name.starts_with(b"system.") {
        Some(Errno::EOPNOTSUPP)
    } else {
        None
    }
}

/// The kernel's lock in our words: its greatest offset means "to the end".
pub(crate) fn wanted(owner: u64, (start, end): (u64, u64), typ: i32, pid: u32) -> Wanted {
    let end = if end >= i64::MAX as u64 { u64::MAX } else { end };
    Wanted { owner, start, end, exclusive: typ == libc::F_WRLCK, pid }
}

/// `F_GETLK`.
pub(crate) async fn get_lock(files: &Files, handle: Handle, wanted: Wanted, reply: ReplyLock) {
    match files.lock_in_the_way(handle, wanted).await {
        Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
        Ok(Some(lock)) => {
            let typ = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            reply.locked(lock.start, lock.end.min(i64::MAX as u64), typ, lock.pid);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// `F_SETLK` and `F_SETLKW`: the latter asks again and again. It gives up as if a signal had come:
/// programs then wait again, while none expects `EAGAIN` there. Calls `taken` before it answers that it has the lock.
pub(crate) async fn set_lock(
    files: &Files,
    handle: Handle,
    wanted: Wanted,
    waits: bool,
    taken: impl FnOnce() + Send,
    reply: ReplyEmpty,
) {
    let until = Instant::now() + LOCK_PATIENCE;
    let mut pause = LOCK_PAUSE.0;
    loop {
        match files.lock(handle, wanted).await {
            Ok(()) => {
                taken();
                return reply.ok();
            }
            Err(ClientError::Fs(FsError::WouldBlock)) if waits && Instant::now() < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOCK_PAUSE.1);
            }
            Err(ClientError::Fs(FsError::WouldBlock)) if waits => return reply.error(Errno::EINTR),
            Err(error) => return reply.error(errno(&error)),
        }
    }
}
