//! The blocks of a node: append-only segment files, and an index of them in memory.
//!
//! A directory holds `FORMAT` and the segments `blocks-<number>`. One writer ([`Store`]) appends to
//! the newest; any number of [`Blocks`] read. A segment is synced before the next is begun, so a
//! crash can hurt the newest only, and of that only what lies behind the last durable mark. How the
//! room of freed blocks comes back is in [`space`].
//!
//! Invariants:
//! - S1: what [`Store::put`] and then [`Store::sync`] answered `Ok` for is served, or reported
//!   [`BlockError::Damaged`], until it is freed.
//! - S2: nothing is served whose checksum is wrong.
//! - S3: no bytes are ever changed in place, but with themselves (see [`Store::open`]).

use crate::record::{self, HEADER_LEN, Header, MAX_BLOCK};
use bytes::{Bytes, BytesMut};
use meridian_core::{BlockId, PLANTED_BUGS};
use meridian_storage::format::{self, FormatError};
use meridian_storage::{Disk, DiskFile, Room};
use reach::Reach;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub mod long;
pub mod reach;
pub mod space;

/// The version of the directory, in `FORMAT`.
pub const VERSION: u32 = 1;

/// Why a block was not stored or not read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BlockError {
    /// It is not here.
    #[error("no block {0}")]
    NoBlock(BlockId),
    /// It is here, but its bytes are not those that were stored.
    #[error("block {0} fails its checksum")]
    Damaged(BlockId),
    /// No block has this length.
    #[error("block of {0} bytes, allowed are 1 to {MAX_BLOCK}")]
    Length(usize),
    /// The disk is full: this block was not stored, all others can be read.
    #[error("no space left for blocks")]
    Full,
    /// Too much waits already: to be tried again, here or elsewhere.
    #[error("too many requests for blocks wait")]
    Busy,
    /// An earlier write failed; nothing is stored until the store is opened anew.
    #[error("the store is closed after a failed write")]
    Closed,
    /// The disk refuses.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: Arc<io::Error>,
    },
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is not one of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The disk refuses.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// How a store is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a segment becomes, in bytes, unless one block needs more.
    pub segment_bytes: u64,
    /// A random number, used when the directory is new; see
    /// [`format`](mod@meridian_storage::format).
    pub salt: u64,
    /// So many bytes of the disk no block takes: they are for what lies beside the blocks. Half of
    /// it blocks may take that are moved, to give back more.
    pub reserve_bytes: u64,
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// A block is said to be stored without a sync.
    NeverSyncs,
    /// Nobody looks at the checksum of what is read.
    ChecksNothing,
    /// A block counts as held as long as it is in the index.
    TrustsIndex,
    /// A segment is removed before the copies of what it held are durable.
    RemovesEarly,
    /// Blocks take all of the disk.
    TakesReserve,
}

impl Mutation {
    fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}

/// How much a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How many blocks.
    pub blocks: u64,
    /// How many bytes of data.
    pub bytes: u64,
}

/// What was found amiss when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The tail of a file that was cut: the file, and its length now.
    pub cut: Option<(PathBuf, u64)>,
    /// Places where no record can be read, though others follow.
    pub damaged: Vec<(PathBuf, u64)>,
    /// How far records go, though the last may not be whole.
    pub reach: Reach,
}

/// The blocks, to be read; clones see the same.
#[derive(Clone)]
pub struct Blocks {
    index: Arc<RwLock<Index>>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    reserve_bytes: u64,
    mutation: Mutation,
}

#[derive(Default)]
struct Index {
    blocks: BTreeMap<BlockId, Location>,
    segments: BTreeMap<u64, Segment>,
    bytes: u64,
    /// Up to where all is durable.
    reach: Reach,
}

#[derive(Clone)]
struct Segment {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// Its name inside its records.
    name: u64,
    /// How many of its bytes belong to blocks that are held.
    live: u64,
    /// How much of the disk it takes.
    size: u64,
    /// What it holds cannot all be read: it stays as it is.
    is_damaged: bool,
}

#[derive(Clone, Copy)]
struct Location {
    segment: u64,
    offset: u64,
    len: u32,
}

impl Location {
    /// What it takes in its segment.
    fn bytes(self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.len)
    }
}

/// The blocks, to be written.
pub struct Store {
    salt: u64,
    blocks: Blocks,
    /// The segment that is appended to, by number.
    newest: u64,
    /// Where the next record goes.
    end: u64,
    /// Up to where the segment is durable.
    durable: u64,
    closed: bool,
    /// The segment that is being emptied.
    emptied: Option<space::Emptied>,
    /// The disk was full when a block was to be moved, and nothing was freed since.
    is_tight: bool,
    /// The newest segment has taken of the reserve: it is for blocks that are moved.
    is_borrowed: bool,
    buffer: BytesMut,
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BlockError + 'a {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BlockError::Full,
        _ => BlockError::Io { action, path: path.to_owned(), source: Arc::new(source) },
    }
}

