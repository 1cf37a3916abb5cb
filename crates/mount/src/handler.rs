//! One method for each call of the kernel: translate, ask in a task, answer.

use crate::answers::{
    Reply, attr, data, empty, entry, found, in_the_way, listed, new_node, open_mode, opened,
    totals_of, write_mode, written, xattr,
};
use crate::calls::{self, Opened, name};
use crate::convert::{errno, kind_of_mode, permissions, timestamp};
use crate::eager::Calls;
use crate::listing::Listings;
use crate::made::Made;
use bytes::Bytes;
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
use meridian_fs::types::{Ino, Kind};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// The most that the kernel writes, or reads ahead, at a time.
const MAX_TRANSFER: u32 = 1 << 20;

/// Answers the kernel.
#[derive(Debug)]
pub struct Handler {
    files: Arc<Files>,
    runtime: tokio::runtime::Handle,
    calls: Calls,
    made: Arc<Made>,
    listings: Listings,
    kernel: Arc<OnceLock<Notifier>>,
}

impl Handler {
    /// Answers from `files`, with tasks of `runtime`.
    pub fn new(files: Arc<Files>, runtime: tokio::runtime::Handle) -> Handler {
        let (calls, listings) = (Calls::new(runtime.clone()), Listings::default());
        Handler { files, runtime, calls, made: Arc::default(), listings, kernel: Arc::default() }
    }

