//! The files of a log: their names, how they are made and listed.

use super::WalError;
use crate::disk::read_all;
use crate::{Disk, DiskFile};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of a log.
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    salt: u64,
    segment_bytes: u64,
}

/// A segment that can be written to.
pub(super) struct Segment {
    pub index: u64,
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
}

/// What lies in the directory, by index, sorted.
pub(super) struct Listing {
    pub segments: Vec<u64>,
    pub checkpoints: Vec<u64>,
}

/// Turns an error of the disk into one that says what was tried.
pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> WalError + 'a {
    move |source| WalError::Io { action, path: path.to_owned(), source }
}

impl Files {
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, salt: u64, segment_bytes: u64) -> Self {
        Files { disk, dir: dir.to_owned(), salt, segment_bytes }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn segment_path(&self, index: u64) -> PathBuf {
        self.dir.join(format!("wal-{index:016x}"))
    }

    pub fn checkpoint_path(&self, index: u64) -> PathBuf {
        self.dir.join(format!("checkpoint-{index:016x}"))
    }

    /// The name of a segment inside its records.
    pub fn segment_name(&self, index: u64) -> u64 {
        self.salt.wrapping_add(index)
    }

    /// The name of a checkpoint inside its records: never that of a segment.
    pub fn checkpoint_name(&self, index: u64) -> u64 {
        self.salt.wrapping_add(index) ^ 1 << 63
    }

    pub fn list(&self) -> Result<Listing, WalError> {
        let names = self.disk.list(&self.dir).map_err(failed("list", &self.dir))?;
        let of = |prefix: &str| {
            let index = |name: &String| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
            names.iter().filter_map(index).collect()
        };
        Ok(Listing { segments: of("wal-"), checkpoints: of("checkpoint-") })
    }

    pub fn read(&self, path: &Path) -> Result<Bytes, WalError> {
        let file = self.open(path)?;
        Ok(read_all(&*file).map_err(failed("read", path))?.into())
    }

    pub fn open(&self, path: &Path) -> Result<Arc<dyn DiskFile>, WalError> {
        self.disk.open(path).map_err(failed("open", path))
    }

    pub fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>, WalError> {
        self.disk.create(path).map_err(failed("create", path))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), WalError> {
        self.disk.rename(from, to).map_err(failed("rename", from))
    }

    pub fn remove(&self, path: &Path) -> Result<(), WalError> {
        self.disk.remove(path).map_err(failed("remove", path))
    }

    pub fn sync_dir(&self) -> Result<(), WalError> {
        self.disk.sync_dir(&self.dir).map_err(failed("sync", &self.dir))
    }

    /// Makes an empty segment of full length, durable with its name.
    pub fn make_segment(&self, index: u64) -> Result<Segment, WalError> {
        let path = self.segment_path(index);
        let file = self.create(&path)?;
        let made = file.preallocate(self.segment_bytes).and_then(|()| file.sync_data());
        if let Err(source) = made {
            self.remove(&path)?;
            return Err(failed("reserve room for", &path)(source));
        }
        self.sync_dir()?;
        Ok(Segment { index, path, file })
    }

    /// Removes the segments and checkpoints before those of `index`.
    pub fn remove_before(&self, index: u64) -> Result<(), WalError> {
        let listing = self.list()?;
        for old in listing.segments.into_iter().filter(|old| *old < index) {
            self.remove(&self.segment_path(old))?;
        }
        for old in listing.checkpoints.into_iter().filter(|old| *old < index) {
            self.remove(&self.checkpoint_path(old))?;
        }
        self.sync_dir()
    }
}