impl Segment {
    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, BlockError> {
        let mut bytes = vec![0; len];
        self.file.read_at(offset, &mut bytes).map_err(failed("read", &self.path))?;
        Ok(bytes)
    }

    fn len(&self) -> Result<u64, BlockError> {
        self.file.len().map_err(failed("measure", &self.path))
    }
}

impl Blocks {
    fn read_index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_index(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much there is.
    pub fn counters(&self) -> Counters {
        let index = self.read_index();
        Counters { blocks: index.blocks.len() as u64, bytes: index.bytes }
    }

    /// Reads `len` bytes of a block from `offset` on, or fewer where the block ends.
    /// The whole block is checked.
    ///
    /// # Errors
    /// [`BlockError::NoBlock`], [`BlockError::Damaged`], or [`BlockError::Io`].
    pub fn get(&self, block: BlockId, offset: u32, len: u32) -> Result<Bytes, BlockError> {
        let (segment, at) = {
            let index = self.read_index();
            let at = *index.blocks.get(&block).ok_or(BlockError::NoBlock(block))?;
            (index.segments[&at.segment].clone(), at)
        };
        let bytes = match segment.read(at.offset, HEADER_LEN + at.len as usize) {
            Err(BlockError::Io { source, .. }) if source.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BlockError::Damaged(block));
            }
            bytes => Bytes::from(bytes?),
        };
        let data = bytes.slice(HEADER_LEN..);
        match Header::decode(&bytes, segment.name) {
            Some(header) if header.block == block && self.matches(&header, &data) => {
                let start = (offset as usize).min(data.len());
                let end = start.saturating_add(len as usize).min(data.len());
                Ok(data.slice(start..end))
            }
            _ => Err(BlockError::Damaged(block)),
        }
    }

    fn matches(&self, header: &Header, data: &[u8]) -> bool {
        header.matches(data) || self.mutation.is(Mutation::ChecksNothing)
    }

    /// How much room the disk has.
    ///
    /// # Errors
    /// If it does not say so.
    pub fn room(&self) -> Result<Room, BlockError> {
        self.disk.room(&self.dir).map_err(failed("measure", &self.dir))
    }

    /// How many bytes more may be taken by blocks when the disk has so many: none when a segment
    /// does not fit beside the reserve.
    pub fn writable(&self, free: u64) -> u64 {
        let left = free.saturating_sub(self.reserve_bytes);
        if left < self.segment_bytes { 0 } else { left }
    }

    /// The names of the blocks after `after`, in order, `limit` at most.
    pub fn names(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let index = self.read_index();
        index.blocks.range((from, Bound::Unbounded)).take(limit).map(|(name, _)| *name).collect()
    }

    /// Whether it is here, durable or not yet.
    pub fn holds(&self, block: BlockId) -> bool {
        self.read_index().blocks.contains_key(&block)
    }

    /// Whether it is here and can be read: its data is checked.
    pub fn is_sound(&self, block: BlockId) -> bool {
        match self.mutation.is(Mutation::TrustsIndex) {
            true => self.holds(block),
            false => self.get(block, 0, 0).is_ok(),
        }
    }

    fn insert(&self, block: BlockId, at: Location) {
        let mut index = self.write_index();
        index.forget(block);
        index.bytes += u64::from(at.len);
        index.blocks.insert(block, at);
        let segment = index.segments.get_mut(&at.segment).expect("it is written there");
        segment.live += at.bytes();
        segment.size = segment.size.max(at.offset + at.bytes());
    }
}

impl Index {
    /// The block is not held any more; whether it was.
    fn forget(&mut self, block: BlockId) -> bool {
        let Some(before) = self.blocks.remove(&block) else { return false };
        self.bytes -= u64::from(before.len);
        self.segments.get_mut(&before.segment).expect("it lies there").live -= before.bytes();
        true
    }
}

