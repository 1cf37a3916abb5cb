//! What the kernel asks, checked and cut out of the bytes that it sends.

use crate::abi::{
    self, LOCK_IS_FLOCK, REQUEST_HEADER, SETXATTR_ACL_KILL_SGID, WRITE_IS_CACHE, flag, opcode, set,
};
use crate::reply::Time;

/// One question of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its number, which no other has.
    pub unique: u64,
    /// The number of the file or directory that it is about.
    pub node: u64,
    /// The user who asks.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The thread that asks; 0 stands for the kernel itself, or a thread that cannot be seen here.
    pub thread: u32,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// What is asked of the file system. Names are bytes without a NUL. A `handle` is what an open was
/// answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each operation says what its fields are")]
pub enum Operation<'a> {
    /// Which node has that name in the directory. With [`Features::export`] also `.` and `..` are
    /// asked for, of any node by its number.
    ///
    /// [`Features::export`]: crate::mounting::Features::export
    Lookup { name: &'a [u8] },
    /// The attributes of the node.
    GetAttributes,
    /// The same, with the time when it was made.
    GetAllAttributes,
    /// New attributes; each that is `None` stays.
    SetAttributes(NewAttributes),
    /// Where a symbolic link points to.
    ReadLink,
    /// A symbolic link to `target`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// A file that is not opened, a device, a pipe or a socket. With [`Features::access_lists`] the
    /// umask is not applied.
    ///
    /// [`Features::access_lists`]: crate::mounting::Features::access_lists
    MakeNode { name: &'a [u8], mode: u32, device: u32, umask: u32 },
    /// A directory.
    MakeDirectory { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name that is not a directory's.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory.
    RemoveDirectory { name: &'a [u8] },
    /// Moves a name; `flags` are those of `renameat2`.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// A further name for the node `of`, in the directory that the request is about.
    Link { of: u64, name: &'a [u8] },
    /// Opens the file; `flags` are those of `open`.
    Open { flags: i32 },
    /// Makes a file if it is not there, and opens it.
    Create { name: &'a [u8], mode: u32, umask: u32, flags: i32 },
    /// Makes a file without a name in the directory, and opens it.
    CreateUnnamed { mode: u32, umask: u32, flags: i32 },
    /// At most `size` bytes from `offset` on; fewer mean the end of the file.
    Read { handle: u64, offset: u64, size: u32 },
    /// Writes at `offset`. `cached`: these are pages of the kernel's cache, which have their place
    /// even in a file that is opened for appending. `flags` are those of the open file now.
    Write { handle: u64, offset: u64, data: &'a [u8], flags: i32, cached: bool },
    /// A descriptor is closed; an open file may have several. `owner` names who closes.
    Flush { handle: u64, owner: u64 },
    /// The last descriptor was closed. Nobody waits for the reply.
    Release { handle: u64 },
    /// What was written is to be durable.
    Sync { handle: u64 },
    /// How much room there is.
    Room,
    /// Sets an extended attribute; `flags` are those of `setxattr`. `drops_set_gid`: it is a list
    /// of access rights, with which the set-group-id bit goes.
    SetXattr { name: &'a [u8], value: &'a [u8], flags: i32, drops_set_gid: bool },
    /// An extended attribute, or its length if `size` is 0.
    GetXattr { name: &'a [u8], size: u32 },
    /// The names of all extended attributes, each with a NUL, or their length if `size` is 0.
    ListXattrs { size: u32 },
    /// Removes an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// Opens the directory.
    OpenDirectory,
    /// Entries from `offset` on, which is 0 or comes with an entry; at most `size` bytes.
    ReadDirectory { handle: u64, offset: u64, size: u32 },
    /// The directory is closed.
    ReleaseDirectory { handle: u64 },
    /// What was changed in the directory is to be durable.
    SyncDirectory { handle: u64 },
    /// A lock that stands in the way of this one.
    GetLock(Lock),
    /// Takes a lock, or gives it back (`F_UNLCK`). `waits`: until it is free.
    SetLock { lock: Lock, waits: bool },
    /// Reserves or frees room; `mode` is that of `fallocate`.
    Allocate { handle: u64, offset: u64, length: u64, mode: i32 },
    /// Where data or a hole begins; `whence` is that of `lseek`.
    Seek { handle: u64, offset: i64, whence: i32 },
    /// `ioctl` on an open file or directory, with what goes with that number; the answer may have
    /// `room` bytes.
    Control { number: u32, data: &'a [u8], room: u32 },
}

/// New attributes: each that is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// The permission bits, with those of the type.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The owner's group.
    pub gid: Option<u32>,
    /// The length in bytes.
    pub size: Option<u64>,
    /// When it was read last.
    pub atime: Option<SetTime>,
    /// When it was changed last.
    pub mtime: Option<SetTime>,
}

/// A time that a program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// When the file system handles it.
    Now,
    /// This.
    To(Time),
}

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Through this open file.
    pub handle: u64,
    /// Who asks: the kernel's name of a process's files (`fcntl`), or of an open file.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte; the greatest offset means "to the end".
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process that asks.
    pub pid: u32,
    /// It is one of `flock`: on the whole file, and independent of those of `fcntl`.
    pub flock: bool,
}

/// What the kernel sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received<'a> {
    /// A question for the file system.
    Request(Request<'a>),
    /// The first exchange: the kernel's version, how much it reads ahead, what it can do.
    Init { unique: u64, major: u32, minor: u32, read_ahead: u32, flags: u32, more_flags: u32 },
    /// It no longer wants to wait for the reply to this request.
    Interrupt { unique: u64 },
    /// It has dropped so many references to the node: as many replies had named it as entries.
    Forget { node: u64, lookups: u64 },
    /// The same of many: each a node and a count.
    ForgetMany(&'a [u8]),
    /// Nothing that is answered.
    Nothing,
    /// The file system is unmounted.
    Destroy { unique: u64 },
    /// What is not known here, or not well formed; it gets this errno.
    Refused { unique: u64, errno: i32 },
}

/// Cuts fields off a request, which may be in two parts: no field lies in both.
struct Fields<'a> {
    rest: &'a [u8],
    then: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Goes on to the second part where the first has ended.
    fn go_on(&mut self) {
        if self.rest.is_empty() {
            self.rest = std::mem::take(&mut self.then);
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        self.go_on();
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// Whether fields of 8 bytes stand before a name and a value of that length: kernels that are
    /// told to say more do so. The lengths tell.
    fn says_more(&mut self, value: usize) -> bool {
        self.go_on();
        let name = self.rest.iter().position(|byte| *byte == 0).unwrap_or(self.rest.len());
        !self.then.is_empty() || name + 1 + value != self.rest.len()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        self.u32().map(u32::cast_signed)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    /// Bytes to a NUL, which must be there.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.go_on();
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        let name = self.take(end)?;
        self.skip(1)?;
        Some(name)
    }
}

/// What `bytes` are: all that one read of the device brought. `None` if there is no number to
/// answer to, which the kernel never sends.
pub(crate) fn parse(bytes: &[u8]) -> Option<Received<'_>> {
    let (header, fields) = bytes.split_at_checked(REQUEST_HEADER)?;
    parse_parts(header, fields, &[])
}

/// The same of a request in parts: what stands before each, the fields of its kind, and its names
/// and data.
pub(crate) fn parse_parts<'a>(
    header: &'a [u8],
    kind: &'a [u8],
    payload: &'a [u8],
) -> Option<Received<'a>> {
    let came = header.len() + kind.len() + payload.len();
    let mut header = Fields { rest: header, then: &[] };
    let (length, code) = (header.u32()?, header.u32()?);
    let (unique, node) = (header.u64()?, header.u64()?);
    let (uid, gid, thread) = (header.u32()?, header.u32()?, header.u32()?);
    let mut fields = Fields { rest: kind, then: payload };
    if length as usize != came {
        return Some(Received::Refused { unique, errno: libc::EIO });
    }
    let malformed = Received::Refused { unique, errno: libc::EINVAL };
    Some(match code {
        opcode::INIT => init(unique, &mut fields).unwrap_or(malformed),
        opcode::INTERRUPT => {
            fields.u64().map_or(Received::Nothing, |unique| Received::Interrupt { unique })
        }
        opcode::FORGET => {
            fields.u64().map_or(Received::Nothing, |lookups| Received::Forget { node, lookups })
        }
        opcode::BATCH_FORGET => {
            fields.skip(8).map_or(Received::Nothing, |()| Received::ForgetMany(fields.rest))
        }
        opcode::DESTROY => Received::Destroy { unique },
        _ => match operation(code, &mut fields) {
            Ok(Some(operation)) => {
                Received::Request(Request { unique, node, uid, gid, thread, operation })
            }
            Ok(None) => malformed,
            Err(errno) => Received::Refused { unique, errno },
        },
    })
}

/// The nodes and counts of [`Received::ForgetMany`].
pub(crate) fn forgotten(many: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let (pairs, _) = many.as_chunks::<16>();
    pairs.iter().filter_map(|pair| {
        let mut fields = Fields { rest: pair, then: &[] };
        Some((fields.u64()?, fields.u64()?))
    })
}

fn init<'a>(unique: u64, fields: &mut Fields<'a>) -> Option<Received<'a>> {
    let (major, minor) = (fields.u32()?, fields.u32()?);
    if major != abi::MAJOR {
        let (read_ahead, flags, more_flags) = (0, 0, 0);
        return Some(Received::Init { unique, major, minor, read_ahead, flags, more_flags });
    }
    let (read_ahead, flags) = (fields.u32()?, fields.u32()?);
    let more_flags = if flags & flag::MORE == 0 { 0 } else { fields.u32()? };
    Some(Received::Init { unique, major, minor, read_ahead, flags, more_flags })
}

/// The operation of that number; `None` if its fields are not all there.
///
/// # Errors
/// `ENOSYS` if it is not known here.
fn operation<'a>(code: u32, fields: &mut Fields<'a>) -> Result<Option<Operation<'a>>, i32> {
    use opcode as c;
    Ok(match code {
        c::LOOKUP
        | c::SYMLINK
        | c::MKNOD
        | c::MKDIR
        | c::UNLINK
        | c::RMDIR
        | c::RENAME
        | c::RENAME2
        | c::LINK
        | c::CREATE
        | c::TMPFILE => of_name(code, fields),
        c::SETXATTR | c::GETXATTR | c::LISTXATTR | c::REMOVEXATTR => of_xattr(code, fields),
        c::GETLK => lock(fields).map(Operation::GetLock),
        c::SETLK => lock(fields).map(|lock| Operation::SetLock { lock, waits: false }),
        c::SETLKW => lock(fields).map(|lock| Operation::SetLock { lock, waits: true }),
        c::GETATTR => Some(Operation::GetAttributes),
        c::STATX => Some(Operation::GetAllAttributes),
        c::SETATTR => new_attributes(fields).map(Operation::SetAttributes),
        c::READLINK => Some(Operation::ReadLink),
        c::STATFS => Some(Operation::Room),
        c::OPEN => fields.i32().map(|flags| Operation::Open { flags }),
        c::OPENDIR => Some(Operation::OpenDirectory),
        _ => return of_handle(code, fields),
    })
}

