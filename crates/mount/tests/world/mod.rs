//! A mount of a cluster in this process, and programs that run in it.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

#[path = "../../../client/tests/fake/mod.rs"]
pub mod fake;

use fake::Cluster;
use meridian_mount::{Access, Mount, mount};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What tables of mounts show.
pub const SOURCE: &str = "meridian";

pub struct Mounted {
    pub cluster: Cluster,
    pub at: TempDir,
    pub mount: Mount,
}

pub async fn mounted() -> Mounted {
    mounted_for(Access::default()).await
}

pub async fn mounted_for(access: Access) -> Mounted {
    let cluster = Cluster::start(2, 0).await;
    let at = tempfile::tempdir().unwrap();
    let mount = mount(cluster.client("us"), at.path(), access, SOURCE).unwrap();
    Mounted { cluster, at, mount }
}

impl Mounted {
    /// A second mount of the same tree, in another region.
    pub fn again(&self, region: &str) -> (TempDir, Mount) {
        let at = tempfile::tempdir().unwrap();
        let mount =
            mount(self.cluster.client(region), at.path(), Access::default(), SOURCE).unwrap();
        (at, mount)
    }

    pub async fn run(&self, script: &str) -> String {
        run(self.at.path(), script).await
    }
}

/// What `script` prints; it must succeed.
pub async fn run(at: &Path, script: &str) -> String {
    let (at, script) = (at.to_path_buf(), script.to_string());
    let text = format!("set -e\n{script}");
    let output = tokio::task::spawn_blocking(move || {
        Command::new("bash").arg("-c").arg(text).current_dir(at).output().unwrap()
    });
    let output = output.await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{printed}\n{errors}");
    printed
}
