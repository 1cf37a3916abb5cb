//! What the kernel is answered, once for each request.

use crate::abi::{OPEN_DIRECT_IO, OPEN_KEEP_CACHE, PAGE, REPLY_HEADER};
use crate::device::Device;
use crate::interrupts::{Interrupted, Interrupts};
use crate::rings::Ticket;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The way to answer one request. Dropped unanswered, it answers `EIO`.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    way: Way,
    interrupts: Arc<Interrupts>,
    answered: bool,
}

/// How the reply gets to the kernel: as the request came.
#[derive(Debug)]
pub(crate) enum Way {
    Device(Arc<Device>),
    Ring(Ticket),
}

impl Way {
    fn answer(&mut self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        match self {
            Way::Device(device) => device.reply(unique, error, body),
            Way::Ring(ticket) => ticket.answer(error, body),
        }
    }
}

/// A point in time: seconds since 1970, and nanoseconds after that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970; before that they are negative.
    pub seconds: i64,
    /// Nanoseconds after the second, below 1,000,000,000.
    pub nanos: u32,
}

/// What the kernel is told of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// What it needs on disk, in units of 512 bytes.
    pub blocks: u64,
    /// When it was read last.
    pub atime: Time,
    /// When its content was changed last.
    pub mtime: Time,
    /// When anything of it was changed last.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// Its type and permission bits, as `st_mode` has them.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its owner's group.
    pub gid: u32,
    /// Which device it is.
    pub device: u32,
    /// How many bytes programs should read and write at a time.
    pub block_size: u32,
}

/// How long the kernel may keep something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// That a name leads to a node.
    pub name: Duration,
    /// The attributes of a node.
    pub attributes: Duration,
}

/// What the kernel does with the pages of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// It drops those that it has from before, and keeps others until the file is opened again or
    /// is seen to be changed.
    #[default]
    Dropped,
    /// It keeps those that it has from before, too.
    Kept,
    /// It keeps none: each read and write is asked for, and no program can map the file to share
    /// what is written into it.
    Refused,
}

impl Pages {
    fn flags(self) -> u32 {
        match self {
            Pages::Dropped => 0,
            Pages::Kept => OPEN_KEEP_CACHE,
            Pages::Refused => OPEN_DIRECT_IO,
        }
    }
}

/// A name that leads to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub attributes: Attributes,
    /// Tells two nodes of the same number apart, one after the other.
    pub generation: u64,
    /// How long the kernel may keep it.
    pub lifetime: Lifetime,
}

/// How much room a file system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for others than root.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// The longest name in bytes.
    pub name_max: u32,
}

/// The entries of a directory for one reply: as many as the kernel has room for.
#[derive(Clone, Debug)]
pub struct Directory {
    bytes: Vec<u8>,
    size: usize,
}

impl Directory {
    /// With room for `size` bytes, as the kernel asked.
    pub fn new(size: u32) -> Directory {
        let size = size as usize;
        Directory { bytes: Vec::with_capacity(size.min(16 * PAGE)), size }
    }

    /// Adds an entry. `next` is the offset of the one behind it, `kind` the type bits of its mode.
    /// Returns whether there was room.
    pub fn add(&mut self, node: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        const HEADER: usize = 24;
        let padded = (HEADER + name.len()).next_multiple_of(8);
        if self.bytes.len() + padded > self.size {
            return false;
        }
        let end = self.bytes.len() + padded;
        put(&mut self.bytes, &[node, next]);
        // Names are at most 255 bytes long.
        put32(&mut self.bytes, &[name.len() as u32, (kind & libc::S_IFMT) >> 12]);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

fn put(bytes: &mut Vec<u8>, fields: &[u64]) {
    fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_ne_bytes()));
}

fn put32(bytes: &mut Vec<u8>, fields: &[u32]) {
    fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_ne_bytes()));
}

fn put_attributes(bytes: &mut Vec<u8>, of: &Attributes) {
    let seconds = |time: Time| time.seconds.cast_unsigned();
    let (atime, mtime, ctime) = (seconds(of.atime), seconds(of.mtime), seconds(of.ctime));
    put(bytes, &[of.node, of.size, of.blocks, atime, mtime, ctime]);
    put32(bytes, &[of.atime.nanos, of.mtime.nanos, of.ctime.nanos, of.mode, of.links]);
    put32(bytes, &[of.uid, of.gid, of.device, of.block_size, 0]);
}

/// As `struct fuse_statx` has them.
fn put_all_attributes(bytes: &mut Vec<u8>, of: &Attributes) {
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    put32(bytes, &[mask, of.block_size]);
    put(bytes, &[0]); // What the inode is beyond its mode: nothing.
    put32(bytes, &[of.links, of.uid, of.gid, of.mode]);
    put(bytes, &[of.node, of.size, of.blocks, 0]);
    for time in [of.atime, of.btime, of.ctime, of.mtime] {
        put(bytes, &[time.seconds.cast_unsigned()]);
        put32(bytes, &[time.nanos, 0]);
    }
    let device = u64::from(of.device);
    put32(bytes, &[libc::major(device), libc::minor(device), 0, 0]);
    put(bytes, &[0; 14]);
}

fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    let Lifetime { name, attributes } = entry.lifetime;
    put(bytes, &[entry.attributes.node, entry.generation, name.as_secs(), attributes.as_secs()]);
    put32(bytes, &[name.subsec_nanos(), attributes.subsec_nanos()]);
    put_attributes(bytes, &entry.attributes);
}

