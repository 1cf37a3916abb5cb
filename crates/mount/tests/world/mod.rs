//! A mount of a cluster in this process, and programs that run in it.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

#[path = "../../../client/tests/fake/mod.rs"]
pub mod fake;

#[path = "../../../fuse/tests/offer/mod.rs"]
mod offer;

use fake::Cluster;
use meridian_client::Client;
use meridian_mount::{Access, Mount, Transport, mount};
use offer::Offer;
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

/// Mounts over [`crate::TRANSPORT`]; over the device file if the kernel has nothing else.
pub fn mount_over(client: Client, at: &Path, access: Access) -> Mount {
    let offer = match crate::TRANSPORT {
        Transport::Rings => Offer::made(),
        Transport::Device => Offer::withheld(),
    };
    let mount = mount(client, at, access, SOURCE).unwrap();
    let expected = if offer.is_some() { crate::TRANSPORT } else { Transport::Device };
    assert_eq!(mount.transport(), expected);
    mount
}

pub async fn mounted() -> Mounted {
    mounted_for(Access::default()).await
}

pub async fn mounted_for(access: Access) -> Mounted {
    let cluster = Cluster::start(2, 0).await;
    let at = tempfile::tempdir().unwrap();
    let mount = mount_over(cluster.client("us"), at.path(), access);
    Mounted { cluster, at, mount }
}

impl Mounted {
    /// A second mount of the same tree, in another region.
    pub fn again(&self, region: &str) -> (TempDir, Mount) {
        let at = tempfile::tempdir().unwrap();
        let mount = mount_over(self.cluster.client(region), at.path(), Access::default());
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
