//! One method for each call of the kernel: translate, ask in a task, answer.

use crate::answers::{attr, empty, entry, new_node, open_mode, write_mode};
use crate::calls::{self, GENERATION, TTL, name};
use crate::convert::{attributes, errno, kind_of_mode, permissions, timestamp};
use crate::listing::Listing;
use bytes::{BufMut, Bytes, BytesMut};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use meridian_client::Files;
use meridian_client::files::Handle;
use meridian_client::files::names::Named;
use meridian_client::files::read::Seek;
use meridian_client::files::write::Wrote;
use meridian_fs::operation::{Changes, NewNode, RenameMode, XattrMode};
use meridian_fs::types::{Ino, Kind, NAME_MAX};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// The most that the kernel writes, or reads ahead, at a time.
const MAX_TRANSFER: u32 = 1 << 20;
/// What `statfs` calls a block, in bytes.
const STATFS_BLOCK: u32 = 4096;
/// Blocks and inodes that `statfs` shows in all: nodes do not tell how much room they have.
const STATFS_TOTAL: u64 = 1 << 38;

type Listings = Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>>;

/// Answers the kernel.
#[derive(Debug)]
pub struct Handler {
    files: Arc<Files>,
    runtime: tokio::runtime::Handle,
    listings: Listings,
    next_listing: AtomicU64,
    kernel: Arc<OnceLock<Notifier>>,
}

impl Handler {
    /// Answers from `files`, with tasks of `runtime`.
    pub fn new(files: Arc<Files>, runtime: tokio::runtime::Handle) -> Handler {
        let (listings, next_listing) = (Listings::default(), AtomicU64::new(1));
        Handler { files, runtime, listings, next_listing, kernel: Arc::default() }
    }

    /// Where to put the way to tell the kernel something, once there is one.
    pub fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.kernel.clone()
    }

    /// Answers from a task, so that the session's thread goes on reading.
    fn answer<F>(&self, call: impl FnOnce(Arc<Files>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.spawn(call(self.files.clone()));
    }

    fn listing(&self, handle: FileHandle) -> Option<Arc<tokio::sync::Mutex<Listing>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&handle.0).cloned()
    }

    /// Makes something that is not opened.
    fn make(&self, parent: INodeNo, name_of: &OsStr, node: NewNode, reply: ReplyEntry) {
        let name = name(name_of);
        self.answer(|files| async move {
            entry(files.create(Ino(parent.0), &name, node).await, reply);
        });
    }
}

