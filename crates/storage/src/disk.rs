//! What is asked of a disk. [`crate::RealDisk`] is the real one, [`crate::SimDisk`] is for tests.
//!
//! Nothing is durable before the sync that says so: the content of a file after
//! [`DiskFile::sync_data`], its name after [`Disk::sync_dir`] of its directory. Until then a crash
//! may keep any part of it, in any order.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file system, or a part of one.
pub trait Disk: Send + Sync {
    /// Makes the directory and those above it, durably, unless it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names of the files in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes an empty file; fails if the name exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that exists, to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, in place of the one that has the name `to`, if any.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes names durable: all that was created, renamed and removed in `dir` until now.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// How much room there is for files in a directory.
    fn room(&self, dir: &Path) -> io::Result<Room>;
}

/// How much room a file system has, for this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Differs between file systems of one machine, and mostly between those of different ones.
    pub device: u64,
}

/// An open file; its methods may be called from several threads at once.
pub trait DiskFile: Send + Sync {
    /// How long it is, in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `into` with the bytes from `offset` on; fails if there are fewer.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// So many bytes from `offset` on will be read soon: the disk may begin now, and reads no
    /// others for that. Nobody waits for it, and it may do nothing.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes`; the file grows if they reach past its end.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was written, and the length. If it fails, nobody knows which bytes were
    /// kept, and a second sync may succeed without writing them.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves room up to `len` bytes: the file is then that long, and zeros where it grew.
    fn preallocate(&self, len: u64) -> io::Result<()>;

    /// Makes the file `len` bytes long, durably.
    fn truncate(&self, len: u64) -> io::Result<()>;
}

/// The whole content of a file.
///
/// # Errors
/// If it cannot be read.
pub fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Writes a small file so that after a crash it is there whole or not at all (or as it was before).
///
/// # Errors
/// If the disk refuses; `path` is then as it was.
pub fn write_whole(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = path.with_extension("tmp");
    let dir = path.parent().unwrap_or(Path::new(""));
    if disk.open(&written).is_ok() {
        disk.remove(&written)?; // Left by a crash.
    }
    let file = disk.create(&written)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(&written, path)?;
    disk.sync_dir(dir)
}
