//! Files whose pages programs share as memory: only on one mount at a time.
//!
//! What one program writes into a file that it has mapped as shared, others on the same mount see
//! at once, as it is the same page; on another mount they never do. Databases that keep their locks
//! or indexes in such a file then lose what they wrote, and say nothing. So who opens one of those
//! files, which are known by their names, first claims its pages for this mount; if another has
//! them, it may open the file all the same, but not map it.
//!
//! Of other files the kernel keeps pages from one open to the next while nobody else can have
//! changed them (`meridian_session::Pages`).

use crate::client::lock as hold;
use crate::error::ClientError;
use crate::files::locks::{Owner, Wanted};
use crate::files::{Files, Handle, OpenFile, OpenInode};
use meridian_fs::FsError;
use meridian_fs::types::{Attributes, Ino, Kind, LockFamily};
use meridian_session::Pages;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How the names of SQLite's shared memory end: of the index of a database's log.
const SQLITE: &[u8] = b"-shm";
/// The name of LMDB's table of readers.
const LMDB: &[u8] = b"lock.mdb";
/// So many of these files are known at most, by far more than one machine has open.
const KNOWN_MAX: usize = 1 << 16;
/// How long to wait for another mount that has just closed the file: its kernel tells it of that
/// after the program has gone on. In all a second.
const PAUSES_MS: [u64; 6] = [5, 20, 75, 200, 300, 400];

/// The files of those names that were looked up.
#[derive(Debug, Default)]
pub(crate) struct Shared(BTreeSet<Ino>);

impl Files {
    /// What was looked up or made may be memory that programs share.
    pub(crate) fn note_name(&self, name: &[u8], of: &Attributes) {
        if of.kind != Kind::File || !name.ends_with(SQLITE) && name != LMDB {
            return;
        }
        let mut known = hold(&self.shared);
        if known.0.len() >= KNOWN_MAX {
            known.0.pop_first();
        }
        known.0.insert(of.place.ino);
    }

    /// Whether programs share its pages as memory: then they are to be claimed when it is opened.
    pub fn is_shared(&self, ino: Ino) -> bool {
        hold(&self.shared).0.contains(&ino)
    }

    /// Whether the kernel may keep the pages that it has of a file that was opened just now: else
    /// it is to drop them. Not if a read is to be noted, which only who is asked to read can.
    pub fn keeps_pages(&self, handle: Handle) -> bool {
        let Ok(OpenFile { inode, mode }) = self.file(handle) else { return false };
        match self.client.driver().open(inode.place) {
            Pages::Kept(of) => {
                let keeps = mode.noatime || of.is_some_and(|of| !self.is_read_due(of));
                self.pages_kept.fetch_add(u64::from(keeps), Ordering::Relaxed);
                keeps
            }
            Pages::Dropped(holding) => {
                let dropping = holding.map(|holding| (handle, holding));
                let buffer = &mut hold(&inode.buffer);
                buffer.dropping = buffer.dropping.take().or(dropping);
                false
            }
        }
    }

    /// How often it may have kept them.
    pub fn pages_kept(&self) -> u64 {
        self.pages_kept.load(Ordering::Relaxed)
    }

    /// The kernel uses a handle.
    pub(crate) fn note_use(&self, inode: &OpenInode, handle: Handle) {
        let holding = hold(&inode.buffer).used(handle);
        holding.into_iter().for_each(|holding| self.client.driver().dropped_pages(holding));
    }

    /// Claims the pages of an open file for this mount, until its last such file is closed here.
    /// Returns whether it has them; if not, nobody here may map the file.
    ///
    /// # Errors
    /// If the partition does not answer.
    pub async fn claim_pages(&self, handle: Handle) -> Result<bool, ClientError> {
        let owner = Owner { family: LockFamily::Pages, number: 0 };
        let wanted = Wanted { owner, start: 0, end: u64::MAX, exclusive: true, pid: 0 };
        for pause in PAUSES_MS.map(Some).into_iter().chain([None]) {
            match self.lock(handle, wanted).await {
                Ok(()) => return Ok(true),
                Err(ClientError::Fs(FsError::WouldBlock)) => {}
                Err(error) => return Err(error),
            }
            if let Some(pause) = pause {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        Ok(false)
    }
}
