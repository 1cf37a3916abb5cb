//! The file `FORMAT`: of which kind and version a directory of data is, and its salt.
//!
//! The salt, drawn at random when the directory is made, is added to the names of segments inside
//! their records. So nobody who does not see the disk can store bytes that a reader would take for
//! a record of this directory, and no record of another directory is taken for one.

use crate::disk::{self, Disk};
use std::io;
use std::path::{Path, PathBuf};

/// The file's name.
pub const FILE: &str = "FORMAT";

/// Why a directory of data cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The disk refuses.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Written by another version of the program, or not by this program.
    #[error(
        "{} says {found:?}, this program reads {expected:?}: go on with the version that wrote \
         it, or begin anew in another directory and copy the files there, from mount to mount",
        path.display()
    )]
    Other {
        /// The file `FORMAT`.
        path: PathBuf,
        /// Its first line.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// There is data, but nothing says of which version.
    #[error("{} is missing, though its directory holds data ({})", path.display(), found)]
    Missing {
        /// The file `FORMAT`.
        path: PathBuf,
        /// A file that is there.
        found: String,
    },
}

/// Reads the salt of the directory `dir` of this `kind` and `version`; writes the file, with the
/// salt `fresh`, if the directory is new. If it is of this version, removes what a crash left half
/// written: files whose names end in `.tmp`.
///
/// # Errors
/// If the disk refuses, or the directory is not one of this kind and version.
pub fn open(
    disk: &dyn Disk,
    dir: &Path,
    kind: &str,
    version: u32,
    fresh: u64,
) -> Result<u64, FormatError> {
    let path = dir.join(FILE);
    let failed = |action| {
        let path = path.clone();
        move |source| FormatError::Io { action, path, source }
    };
    disk.create_dir(dir).map_err(failed("make the directory of"))?;
    let names = disk.list(dir).map_err(failed("list the directory of"))?;
    let expected = format!("meridian {kind} {version}");
    if !names.iter().any(|name| name == FILE) {
        // A crash while the directory was made may have left this file under its temporary name.
        if let Some(found) = names.into_iter().find(|name| !name.starts_with(FILE)) {
            return Err(FormatError::Missing { path, found });
        }
        let text = format!("{expected}\nsalt {fresh:016x}\n");
        disk::write_whole(disk, &path, text.as_bytes()).map_err(failed("write"))?;
        return Ok(fresh);
    }
    let file = disk.open(&path).map_err(failed("open"))?;
    let bytes = disk::read_all(&*file).map_err(failed("read"))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let salt = lines.next().and_then(|line| line.strip_prefix("salt "));
    let salt = salt.and_then(|salt| u64::from_str_radix(salt, 16).ok());
    let Some(salt) = salt.filter(|_| first == expected) else {
        let found = first.chars().take(80).collect();
        return Err(FormatError::Other { path, found, expected });
    };
    for left in names.iter().filter(|name| name.ends_with(".tmp")) {
        disk.remove(&dir.join(left)).map_err(failed("tidy the directory of"))?;
    }
    Ok(salt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimDisk;

    const DIR: &str = "/data";

    fn open_as(disk: &SimDisk, version: u32, fresh: u64) -> Result<u64, FormatError> {
        open(disk, Path::new(DIR), "test", version, fresh)
    }

    #[test]
    fn the_salt_is_kept_and_other_versions_are_refused() {
        let disk = SimDisk::new();
        assert_eq!(open_as(&disk, 1, 7).unwrap(), 7);
        disk.restart(1);
        assert_eq!(open_as(&disk, 1, 8).unwrap(), 7);
        let refused = open_as(&disk, 2, 8).unwrap_err().to_string();
        assert_eq!(
            refused,
            "/data/FORMAT says \"meridian test 1\", this program reads \"meridian test 2\": go on \
             with the version that wrote it, or begin anew in another directory and copy the \
             files there, from mount to mount"
        );
    }

    #[test]
    fn data_without_a_format_is_refused() {
        let disk = SimDisk::new();
        disk.create(&Path::new(DIR).join("segment")).unwrap();
        assert!(matches!(open_as(&disk, 1, 7), Err(FormatError::Missing { .. })));
    }

    #[test]
    fn a_crash_while_it_is_made_does_no_harm() {
        for cut in 1.. {
            let disk = SimDisk::new();
            disk.cut_power_at(cut);
            let opened = open_as(&disk, 1, 7);
            disk.restart(cut);
            let again = open_as(&disk, 1, 8).unwrap();
            if let Ok(salt) = opened {
                assert_eq!(salt, again);
                break;
            }
        }
    }
}
