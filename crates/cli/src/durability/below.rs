//! `meridian fs durability DIR MODE --recursive`: what is below a directory already gets its mode.
//!
//! One thing after the other, through the mount. A directory has the mode before it is read: so
//! what is made in it meanwhile has that, too, and only what is moved there meanwhile may be
//! missed. What has the mode is not set again: whoever interrupts this, and runs it again, goes on.

use super::{DURABILITY, Wanted, read, refusal};
use anyhow::Context;
use meridian_terminal::note;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::fmt;
use std::fs::{DirEntry, ReadDir};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is told how far it is.
const TOLD: Duration = Duration::from_secs(1);
/// So many of those that were refused are named.
const NAMED_MAX: u64 = 10;

/// How much was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Below {
    /// Directories that were given the mode.
    directories: u64,
    /// Files that were.
    files: u64,
    /// Directories and files that had it.
    had: u64,
    /// Those that are somebody else's, who may not be told.
    pub refused: u64,
}

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Below { directories, files, had, refused } = self;
        write!(f, "{directories} directories and {files} files below set, {had} had it")?;
        if *refused > 0 { write!(f, ", {refused} refused") } else { Ok(()) }
    }
}

/// Gives the mode to all directories and files below `dir`, which has it. Not to what symbolic
/// links lead to, nor in other file systems. Memory is bounded: it grows with how deep the tree is,
/// as a directory of each level is open.
///
/// # Errors
/// If it must stop: nodes do not answer, a directory cannot be read. What is set stays set.
pub fn set(dir: &Path, wanted: Wanted) -> anyhow::Result<Below> {
    let cannot = || format!("cannot read {}", dir.display());
    let device = dir.metadata().with_context(cannot)?.dev();
    let (below, told) = (Below::default(), Instant::now());
    let mut walk = Walk { wanted, device, below, told };
    let mut open = vec![dir.read_dir().with_context(cannot)?];
    while let Some(entries) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        open.extend(walk.visit(&entry.with_context(cannot)?)?);
        if walk.told.elapsed() >= TOLD {
            note!("{}: {}", dir.display(), walk.below);
            walk.told = Instant::now();
        }
    }
    Ok(walk.below)
}

struct Walk {
    wanted: Wanted,
    /// That of the mount.
    device: u64,
    below: Below,
    told: Instant,
}

/// What has become of one.
enum Visited {
    Set,
    Had,
    /// It is not there any more, or cannot have a mode, or is refused.
    Passed,
}

impl Walk {
    /// The entries of what is there, if it is a directory.
    fn visit(&mut self, entry: &DirEntry) -> anyhow::Result<Option<ReadDir>> {
        let path = entry.path();
        let kind = entry.file_type().map(Some).or_else(gone);
        let kind = kind.with_context(|| format!("cannot look at {}", path.display()))?;
        let is_directory = kind.is_some_and(|kind| kind.is_dir());
        if !is_directory && !kind.is_some_and(|kind| kind.is_file()) {
            return Ok(None);
        }
        if is_directory && entry.metadata().is_ok_and(|found| found.dev() != self.device) {
            return Ok(None);
        }
        match set_one(&path, self.wanted).or_else(|error| self.below.on_error(&path, error))? {
            Visited::Set if is_directory => self.below.directories += 1,
            Visited::Set => self.below.files += 1,
            Visited::Had => self.below.had += 1,
            Visited::Passed => {}
        }
        if !is_directory {
            return Ok(None);
        }
        let entries = path.read_dir().map(Some).or_else(gone);
        entries.with_context(|| format!("cannot read {}", path.display()))
    }
}

fn gone<T>(error: io::Error) -> io::Result<Option<T>> {
    if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) }
}

/// Symbolic links are not followed, whatever was put there meanwhile.
fn set_one(path: &Path, wanted: Wanted) -> Result<Visited, Errno> {
    let mut value = [0; 64];
    let length = rustix::fs::lgetxattr(path, DURABILITY, &mut value)?;
    let own = std::str::from_utf8(&value[..length]).ok().and_then(read).map(|(own, _)| own);
    if own == Some(wanted.0) {
        return Ok(Visited::Had);
    }
    let value = wanted.to_string();
    rustix::fs::lsetxattr(path, DURABILITY, value.as_bytes(), XattrFlags::empty())?;
    Ok(Visited::Set)
}

impl Below {
    /// What is refused to this user, or gone, keeps the rest from nothing.
    fn on_error(&mut self, path: &Path, error: Errno) -> anyhow::Result<Visited> {
        match error {
            Errno::NOENT => {}
            Errno::PERM | Errno::ACCESS => {
                self.refused += 1;
                if self.refused <= NAMED_MAX {
                    note!("{}", refusal(path, error));
                }
            }
            error => {
                let stopped = format!("it stopped ({self}): run it again to go on");
                return Err(refusal(path, error).context(stopped));
            }
        }
        Ok(Visited::Passed)
    }
}
