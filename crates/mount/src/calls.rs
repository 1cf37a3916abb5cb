//! Calls that need more than a translation.

use crate::answers::open_mode;
use crate::convert::errno;
use crate::listing::{Line, Listing};
use crate::signals::{self, Ticks};
use bytes::{BufMut, Bytes, BytesMut};
use meridian_client::files::Handle;
use meridian_client::files::durability::DURABILITY;
use meridian_client::files::locks::{Owner, Wanted};
use meridian_client::files::xattrs::{ACCESS_LIST, CAPABILITY, DEFAULT_LIST};
use meridian_client::{ClientError, Files};
use meridian_fs::FsError;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Ino};
use meridian_fuse::request::Lock;
use meridian_fuse::{Pages, Reply};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long the kernel may keep names: there are no leases, so not at all. Thus each path that is
/// opened or looked at is asked for, and the attributes come with it.
pub(crate) const TTL: Duration = Duration::ZERO;
/// How long it may keep attributes: two ticks of its clock, the least but nothing. So it does not
/// ask for them again for the call for which it has just looked the name up. Who takes a lock sees
/// none from before.
pub(crate) const ATTRIBUTES_TTL: Duration = Duration::from_nanos(1);
/// Numbers of inodes are never used twice.
pub(crate) const GENERATION: u64 = 0;
/// What extended attributes begin with that only root sees.
const TRUSTED: &[u8] = b"trusted.";
/// What `ls` asks each file for, unless it is told that there can be none.
const LABEL: &[u8] = b"security.selinux";

/// `open(O_CREAT)`: makes a file and opens it. The kernel takes it for new, and so checks no
/// permission: of a file that another made meanwhile the answer is `ESTALE`, and it looks again.
pub(crate) async fn create(
    files: &Files,
    parent: Ino,
    name: &Bytes,
    node: NewNode,
    flags: i32,
) -> Result<(Attributes, Handle), ClientError> {
    let exclusive = flags & libc::O_EXCL != 0;
    files.create_open(parent, name, node, exclusive, open_mode(flags)).await
}

/// A file that was opened for a program. Dropped before the program has it, it is closed again.
pub(crate) struct Opened {
    files: Arc<Files>,
    handle: Option<Handle>,
    pages: Pages,
}

impl Opened {
    /// The file `ino`, opened under that handle. What programs may use as memory is claimed for
    /// this mount.
    pub(crate) async fn new(
        files: Arc<Files>,
        ino: Ino,
        handle: Handle,
    ) -> Result<Opened, ClientError> {
        let shared = files.is_shared(ino);
        let mut opened = Opened { files, handle: Some(handle), pages: Pages::Dropped };
        if shared && !opened.files.claim_pages(handle).await? {
            opened.pages = Pages::Refused;
        }
        Ok(opened)
    }

    /// The program has it.
    pub(crate) fn hand_over(mut self) -> (u64, Pages) {
        (self.handle.take().expect("taken here only").0, self.pages)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.filter(|handle| !self.files.release_now(*handle)) {
            let files = self.files.clone();
            tokio::spawn(async move { files.release(handle).await });
        }
    }
}

/// `readdir`: some lines from `offset` on, none after the last. Attributes do not come with the
/// names: the kernel would have to keep these, and could not be told to drop them (decision 98).
pub(crate) async fn list(
    files: &Files,
    listing: &tokio::sync::Mutex<Listing>,
    (offset, size): (u64, u32),
) -> Result<Vec<Line>, ClientError> {
    let mut listing = listing.lock().await;
    let place = usize::try_from(offset).unwrap_or(usize::MAX);
    if place == 0 {
        listing.rewind();
    }
    listing.lines(files, place, size).await
}

/// `listxattr`: each name that the user may see, and a NUL.
pub(crate) async fn xattr_names(files: &Files, ino: Ino, uid: u32) -> Result<Bytes, ClientError> {
    let mut all = BytesMut::new();
    for name in files.xattrs(ino).await? {
        if uid == 0 || !name.starts_with(TRUSTED) {
            all.put_slice(&name);
            all.put_u8(0);
        }
    }
    Ok(all.freeze())
}

