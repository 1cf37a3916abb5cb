//! Notes of how far the blocks of a node go.
//!
//! A block that a client stores leaves no record in the log. So the node writes down beside its
//! log, once a second at most and when it stops, how far its blocks are durable. Blocks that are
//! put back as they were before go less far than the note says, and the node does not start with
//! them. What was stored in the last second before a crash no note may cover.
//!
//! Invariant N1: a note never goes further than what is durable, so a node is not refused with
//! blocks of its own, whenever it crashed.

use crate::config::NodeDir;
use crate::error::ServerError;
use meridian_blocks::store::Blocks;
use meridian_blocks::store::reach::Reach;
use meridian_storage::{Disk, disk};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often it is noted while it changes.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes notes as long as it lives, and a last one when it is dropped: after the blocks' writer.
pub(crate) struct Notes {
    ending: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The note of a node: beside its log, which is older than its peers know if both are put back.
fn path_of(dir: &NodeDir) -> PathBuf {
    dir.dir.join("wal").join("reach")
}

/// Refuses blocks in which no record was `found` so far as the note says.
///
/// # Errors
/// [`ServerError::Forgot`], with what to do; or if the disk refuses.
pub(crate) fn check(disk: &dyn Disk, dir: &NodeDir, found: Reach) -> Result<(), ServerError> {
    let path = path_of(dir);
    let noted = match disk.open(&path).and_then(|file| disk::read_all(&*file)) {
        Ok(bytes) => read(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ServerError::File { action: "read", path, source }),
    };
    let noted = noted.ok_or_else(|| {
        let why = "is not a note of how far the blocks go; without the file the node starts".into();
        ServerError::Directory { path, why }
    })?;
    if found < noted {
        let node = dir.file.node.clone();
        let why =
            format!("ends at {found}, {node} had stored up to {noted}: later blocks are gone");
        return Err(ServerError::Forgot { path: dir.dir.join("blocks"), why, node });
    }
    Ok(())
}

fn read(bytes: &[u8]) -> Option<Reach> {
    let (segment, end) = std::str::from_utf8(bytes).ok()?.trim().split_once(' ')?;
    Some(Reach { segment: segment.parse().ok()?, end: end.parse().ok()? })
}

fn write(disk: &dyn Disk, path: &Path, reach: Reach) -> io::Result<()> {
    disk::write_whole(disk, path, format!("{} {}\n", reach.segment, reach.end).as_bytes())
}

impl Notes {
    /// Begins to take notes. The directory of the log is there.
    ///
    /// # Errors
    /// If there can be no thread for it.
    pub fn start(disk: Arc<dyn Disk>, dir: &NodeDir, blocks: Blocks) -> Result<Self, ServerError> {
        let (path, (ending, ended)) = (path_of(dir), channel());
        let run = move || {
            let mut noted = None;
            loop {
                let is_last = ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout);
                let reach = blocks.reach();
                if noted != Some(reach) {
                    match write(&*disk, &path, reach) {
                        Ok(()) => noted = Some(reach),
                        Err(error) => tracing::warn!(file = %path.display(), %error, "no note"),
                    }
                }
                if is_last {
                    return;
                }
            }
        };
        let thread = Builder::new().name("blocks-note".into()).spawn(run).map_err(|source| {
            ServerError::System { action: "start the thread that takes notes", source }
        })?;
        Ok(Notes { ending: Some(ending), thread: Some(thread) })
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        self.ending = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // Why it panicked it has said itself.
        }
    }
}