impl Filesystem for Handler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!("the kernel cannot {flag:?}");
            }
        }
        // What the kernel does not allow it cuts down.
        let _ = config.set_max_write(MAX_TRANSFER);
        let _ = config.set_max_readahead(MAX_TRANSFER);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        let name = name(of);
        self.answer(|files| async move { entry(files.lookup(Ino(parent.0), &name).await, reply) });
    }

    fn forget(&self, _request: &Request, _ino: INodeNo, _count: u64) {
        // Nothing is kept for what the kernel knows.
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.answer(|files| async move { attr(files.attributes(Ino(ino.0)).await, reply) });
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(timestamp),
            mtime: mtime.map(timestamp),
        };
        self.answer(|files| async move {
            attr(files.set_attributes(Ino(ino.0), changes).await, reply);
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(|files| async move {
            match files.symlink(Ino(ino.0)).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        self.make(parent, name, NewNode { rdev, ..new_node(request, kind, mode) }, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(parent, name, new_node(request, Kind::Directory, mode), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = new_node(request, Kind::Symlink, 0o777);
        let target = name(target.as_os_str());
        self.make(parent, link_name, NewNode { target, ..node }, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        let name = name(of);
        self.answer(|files| async move { empty(files.unlink(Ino(parent.0), &name).await, reply) });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        let name = name(of);
        self.answer(|files| async move { empty(files.rmdir(Ino(parent.0), &name).await, reply) });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        from: &OsStr,
        new_parent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let from = Named { parent: Ino(parent.0), name: name(from) };
        let to = Named { parent: Ino(new_parent.0), name: name(to) };
        self.answer(|files| async move { empty(files.rename(&from, &to, mode).await, reply) });
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name(new_name);
        self.answer(|files| async move {
            entry(files.link(Ino(ino.0), Ino(new_parent.0), &name).await, reply);
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(handle) = self.files.open_now(Ino(ino.0), open_mode(flags.0)) {
            return reply.opened(FileHandle(handle.0), FopenFlags::empty());
        }
        self.answer(|files| async move {
            match files.open(Ino(ino.0), open_mode(flags.0)).await {
                Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        of: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, node) = (name(of), new_node(request, Kind::File, mode));
        self.answer(|files| async move {
            match calls::create(&files, Ino(parent.0), &name, node, flags).await {
                Ok((made, handle)) => {
                    let (made, handle) = (attributes(&made), FileHandle(handle.0));
                    reply.created(&TTL, &made, GENERATION, handle, FopenFlags::empty());
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(|files| async move {
            match files.read(Handle(handle.0), offset, size as usize).await {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (handle, count) = (Handle(handle.0), data.len() as u32);
        let mode = write_mode(flags, write_flags);
        let _runtime = self.runtime.enter(); // What is much is sent by a task.
        match self.files.write_now_as(handle, mode, offset, data) {
            Ok(Wrote::Done) => reply.written(count),
            Ok(Wrote::MustWait) => {
                let data = data.to_vec();
                self.answer(|files| async move {
                    match files.write_as(handle, mode, offset, &data).await {
                        Ok(()) => reply.written(count),
                        Err(error) => reply.error(errno(&error)),
                    }
                });
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        match self.files.close_now(Handle(handle.0), owner.0) {
            Ok(Wrote::Done) => return reply.ok(),
            Ok(Wrote::MustWait) => {}
            Err(error) => return reply.error(errno(&error)),
        }
        self.answer(|files| async move {
            let handle = Handle(handle.0);
            let closed = files.close(handle).await;
            // A process that closes a file gives back its locks of it, also if the close fails.
            let unlocked = files.unlock(handle, owner.0, 0, u64::MAX).await;
            empty(closed.and(unlocked), reply);
        });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if owner.is_none() && self.files.release_now(Handle(handle.0)) {
            return reply.ok();
        }
        self.answer(|files| async move {
            let handle = Handle(handle.0);
            if let Some(owner) = owner
                && let Err(error) = files.unlock(handle, owner.0, 0, u64::MAX).await
            {
                tracing::warn!("a lock goes with the lease only: {error}");
            }
            files.release(handle).await;
            reply.ok();
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(|files| async move { empty(files.sync(Handle(handle.0)).await, reply) });
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.next_listing.fetch_add(1, Ordering::Relaxed);
        let listing = Arc::new(tokio::sync::Mutex::new(Listing::new(Ino(ino.0))));
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, listing);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let Some(listing) = self.listing(handle) else { return reply.error(Errno::EBADF) };
        self.answer(|files| async move { calls::list(&files, &listing, offset, reply).await });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok(); // Each change was durable when its call returned.
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.answer(|files| async move {
            match files.totals(files.place_of(Ino(ino.0)).partition).await {
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
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        of: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if calls::foreign_xattr(of).is_some() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            0 => XattrMode::Any,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name(of), Bytes::copy_from_slice(value));
        self.answer(|files| async move {
            empty(files.set_xattr(Ino(ino.0), name, value, mode).await, reply);
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, of: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return reply.error(answer);
        }
        let name = name(of);
        self.answer(|files| async move {
            calls::give(reply, size, files.xattr(Ino(ino.0), name).await);
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(|files| async move {
            let names = files.xattrs(Ino(ino.0)).await.map(|names| {
                let mut all = BytesMut::new();
                for name in names {
                    all.put_slice(&name);
                    all.put_u8(0);
                }
                all.freeze()
            });
            calls::give(reply, size, names);
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return reply.error(answer);
        }
        let name = Bytes::copy_from_slice(of.as_bytes());
        self.answer(|files| async move {
            empty(files.remove_xattr(Ino(ino.0), name).await, reply);
        });
    }

    fn getlk(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let wanted = calls::wanted(owner.0, (start, end), typ, pid);
        self.answer(|files| async move {
            calls::get_lock(&files, Handle(handle.0), wanted, reply).await;
        });
    }

    fn setlk(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let (handle, wanted) = (Handle(handle.0), calls::wanted(owner.0, (start, end), typ, pid));
        let kernel = self.kernel.clone();
        self.answer(|files| async move {
            if typ == libc::F_UNLCK {
                let (start, end) = (wanted.start, wanted.end);
                return empty(files.unlock(handle, wanted.owner, start, end).await, reply);
            }
            let taken = move || {
                if let Some(kernel) = kernel.get() {
                    // Attributes only; pages go when it sees another time of change. That it does
                    // not know the inode any more is as well.
                    let _ = kernel.inval_inode(ino, -1, 0);
                }
            };
            calls::set_lock(&files, handle, wanted, waits, taken, reply).await;
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let handle = Handle(handle.0);
        self.answer(|files| async move {
            match mode {
                0 => match offset.checked_add(length) {
                    Some(size) => empty(files.extend(handle, size).await, reply),
                    None => reply.error(Errno::EFBIG),
                },
                libc::FALLOC_FL_KEEP_SIZE => reply.ok(), // Room is not reserved.
                PUNCH => empty(files.punch_hole(handle, offset, length).await, reply),
                _ => reply.error(Errno::EOPNOTSUPP),
            }
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.answer(|files| async move {
            match files.seek(Handle(handle.0), offset, what).await {
                Ok(Some(found)) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