    /// Where to put the way to tell the kernel something, once there is one.
    pub fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.kernel.clone()
    }

    /// Answers without waiting here, so that the session's thread goes on reading. A thread that is
    /// to die is answered at once; its call goes on to its end all the same.
    fn answer<R, T, F>(
        &self,
        (request, reply): (&Request, R),
        give: impl FnOnce(T, R) + Send + 'static,
        call: impl FnOnce(Arc<Files>) -> F,
    ) where
        R: Reply + Send + 'static,
        T: Send,
        F: Future<Output = T> + Send + 'static,
    {
        self.calls.answer(request.pid(), reply, give, call(self.files.clone()));
    }

    /// Makes something that is not opened.
    fn make(
        &self,
        request: &Request,
        (parent, of): (INodeNo, &OsStr),
        node: NewNode,
        reply: ReplyEntry,
    ) {
        let name = name(of);
        self.answer((request, reply), entry, |files| async move {
            files.create(Ino(parent.0), &name, node).await
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

    fn lookup(&self, request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        let name = name(of);
        self.answer((request, reply), entry, |files| async move {
            files.lookup(Ino(parent.0), &name).await
        });
    }

    fn forget(&self, _request: &Request, _ino: INodeNo, _count: u64) {
        // Nothing is kept for what the kernel knows.
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        if let Some(made) = self.made.take(request.pid(), Ino(ino.0)) {
            return attr(Ok(made), reply);
        }
        self.answer(
            (request, reply),
            attr,
            |files| async move { files.attributes(Ino(ino.0)).await },
        );
    }

    fn setattr(
        &self,
        request: &Request,
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
        self.answer((request, reply), attr, |files| async move {
            files.set_attributes(Ino(ino.0), changes).await
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer((request, reply), data, |files| async move { files.symlink(Ino(ino.0)).await });
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
        self.make(
            request,
            (parent, name),
            NewNode { rdev, ..new_node(request, kind, mode) },
            reply,
        );
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
        self.make(request, (parent, name), new_node(request, Kind::Directory, mode), reply);
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
        self.make(request, (parent, link_name), NewNode { target, ..node }, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        let name = name(of);
        self.answer((request, reply), empty, |files| async move {
            files.unlink(Ino(parent.0), &name).await
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        let name = name(of);
        self.answer((request, reply), empty, |files| async move {
            files.rmdir(Ino(parent.0), &name).await
        });
    }

    fn rename(
        &self,
        request: &Request,
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
        self.answer((request, reply), empty, |files| async move {
            files.rename(&from, &to, mode).await
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name(new_name);
        self.answer((request, reply), entry, |files| async move {
            files.link(Ino(ino.0), Ino(new_parent.0), &name).await
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(handle) = self.files.open_now(Ino(ino.0), open_mode(flags.0)) {
            return reply.opened(FileHandle(handle.0), FopenFlags::empty());
        }
        self.answer((request, reply), opened, |files| async move {
            let handle = files.open(Ino(ino.0), open_mode(flags.0)).await?;
            Ok(Opened::new(files, handle))
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
        let give = Made::give(&self.made, request.pid());
        self.answer((request, reply), give, |files| async move {
            let made = calls::create(&files, Ino(parent.0), &name, node, flags).await;
            made.map(|(made, handle)| (made, Opened::new(files, handle)))
        });
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = Handle(handle.0);
        self.answer((request, reply), data, |files| async move {
            files.read(handle, offset, size as usize).await
        });
    }

    fn write(
        &self,
        request: &Request,
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
                self.answer((request, reply), written, |files| async move {
                    files.write_as(handle, mode, offset, &data).await.map(|()| count)
                });
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(
        &self,
        request: &Request,
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
        self.answer((request, reply), empty, |files| async move {
            let handle = Handle(handle.0);
            let closed = files.close(handle).await;
            // A process that closes a file gives back its locks of it, also if the close fails.
            closed.and(files.unlock(handle, owner.0, 0, u64::MAX).await)
        });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Nobody waits for it: what is left to be done may take as long as a region is out of
        // reach.
        reply.ok();
        if !self.files.release_now(Handle(handle.0)) {
            let files = self.files.clone();
            self.runtime.spawn(async move { files.release(Handle(handle.0)).await });
        }
    }

    fn fsync(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(
            (request, reply),
            empty,
            |files| async move { files.sync(Handle(handle.0)).await },
        );
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.listings.open(Ino(ino.0));
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let Some(listing) = self.listings.get(handle.0) else { return reply.error(Errno::EBADF) };
        self.answer(
            (request, reply),
            move |lines, reply| listed(lines, offset, reply),
            |files| async move { calls::list(&files, &listing, offset).await },
        );
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.close(handle.0);
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

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.answer((request, reply), totals_of, |files| async move {
            files.totals(files.place_of(Ino(ino.0)).partition).await
        });
    }

    fn setxattr(
        &self,
        request: &Request,
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
        self.answer((request, reply), empty, |files| async move {
            files.set_xattr(Ino(ino.0), name, value, mode).await
        });
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, of: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return reply.error(answer);
        }
        let name = name(of);
        self.answer(
            (request, reply),
            move |value, reply| xattr(value, size, reply),
            |files| async move { files.xattr(Ino(ino.0), name).await },
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(
            (request, reply),
            move |names, reply| xattr(names, size, reply),
            |files| async move { calls::xattr_names(&files, Ino(ino.0)).await },
        );
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return reply.error(answer);
        }
        let name = Bytes::copy_from_slice(of.as_bytes());
        self.answer((request, reply), empty, |files| async move {
            files.remove_xattr(Ino(ino.0), name).await
        });
    }

    fn getlk(
        &self,
        request: &Request,
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
        self.answer((request, reply), in_the_way, |files| async move {
            files.lock_in_the_way(Handle(handle.0), wanted).await
        });
    }

    fn setlk(
        &self,
        request: &Request,
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
        if typ == libc::F_UNLCK {
            let (owner, start, end) = (wanted.owner, wanted.start, wanted.end);
            return self.answer((request, reply), empty, |files| async move {
                files.unlock(handle, owner, start, end).await
            });
        }
        let (files, kernel, tid) = (self.files.clone(), self.kernel.clone(), request.pid());
        self.runtime.spawn(async move {
            let taken = move || {
                if let Some(kernel) = kernel.get() {
                    // Attributes only; pages go when it sees another time of change. That it does
                    // not know the inode any more is as well.
                    let _ = kernel.inval_inode(ino, -1, 0);
                }
            };
            calls::set_lock(&files, handle, wanted, waits.then_some(tid), taken, reply).await;
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let handle = Handle(handle.0);
        if mode == libc::FALLOC_FL_KEEP_SIZE {
            return reply.ok(); // Room is not reserved.
        }
        let Some(size) = offset.checked_add(length) else { return reply.error(Errno::EFBIG) };
        if mode != 0 && mode != PUNCH {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.answer((request, reply), empty, move |files| async move {
            match mode {
                PUNCH => files.punch_hole(handle, offset, length).await,
                _ => files.extend(handle, size).await,
            }
        });
    }

    fn lseek(
        &self,
        request: &Request,
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
        self.answer((request, reply), found, |files| async move {
            files.seek(Handle(handle.0), offset, what).await
        });
    }
}
