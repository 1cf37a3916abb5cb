//! The directory of one server: held by one process at a time, which counts its starts.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file that is locked.
const LOCK: &str = "lock";
/// The count of starts, as text.
const INCARNATION: &str = "incarnation";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Two servers must not share a directory.
    #[error("{} is in use by another server: stop that one first", .0.display())]
    Locked(PathBuf),
    /// The disk refuses.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// For example `read`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The count of starts is damaged.
    #[error("{}: {found:?} is not a count of starts", path.display())]
    Count {
        /// Which file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

/// A directory that this process holds.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held as long as this lives: the system drops it however the process ends.
    _lock: File,
}

impl Directory {
    /// Takes the directory for this process alone.
    ///
    /// # Errors
    /// If another process holds it, or the disk refuses.
    pub fn lock(path: &Path) -> Result<Directory, DirectoryError> {
        let file = path.join(LOCK);
        let open = private(File::options().create(true).truncate(false).write(true), &file);
        Directory::held(path, open.map_err(|error| failed("open", &file, error))?)
    }

    /// The same for who only reads: nothing is made or changed, also where nothing can be.
    ///
    /// # Errors
    /// As [`Directory::lock`].
    pub fn lock_to_read(path: &Path) -> Result<Directory, DirectoryError> {
        let file = path.join(LOCK);
        let lock = match File::open(&file) {
            // Nobody has ever held it: others that read are shut out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path),
            opened => opened,
        };
        Directory::held(path, lock.map_err(|error| failed("open", &file, error))?)
    }

    fn held(path: &Path, lock: File) -> Result<Directory, DirectoryError> {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Directory { path: path.into(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::Locked(path.into())),
            Err(error) => Err(failed("lock", &path.join(LOCK), error.into())),
        }
    }

    /// Counts up the number of starts, durably: greater than ever before.
    ///
    /// # Errors
    /// If the count is damaged, or the disk refuses.
    pub fn next_incarnation(&self) -> Result<u64, DirectoryError> {
        let path = self.path.join(INCARNATION);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => "0".into(),
            read => read.map_err(|error| failed("read", &path, error))?,
        };
        let last = text.trim().parse::<u64>().ok();
        let Some(next) = last.and_then(|last| last.checked_add(1)) else {
            return Err(DirectoryError::Count { path, found: text.trim().into() });
        };
        write_durably(&path, format!("{next}\n").as_bytes())?;
        Ok(next)
    }
}

/// Replaces the content of the file at `path`, as a whole and durably. It is for its owner alone.
///
/// # Errors
/// If the disk refuses.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), DirectoryError> {
    let beside = path.with_extension("tmp");
    let write = || {
        let mut file = private(File::options().write(true).create(true).truncate(true), &beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error| failed("write", path, error))
}

/// Opens a file which, if it is made, is for its owner alone.
fn private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.mode(0o600).open(path)
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { action, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_by_one_and_counts_its_starts() {
        let root = tempfile::tempdir().unwrap();
        let held = Directory::lock(root.path()).unwrap();
        assert!(matches!(Directory::lock(root.path()), Err(DirectoryError::Locked(_))));
        assert!(matches!(Directory::lock_to_read(root.path()), Err(DirectoryError::Locked(_))));
        drop(held);
        let reads = Directory::lock_to_read(root.path()).unwrap();
        assert!(matches!(Directory::lock(root.path()), Err(DirectoryError::Locked(_))));
        drop(reads);
        let again = Directory::lock(root.path()).unwrap();
        assert_eq!((again.next_incarnation().unwrap(), again.next_incarnation().unwrap()), (1, 2));
        fs::write(root.path().join("incarnation"), "two").unwrap();
        let damaged = again.next_incarnation().unwrap_err().to_string();
        assert!(damaged.ends_with("\"two\" is not a count of starts"), "{damaged}");
        let missing = Directory::lock(&root.path().join("missing")).unwrap_err();
        assert!(matches!(missing, DirectoryError::Io { action: "open", .. }), "{missing}");
    }
}