impl Reply {
    pub(crate) fn new(unique: u64, way: Way, interrupts: Arc<Interrupts>) -> Reply {
        Reply { unique, way, interrupts, answered: false }
    }

    /// Ends when the kernel no longer wants to wait: a signal came for the thread that asked. The
    /// request must be answered all the same.
    pub fn interrupted(&self) -> Interrupted {
        self.interrupts.of(self.unique)
    }

    fn send(&mut self, errno: i32, body: &[u8]) {
        self.answered = true;
        self.interrupts.forget(self.unique);
        if let Err(error) = self.way.answer(self.unique, -errno, body) {
            // ENOENT: the kernel has given the request up. ENODEV: it is unmounted.
            let expected = [libc::ENOENT, libc::ENODEV].map(Some).contains(&error.raw_os_error());
            if !expected {
                tracing::warn!("the kernel does not take an answer: {error}");
            }
        }
    }

    fn value(mut self, body: &[u8]) {
        self.send(0, body);
    }

    /// The call fails with this errno.
    pub fn error(mut self, errno: i32) {
        self.send(errno, &[]);
    }

    /// The call has succeeded, and nothing is to be told.
    pub fn ok(self) {
        self.value(&[]);
    }

    /// A name was found or made.
    pub fn entry(self, entry: &Entry) {
        let mut body = Vec::with_capacity(PAGE / 16);
        put_entry(&mut body, entry);
        self.value(&body);
    }

    /// A name leads to nothing, which the kernel may keep for so long.
    pub fn absent(self, lifetime: Duration) {
        let lifetime = Lifetime { name: lifetime, attributes: Duration::ZERO };
        self.entry(&Entry { attributes: Attributes::default(), generation: 0, lifetime });
    }

    /// A file was found or made, and opened under this handle.
    pub fn created(self, entry: &Entry, handle: u64, pages: Pages) {
        let mut body = Vec::with_capacity(PAGE / 16);
        put_entry(&mut body, entry);
        put(&mut body, &[handle]);
        put32(&mut body, &[pages.flags(), 0]);
        self.value(&body);
    }

    /// Attributes, which may be kept for so long.
    pub fn attributes(self, lifetime: Duration, attributes: &Attributes) {
        let mut body = Vec::with_capacity(PAGE / 16);
        put(&mut body, &[lifetime.as_secs()]);
        put32(&mut body, &[lifetime.subsec_nanos(), 0]);
        put_attributes(&mut body, attributes);
        self.value(&body);
    }

    /// Attributes with the time when it was made, which may be kept for so long.
    pub fn all_attributes(self, lifetime: Duration, attributes: &Attributes) {
        let mut body = Vec::with_capacity(PAGE / 8);
        put(&mut body, &[lifetime.as_secs()]);
        put32(&mut body, &[lifetime.subsec_nanos(), 0]);
        put(&mut body, &[0; 2]);
        put_all_attributes(&mut body, attributes);
        self.value(&body);
    }

    /// A file or directory was opened under this handle.
    pub fn opened(self, handle: u64, pages: Pages) {
        let mut body = Vec::new();
        put(&mut body, &[handle]);
        put32(&mut body, &[pages.flags(), 0]);
        self.value(&body);
    }

    /// Bytes of a file, a link's target, an extended attribute.
    pub fn data(self, data: &[u8]) {
        self.value(data);
    }

    /// So many bytes were written.
    pub fn written(self, count: u32) {
        self.size(count);
    }

    /// So many bytes an extended attribute has, or the list of their names.
    pub fn size(self, count: u32) {
        let mut body = Vec::new();
        put32(&mut body, &[count, 0]);
        self.value(&body);
    }

    /// Entries of a directory; none means its end.
    pub fn directory(self, entries: &Directory) {
        self.value(&entries.bytes);
    }

    /// A process holds a lock from `start` to `end` of this kind: `F_RDLCK` or `F_WRLCK`. Nobody
    /// does: `F_UNLCK`.
    pub fn lock(self, (start, end): (u64, u64), kind: i32, pid: u32) {
        let mut body = Vec::new();
        put(&mut body, &[start, end]);
        put32(&mut body, &[kind.cast_unsigned(), pid]);
        self.value(&body);
    }

    /// What was looked for is there.
    pub fn offset(self, offset: u64) {
        self.value(&offset.to_ne_bytes());
    }

    /// `ioctl` returns this, or fails with `-errno`; the program is given the data in any case.
    pub fn controlled(self, result: i32, data: &[u8]) {
        let mut body = Vec::with_capacity(PAGE / 256 + data.len());
        put32(&mut body, &[result.cast_unsigned(), 0, 0, 0]);
        body.extend_from_slice(data);
        self.value(&body);
    }

    /// How much room there is.
    pub fn room(self, room: &Room) {
        let mut body = Vec::new();
        put(&mut body, &[room.blocks, room.free, room.available, room.inodes, room.free_inodes]);
        put32(&mut body, &[room.block_size, room.name_max, room.block_size, 0]);
        put32(&mut body, &[0; 6]);
        self.value(&body);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            self.send(libc::EIO, &[]);
        }
    }
}

/// What stands before each reply, and before each message that nobody asked for.
pub(crate) fn header(unique: u64, error: i32, body: usize) -> [u8; REPLY_HEADER] {
    let mut bytes = [0; REPLY_HEADER];
    // A body is at most a few MiB long.
    bytes[..4].copy_from_slice(&((REPLY_HEADER + body) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}
