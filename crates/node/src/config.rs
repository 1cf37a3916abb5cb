//! A node's directory: `node.json`, `lock`, `incarnation`; beside them the log and the blocks.

use crate::error::ServerError;
use meridian_cluster::Topology;
use meridian_cluster::topology::ClusterFile;
use meridian_core::NodeId;
use meridian_runtime::directory::{Directory, write_durably};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The version of a node's directory that this program writes and reads.
pub const NODE_FORMAT: u32 = 11;

/// The contents of `node.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// [`NODE_FORMAT`].
    pub format: u32,
    /// [`Topology::cluster`].
    pub cluster: u64,
    /// The node's name in the cluster file.
    pub node: String,
}

/// Only what tells the version, so that another one is named and not called broken.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Makes `dir` the directory of node `name` of that cluster; does nothing if it is that already.
///
/// # Errors
/// If it is another node's, or the disk refuses.
pub fn prepare(dir: &Path, cluster: u64, name: &str) -> Result<(), ServerError> {
    let path = dir.join("node.json");
    let wanted = NodeFile { format: NODE_FORMAT, cluster, node: name.into() };
    if path.exists() {
        let found = read_node_file(&path)?;
        if found == wanted {
            return Ok(());
        }
        let why = format!(
            "is node {} of cluster {}, not {name} of {cluster}: name another directory",
            found.node, found.cluster
        );
        return Err(ServerError::Directory { path, why });
    }
    // For nobody but its owner: the log and the blocks hold all data of the cluster.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| file_error("make", dir, e))?;
    let json = serde_json::to_vec(&wanted).map_err(|e| file_error("write", &path, e.into()))?;
    Ok(write_durably(&path, &json)?)
}

/// A node's directory, held by this process alone.
#[derive(Debug)]
pub struct NodeDir {
    /// Where it is.
    pub dir: PathBuf,
    /// Its `node.json`.
    pub file: NodeFile,
    held: Directory,
}

impl NodeDir {
    /// Reads and locks `dir`.
    ///
    /// # Errors
    /// If it is not a node's directory of this version, or another process holds it.
    pub fn open(dir: &Path) -> Result<NodeDir, ServerError> {
        let file = NodeFile::read(dir)?;
        Ok(NodeDir { dir: dir.into(), file, held: Directory::lock(dir)? })
    }

    /// The same for who only reads: nothing of it is made or changed.
    ///
    /// # Errors
    /// As [`NodeDir::open`].
    pub fn open_to_read(dir: &Path) -> Result<NodeDir, ServerError> {
        let file = NodeFile::read(dir)?;
        Ok(NodeDir { dir: dir.into(), file, held: Directory::lock_to_read(dir)? })
    }

    /// Counts up the number of starts, durably: greater than ever before.
    ///
    /// # Errors
    /// If the file is damaged, or the disk refuses.
    pub fn next_incarnation(&self) -> Result<u64, ServerError> {
        Ok(self.held.next_incarnation()?)
    }

