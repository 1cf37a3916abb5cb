//! Servers of a demo that are stopped for a while.

use crate::lock::{self, DEMO_LOCK, SERVER_LOCK, Tried};
use anyhow::{Context, bail, ensure};
use meridian_cluster::topology::ClusterFile;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// The servers of a region.
#[derive(Debug)]
pub struct Held {
    servers: Vec<(String, Pid)>,
}

/// Servers that are stopped until this is dropped.
#[derive(Debug)]
pub struct Stopped(Vec<(String, Pid)>);

impl Held {
    /// Those of `region`, of the demo whose cluster file says so and whose data is in `data`.
    ///
    /// # Errors
    /// If one of them does not run here.
    pub fn find(file: &ClusterFile, data: &Path, region: &str) -> anyhow::Result<Held> {
        let by = data.join(DEMO_LOCK);
        ensure!(
            by.exists() && matches!(lock::try_lock(&by)?, Tried::Held(_)),
            "no demo runs with {}: only a demo's servers can be stopped for a drill; --dry-run \
             tells what is to be expected",
            data.display()
        );
        let mut servers = Vec::new();
        for node in file.nodes.iter().filter(|node| node.region == region) {
            if node.groups.is_empty() {
                continue; // It was removed.
            }
            let lock = data.join(&node.name).join(SERVER_LOCK);
            let held = lock.exists().then(|| lock::try_lock(&lock)).transpose()?;
            let pid = match held {
                Some(Tried::Held(pid)) => Pid::from_raw(pid),
                Some(Tried::Locked(_)) | None => None,
            };
            let Some(pid) = pid else { bail!("{} does not run here", node.name) };
            servers.push((node.name.clone(), pid));
        }
        Ok(Held { servers })
    }

    /// What they are called, with their processes.
    pub fn names(&self) -> String {
        let name = |(name, pid): &(String, Pid)| format!("{name} ({pid})");
        self.servers.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// Stops them.
    ///
    /// # Errors
    /// If one cannot be stopped; the others go on.
    pub fn stop(self) -> anyhow::Result<Stopped> {
        let mut stopped = Stopped(Vec::new());
        for (name, pid) in self.servers {
            let done = kill_process(pid, Signal::STOP);
            done.with_context(|| format!("cannot stop {name}, process {pid}"))?;
            stopped.0.push((name, pid));
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (_, pid) in &self.0 {
            let _ = kill_process(*pid, Signal::CONT); // It may have been killed.
        }
    }
}
