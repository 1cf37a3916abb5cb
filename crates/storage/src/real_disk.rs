//! The real disk: [`Disk`] over the operating system's files.

use crate::{Disk, DiskFile, Room};
use meridian_core::mix;
use rustix::fs::{Advice, FallocateFlags};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So much the kernel is told at a time that it will be read, in bytes. Of more it reads as much as
/// the disk takes in one request, and this any disk does.
const TOLD_LEN: u64 = 128 << 10;

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// The same, only to be read, also where nothing can be written: what would change a file or a
/// directory is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnlyDisk;

/// A number that nobody can guess, for the salt of a new directory.
pub fn random_salt() -> u64 {
    RandomState::new().hash_one("salt")
}

struct RealFile(File);

fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let made: Vec<PathBuf> = dir.ancestors().take_while(missing).map(Path::to_owned).collect();
        std::fs::create_dir_all(dir)?;
        for made in made {
            sync_dir(made.parent().unwrap_or(Path::new("")))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_dir(dir)
    }

    fn room(&self, dir: &Path) -> io::Result<Room> {
        let of = rustix::fs::statvfs(dir)?;
        let device = std::fs::metadata(dir)?.dev();
        // Numbers of devices are the same on many machines.
        let machine = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let machine = machine.iter().fold(0, |hash, byte| mix(hash ^ u64::from(*byte)));
        Ok(Room {
            free: of.f_bavail.saturating_mul(of.f_frsize),
            total: of.f_blocks.saturating_mul(of.f_frsize),
            device: mix(machine ^ device),
        })
    }
}

fn refuse<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for ReadOnlyDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        refuse()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn create(&self, _path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        refuse()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(File::open(path)?))) // The system refuses to write to it.
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refuse()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refuse()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refuse()
    }

    fn room(&self, dir: &Path) -> io::Result<Room> {
        RealDisk.room(dir)
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn will_read(&self, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let next = (at - at % TOLD_LEN).saturating_add(TOLD_LEN).min(end);
            let told =
                rustix::fs::fadvise(&self.0, at, NonZeroU64::new(next - at), Advice::WillNeed);
            if told.is_err() {
                return; // A file system that takes no advice.
            }
            at = next;
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if now >= len {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), now, len - now) {
            // A file system that cannot reserve: the file is long enough, the room may be missing.
            Err(rustix::io::Errno::OPNOTSUPP) => self.0.set_len(len),
            result => Ok(result?),
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.0.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_written_read_and_renamed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        RealDisk.create_dir(&dir).unwrap();
        RealDisk.create_dir(&dir).unwrap();
        let (x, y) = (dir.join("x"), dir.join("y"));
        let file = RealDisk.create(&x).unwrap();
        assert!(RealDisk.create(&x).is_err());
        file.write_at(10, b"meridian").unwrap();
        file.preallocate(1 << 20).unwrap();
        file.preallocate(1).unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
        file.will_read(100, 1 << 19);
        file.will_read(u64::MAX - 1, u64::MAX);
        let mut read = [1; 20];
        file.read_at(0, &mut read).unwrap();
        assert_eq!(&read, b"\0\0\0\0\0\0\0\0\0\0meridian\0\0");
        file.truncate(12).unwrap();
        assert!(file.read_at(0, &mut read).is_err());
        RealDisk.rename(&x, &y).unwrap();
        RealDisk.sync_dir(&dir).unwrap();
        assert_eq!(RealDisk.list(&dir).unwrap(), ["y"]);
        RealDisk.remove(&y).unwrap();
        assert!(RealDisk.open(&y).is_err());
    }
    #[test]
    fn what_is_only_to_be_read_is_not_changed() {
        let temp = tempfile::tempdir().unwrap();
        let (path, other) = (temp.path().join("x"), temp.path().join("y"));
        std::fs::write(&path, b"meridian").unwrap();
        let file = ReadOnlyDisk.open(&path).unwrap();
        let mut read = [0; 8];
        file.read_at(0, &mut read).unwrap();
        assert_eq!((&read, file.len().unwrap()), (b"meridian", 8));
        assert!(file.write_at(0, b"M").is_err() && file.truncate(0).is_err());
        assert!(file.preallocate(100).is_err());
        assert!(ReadOnlyDisk.create(&other).is_err() && ReadOnlyDisk.remove(&path).is_err());
        assert!(ReadOnlyDisk.rename(&path, &other).is_err());
        assert!(ReadOnlyDisk.create_dir(&other).is_err());
        assert!(ReadOnlyDisk.sync_dir(temp.path()).is_err());
        assert_eq!(ReadOnlyDisk.list(temp.path()).unwrap(), ["x"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"meridian");
    }
}
