//! A disk in memory for tests: it keeps what was synced and treats the rest as badly as it may.
//!
//! The power can be cut at any operation ([`SimDisk::cut_power_at`]); from then on everything fails
//! until [`SimDisk::restart`], which decides by a seed what became of everything that was not
//! synced: each sector of [`SECTOR`] bytes and each change of a directory is kept or lost, alone.

use crate::disk::{Disk, DiskFile, Room};
use meridian_core::mix;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many bytes a disk has that has no limit.
const UNLIMITED: u64 = 1 << 50;

/// What the disk writes whole or not at all, in bytes.
pub const SECTOR: usize = 512;

/// The disk; clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    /// Changes of names that were not synced; each is kept or lost as one.
    renamed: Vec<Vec<Name>>,
    next_inode: u64,
    /// Handles of an earlier life are dead.
    life: u64,
    operations: u64,
    syncs: u64,
    cut_at: Option<u64>,
    off: bool,
    fail_sync_at: Option<u64>,
    /// The inode whose next sync fails.
    fail_sync_of: Option<u64>,
    capacity: Option<u64>,
    refused: u64,
    told: u64,
}

/// A name that now stands for an inode, or for nothing.
type Name = (PathBuf, Option<u64>);

#[derive(Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if to.len() < end {
                    to.resize(end, 0);
                }
                to[*offset..end].copy_from_slice(bytes);
            }
            Change::Length(len) => to.resize(*len, 0),
        }
    }
}

impl SimDisk {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many operations changed or synced something since the start.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// How many syncs of files there were since the start.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// The power fails at the `nth` of [`SimDisk::operations`], before it takes effect.
    pub fn cut_power_at(&self, nth: u64) {
        self.state().cut_at = Some(nth);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state().off = true;
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state().off
    }

    /// The `nth` of [`SimDisk::syncs`] fails and drops what it should have written, as some kernels
    /// do: it can still be read, until the power fails.
    pub fn fail_sync_at(&self, nth: u64) {
        self.state().fail_sync_at = Some(nth);
    }

    /// The next sync of this file fails as [`SimDisk::fail_sync_at`] says, whatever else is synced
    /// meanwhile.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn fail_sync_of(&self, path: &Path) {
        let mut state = self.state();
        state.fail_sync_of = Some(state.names[path]);
    }

    /// Neither the power nor a sync fails any more, unless the power is off.
    pub fn fail_no_more(&self) {
        let mut state = self.state();
        (state.cut_at, state.fail_sync_at, state.fail_sync_of) = (None, None, None);
    }

    /// The files together may have so many bytes; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// How often there was no room since the start.
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    /// How many bytes it was told will be read, since the start.
    pub fn told(&self) -> u64 {
        self.state().told
    }

    /// Cuts the power and switches it on again: `seed` decides what became of what was not synced.
    pub fn restart(&self, seed: u64) {
        let mut state = self.state();
        let mut draw = Draw { seed, drawn: 0 };
        for inode in state.inodes.values_mut() {
            inode.crash(&mut draw);
        }
        let keep = draw.policy();
        for change in std::mem::take(&mut state.renamed) {
            if keep.decide(&mut draw) {
                set_names(&mut state.durable_names, change);
            }
        }
        state.names = state.durable_names.clone();
        state.life += 1;
        state.off = false;
        state.cut_at = None;
        (state.fail_sync_at, state.fail_sync_of) = (None, None);
    }

    /// Another disk with what is durable on this one: as it would be found after a crash that kept
    /// nothing else.
    pub fn copy(&self) -> SimDisk {
        let state = self.state();
        let whole = |inode: &u64| {
            let durable = state.inodes[inode].durable.clone();
            (*inode, Inode { now: durable.clone(), durable, pending: Vec::new() })
        };
        let copied = State {
            inodes: state.durable_names.values().map(whole).collect(),
            names: state.durable_names.clone(),
            durable_names: state.durable_names.clone(),
            next_inode: state.next_inode,
            ..State::default()
        };
        SimDisk { state: Arc::new(Mutex::new(copied)) }
    }

    /// The files that there are, each with its length in bytes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        let len = |inode: &u64| state.inodes[inode].now.len() as u64;
        state.names.iter().map(|(path, inode)| (path.clone(), len(inode))).collect()
    }

    /// Flips a bit of a file, durably, as a failing disk does.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn flip(&self, path: &Path, offset: u64, bit: u8) {
        let mut state = self.state();
        let inode = state.names[path];
        let inode = state.inodes.get_mut(&inode).expect("every name has its inode");
        for bytes in [&mut inode.now, &mut inode.durable] {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 1 << bit; // What was not synced is not durable.
            }
        }
    }
}