impl Store {
    /// Opens the store in `dir`, or makes one, and reads the headers of all blocks.
    ///
    /// What lies behind the last durable mark of the newest segment is checked wholly; then it is
    /// written once more over itself and synced, so that it is durable though the writer may have
    /// died, or its sync failed, before it was. A tail without any record is cut.
    ///
    /// # Errors
    /// If the disk refuses, or the directory is of another version.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
    ) -> Result<(Store, Findings), OpenError> {
        Self::open_mutated(disk, dir, options, Mutation::Correct)
    }

    /// The same with a bug.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[doc(hidden)]
    pub fn open_mutated(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        mutation: Mutation,
    ) -> Result<(Store, Findings), OpenError> {
        let salt = format::open(&*disk, dir, "blocks", VERSION, options.salt)?;
        let names = disk.list(dir).map_err(failed("list", dir))?;
        let numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        let mut store = Store {
            blocks: Blocks {
                index: Arc::default(),
                disk,
                dir: dir.to_owned(),
                segment_bytes: options.segment_bytes,
                reserve_bytes: options.reserve_bytes,
                mutation,
            },
            salt,
            newest: 0,
            end: 0,
            durable: 0,
            closed: false,
            emptied: None,
            is_tight: false,
            is_borrowed: false,
            buffer: BytesMut::new(),
        };
        let mut findings = Findings::default();
        for number in &numbers {
            let path = dir.join(name_of(*number));
            let file = store.blocks.disk.open(&path).map_err(failed("open", &path))?;
            let size = file.len().map_err(failed("measure", &path))?;
            let name = salt.wrapping_add(*number);
            let segment = Segment { path, file, name, live: 0, size, is_damaged: false };
            store.blocks.write_index().segments.insert(*number, segment.clone());
            let found = headers(&segment, &mut findings)?;
            if Some(number) == numbers.last() {
                store.recover_newest(*number, &segment, found, &mut findings)?;
            } else {
                store.enter(*number, &found);
            }
        }
        Ok((store, findings))
    }

    /// The blocks, to be read by any thread.
    pub fn blocks(&self) -> Blocks {
        self.blocks.clone()
    }

    fn enter(&self, number: u64, found: &[(u64, Header)]) {
        for (offset, header) in found {
            let at = Location { segment: number, offset: *offset, len: header.len };
            self.blocks.insert(header.block, at);
        }
    }

    fn recover_newest(
        &mut self,
        number: u64,
        segment: &Segment,
        mut found: Vec<(u64, Header)>,
        findings: &mut Findings,
    ) -> Result<(), BlockError> {
        let len = segment.len()?;
        let durable = found.iter().map(|(_, header)| header.durable).max().unwrap_or(0).min(len);
        let shown = found.iter().map(|(offset, header)| header.end(*offset)).max().unwrap_or(0);
        let mut end = durable;
        let mut bad = Vec::new();
        for (offset, header) in found.iter().filter(|(offset, _)| *offset >= durable) {
            let whole = header.end(*offset) <= len && {
                let data = segment.read(offset + HEADER_LEN as u64, header.len as usize)?;
                self.blocks.matches(header, &data)
            };
            if whole {
                end = header.end(*offset);
            } else {
                bad.push(*offset);
            }
        }
        // Nothing says that the bad ones were ever acknowledged: as if they had not been written.
        found.retain(|(offset, _)| !bad.contains(offset));
        findings
            .damaged
            .extend(bad.iter().filter(|at| **at < end).map(|at| (segment.path.clone(), *at)));
        self.enter(number, &found);
        findings.reach = Reach { segment: number, end: shown.max(end) };
        let doubtful = segment.read(durable, (end - durable) as usize)?;
        let tail = segment.read(end, (len - end) as usize)?;
        if tail.iter().any(|byte| *byte != 0) {
            findings.cut = Some((segment.path.clone(), end));
            findings.damaged.retain(|(path, at)| *path != segment.path || *at < end);
        }
        let rewritten = || {
            segment.file.write_at(durable, &doubtful)?;
            segment.file.truncate(end)?;
            match segment.file.preallocate(self.blocks.segment_bytes) {
                // It can be read; the next put will say that the disk is full.
                Err(full) if full.kind() == io::ErrorKind::StorageFull => {}
                result => result?,
            }
            segment.file.sync_data()?;
            self.blocks.disk.sync_dir(&self.blocks.dir)
        };
        rewritten().map_err(failed("make durable", &segment.path))?;
        (self.newest, self.end) = (number, end);
        self.note_durable();
        Ok(())
    }

    /// Appends a block; it is durable after the next [`Store::sync`]. If it is here and sound
    /// already, nothing is done: a block never changes.
    ///
    /// # Errors
    /// [`BlockError::Full`] leaves the store as it was. After [`BlockError::Io`] it is closed.
    pub fn put(&mut self, block: BlockId, data: &[u8]) -> Result<(), BlockError> {
        if data.is_empty() || data.len() > MAX_BLOCK {
            return Err(BlockError::Length(data.len()));
        }
        if self.closed {
            return Err(BlockError::Closed);
        }
        if self.blocks.get(block, 0, 0).is_ok() {
            return Ok(());
        }
        if self.is_borrowed {
            let free = self.free_bytes()?;
            if free < self.blocks.reserve_bytes {
                return Err(BlockError::Full);
            }
            self.is_borrowed = false;
        }
        let result = self.append(block, data, self.blocks.reserve_bytes);
        self.closed |= matches!(result, Err(BlockError::Io { .. }));
        result
    }

    /// Appends a block, and leaves so many bytes of the disk as they are.
    fn append(&mut self, block: BlockId, data: &[u8], leave: u64) -> Result<(), BlockError> {
        let len = (HEADER_LEN + data.len()) as u64;
        let full = self.end > 0 && self.end + len > self.blocks.segment_bytes;
        if full || self.blocks.read_index().segments.is_empty() {
            self.begin_segment(len, leave)?;
        }
        let segment = self.blocks.read_index().segments[&self.newest].clone();
        if self.end + len > segment.size {
            self.free_beside(self.end + len - segment.size, leave)?; // It could not be made long.
        }
        self.buffer.clear();
        record::encode(&mut self.buffer, segment.name, self.durable, block, data);
        segment.file.write_at(self.end, &self.buffer).map_err(failed("write", &segment.path))?;
        let at = Location { segment: self.newest, offset: self.end, len: data.len() as u32 };
        self.blocks.insert(block, at);
        self.end += len;
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, BlockError> {
        if self.blocks.mutation.is(Mutation::TakesReserve) {
            return Ok(u64::MAX);
        }
        Ok(self.blocks.room()?.free)
    }

    /// How many bytes are free, if so many more can be taken, and so many left.
    fn free_beside(&self, more: u64, leave: u64) -> Result<u64, BlockError> {
        let free = self.free_bytes()?;
        if free < more.saturating_add(leave) { Err(BlockError::Full) } else { Ok(free) }
    }

    /// Goes on in a new segment, for a block of that length.
    fn begin_segment(&mut self, len: u64, leave: u64) -> Result<(), BlockError> {
        let len = len.max(self.blocks.segment_bytes);
        let free = self.free_beside(len, leave)?;
        self.sync()?;
        let number = self.newest + 1;
        let path = self.blocks.dir.join(name_of(number));
        let file = self.blocks.disk.create(&path).map_err(failed("create", &path))?;
        let made = || {
            file.preallocate(len)?;
            file.sync_data()?;
            self.blocks.disk.sync_dir(&self.blocks.dir)
        };
        if let Err(error) = made() {
            self.blocks.disk.remove(&path).map_err(failed("remove", &path))?;
            return Err(failed("make", &path)(error));
        }
        let (name, size) = (self.salt.wrapping_add(number), len);
        let segment = Segment { path, file, name, live: 0, size, is_damaged: false };
        self.blocks.write_index().segments.insert(number, segment);
        (self.newest, self.end, self.durable) = (number, 0, 0);
        self.is_borrowed = free - len < self.blocks.reserve_bytes;
        Ok(())
    }

    /// Makes durable all that was put.
    ///
    /// # Errors
    /// If the disk refuses. The store is then closed for writing: after a failed sync nobody knows
    /// which bytes were kept.
    pub fn sync(&mut self) -> Result<(), BlockError> {
        if self.closed {
            return Err(BlockError::Closed);
        }
        if self.durable == self.end || self.blocks.mutation.is(Mutation::NeverSyncs) {
            return Ok(());
        }
        let segment = self.blocks.read_index().segments[&self.newest].clone();
        if let Err(source) = segment.file.sync_data() {
            self.closed = true;
            let path = segment.path;
            return Err(BlockError::Io { action: "sync", path, source: Arc::new(source) });
        }
        self.note_durable();
        Ok(())
    }
}

fn name_of(number: u64) -> String {
    format!("blocks-{number:016x}")
}

fn number_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("blocks-")?, 16).ok()
}

/// The headers of a segment, with their offsets. Where there is none, the next is searched for.
fn headers(segment: &Segment, findings: &mut Findings) -> Result<Vec<(u64, Header)>, BlockError> {
    let len = segment.len()?;
    let mut found = Vec::new();
    let mut at = 0;
    while at + HEADER_LEN as u64 <= len {
        let bytes = segment.read(at, HEADER_LEN)?;
        if let Some(header) = Header::decode(&bytes, segment.name) {
            found.push((at, header));
            at = header.end(at);
            continue;
        }
        let rest = segment.read(at, (len - at) as usize)?;
        let next = record::find(&rest, segment.name);
        if rest.iter().any(|byte| *byte != 0) {
            findings.damaged.push((segment.path.clone(), at));
        }
        match next {
            Some(next) => at += next as u64,
            None => break,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