/// What is asked of names in a directory.
fn of_name<'a>(code: u32, fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::LOOKUP => Operation::Lookup { name: fields.name()? },
        opcode::SYMLINK => Operation::Symlink { name: fields.name()?, target: fields.name()? },
        opcode::MKNOD => {
            let (mode, device) = (fields.u32()?, fields.u32()?);
            let umask = fields.u32()?;
            fields.skip(4)?;
            Operation::MakeNode { name: fields.name()?, mode, device, umask }
        }
        opcode::MKDIR => {
            let (mode, umask) = (fields.u32()?, fields.u32()?);
            Operation::MakeDirectory { name: fields.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: fields.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: fields.name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let new_parent = fields.u64()?;
            let mut flags = 0;
            if code == opcode::RENAME2 {
                flags = fields.u32()?;
                fields.skip(4)?;
            }
            let (name, new_name) = (fields.name()?, fields.name()?);
            Operation::Rename { name, new_parent, new_name, flags }
        }
        opcode::LINK => Operation::Link { of: fields.u64()?, name: fields.name()? },
        _ => {
            let (flags, mode, umask) = (fields.i32()?, fields.u32()?, fields.u32()?);
            fields.skip(4)?;
            let name = fields.name()?; // It stands for nothing in a file without one.
            match code {
                opcode::TMPFILE => Operation::CreateUnnamed { mode, umask, flags },
                _ => Operation::Create { name, mode, umask, flags },
            }
        }
    })
}

