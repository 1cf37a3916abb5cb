//! Where the demo that was started last can be found, so that commands in other terminals need no
//! `--cluster`, and the next demo can clear up after one that was killed.

use meridian_terminal::note;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastDemo {
    /// Its `cluster.json`.
    pub cluster: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Whether its data directory shall go with it.
    pub temporary: bool,
}

/// What is remembered, if anything.
pub fn read() -> Option<LastDemo> {
    serde_json::from_str(&std::fs::read_to_string(path()?).ok()?).ok()
}

/// Remembers `last`. That this may fail is no reason not to run: commands then want `--cluster`.
pub fn write(last: &LastDemo) {
    let Some(path) = path() else { return };
    let text = serde_json::to_string_pretty(last).expect("paths and a bool are JSON");
    let dir = path.parent().expect("a file in a folder");
    let written = std::fs::create_dir_all(dir)
        .map_err(anyhow::Error::from)
        .and_then(|()| crate::cluster::write_atomically(&path, &text));
    if let Err(error) = written {
        note!("meridian: other commands will want --cluster: {error:#}");
    }
}

/// Forgets the demo of that cluster file, unless another was started since.
pub fn forget(cluster: &std::path::Path) {
    if read().is_some_and(|last| last.cluster == cluster)
        && let Some(path) = path()
    {
        let _ = std::fs::remove_file(path); // What stays names a file that is gone: as good.
    }
}

fn path() -> Option<PathBuf> {
    Some(folder()?.join("last-demo.json"))
}

/// Where this user's commands keep what others of them need: in the runtime directory, else at
/// home.
pub fn folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("XDG_RUNTIME_DIR")
        .filter(|dir| dir.is_dir())
        .map(|dir| dir.join("meridian"))
        .or_else(|| var("HOME").map(|home| home.join(".meridian")))
}