/// A stream of random numbers.
struct Draw {
    seed: u64,
    drawn: u64,
}

/// How likely it is that something was kept: for one crash all, none, or each with a chance.
#[derive(Clone, Copy)]
struct Policy(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        mix(mix(self.seed) ^ self.drawn)
    }

    fn policy(&mut self) -> Policy {
        Policy([0, 10, 50, 90, 100][(self.next() % 5) as usize])
    }
}

impl Policy {
    fn decide(self, draw: &mut Draw) -> bool {
        draw.next() % 100 < self.0
    }
}

impl Inode {
    fn crash(&mut self, draw: &mut Draw) {
        let keep = draw.policy();
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write { offset, bytes } => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let sector_end = (offset + at) / SECTOR * SECTOR + SECTOR;
                        let end = bytes.len().min(sector_end - offset);
                        if keep.decide(draw) {
                            let bytes = bytes[at..end].to_vec();
                            Change::Write { offset: offset + at, bytes }.apply(&mut self.durable);
                        }
                        at = end;
                    }
                }
                length => {
                    if keep.decide(draw) {
                        length.apply(&mut self.durable);
                    }
                }
            }
        }
        self.now = self.durable.clone();
    }
}

fn set_names(names: &mut BTreeMap<PathBuf, u64>, change: Vec<Name>) {
    for (path, inode) in change {
        match inode {
            Some(inode) => names.insert(path, inode),
            None => names.remove(&path),
        };
    }
}

