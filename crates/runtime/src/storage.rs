//! Where a member keeps its records: nowhere, or in a directory.
//!
//! The directory holds `lock`, `owner` (whose it is, and a name of its own, as text), `incarnation` (a count of starts, as text)
//! and the log in `wal`.

use crate::application::{Application, Networked};
use crate::error::MemberError;
use crate::journal;
use crate::logged::{Logged, Pieces};
use crate::store::Store;
use meridian_core::Endpoint;
use meridian_storage::Disk;
use meridian_storage::real_disk::random_salt;
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;

/// Where a member keeps its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Nowhere: what is persisted counts as durable at once. A member that ends has lost its memory, and
    /// the others refuse to speak with another one of its name: it could break what it has promised.
    Memory,
    /// In a directory. A member that is started on it again goes on where it was.
    Directory {
        /// Which; it is made if it is not there.
        path: PathBuf,
        /// A log that grew by so many bytes is replaced by a checkpoint; see [`crate::Member::keep`].
        checkpoint_bytes: u64,
    },
    /// In a log in a directory that its owner has locked, and whose starts its owner counts.
    Log {
        /// Where the log is.
        path: PathBuf,
        /// Counts the starts; greater after each.
        incarnation: u64,
        /// A log that grew by so many bytes is replaced by a checkpoint.
        checkpoint_bytes: u64,
    },
}

impl Storage {
    /// In this directory, with a log that is read in a second or two.
    pub fn directory(path: impl Into<PathBuf>) -> Storage {
        Storage::Directory { path: path.into(), checkpoint_bytes: 64 << 20 }
    }
}

/// Whose directory it is.
pub(crate) struct Owner<'a, I> {
    pub(crate) cluster: &'a str,
    pub(crate) me: I,
    pub(crate) kind: &'a str,
}

impl<I: Endpoint> fmt::Display for Owner<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of cluster {:?}", self.me, self.cluster)?;
        if self.kind.is_empty() { Ok(()) } else { write!(f, " with {}", self.kind) }
    }
}

/// What was opened.
pub(crate) struct Opened<P: Networked> {
    pub(crate) store: Option<Store<P>>,
    /// Counts its starts, if it has a directory.
    pub(crate) incarnation: u64,
    /// Names the directory: one that was emptied has another name.
    pub(crate) memory: u64,
}

/// Opens what a member keeps and replays it.
pub(crate) fn open<P: Networked, A: Application<P>>(
    (storage, disk): (Storage, Arc<dyn Disk>),
    owner: &Owner<'_, P::Peer>,
    wake: &Arc<Notify>,
    process: &mut P,
    application: &mut A,
) -> Result<Opened<P>, MemberError> {
    let (dir, lock, incarnation, memory, checkpoint_bytes) = match storage {
        Storage::Memory => return Ok(Opened { store: None, incarnation: 0, memory: 0 }),
        Storage::Directory { path, checkpoint_bytes } => {
            let (lock, incarnation, memory) = begin(&path, owner)
                .map_err(|error| MemberError::Log(format!("{}: {error}", path.display())))?;
            (path.join("wal"), Some(lock), incarnation, memory, checkpoint_bytes)
        }
        Storage::Log { path, incarnation, checkpoint_bytes } => {
            (path, None, incarnation, 0, checkpoint_bytes)
        }
    };
    let waker = wake.clone();
    let opened = journal::open(disk, &dir, Arc::new(move || waker.notify_one()))
        .map_err(|error| MemberError::Log(error.to_string()))?;
    let mut pieces = Pieces::default();
    for (at, record) in opened.records.iter().enumerate() {
        let record = pieces.join(record).map_err(|error| {
            let (dir, number, why) = (dir.clone(), at as u64 + 1, error.to_string());
            MemberError::Record { dir, number, why }
        })?;
        match record {
            Some(Logged::Process(record)) => application.replay(process, record),
            Some(Logged::Application(state)) => application.restore(state),
            // The others follow, unless the log ends here: then what they say was not durable.
            Some(Logged::Piece { .. }) | None => {}
        }
    }
    let store = Store::new(opened.journal, lock, checkpoint_bytes)?;
    Ok(Opened { store: Some(store), incarnation, memory })
}

/// Locks the directory, says or checks whose it is, and counts the start.
fn begin<I: Endpoint>(dir: &Path, owner: &Owner<'_, I>) -> io::Result<(File, u64, u64)> {
    fs::create_dir_all(dir)?;
    let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::other("is in use by another member"))?;
    let path = dir.join("incarnation");
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u64>().map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let incarnation = last + 1;
    let memory = claim(dir, owner, last > 0)?;
    write(&path, &incarnation.to_string())?;
    File::open(dir)?.sync_all()?;
    Ok((lock, incarnation, memory))
}

/// Refuses a directory of another owner; tells the directory's name.
fn claim<I: Endpoint>(dir: &Path, owner: &Owner<'_, I>, used: bool) -> io::Result<u64> {
    let (path, owner) = (dir.join("owner"), owner.to_string());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // One that was used before this file was written is taken on its word.
            let memory = if used { 0 } else { random_salt() };
            write(&path, &format!("{owner}\n{memory:x}"))?;
            return Ok(memory);
        }
        Err(error) => return Err(error),
    };
    let (found, memory) = text.trim_end().rsplit_once('\n').unwrap_or((text.trim_end(), "0"));
    if found != owner {
        return Err(io::Error::other(format!("is the directory of {found}, not of {owner}")));
    }
    u64::from_str_radix(memory, 16).map_err(io::Error::other)
}

/// Writes a file as a whole or not at all, once its directory is synced.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("tmp");
    let mut file = File::create(&beside)?;
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
