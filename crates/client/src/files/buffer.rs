//! What this mount keeps of one file that is open: what was written and is not yet stored, and who
//! holds what. A plain value, changed under one lock and never across a wait.

use crate::client::Prepared;
use crate::error::ClientError;
use crate::files::ahead::Ahead;
use crate::files::locks::Holders;
use crate::files::tenure::Tenure;
use crate::files::{Handle, OpenMode};
use meridian_fs::Durability;
use meridian_session::{Holding, WriteBack};
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) writes: WriteBack<Handle, ClientError>,
    /// Of the batch in flight, once it may have been sent: it keeps its name.
    pub(crate) message: Option<Arc<Prepared>>,
    /// It has no name left and is kept for this client: nobody else can ever see its bytes.
    pub(crate) nameless: bool,
    /// It may be kept for this client, which says so as long as it is open, and then that it is
    /// not.
    pub(crate) kept: bool,
    /// Who took a lock through this mount and may hold it.
    pub(crate) holders: Holders,
    /// Through how many of its handles it may be written.
    pub(crate) writers: usize,
    /// When what is written is durable, as it was when the file was opened, until it is closed and
    /// nothing is kept of it; `None` if it was opened to be read only.
    pub(crate) durability: Option<Durability>,
    /// It has no capability for programs, or loses it by what is written, as long as there are
    /// writers.
    pub(crate) lacks_capability: bool,
    /// The tenure of this client, as far as it knows.
    pub(crate) tenure: Tenure,
    /// The last one that was lost.
    pub(crate) lost_tenure: Tenure,
    /// What is read ahead of who reads it.
    pub(crate) ahead: Ahead,
    /// Open files through which locks were taken that were lost.
    pub(crate) lost: BTreeSet<Handle>,
    /// The number of the last change that ended here, of all changes of this mount.
    pub(crate) landed: u64,
    /// The handle with which the kernel was told to drop the pages from before the file was held.
    pub(crate) dropping: Option<(Handle, Holding)>,
}

impl Buffer {
    /// It was opened.
    pub(crate) fn open(&mut self, handle: Handle, mode: OpenMode) {
        self.writes.open(handle);
        self.writers += usize::from(mode.write);
    }

    /// It was closed.
    pub(crate) fn close(&mut self, handle: Handle, mode: OpenMode) {
        self.writes.close(handle);
        self.holders.close(handle);
        self.lost.remove(&handle);
        self.ahead.remove(&handle);
        self.used(handle);
        self.writers -= usize::from(mode.write);
        if self.writes.open_count() == 0 && self.writes.is_clean() {
            self.durability = None;
        }
        self.lacks_capability &= self.writers > 0;
    }

    /// The kernel uses a handle, so it has done what it was told with it. Returns the holding whose
    /// earlier pages it has dropped now, if it was told to drop them.
    pub(crate) fn used(&mut self, handle: Handle) -> Option<Holding> {
        self.dropping.take_if(|(by, _)| *by == handle).map(|(_, holding)| holding)
    }

    /// Drops all bytes: nobody can ever see them.
    pub(crate) fn clear(&mut self) {
        self.writes.clear();
        self.message = None;
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.writes.is_unused() && self.holders.is_empty()
    }
}