/// A kernel lets whoever may write to a directory or file set attributes of it. That which says
/// when what is done there is durable is its owner's, as its permissions are.
pub(crate) async fn may_set(
    files: &Files,
    ino: Ino,
    (name, uid): (&Bytes, u32),
) -> Result<(), ClientError> {
    if &name[..] != DURABILITY || uid == 0 || files.attributes(ino).await?.uid == uid {
        return Ok(());
    }
    Err(FsError::NotPermitted.into())
}

/// How names are answered that are not kept here: as no file has any; labels, and what is outside
/// all name spaces, as there can be none.
pub(crate) fn foreign_xattr(name: &[u8]) -> Option<i32> {
    let kept = [CAPABILITY, ACCESS_LIST, DEFAULT_LIST].contains(&name);
    if name == LABEL {
        Some(libc::EOPNOTSUPP)
    } else if name.starts_with(b"security.") && !kept {
        Some(libc::ENODATA)
    } else if kept || name.starts_with(b"user.") || name.starts_with(TRUSTED) {
        None
    } else {
        Some(libc::EOPNOTSUPP)
    }
}

/// The kernel's lock in our words: its greatest offset means "to the end".
pub(crate) fn wanted(lock: &Lock) -> Wanted {
    let Lock { start, end, pid, .. } = *lock;
    let end = if end >= i64::MAX as u64 { u64::MAX } else { end };
    let owner = if lock.flock { Owner::open_file } else { Owner::process };
    Wanted { owner: owner(lock.owner), start, end, exclusive: lock.kind == libc::F_WRLCK, pid }
}

/// A lock that a thread wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockCall {
    pub handle: Handle,
    pub wanted: Wanted,
    /// Until it is free (`F_SETLKW`).
    pub waits: bool,
    pub thread: u32,
}

/// Takes a lock; for a thread that waits when it is free, unless a signal comes before. Calls
/// `taken` before it answers that it has the lock.
pub(crate) async fn set_lock(
    files: &Arc<Files>,
    call: LockCall,
    ticks: &Ticks,
    taken: impl FnOnce() + Send,
    reply: Reply,
) {
    let LockCall { handle, wanted, waits, thread } = call;
    // Also when nobody hears of signals any more, as the call was answered.
    let (interrupted, ended) = (signals::any(thread, reply.interrupted(), ticks), Notify::new());
    let signal = async {
        tokio::select! {
            () = interrupted => {}
            () = ended.notified() => {}
        }
    };
    let attempt = async {
        match waits {
            true => files.lock_waiting(handle, wanted, signal).await,
            false => files.lock(handle, wanted).await.map(|()| true),
        }
    };
    let mut attempt = pin!(attempt);
    let result = tokio::select! {
        biased;
        result = &mut attempt => result,
        // Only for a process that ends: another might get the lock without knowing.
        () = signals::fatal(thread, reply.interrupted(), ticks) => {
            ended.notify_one();
            reply.error(libc::EINTR);
            if attempt.await.is_ok_and(|taken| taken) {
                let _ = files.unlock(handle, wanted.owner, wanted.start, wanted.end).await;
            }
            return;
        }
    };
    match result {
        Ok(true) => {
            taken();
            reply.ok();
        }
        // The kernel makes of it what the program wants of its signal's handler.
        Ok(false) => reply.error(libc::EINTR),
        Err(error) => reply.error(errno(&error)),
    }
}
/// Without its bytes, and the file as long as it was.
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
const ZERO_WITHIN: i32 = ZERO | libc::FALLOC_FL_KEEP_SIZE;

/// Whether that mode of `fallocate` is known.
pub(crate) fn can_allocate(mode: i32) -> bool {
    [0, PUNCH, ZERO, ZERO_WITHIN].contains(&mode)
}

/// `fallocate` in one of those modes.
pub(crate) async fn allocate(
    files: &Files,
    handle: Handle,
    part: Range<u64>,
    mode: i32,
) -> Result<(), ClientError> {
    if mode == 0 || mode == ZERO {
        files.extend(handle, part.end).await?;
    }
    match mode {
        0 => Ok(()),
        // Holes are zeros.
        _ => files.punch_hole(handle, part.start, part.end - part.start).await,
    }
}
