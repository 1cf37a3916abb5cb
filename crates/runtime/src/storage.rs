//! Where a member keeps its records: nowhere, or in a directory.
//!
//! The directory holds `lock`, `owner` (whose it is, as text), `incarnation` (a count of starts, as
//! text) and the log in `wal`.

use crate::application::{Application, Networked};
use crate::directory::{Directory, DirectoryError, write_durably};
use crate::error::MemberError;
use crate::journal;
use crate::logged::{Logged, Pieces};
use crate::store::Store;
use bytes::Bytes;
use meridian_core::Endpoint;
use meridian_core::standing::{Acquaintances, Standing, Start};
use meridian_storage::Disk;
use meridian_storage::real_disk::random_salt;
use meridian_storage::wal::Recovered;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tokio::sync::Notify;

/// Where a member keeps its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Nowhere: what is persisted counts as durable at once. A member that ends has lost its
    /// memory, and the others refuse to speak with another one of its name: it could break what it
    /// has promised.
    Memory,
    /// In a directory. A member that is started on it again goes on where it was.
    Directory {
        /// Which; it is made if it is not there.
        path: PathBuf,
        /// A log that grew by so many bytes, and by as many as the last checkpoint has, is replaced
        /// by a checkpoint; see [`crate::Member::keep`].
        checkpoint_bytes: u64,
    },
    /// In a log in a directory that its owner has locked, and whose starts its owner counts.
    Log {
        /// Where the log is.
        path: PathBuf,
        /// Counts the starts; greater after each.
        incarnation: u64,
        /// The same.
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
    /// How far its memory goes, if it has any.
    pub(crate) standing: Standing,
    /// What it remembers of others.
    pub(crate) acquaintances: Acquaintances<P::Peer>,
    /// All its starts, this one last.
    pub(crate) starts: Vec<Start>,
}

/// So many starts are remembered: whoever was away for more is not asked for.
const STARTS_MAX: usize = 1000;

/// Opens what a member keeps and replays it.
pub(crate) fn open<P: Networked, A: Application<P>>(
    (storage, disk): (Storage, Arc<dyn Disk>),
    owner: &Owner<'_, P::Peer>,
    wake: &Arc<Notify>,
    process: &mut P,
    application: &mut A,
) -> Result<Opened<P>, MemberError> {
    let (mut acquaintances, mut starts) = (Acquaintances::default(), Vec::new());
    let (dir, lock, incarnation, checkpoint_bytes) = match storage {
        Storage::Memory => {
            let standing = Standing::default();
            return Ok(Opened { store: None, standing, acquaintances, starts });
        }
        Storage::Directory { path, checkpoint_bytes } => {
            let (lock, incarnation) = begin(&path, owner)?;
            (path.join("wal"), Some(lock), incarnation, checkpoint_bytes)
        }
        Storage::Log { path, incarnation, checkpoint_bytes } => {
            (path, None, incarnation, checkpoint_bytes)
        }
    };
    let (waker, (says, durable)) = (wake.clone(), sync_channel(1));
    let wake = move || {
        let _ = says.try_send(()); // One that waits is enough, and only at the start.
        waker.notify_one();
    };
    let opened = journal::open(disk, &dir, Arc::new(wake))
        .map_err(|error| MemberError::Log(error.to_string()))?;
    each::<P>(&dir, &opened.records, |record| match record {
        Logged::Process(record) => application.replay(process, record),
        Logged::Application(state) => application.restore(state),
        Logged::Known(known) => acquaintances.restore(known),
        Logged::Starts(written) => starts = written,
        Logged::Piece { .. } => {}
    })?;
    let mut store = Store::new(opened.journal, lock, checkpoint_bytes)?;
    let (mark, began) = (random_salt(), opened.logged);
    starts.push(Start { incarnation, mark, began });
    starts.drain(..starts.len().saturating_sub(STARTS_MAX));
    store.begin(starts.clone(), &durable)?;
    let standing = Standing { disk: opened.name, incarnation, mark, began, logged: began };
    Ok(Opened { store: Some(store), standing, acquaintances, starts })
}

/// Gives each record of the log in `dir`, whole. What its last pieces say was not durable if the
/// others do not follow.
fn each<P: Networked>(
    dir: &Path,
    written: &[Bytes],
    mut take: impl FnMut(Logged<P::Record, P::Peer>),
) -> Result<(), MemberError> {
    let mut pieces = Pieces::default();
    for (at, record) in written.iter().enumerate() {
        let record = pieces.join::<_, P::Peer>(record).map_err(|error| {
            let (number, why) = (at as u64 + 1, error.to_string());
            MemberError::Record { dir: dir.to_owned(), number, why }
        })?;
        record.into_iter().for_each(&mut take);
    }
    Ok(())
}

/// Gives each record of a process that the log in `dir` holds, in order, as at a start: replayed,
/// they make the process what it was. No start is counted. On `disk` it repairs what a crash has
/// left at the end: see [`Recovered::read`].
///
/// # Errors
/// If the disk refuses, what lies there is damaged, or is none of this process's.
pub fn read<P: Networked>(
    disk: Arc<dyn Disk>,
    dir: &Path,
    mut take: impl FnMut(P::Record),
) -> Result<(), MemberError> {
    let recovered = Recovered::read(disk, dir);
    let Recovered { checkpoint, records, .. } =
        recovered.map_err(|error| MemberError::Log(journal::describe(&error)))?;
    let written: Vec<Bytes> = checkpoint.into_iter().chain(records).collect();
    each::<P>(dir, &written, |record| match record {
        Logged::Process(record) => take(record),
        Logged::Application(_) | Logged::Known(_) | Logged::Starts(_) | Logged::Piece { .. } => {}
    })
}

/// Locks the directory, says or checks whose it is, and counts the start.
fn begin<I: Endpoint>(dir: &Path, owner: &Owner<'_, I>) -> Result<(Directory, u64), MemberError> {
    let io = |error: io::Error| MemberError::Log(format!("{}: {error}", dir.display()));
    let used = |error: DirectoryError| MemberError::Log(error.to_string());
    fs::create_dir_all(dir).map_err(io)?;
    let held = Directory::lock(dir).map_err(used)?;
    claim(dir, owner)?;
    let incarnation = held.next_incarnation().map_err(used)?;
    Ok((held, incarnation))
}

/// Refuses a directory of another owner.
fn claim<I: Endpoint>(dir: &Path, owner: &Owner<'_, I>) -> Result<(), MemberError> {
    let (path, owner) = (dir.join("owner"), owner.to_string());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let written = write_durably(&path, format!("{owner}\n").as_bytes());
            return written.map_err(|error| MemberError::Log(error.to_string()));
        }
        Err(error) => return Err(MemberError::Log(format!("{}: {error}", path.display()))),
    };
    let found = text.lines().next().unwrap_or_default();
    if found != owner {
        let dir = dir.display();
        return Err(MemberError::Log(format!(
            "{dir}: is the directory of {found}, not of {owner}"
        )));
    }
    Ok(())
}
