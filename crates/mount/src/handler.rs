//! One method for each call of the kernel: translate, ask, answer.

use crate::about;
use crate::answers::{
    attr, created, data, empty, entry, found, in_the_way, listed, open_mode, opened, totals_of,
    write_mode, written, xattr,
};
use crate::call::Call;
use crate::calls::{self, Opened};
use crate::convert::{errno, kind_of_mode, permissions, timestamp};
use crate::eager::Calls;
use crate::kept::{Kept, Look};
use crate::known::Known;
use crate::listing::Listings;
use crate::marked::Marked;
use crate::moved::{Moved, node_of};
use crate::slowest::{self, Slowest};
use crate::token::{self, Asked};
use bytes::Bytes;
use meridian_client::files::Handle;
use meridian_client::files::locks::Owner;
use meridian_client::files::names::Named;
use meridian_client::files::quota::QUOTA;
use meridian_client::files::read::Seek;
use meridian_client::files::write::Wrote;
use meridian_client::files::xattrs::CAPABILITY;
use meridian_client::{ClientError, Files};
use meridian_fs::FsError;
use meridian_fs::operation::{Changes, NewNode, RenameMode, Whiteout, XattrMode};
use meridian_fs::types::{Attributes, Ino, Kind};
use meridian_fuse::request::{Lock, NewAttributes};
use meridian_fuse::{Notifier, Operation, Pages, Reply, Request, Service};
use std::sync::{Arc, OnceLock};

mod telling;

/// How attributes are told.
type Answer = fn(Look, Result<Attributes, ClientError>, Reply);

/// Answers the kernel.
#[derive(Debug)]
pub struct Handler {
    files: Arc<Files>,
    runtime: tokio::runtime::Handle,
    calls: Calls,
    marked: Arc<Marked>,
    kept: Arc<Kept>,
    listings: Listings,
    known: Arc<Known>,
    moved: Moved,
    slowest: Slowest,
    /// Whose the mount is.
    owner: u32,
    kernel: Arc<OnceLock<Notifier>>,
}

fn name(of: &[u8]) -> Bytes {
    Bytes::copy_from_slice(of)
}

impl Service for Handler {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let Request { uid, gid, thread, node, .. } = request;
        let called = slowest::called(&request.operation);
        let node = self.ino(node);
        let call = Call { uid, gid, thread, node, called, changes_names: false, reply };
        match request.operation {
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::CreateUnnamed { .. } => self.call_of_name(call, request.operation),
            Operation::GetAttributes => self.get_attributes(call, Look::attributes),
            Operation::GetAllAttributes => self.get_attributes(call, Look::all_attributes),
            Operation::SetAttributes(changes) => self.set_attributes(call, changes),
            Operation::ReadLink => {
                let node = call.node;
                self.answer(call, data, |files| async move { files.symlink(node).await });
            }
            Operation::Room => self.room(call),
            Operation::SetXattr { .. } => self.set_xattr(call, request.operation),
            Operation::GetXattr { name, size } => self.get_xattr(call, name, size),
            Operation::ListXattrs { size } => self.list_xattrs(call, size),
            Operation::RemoveXattr { name } => self.remove_xattr(call, name),
            Operation::OpenDirectory => {
                call.reply.opened(self.listings.open(call.node), Pages::Dropped);
            }
            Operation::ReadDirectory { handle, offset, size } => {
                self.read_directory(call, handle, offset, size);
            }
            Operation::ReleaseDirectory { handle } => {
                self.listings.close(handle);
                call.reply.ok();
            }
            Operation::SyncDirectory { .. } => {
                let node = call.node;
                let sync = |files: Arc<Files>| async move { files.sync_directory(node).await };
                self.answer(call, empty, sync);
            }
            operation => self.call_of_file(call, operation),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.known.forget(self.ino(node), lookups);
    }
}

