//! The folder that a bench works in.

use anyhow::Context;
use std::path::{Path, PathBuf};

/// The folder below DIR that holds everything; removed also when a measurement fails.
pub struct Scratch {
    pub path: PathBuf,
    kept: bool,
}

impl Scratch {
    /// Makes it; `dir` must be there.
    pub fn make(dir: &Path) -> anyhow::Result<Scratch> {
        let path = dir.join(format!("meridian-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch { path, kept: true })
    }

    /// Removes it with all that is in it.
    pub fn remove(mut self) -> anyhow::Result<()> {
        self.kept = false;
        std::fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}: remove it by hand", self.path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.kept {
            let _ = std::fs::remove_dir_all(&self.path); // An error is on its way already.
        }
    }
}
