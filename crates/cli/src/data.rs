//! The demo's data directory: `cluster.json`, and a folder for each node.

use crate::certificates;
use crate::cluster::{self, CLUSTER_FILE, Shape};
use crate::last;
use crate::lock::{self, DEMO_LOCK, PidLock, SERVER_LOCK, Tried};
use anyhow::{Context, bail, ensure};
use meridian_cluster::topology::ClusterFile;
use meridian_terminal::note;
use std::fs;
use std::path::{Path, PathBuf};

/// How temporary data directories are called; nothing else is ever removed.
const TEMPORARY: &str = "meridian-demo-";

/// A data directory that this process, and no other demo, uses.
#[derive(Debug)]
pub struct Data {
    /// Where; absolute.
    pub path: PathBuf,
    /// Whether it goes with the demo.
    pub temporary: bool,
    _lock: PidLock,
}

impl Data {
    /// Opens the directory that the user named, or makes a temporary one.
    ///
    /// # Errors
    /// If another demo uses it, it holds something else, or the disk refuses.
    pub fn open(named: Option<&Path>) -> anyhow::Result<Data> {
        let path = match named {
            Some(path) => path.to_path_buf(),
            None => std::env::temp_dir().join(format!("{TEMPORARY}{:x}", cluster::random_name()?)),
        };
        let what = || format!("cannot make the data directory {}", path.display());
        fs::create_dir_all(&path).with_context(what)?;
        let path = path.canonicalize().with_context(what)?;
        if !path.join(CLUSTER_FILE).exists() && holds_something_else(&path).with_context(what)? {
            bail!(
                "{} is not empty and not a demo's: name a new or empty directory with --data",
                path.display()
            );
        }
        match lock::try_lock(&path.join(DEMO_LOCK))? {
            Tried::Locked(lock) => Ok(Data { path, temporary: named.is_none(), _lock: lock }),
            Tried::Held(pid) => bail!(
                "a demo (process {pid}) uses {} already: stop it, or name another --data",
                path.display()
            ),
        }
    }

    /// Where `cluster.json` is.
    pub fn cluster_path(&self) -> PathBuf {
        self.path.join(CLUSTER_FILE)
    }

    /// The cluster that was here before, fitted to `shape`, or a new one; written to the file.
    /// Tells the user what is not as before.
    ///
    /// # Errors
    /// If the two contradict each other, or the file is of another version.
    pub fn cluster(&self, shape: &Shape, tls: bool) -> anyhow::Result<ClusterFile> {
        let path = self.cluster_path();
        let file = if path.exists() {
            let (_, mut file) = cluster::read(&path)?;
            for line in cluster::adapt(&mut file, shape, &self.path)? {
                note!("{line}: its old port is in use");
            }
            ensure!(
                !tls || !file.insecure_plain_text,
                "{} speaks plain text: leave out --tls, or name another --data",
                self.path.display()
            );
            file
        } else {
            let file = cluster::new_cluster(shape)?;
            if tls {
                certificates::make(&certificates::dir_of(&path), &file)?;
            }
            ClusterFile { insecure_plain_text: !tls, ..file }
        };
        cluster::write(&path, &file)?;
        Ok(file)
    }

    /// The folder of the node called `name`.
    pub fn node(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Ends servers of this directory that are no children of this process: of a demo that was
    /// killed, or started by hand.
    ///
    /// # Errors
    /// If one does not end.
    pub fn end_strays(&self) -> anyhow::Result<()> {
        end_servers_in(&self.path)
    }

    /// Removes it, if it was temporary.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn close(self) -> anyhow::Result<()> {
        last::forget(&self.cluster_path());
        if self.temporary {
            fs::remove_dir_all(&self.path)
                .with_context(|| format!("cannot remove {}", self.path.display()))?;
        }
        Ok(())
    }
}

/// Clears up after the last demo if it was killed: its servers and its temporary data. Its mount is
/// returned, to be cleared by who knows how.
pub fn clear_after_killed_demo() -> anyhow::Result<Option<PathBuf>> {
    let Some(last) = last::read() else { return Ok(None) };
    let Some(data) = last.cluster.parent().filter(|data| data.is_dir()) else { return Ok(None) };
    let Tried::Locked(lock) = lock::try_lock(&data.join(DEMO_LOCK))? else { return Ok(None) };
    end_servers_in(data)?;
    let name = data.file_name().map(|name| name.to_string_lossy().into_owned());
    if last.temporary && name.is_some_and(|name| name.starts_with(TEMPORARY)) {
        note!("removing {}, left by a demo that was killed", data.display());
        let _ = fs::remove_dir_all(data); // In the way of nobody.
    }
    drop(lock);
    last::forget(&last.cluster);
    Ok(Some(last.mount))
}

fn end_servers_in(data: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(data).with_context(|| format!("cannot list {}", data.display()))? {
        let dir = entry?.path();
        let lock = dir.join(SERVER_LOCK);
        if lock.exists()
            && let Some(pid) = lock::end_holder(&lock)?
        {
            note!("{}: server {pid} was still running; stopped", dir.display());
        }
    }
    Ok(())
}

fn holds_something_else(path: &Path) -> std::io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        // What a demo leaves that was killed before it had written its cluster.json.
        if name != DEMO_LOCK && !name.starts_with("cluster.new-") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_one_demo_and_keeps_its_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let data = Data::open(Some(&path)).unwrap();
        let error = Data::open(Some(&path)).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let shape = Shape { nodes_per_region: Some(1), ..Shape::default() };
        let file = data.cluster(&shape, false).unwrap();
        data.close().unwrap();
        let data = Data::open(Some(&path)).unwrap();
        assert_eq!(data.cluster(&Shape::default(), false).unwrap(), file);
    }

    #[test]
    fn what_is_not_a_demos_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let error = Data::open(Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("not a demo's"), "{error}");
    }

    #[test]
    fn another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format": 9, "cluster": 1, "nodes": []}"#;
        fs::write(dir.path().join(CLUSTER_FILE), text).unwrap();
        let data = Data::open(Some(dir.path())).unwrap();
        let error = format!("{:#}", data.cluster(&Shape::default(), false).unwrap_err());
        assert!(error.contains("format 9") && error.contains(CLUSTER_FILE), "{error}");
    }
}