fn of_xattr<'a>(code: u32, fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    if code == opcode::REMOVEXATTR {
        return Some(Operation::RemoveXattr { name: fields.name()? });
    }
    let (size, flags) = (fields.u32()?, fields.i32()?);
    Some(match code {
        opcode::SETXATTR => {
            let mut how = 0;
            if fields.says_more(size as usize) {
                how = fields.u32()?;
                fields.skip(4)?;
            }
            let (name, drops_set_gid) = (fields.name()?, how & SETXATTR_ACL_KILL_SGID != 0);
            Operation::SetXattr { name, value: fields.take(size as usize)?, flags, drops_set_gid }
        }
        opcode::GETXATTR => Operation::GetXattr { name: fields.name()?, size },
        _ => Operation::ListXattrs { size },
    })
}

/// What is asked of an open file or directory.
fn of_handle<'a>(code: u32, fields: &mut Fields<'a>) -> Result<Option<Operation<'a>>, i32> {
    Ok(match code {
        opcode::READ | opcode::WRITE | opcode::READDIR => transfer(code, fields),
        opcode::FLUSH => flush(fields),
        opcode::RELEASE => fields.u64().map(|handle| Operation::Release { handle }),
        opcode::RELEASEDIR => fields.u64().map(|handle| Operation::ReleaseDirectory { handle }),
        opcode::FSYNC => fields.u64().map(|handle| Operation::Sync { handle }),
        opcode::FSYNCDIR => fields.u64().map(|handle| Operation::SyncDirectory { handle }),
        opcode::FALLOCATE => allocate(fields),
        opcode::LSEEK => seek(fields),
        opcode::IOCTL => control(fields),
        _ => return Err(libc::ENOSYS),
    })
}

