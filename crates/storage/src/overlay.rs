//! A disk over another, which stays as it is: what is written is kept in memory, and goes with it.
//!
//! For who looks at data that must not change, by code that repairs what it opens: the log cuts a
//! torn tail, the blocks write theirs once more.
//!
//! Invariant O1: of the disk beneath, files are listed, opened and read, and nothing else is done.

use crate::{Disk, DiskFile, Room};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// See the module's documentation.
pub struct OverlayDisk {
    beneath: Arc<dyn Disk>,
    files: Mutex<BTreeMap<PathBuf, Option<Arc<OverlayFile>>>>,
}

/// A file that was opened or made here. One that is written to is copied into memory before, all of
/// it.
struct OverlayFile(RwLock<Content>);

enum Content {
    Beneath(Arc<dyn DiskFile>),
    Memory(Vec<u8>),
}

impl OverlayDisk {
    /// Over `beneath`.
    pub fn new(beneath: Arc<dyn Disk>) -> OverlayDisk {
        OverlayDisk { beneath, files: Mutex::default() }
    }

    /// What was opened or made, by its name; `None` is a file that was removed.
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Arc<OverlayFile>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, path: &Path) -> io::Result<Arc<OverlayFile>> {
        let mut files = self.files();
        match files.get(path) {
            Some(Some(file)) => Ok(file.clone()),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => {
                let content = Content::Beneath(self.beneath.open(path)?);
                let file = Arc::new(OverlayFile(RwLock::new(content)));
                files.insert(path.to_owned(), Some(file.clone()));
                Ok(file)
            }
        }
    }
}

impl Disk for OverlayDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(()) // Where none is, nothing is listed, and files are made in memory.
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = match self.beneath.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed?,
        };
        let files = self.files();
        let within = files.iter().filter(|(path, _)| path.parent() == Some(dir));
        for (path, file) in within {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            names.retain(|other| other != name);
            names.extend(file.is_some().then(|| name.to_string()));
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        match self.find(path) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = Arc::new(OverlayFile(RwLock::new(Content::Memory(Vec::new()))));
        self.files().insert(path.to_owned(), Some(file.clone()));
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find(path)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.find(from)?;
        let mut files = self.files();
        files.insert(from.to_owned(), None);
        files.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        self.files().insert(path.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn room(&self, dir: &Path) -> io::Result<Room> {
        self.beneath.room(dir)
    }
}

impl OverlayFile {
    /// Changes the bytes, of which there are at least `len` then.
    fn change(&self, len: u64, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut content = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = match &mut *content {
            Content::Beneath(file) => crate::disk::read_all(&**file)?,
            Content::Memory(bytes) => std::mem::take(bytes),
        };
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        change(&mut bytes);
        *content = Content::Memory(bytes);
        Ok(())
    }

    fn read<T>(&self, read: impl FnOnce(&Content) -> io::Result<T>) -> io::Result<T> {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DiskFile for OverlayFile {
    fn len(&self) -> io::Result<u64> {
        self.read(|content| match content {
            Content::Beneath(file) => file.len(),
            Content::Memory(bytes) => Ok(bytes.len() as u64),
        })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read(|content| match content {
            Content::Beneath(file) => file.read_at(offset, into),
            Content::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(into.len());
                let found = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                into.copy_from_slice(found);
                Ok(())
            }
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.change(end, |all| {
            let end = end as usize;
            all[end - bytes.len()..end].copy_from_slice(bytes);
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        self.change(len, |_| {})
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(len, |all| all.truncate(len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimDisk;
    use crate::disk::read_all;
    use crate::wal::{Log, Options, Recovered};
    use bytes::Bytes;

    const DIR: &str = "/data";

    /// All that lies in the directory.
    fn contents(disk: &dyn Disk) -> BTreeMap<String, Vec<u8>> {
        let read = |name: &String| read_all(&*disk.open(&Path::new(DIR).join(name)).unwrap());
        let names = disk.list(Path::new(DIR)).unwrap();
        names.into_iter().map(|name| (name.clone(), read(&name).unwrap())).collect()
    }

    #[test]
    fn what_is_written_over_a_disk_is_seen_there_alone() {
        let disk = SimDisk::new();
        let path = |name: &str| Path::new(DIR).join(name);
        for name in ["kept", "written", "removed", "renamed"] {
            disk.create(&path(name)).unwrap().write_at(0, name.as_bytes()).unwrap();
        }
        let before = contents(&disk);
        let over = OverlayDisk::new(Arc::new(disk.clone()));
        assert_eq!(contents(&over), before);
        over.open(&path("written")).unwrap().write_at(9, b"!").unwrap();
        over.remove(&path("removed")).unwrap();
        over.rename(&path("renamed"), &path("new name")).unwrap();
        over.create(&path("made")).unwrap().preallocate(2).unwrap();
        assert!(over.create(&path("kept")).is_err() && over.create(&path("made")).is_err());
        assert!(over.open(&path("removed")).is_err() && over.remove(&path("renamed")).is_err());
        over.open(&path("made")).unwrap().truncate(1).unwrap();
        let seen = contents(&over);
        let names: Vec<_> = seen.keys().map(String::as_str).collect();
        assert_eq!(names, ["kept", "made", "new name", "written"]);
        assert_eq!(
            (&seen["made"][..], &seen["new name"][..], &seen["written"][..]),
            (&b"\0"[..], &b"renamed"[..], &b"written\0\0!"[..])
        );
        assert!(over.open(&path("made")).unwrap().read_at(1, &mut [0]).is_err());
        over.create(&path("removed")).unwrap();
        assert_eq!(contents(&disk), before);
    }

    /// A start would cut the tail, and remove the segment that was made ready.
    #[test]
    fn a_log_with_a_torn_tail_is_read_as_at_a_start_and_stays_as_it_is() {
        let disk = SimDisk::new();
        let options = Options { segment_bytes: 4096, salt: 7 };
        let open = || Log::open(Arc::new(disk.clone()), Path::new(DIR), options).unwrap();
        let (_, mut log) = open();
        let records: Vec<_> = (0..100u8).map(|at| Bytes::from(vec![at; 100])).collect();
        records.iter().for_each(|record| log.append(record).unwrap());
        log.sync().unwrap();
        drop(log);
        let name = disk.list(Path::new(DIR)).unwrap().pop().unwrap();
        let last = disk.open(&Path::new(DIR).join(name)).unwrap();
        let written = read_all(&*last).unwrap();
        let end = written.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        last.write_at(end, &[0x55; 30]).unwrap();
        let before = contents(&disk);
        let over = Arc::new(OverlayDisk::new(Arc::new(disk.clone())));
        let read = Recovered::read(over, Path::new(DIR)).unwrap();
        assert_eq!((&read.records, read.salt), (&records, 7));
        assert!(read.torn.is_some());
        assert_eq!(contents(&disk), before);
        let (opened, _log) = open();
        assert_eq!((opened.records, opened.torn), (records, read.torn));
        assert_ne!(contents(&disk), before);
    }
}
