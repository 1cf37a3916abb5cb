//! What the kernel may keep, and for how long: what its mount holds, until that is recalled
//! (decision 57).
//!
//! Invariants:
//! - N1: a name has a lifetime only while both its directory and what it leads to are held, and
//!   attributes more than a tick only while their inode is; all since before they were asked for.
//!   That a name leads to nothing has one only while its directory is held, and the mount would say
//!   so by itself: it makes nothing of that name.
//! - N2: an answer with a lifetime is written before what it shows is recalled, or not with it.
//! - N3: what is recalled is released only once the kernel was told.

use crate::answers::entry_of;
use crate::calls::{ATTRIBUTES_TTL, TTL};
use crate::convert::{attributes, errno};
use crate::known::At;
use meridian_client::{ClientError, Files, Moment};
use meridian_core::GroupId;
use meridian_fs::FsError;
use meridian_fs::types::{Attributes, Ino};
use meridian_fuse::{Notifier, Reply};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;

/// By so much the kernel keeps things for less than they are held: it counts from when its thread
/// has noted the answer.
const MARGIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    files: Arc<Files>,
    kernel: Arc<OnceLock<Notifier>>,
    /// Held to write answers; held alone between what is recalled and what the kernel is told.
    gate: RwLock<()>,
}

/// A call that looks: nothing may be kept that was lost, or is held only, since it began.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    kept: Arc<Kept>,
    begun: Moment,
}

impl Kept {
    pub fn new(files: Arc<Files>, kernel: Arc<OnceLock<Notifier>>) -> Arc<Kept> {
        Arc::new(Kept { files, kernel, gate: RwLock::default() })
    }

    /// A call begins to look.
    pub fn look(self: &Arc<Self>) -> Look {
        Look { kept: self.clone(), begun: self.files.client().moment() }
    }

    fn writes(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel drop what is recalled, then lets it go, as long as the client lives. A thread
    /// of its own: the kernel may wait for an answer of ours before it has dropped an inode.
    pub fn watch(
        self: &Arc<Self>,
        mut recalls: UnboundedReceiver<Vec<(GroupId, Ino)>>,
        runtime: Handle,
    ) {
        let kept = Arc::downgrade(self);
        let watch = move || {
            let _entered = runtime.enter(); // What the client sends is sent by its tasks.
            while let Some(gone) = recalls.blocking_recv()
                && let Some(kept) = kept.upgrade()
            {
                kept.recall(&gone);
                kept.files.client().let_go(gone);
            }
        };
        let thread = std::thread::Builder::new().name("meridian-recalls".into());
        if let Err(error) = thread.spawn(watch) {
            tracing::error!("nobody can let go what is recalled, others wait for it: {error}");
        }
    }

    fn recall(&self, gone: &[(GroupId, Ino)]) {
        // Who writes an answer has looked before whether it is still held (N2).
        drop(self.gate.write().unwrap_or_else(PoisonError::into_inner));
        drop_names(&self.kernel);
        let Some(kernel) = self.kernel.get() else { return };
        for (_, ino) in gone {
            kernel.forget_attributes(ino.0);
        }
    }
}

/// The kernel is to look up all names again that it keeps.
pub(crate) fn drop_names(kernel: &OnceLock<Notifier>) {
    let kernel = kernel.get().filter(|kernel| kernel.drops_names());
    if let Some(Err(error)) = kernel.map(Notifier::drop_names) {
        tracing::debug!("the kernel does not drop names: {error}");
    }
}

impl Look {
    fn lifetime(&self, inodes: &[Ino]) -> Duration {
        self.kept.files.client().rest(self.begun, inodes).saturating_sub(MARGIN)
    }

    /// A name in `parent` was looked up.
    pub fn entry(self, (parent, name): &At, result: Result<Attributes, ClientError>, reply: Reply) {
        let names = self.kept.kernel.get().is_some_and(Notifier::drops_names);
        let _writes = self.kept.writes();
        let found = match result {
            Ok(found) => found,
            Err(ClientError::Fs(FsError::NotFound))
                if names && self.kept.files.is_absent(*parent, name) =>
            {
                return reply.absent(self.lifetime(&[*parent]));
            }
            Err(error) => return reply.error(errno(&error)),
        };
        let name = if names { self.lifetime(&[*parent, found.place.ino]) } else { TTL };
        // Of an inode that it does not know yet the kernel might note them after the recall.
        reply.entry(&entry_of(&found, name, ATTRIBUTES_TTL));
    }

    /// Attributes were asked for.
    pub fn attributes(self, result: Result<Attributes, ClientError>, reply: Reply) {
        self.tell(result, reply, Reply::attributes);
    }

    /// Attributes were asked for, with the time when the inode was made.
    pub fn all_attributes(self, result: Result<Attributes, ClientError>, reply: Reply) {
        self.tell(result, reply, Reply::all_attributes);
    }

    fn tell(
        self,
        result: Result<Attributes, ClientError>,
        reply: Reply,
        tell: fn(Reply, Duration, &meridian_fuse::Attributes),
    ) {
        let found = match result {
            Ok(found) => found,
            Err(error) => return reply.error(errno(&error)),
        };
        let _writes = self.kept.writes();
        // What is buffered shows times and lengths that the tree does not have yet.
        let kept = match self.kept.files.is_clean(found.place.ino) {
            true => self.lifetime(&[found.place.ino]).max(ATTRIBUTES_TTL),
            false => ATTRIBUTES_TTL,
        };
        tell(reply, kept, &attributes(&found));
    }
}