    /// As [`NodeDir::cluster_once`] of a node that is part of the cluster.
    ///
    /// # Errors
    /// As that, and if it is so no more.
    pub fn cluster(
        &self,
        path: Option<&Path>,
    ) -> Result<(Topology, ClusterFile, NodeId), ServerError> {
        let found = self.cluster_once(path)?;
        match ServerError::of_gone(&found.0, found.2) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// Reads the cluster file (by default the one beside the directory) and finds the node in it,
    /// also if it was removed or its region is lost.
    ///
    /// # Errors
    /// If it is unusable, of another cluster, or does not know the node.
    pub fn cluster_once(
        &self,
        path: Option<&Path>,
    ) -> Result<(Topology, ClusterFile, NodeId), ServerError> {
        let path = cluster_path(&self.dir, path);
        let text = fs::read_to_string(&path).map_err(|e| file_error("read", &path, e))?;
        let (topology, file) = Topology::parse(&text)
            .map_err(|source| ServerError::Cluster { path: path.clone(), source })?;
        if topology.cluster != self.file.cluster {
            let why = format!(
                "is of cluster {}, but {} belongs to {}",
                topology.cluster,
                self.dir.display(),
                self.file.cluster
            );
            return Err(ServerError::Directory { path, why });
        }
        match topology.node_named(&self.file.node) {
            Some(me) => Ok((topology, file, me)),
            None => {
                let why = format!("has no node {}", self.file.node);
                Err(ServerError::Directory { path, why })
            }
        }
    }
}

impl NodeFile {
    /// That of a node's directory, which another process may hold.
    ///
    /// # Errors
    /// If it is not one of a node, or of another version.
    pub fn read(dir: &Path) -> Result<NodeFile, ServerError> {
        read_node_file(&dir.join("node.json"))
    }
}

/// Where the cluster file of a node's directory is: as named, or beside it.
pub fn cluster_path(dir: &Path, named: Option<&Path>) -> PathBuf {
    let beside = || dir.canonicalize().ok()?.parent().map(|up| up.join("cluster.json"));
    match named {
        Some(path) => path.to_path_buf(),
        None => beside().unwrap_or_else(|| dir.join("../cluster.json")),
    }
}

fn read_node_file(path: &Path) -> Result<NodeFile, ServerError> {
    let bytes = fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ServerError::Directory {
            path: path.into(),
            why: "is not there: not the directory of a node".into(),
        },
        _ => file_error("read", path, source),
    })?;
    let wrong = |why: String| ServerError::Directory { path: path.into(), why };
    let format: FormatOnly =
        serde_json::from_slice(&bytes).map_err(|e| wrong(format!("is not a node file: {e}")))?;
    if format.format != NODE_FORMAT {
        let found = format.format;
        return Err(wrong(format!(
            "is of format {found}, this program reads {NODE_FORMAT}: go on with the version that wrote it, or \
             begin a new cluster (meridian demo with another --data)"
        )));
    }
    serde_json::from_slice(&bytes).map_err(|e| wrong(format!("is not a node file: {e}")))
}

/// Writes a cluster file so that readers see the old one or the new one, whole.
///
/// # Errors
/// If the disk refuses.
pub fn write_cluster(path: &Path, cluster: &ClusterFile) -> Result<(), ServerError> {
    let json = serde_json::to_vec_pretty(cluster).map_err(|e| file_error("write", path, e.into()));
    Ok(write_durably(path, &json?)?)
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> ServerError {
    ServerError::File { action, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_cluster::topology::CLUSTER_FORMAT;
    use meridian_runtime::directory::DirectoryError;

    #[test]
    fn a_directory_belongs_to_one_node_and_one_process() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("us-1");
        let missing = NodeDir::open(&dir).unwrap_err().to_string();
        assert!(missing.ends_with("is not there: not the directory of a node"), "{missing}");
        prepare(&dir, 7, "us-1").unwrap();
        prepare(&dir, 7, "us-1").unwrap();
        let other = prepare(&dir, 8, "us-1").unwrap_err().to_string();
        assert!(other.contains("is node us-1 of cluster 7"), "{other}");
        let held = NodeDir::open(&dir).unwrap();
        let locked = NodeDir::open(&dir).unwrap_err();
        assert!(matches!(locked, ServerError::Held(DirectoryError::Locked(_))), "{locked}");
        drop(held);
        NodeDir::open(&dir).unwrap();
    }

    #[test]
    fn another_version_or_cluster_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("us-1");
        prepare(&dir, 7, "us-1").unwrap();
        let node = NodeDir::open(&dir).unwrap();
        let mut cluster = ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: 8,
            nodes: Vec::new(),
            rtt_ms: Default::default(),
            order: Default::default(),
            configuration: Default::default(),
        };
        let path = root.path().join("cluster.json");
        let refused = |cluster: &ClusterFile| {
            fs::write(&path, serde_json::to_vec(cluster).unwrap()).unwrap();
            node.cluster(None).unwrap_err().to_string()
        };
        let no_members = refused(&cluster);
        assert!(no_members.contains("cluster file"), "{no_members}");
        cluster.nodes.push(meridian_cluster::topology::NodeEntry {
            name: "eu-1".into(),
            region: "eu".into(),
            pid: None,
            address: "127.0.0.1:0".into(),
            groups: vec!["global".into(), "eu".into()],
            draining: None,
        });
        assert!(refused(&cluster).contains("is of cluster 8"));
        cluster.cluster = 7;
        assert!(refused(&cluster).contains("has no node us-1"));
        let newer = NODE_FORMAT + 1;
        fs::write(dir.join("node.json"), format!(r#"{{"format":{newer},"more":1}}"#)).unwrap();
        drop(node);
        let version = NodeDir::open(&dir).unwrap_err().to_string();
        let wanted = format!("is of format {newer}, this program reads {NODE_FORMAT}: go on with");
        assert!(version.contains(&wanted), "{version}");
    }
}