impl State {
    fn on(&self) -> io::Result<()> {
        if self.off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// To be called before each operation that changes something.
    fn operation(&mut self) -> io::Result<()> {
        self.on()?;
        self.operations += 1;
        if self.cut_at.is_some_and(|at| self.operations >= at) {
            self.off = true;
        }
        self.on()
    }

    fn name(&mut self, change: &[(&Path, Option<u64>)]) {
        let change: Vec<_> =
            change.iter().map(|(path, inode)| (path.to_path_buf(), *inode)).collect();
        set_names(&mut self.names, change.clone());
        self.renamed.push(change);
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        self.on()?;
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether a file may grow by so many bytes.
    fn grow(&mut self, growth: usize) -> io::Result<()> {
        match growth > 0 && growth as u64 > self.free() {
            true => {
                self.refused += 1;
                Err(io::ErrorKind::StorageFull.into())
            }
            false => Ok(()),
        }
    }

    /// By how many bytes all files together may grow.
    fn free(&self) -> u64 {
        let used: usize = self.names.values().map(|inode| self.inodes[inode].now.len()).sum();
        self.capacity.unwrap_or(UNLIMITED).saturating_sub(used as u64)
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        self.state().on()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        state.on()?;
        let here = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(here.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.operation()?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.next_inode += 1;
        let inode = state.next_inode;
        state.inodes.insert(inode, Inode::default());
        state.name(&[(path, Some(inode))]);
        Ok(Arc::new(SimFile { disk: self.clone(), inode, life: state.life }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state();
        let inode = state.find(path)?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode, life: state.life }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        let inode = state.find(from)?;
        state.name(&[(to, Some(inode)), (from, None)]);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        state.find(path)?;
        state.name(&[(path, None)]);
        Ok(())
    }

    fn room(&self, _dir: &Path) -> io::Result<Room> {
        let state = self.state();
        state.on()?;
        let total = state.capacity.unwrap_or(UNLIMITED);
        Ok(Room { free: state.free(), total, device: 0 })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        let in_dir = |(path, _): &Name| path.parent() == Some(dir);
        let renamed = std::mem::take(&mut state.renamed);
        let (here, elsewhere) = renamed.into_iter().partition(|change| change.iter().any(in_dir));
        let here: Vec<Vec<Name>> = here;
        state.renamed = elsewhere;
        for change in here {
            set_names(&mut state.durable_names, change);
        }
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
    life: u64,
}

impl SimFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.disk.state();
        self.alive(&state)?;
        state.operation()?;
        let len = state.inodes[&self.inode].now.len();
        let end = match &change {
            Change::Write { offset, bytes } => offset + bytes.len(),
            Change::Length(len) => *len,
        };
        state.grow(end.saturating_sub(len))?;
        let inode = state.inodes.get_mut(&self.inode).expect("inodes are kept for ever");
        change.apply(&mut inode.now);
        inode.pending.push(change);
        Ok(())
    }

    fn alive(&self, state: &State) -> io::Result<()> {
        state.on()?;
        if state.life == self.life {
            Ok(())
        } else {
            Err(io::Error::other("opened before the crash"))
        }
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let state = self.disk.state();
        self.alive(&state)?;
        Ok(state.inodes[&self.inode].now.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state();
        self.alive(&state)?;
        let offset = offset as usize;
        let found = state.inodes[&self.inode].now.get(offset..offset + into.len());
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn will_read(&self, _offset: u64, len: u64) {
        self.disk.state().told += len;
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(Change::Write { offset: offset as usize, bytes: bytes.to_vec() })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        self.alive(&state)?;
        state.operation()?;
        state.syncs += 1;
        let named = state.fail_sync_of.take_if(|inode| *inode == self.inode);
        let fails = named.is_some() || state.fail_sync_at == Some(state.syncs);
        let inode = state.inodes.get_mut(&self.inode).expect("inodes are kept for ever");
        let pending = std::mem::take(&mut inode.pending);
        if fails {
            return Err(io::Error::other("the sync failed"));
        }
        for change in pending {
            change.apply(&mut inode.durable);
        }
        Ok(())
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        self.change(Change::Length(now.max(len) as usize))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(len as usize))?;
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_part_of_the_rest() {
        let (mut lost, mut torn, mut kept) = (0, 0, 0);
        for seed in 0..50 {
            let disk = SimDisk::new();
            let (dir, path) = (Path::new("/d"), Path::new("/d/f"));
            let file = disk.create(path).unwrap();
            file.write_at(0, &[1; 100]).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(dir).unwrap();
            file.write_at(100, &[2; 4 * SECTOR]).unwrap();
            disk.restart(seed);
            assert!(file.len().is_err(), "a handle outlived the crash");
            let bytes = crate::disk::read_all(&*disk.open(path).unwrap()).unwrap();
            assert_eq!(bytes[..100], [1; 100]);
            match bytes[100..].iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                all if all == 4 * SECTOR => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 0 && torn > 0 && kept > 0, "{lost} {torn} {kept}");
    }

    #[test]
    fn a_copy_has_what_is_durable_and_stays_as_it_is() {
        let disk = SimDisk::new();
        let path = Path::new("/d/f");
        let file = disk.create(path).unwrap();
        file.write_at(0, b"old").unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.create(Path::new("/d/g")).unwrap();
        file.write_at(0, b"new").unwrap();
        let copy = disk.copy();
        file.sync_data().unwrap();
        assert_eq!(copy.files(), [(path.to_path_buf(), 3)]);
        assert_eq!(crate::disk::read_all(&*copy.open(path).unwrap()).unwrap(), b"old");
    }

    #[test]
    fn names_not_synced_may_be_lost() {
        let found = (0..20).filter(|seed| {
            let disk = SimDisk::new();
            disk.create(Path::new("/d/f")).unwrap();
            disk.restart(*seed);
            disk.open(Path::new("/d/f")).is_ok()
        });
        assert!((1..20).contains(&found.count()));
    }

    #[test]
    fn a_sync_that_fails_loses_what_can_still_be_read() {
        let disk = SimDisk::new();
        let file = disk.create(Path::new("/f")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk.fail_sync_at(1);
        file.write_at(0, b"abc").unwrap();
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(file.len().unwrap(), 3);
        disk.restart(1);
        assert_eq!(disk.open(Path::new("/f")).unwrap().len().unwrap(), 0);
    }

    #[test]
    fn a_full_disk_says_so() {
        let disk = SimDisk::new();
        disk.set_capacity(Some(10));
        let file = disk.create(Path::new("/f")).unwrap();
        file.write_at(0, b"0123456789").unwrap();
        let full = file.write_at(9, b"ab").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        file.write_at(9, b"a").unwrap();
    }
}