fn transfer<'a>(code: u32, fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let how = fields.u32()?;
    fields.skip(8)?; // Who holds locks.
    let flags = fields.i32()?;
    fields.skip(4)?;
    Some(match code {
        opcode::READ => Operation::Read { handle, offset, size },
        opcode::READDIR => Operation::ReadDirectory { handle, offset, size },
        _ => {
            let (data, cached) = (fields.take(size as usize)?, how & WRITE_IS_CACHE != 0);
            Operation::Write { handle, offset, data, flags, cached }
        }
    })
}

fn flush<'a>(fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    let handle = fields.u64()?;
    fields.skip(8)?;
    Some(Operation::Flush { handle, owner: fields.u64()? })
}

fn allocate<'a>(fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    let (handle, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
    Some(Operation::Allocate { handle, offset, length, mode: fields.i32()? })
}

fn seek<'a>(fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    let (handle, offset) = (fields.u64()?, fields.u64()?.cast_signed());
    Some(Operation::Seek { handle, offset, whence: fields.i32()? })
}

fn control<'a>(fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    fields.skip(8 + 4)?; // The handle, and how it is open: the node says enough.
    let number = fields.u32()?;
    fields.skip(8)?; // Where the data was in the program.
    let (size, room) = (fields.u32()?, fields.u32()?);
    Some(Operation::Control { number, data: fields.take(size as usize)?, room })
}

fn lock(fields: &mut Fields<'_>) -> Option<Lock> {
    let (handle, owner) = (fields.u64()?, fields.u64()?);
    let (start, end) = (fields.u64()?, fields.u64()?);
    let (kind, pid, flags) = (fields.i32()?, fields.u32()?, fields.u32()?);
    Some(Lock { handle, owner, start, end, kind, pid, flock: flags & LOCK_IS_FLOCK != 0 })
}

fn new_attributes(fields: &mut Fields<'_>) -> Option<NewAttributes> {
    let which = fields.u32()?;
    fields.skip(4 + 8)?; // The handle: the node says enough.
    let size = fields.u64()?;
    fields.skip(8)?;
    let (atime, mtime) = (fields.u64()?.cast_signed(), fields.u64()?.cast_signed());
    fields.skip(8)?; // The time of the last change of attributes, which no program sets.
    let (atime_nanos, mtime_nanos) = (fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let has = |bit: u32| which & bit != 0;
    let time = |bit: u32, now: u32, seconds: i64, nanos: u32| {
        let to = if has(now) { SetTime::Now } else { SetTime::To(Time { seconds, nanos }) };
        has(bit).then_some(to)
    };
    Some(NewAttributes {
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        atime: time(set::ATIME, set::ATIME_NOW, atime, atime_nanos),
        mtime: time(set::MTIME, set::MTIME_NOW, mtime, mtime_nanos),
    })
}

/// The smallest buffer that the kernel hands requests over in, with so many bytes to be written.
pub(crate) fn buffer_size(max_write: usize) -> usize {
    // What stands before the data of a write fits into a page.
    const { assert!(REQUEST_HEADER + 40 < abi::PAGE) };
    max_write + abi::PAGE
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
