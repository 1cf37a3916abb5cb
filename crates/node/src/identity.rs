//! Which log and which blocks are a node's own.
//!
//! A node that comes back with others, or with none, has forgotten what it promised: it would vote
//! against what it acknowledged, and two such votes lose data. So the node notes in `identity` what
//! names its log and its blocks (their `FORMAT` with its salt), and does not start with others. A
//! log, or a whole directory, that is lost or older than it was the other nodes notice
//! ([`meridian_core::standing`]). Of blocks they remember nothing, so each start is counted beside
//! the blocks, and then beside the log: blocks that know of fewer are older. Those as they were
//! at some time since the last start [`crate::reach`] finds.

use crate::config::NodeDir;
use crate::error::ServerError;
use meridian_runtime::directory::write_durably;
use meridian_storage::{Disk, disk, format};
use std::fs;
use std::io;
use std::path::Path;

/// The file in the node's directory.
const FILE: &str = "identity";
/// The log, and the blocks.
const PARTS: [&str; 2] = [LOG, BLOCKS];
const LOG: &str = "wal";
const BLOCKS: &str = "blocks";
/// The file in each that counts starts of the node.
const STARTED: &str = "started";

/// Whether the node of this directory has ever run with a log and blocks of its own.
pub fn has_run(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

/// Refuses a node whose log or blocks are not those that it noted.
///
/// # Errors
/// [`ServerError::Forgot`], with what to do; or if the disk refuses.
pub(crate) fn check(disk: &dyn Disk, node: &NodeDir) -> Result<(), ServerError> {
    let path = node.dir.join(FILE);
    let noted = match fs::read_to_string(&path) {
        Ok(noted) => noted,
        // The node never had both: nothing was acknowledged.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ServerError::File { action: "read", path, source }),
    };
    for part in PARTS {
        let found = read(disk, &node.dir, part)?;
        if !noted.lines().any(|line| found.as_deref() == Some(line)) {
            let what = if found.is_some() { "is not the one" } else { "lacks what it had" };
            let name = node.file.node.clone();
            let why = format!("{what} when {name} last ran, so it has forgotten what it promised");
            return Err(ServerError::Forgot { path: node.dir.join(part), why, node: name });
        }
    }
    let (had, found) = (starts(disk, &node.dir, LOG)?, starts(disk, &node.dir, BLOCKS)?);
    if found < had {
        let name = node.file.node.clone();
        let why = format!("knows {found} starts of {name}, its log {had}: later blocks are gone");
        return Err(ServerError::Forgot { path: node.dir.join(BLOCKS), why, node: name });
    }
    Ok(())
}

/// How often the node has started, as it is written in a part.
fn starts(disk: &dyn Disk, dir: &Path, part: &str) -> Result<u64, ServerError> {
    let path = dir.join(part).join(STARTED);
    let read = disk.open(&path).and_then(|file| disk::read_all(&*file));
    match read {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().parse().unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(ServerError::File { action: "read", path, source }),
    }
}

/// Notes this start, with the log and the blocks, both of which are there.
///
/// # Errors
/// If the disk refuses.
pub(crate) fn note(disk: &dyn Disk, node: &NodeDir) -> Result<(), ServerError> {
    let started = starts(disk, &node.dir, LOG)? + 1;
    // The log last: a crash between the two must not make the blocks look older.
    for part in [BLOCKS, LOG] {
        let path = node.dir.join(part).join(STARTED);
        disk::write_whole(disk, &path, format!("{started}\n").as_bytes())
            .map_err(|source| ServerError::File { action: "write", path, source })?;
    }
    let path = node.dir.join(FILE);
    if path.exists() {
        return Ok(()); // As was checked.
    }
    let mut lines = String::new();
    for part in PARTS {
        let Some(line) = read(disk, &node.dir, part)? else {
            let why = "is not there, though it was just made".into();
            return Err(ServerError::Directory { path: node.dir.join(part), why });
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    Ok(write_durably(&path, lines.as_bytes())?)
}

/// What names a part, in one line; `None` if it is gone, or if it is a log without its files.
fn read(disk: &dyn Disk, dir: &Path, part: &str) -> Result<Option<String>, ServerError> {
    let (path, name) = (dir.join(part), format::FILE);
    let failed = |source| ServerError::File { action: "read", path: path.clone(), source };
    let files = match disk.list(&path) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    // A log has a segment from its first start on; blocks may be none.
    let is_whole = part != LOG || files.iter().any(|file| file.starts_with("wal-"));
    if !is_whole || !files.iter().any(|file| file == name) {
        return Ok(None);
    }
    let file = disk.open(&path.join(name)).map_err(failed)?;
    let bytes = disk::read_all(&*file).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(format!("{part} {}", text.split_whitespace().collect::<Vec<_>>().join(" "))))
}