impl Handler {
    /// Answers from `files`, with tasks of `runtime`.
    pub fn new(files: Arc<Files>, runtime: tokio::runtime::Handle) -> Handler {
        let marked = Default::default();
        let (known, kernel) = <(_, Arc<OnceLock<Notifier>>)>::default();
        let calls = Calls::new(runtime.clone(), kernel.clone());
        let listings = Listings::default();
        let kept = Kept::new(files.clone(), kernel.clone());
        let root = files.client().root().ino;
        let moved = Moved::new(kernel.clone(), root, runtime.clone());
        let slowest = Slowest::new(Arc::clone(&known), root);
        let owner = rustix::process::geteuid().as_raw();
        if files.client().is_to_keep_looks() {
            kept.watch(files.client().keep_looks_with(), runtime.clone());
            let _guard = runtime.enter();
            files.keep_back();
        }
        Handler {
            files,
            runtime,
            calls,
            marked,
            kept,
            listings,
            known,
            moved,
            slowest,
            owner,
            kernel,
        }
    }

    /// The inode that the kernel means: it calls what is mounted 1, whatever that is.
    fn ino(&self, node: u64) -> Ino {
        if node == Ino::ROOT.0 { self.files.client().root().ino } else { Ino(node) }
    }

    /// Where to put the way to tell the kernel something, once there is one.
    pub fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.kernel.clone()
    }

    /// What is asked of names in a directory.
    fn call_of_name(&self, call: Call, operation: Operation<'_>) {
        let changes_names = !matches!(operation, Operation::Lookup { .. });
        let call = Call { changes_names, ..call };
        match operation {
            Operation::Lookup { name } => self.look_up(call, name),
            Operation::Symlink { name: of, target } => {
                let node = call.new_node(Kind::Symlink, 0o777, 0);
                self.make(call, of, NewNode { target: name(target), ..node });
            }
            Operation::MakeNode { name, mode, device, umask } => {
                let Some(kind) = kind_of_mode(mode) else { return call.reply.error(libc::EINVAL) };
                let node = NewNode { rdev: device, ..call.new_node(kind, mode, umask) };
                self.make(call, name, node);
            }
            Operation::MakeDirectory { name, mode, umask } => {
                let node = call.new_node(Kind::Directory, mode, umask);
                self.make(call, name, node);
            }
            Operation::Unlink { name } => self.unlink(call, name),
            Operation::RemoveDirectory { name } => self.remove_directory(call, name),
            Operation::Rename { name: from, new_parent, new_name, flags } => {
                let from = Named { parent: call.node, name: name(from) };
                let to = Named { parent: self.ino(new_parent), name: name(new_name) };
                self.rename(call, from, to, flags);
            }
            Operation::Link { of, name } => self.link(call, self.ino(of), name),
            Operation::Create { name, mode, umask, flags } => {
                let node = call.new_node(Kind::File, mode, umask);
                self.create(call, name, node, flags);
            }
            Operation::CreateUnnamed { mode, umask, flags } => {
                let node = call.new_node(Kind::File, mode, umask);
                self.create_unnamed(call, node, flags);
            }
            _ => call.reply.error(libc::ENOSYS),
        }
    }

    /// What is asked of a file, mostly an open one.
    fn call_of_file(&self, call: Call, operation: Operation<'_>) {
        match operation {
            Operation::Open { flags } => self.open(call, flags),
            Operation::Read { handle, offset, size } => {
                self.answer(call, data, |files| async move {
                    files.read_bytes(Handle(handle), offset, size as usize).await
                });
            }
            Operation::Write { .. } => self.write(call, operation),
            Operation::Flush { handle, owner } => self.flush(call, Handle(handle), owner),
            Operation::Release { handle } => self.release(call, Handle(handle)),
            Operation::Sync { handle } => {
                self.answer(call, empty, |files| async move { files.sync(Handle(handle)).await });
            }
            Operation::GetLock(lock) => {
                let (handle, wanted) = (Handle(lock.handle), calls::wanted(&lock));
                self.answer(call, in_the_way, |files| async move {
                    files.lock_in_the_way(handle, wanted).await
                });
            }
            Operation::SetLock { lock, waits } => self.set_lock(call, lock, waits),
            Operation::Allocate { handle, offset, length, mode } => {
                self.allocate(call, Handle(handle), (offset, length), mode);
            }
            Operation::Seek { handle, offset, whence } => {
                self.seek(call, Handle(handle), offset, whence);
            }
            Operation::Control { number, data, room } => self.control(call, number, data, room),
            _ => call.reply.error(libc::ENOSYS),
        }
    }

    /// Answers without waiting here, so that the session's thread goes on reading. A thread that is
    /// to die is answered at once; its call goes on to its end all the same.
    fn answer<T: Send, F>(
        &self,
        call: Call,
        give: impl FnOnce(T, Reply) + Send + 'static,
        ask: impl FnOnce(Arc<Files>) -> F,
    ) where
        F: Future<Output = T> + Send + 'static,
    {
        let watch = self.slowest.watch(call.called, call.node);
        let asked = ask(self.files.clone());
        let by = (call.thread, call.changes_names);
        self.calls.answer(by, call.reply, give, async move {
            let value = asked.await;
            watch.end();
            value
        });
    }

    /// Who has only the number of a node, as from an earlier mount, asks for `.` and `..` in it.
    fn look_up(&self, call: Call, of: &[u8]) {
        let (node, name) = (call.node, name(of));
        let (look, known) = (self.kept.look(), self.known.clone());
        let (marks, moved) = (self.marked.look(), self.moved.clone());
        let slowest = self.slowest.clone();
        // `.` and `..` are no names that their directory's capability is about.
        let special = matches!(&name[..], b"." | b"..");
        let at = (!special).then(|| (node, name.clone()));
        let give = move |result: Result<Attributes, ClientError>, reply| {
            let mut before = None;
            if let Ok(attributes) = &result {
                before = known.look_up(attributes, at.as_ref());
                if let Some(at) = at.as_ref().filter(|_| attributes.kind == Kind::File) {
                    slowest.named(attributes.place.ino, at);
                }
                marks.note(attributes);
            } else if let Some(at) = &at
                && matches!(result, Err(ClientError::Fs(FsError::NotFound)))
            {
                known.lost(at);
            }
            match (at, before) {
                (None, _) => entry(result, reply),
                (Some(at), None) => look.entry(&at, result, reply),
                (Some(at), Some(before)) => {
                    moved.drop_name(before, move || look.entry(&at, result, reply));
                }
            }
        };
        let settled = self.moved.clone();
        self.answer(call, give, |files| async move {
            settled.settled().await;
            match &name[..] {
                b"." => files.attributes(node).await,
                b".." => files.attributes(files.parent(node).await?).await,
                _ => files.lookup(node, &name).await,
            }
        });
    }

    /// Makes something that is not opened.
    fn make(&self, call: Call, of: &[u8], node: NewNode) {
        let (parent, name) = (call.node, name(of));
        let give = Known::give(&self.known, (parent, name.clone()));
        self.answer(call, give, |files| async move { files.create(parent, &name, node).await });
    }

    fn unlink(&self, call: Call, of: &[u8]) {
        let (parent, name) = (call.node, name(of));
        self.answer(call, empty, |files| async move { files.unlink(parent, &name).await });
    }

    fn remove_directory(&self, call: Call, of: &[u8]) {
        let (parent, name) = (call.node, name(of));
        let (known, at) = (self.known.clone(), (parent, name.clone()));
        let give = move |result: Result<(), ClientError>, reply| {
            result.iter().for_each(|()| known.lost(&at));
            empty(result, reply);
        };
        self.answer(call, give, |files| async move { files.rmdir(parent, &name).await });
    }

    fn rename(&self, call: Call, from: Named, to: Named, flags: u32) {
        let leaves = flags & libc::RENAME_WHITEOUT != 0;
        let whiteout = leaves.then_some(Whiteout { uid: call.uid, gid: call.gid });
        let mode = match flags & !libc::RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return call.reply.error(libc::EINVAL),
        };
        let known = self.known.clone();
        let (here, there) = ((from.parent, from.name.clone()), (to.parent, to.name.clone()));
        let give = move |result: Result<(), ClientError>, reply| {
            if result.is_ok() {
                known.renamed(&here, &there, mode == RenameMode::Exchange);
            }
            empty(result, reply);
        };
        let rename =
            |files: Arc<Files>| async move { files.rename(&from, &to, mode, whiteout).await };
        self.answer(call, give, rename);
    }

    fn link(&self, call: Call, of: Ino, to: &[u8]) {
        let (parent, name) = (call.node, name(to));
        let give = Known::give(&self.known, (parent, name.clone()));
        self.answer(call, give, |files| async move { files.link(of, parent, &name).await });
    }

    fn create(&self, call: Call, of: &[u8], node: NewNode, flags: i32) {
        let (parent, name) = (call.node, name(of));
        let slowest = self.slowest.clone();
        self.answer(call, created, |files| async move {
            let (made, handle) = calls::create(&files, parent, &name, node, flags).await?;
            slowest.named(made.place.ino, &(parent, name));
            Ok((made, Opened::new(files, made.place.ino, handle).await?))
        });
    }

    fn create_unnamed(&self, call: Call, node: NewNode, flags: i32) {
        let (parent, mode) = (call.node, open_mode(flags));
        self.answer(call, created, |files| async move {
            let (made, handle) = files.create_unnamed(parent, node, mode).await?;
            Ok((made, Opened::new(files, made.place.ino, handle).await?))
        });
    }

    fn get_attributes(&self, call: Call, answer: Answer) {
        let node = call.node;
        let (look, known) = (self.kept.look(), self.known.clone());
        let marks = self.marked.look();
        let give = move |result: Result<Attributes, ClientError>, reply| {
            result.iter().for_each(|attributes| marks.note(attributes));
            answer(look, result, reply);
        };
        self.answer(call, give, |files| async move {
            let attributes = files.attributes(node).await;
            attributes.or_else(|error| known.removed(node, error))
        });
    }

    fn set_attributes(&self, call: Call, new: NewAttributes) {
        let NewAttributes { mode, uid, gid, size, atime, mtime } = new;
        let (atime, mtime) = (atime.map(timestamp), mtime.map(timestamp));
        let changes = Changes { mode: mode.map(permissions), uid, gid, size, atime, mtime };
        let node = call.node;
        self.answer(call, attr, |files| async move { files.set_attributes(node, changes).await });
    }

    fn open(&self, call: Call, flags: i32) {
        let node = call.node;
        let seen = self.marked.noted(node).map(|seen| self.files.durability_of(&seen));
        if !self.files.is_shared(node)
            && let Some(handle) = self.files.open_now(node, open_mode(flags), seen)
        {
            let pages = match self.files.keeps_pages(handle) {
                true => Pages::Kept,
                false => Pages::Dropped,
            };
            return call.reply.opened(handle.0, pages);
        }
        self.answer(call, opened, |files| async move {
            let handle = files.open_as(node, open_mode(flags), seen).await?;
            Opened::new(files, node, handle).await
        });
    }

    fn write(&self, call: Call, operation: Operation<'_>) {
        let Operation::Write { handle, offset, data, flags, cached } = operation else { return };
        // At most as much as the kernel hands over at a time.
        let (handle, count) = (Handle(handle), data.len() as u32);
        let mode = write_mode(flags, cached);
        let _runtime = self.runtime.enter(); // What is much is sent by a task.
        match self.files.write_now_as(handle, mode, offset, data) {
            Ok(Wrote::Done) => call.reply.written(count),
            Ok(Wrote::MustWait) => {
                let data = data.to_vec();
                self.answer(call, written, |files| async move {
                    files.write_as(handle, mode, offset, &data).await.map(|()| count)
                });
            }
            Err(error) => call.reply.error(errno(&error)),
        }
    }

    fn flush(&self, call: Call, handle: Handle, owner: u64) {
        let owner = Owner::process(owner);
        match self.files.close_now(handle, owner) {
            Ok(Wrote::Done) => return call.reply.ok(),
            Ok(Wrote::MustWait) => {}
            Err(error) => return call.reply.error(errno(&error)),
        }
        self.answer(call, empty, |files| async move {
            let closed = files.close(handle).await;
            // A process that closes a file gives back its locks of it, also if the close fails.
            closed.and(files.unlock(handle, owner, 0, u64::MAX).await)
        });
    }

    fn release(&self, call: Call, handle: Handle) {
        // Nobody waits for it: what is left to be done may take as long as a region is out of
        // reach.
        call.reply.ok();
        if !self.files.release_now(handle) {
            let files = self.files.clone();
            self.runtime.spawn(async move { files.release(handle).await });
        }
    }

    fn read_directory(&self, call: Call, handle: u64, offset: u64, size: u32) {
        let Some(listing) = self.listings.get(handle) else {
            return call.reply.error(libc::EBADF);
        };
        self.answer(
            call,
            move |lines, reply| listed(lines, (offset, size), reply),
            |files| async move { calls::list(&files, &listing, (offset, size)).await },
        );
    }

    fn room(&self, call: Call) {
        let node = call.node;
        self.answer(call, totals_of, |files| async move { files.totals_at(node).await });
    }

    fn set_xattr(&self, call: Call, operation: Operation<'_>) {
        let Operation::SetXattr { name: of, value, flags, drops_set_gid } = operation else {
            return;
        };
        if calls::foreign_xattr(of).is_some() || about::is(of) {
            return call.reply.error(libc::EOPNOTSUPP);
        }
        if of == QUOTA && call.uid != 0 {
            return call.reply.error(libc::EPERM);
        }
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            0 => XattrMode::Any,
            _ => return call.reply.error(libc::EINVAL),
        };
        let Call { node, uid, .. } = call;
        let (name, value) = (name(of), name(value));
        let marked = self.marked.clone();
        self.answer(call, empty, |files| async move {
            calls::may_set(&files, node, (&name, uid)).await?;
            let result = files.set_xattr(node, name, value, mode, drops_set_gid).await;
            marked.forget(); // Before the program may ask.
            result
        });
    }

    fn get_xattr(&self, call: Call, of: &[u8], size: u32) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return call.reply.error(answer);
        }
        let Some(call) = self.tell(call, of, size) else { return };
        let node = call.node;
        if self.marked.lacks(node, of) || of == CAPABILITY && self.files.lacks_capability(node) {
            return call.reply.error(libc::ENODATA);
        }
        let name = name(of);
        self.answer(
            call,
            move |value, reply| xattr(value, size, reply),
            |files| async move { files.xattr(node, name).await },
        );
    }

    fn list_xattrs(&self, call: Call, size: u32) {
        let Call { node, uid, .. } = call;
        self.answer(
            call,
            move |names, reply| xattr(names, size, reply),
            |files| async move { calls::xattr_names(&files, node, uid).await },
        );
    }

    fn remove_xattr(&self, call: Call, of: &[u8]) {
        if let Some(answer) = calls::foreign_xattr(of) {
            return call.reply.error(answer);
        }
        let Call { node, uid, .. } = call;
        let name = name(of);
        if of == QUOTA && uid != 0 {
            return call.reply.error(libc::EPERM);
        }
        let marked = self.marked.clone();
        self.answer(call, empty, |files| async move {
            calls::may_set(&files, node, (&name, uid)).await?;
            let result = files.remove_xattr(node, name).await;
            marked.forget();
            result
        });
    }

    fn control(&self, call: Call, number: u32, data: &[u8], room: u32) {
        let Some(asked) = Asked::read(number, data) else {
            return call.reply.error(libc::ENOTTY);
        };
        let marked = self.marked.clone();
        let give = move |answer, reply| token::tell(answer, room, reply);
        self.answer(call, give, |files| async move {
            let answer = asked.answer(&files).await;
            marked.forget();
            answer
        });
    }

    fn set_lock(&self, call: Call, lock: Lock, waits: bool) {
        let (handle, wanted) = (Handle(lock.handle), calls::wanted(&lock));
        if lock.kind == libc::F_UNLCK {
            return self.answer(call, empty, |files| async move {
                files.unlock(handle, wanted.owner, wanted.start, wanted.end).await
            });
        }
        let (files, kernel, ticks) = (self.files.clone(), self.kernel.clone(), self.calls.ticks());
        let root = files.client().root().ino;
        let Call { node, thread, reply, .. } = call;
        self.runtime.spawn(async move {
            let taken = move || {
                if let Some(kernel) = kernel.get() {
                    kernel.forget_attributes(node_of(node, root));
                }
            };
            let how = calls::LockCall { handle, wanted, waits, thread };
            calls::set_lock(&files, how, &ticks, taken, reply).await;
        });
    }

    fn allocate(&self, call: Call, handle: Handle, (offset, length): (u64, u64), mode: i32) {
        if mode == libc::FALLOC_FL_KEEP_SIZE {
            return call.reply.ok(); // Room is not reserved.
        }
        let Some(size) = offset.checked_add(length) else {
            return call.reply.error(libc::EFBIG);
        };
        if !calls::can_allocate(mode) {
            return call.reply.error(libc::EOPNOTSUPP);
        }
        self.answer(call, empty, move |files| async move {
            calls::allocate(&files, handle, offset..size, mode).await
        });
    }

    fn seek(&self, call: Call, handle: Handle, offset: i64, whence: i32) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return call.reply.error(libc::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return call.reply.error(libc::ENXIO) };
        self.answer(call, found, |files| async move { files.seek(handle, offset, what).await });
    }
}
