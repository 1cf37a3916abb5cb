//! Directories that another mount has moved.
//!
//! The kernel has a directory at one place. A look-up that finds it at another one makes the kernel
//! move it there, unless a lock that this needs is held: that of all renames from one directory to
//! another, which a rename holds while it looks up its own names. Then the look-up fails with
//! `ESTALE`, and so does the rename when the kernel has tried it twice. So the kernel is told to
//! drop the name that it has before it hears of the other one (decision 67).
//!
//! To drop a name the kernel locks the name's directory. If the rename itself has locked that, the
//! first try fails, and the name is dropped before the second: that looks up its path anew, and all
//! look-ups wait meanwhile.

use crate::known::At;
use meridian_fs::types::Ino;
use meridian_fuse::Notifier;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// A look-up waits so long at most: what locks a directory for longer waits for a node, or for the
/// look-up.
const DROP_LIMIT: Duration = Duration::from_millis(100);
/// So many names are being dropped at a time, each by a thread. Of more than that the kernel hears
/// nothing, and a rename of such a directory may fail.
const DROPS_MAX: usize = 16;

/// What the kernel calls an inode, if that is mounted.
pub(crate) fn node_of(ino: Ino, root: Ino) -> u64 {
    if ino == root { Ino::ROOT.0 } else { ino.0 }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    kernel: Arc<OnceLock<Notifier>>,
    runtime: Handle,
    /// What is mounted.
    root: Ino,
    /// How many names are being dropped.
    dropping: Arc<watch::Sender<usize>>,
}

impl Moved {
    /// That tells the kernel, once it is there.
    pub fn new(kernel: Arc<OnceLock<Notifier>>, root: Ino, runtime: Handle) -> Moved {
        Moved { kernel, runtime, root, dropping: Arc::default() }
    }

    /// Waits until no name is being dropped, but not for long.
    pub async fn settled(&self) {
        if *self.dropping.borrow() > 0 {
            let mut dropping = self.dropping.subscribe();
            let _ = tokio::time::timeout(DROP_LIMIT, dropping.wait_for(|count| *count == 0)).await;
        }
    }

    /// Has the kernel drop the name under which it has a directory, and then `answer`.
    pub fn drop_name(&self, (parent, name): At, answer: impl FnOnce() + Send + 'static) {
        let Some(kernel) = self.kernel.get().cloned() else { return answer() };
        let dropping = self.dropping.clone();
        let begins = |count: &mut usize| {
            let begins = *count < DROPS_MAX;
            *count += usize::from(begins);
            begins
        };
        if !dropping.send_if_modified(begins) {
            return answer();
        }
        let (done, dropped) = oneshot::channel();
        let node = node_of(parent, self.root);
        let work = move || {
            if let Err(error) = kernel.drop_name(node, &name) {
                tracing::debug!("a name in {:#x} is not dropped: {error}", parent.0);
            }
            dropping.send_modify(|count| *count -= 1);
            let _ = done.send(()); // Or the answer did not wait.
        };
        let thread = std::thread::Builder::new().name("meridian-moved".into());
        if let Err(error) = thread.spawn(work) {
            self.dropping.send_modify(|count| *count -= 1);
            tracing::warn!("no thread to have a name dropped: {error}");
        }
        self.runtime.spawn(async move {
            let _ = tokio::time::timeout(DROP_LIMIT, dropped).await;
            answer();
        });
    }
}
