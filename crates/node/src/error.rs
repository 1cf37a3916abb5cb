//! Why a server does not start, or stops.

use meridian_cluster::Topology;
use meridian_cluster::topology::TopologyError;
use meridian_core::NodeId;
use meridian_runtime::directory::DirectoryError;
use std::io;
use std::path::PathBuf;

/// Why a server does not start, or stops. Each is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A file of the node's directory, or the cluster file.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// For example `read`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The directory is not one of a node, or of another version.
    #[error("{}: {why}", path.display())]
    Directory {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The node has lost what it promised, or a part of it, as it sees itself or others know.
    #[error(
        "{}: {why}: put it back as it was, or take {node} out (meridian cluster remove-node {node}) and add a new node (meridian cluster add-node)",
        path.display()
    )]
    Forgot {
        /// Where that was.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// The node.
        node: String,
    },
    /// The cluster file is unusable.
    #[error("{}: {source}", path.display())]
    Cluster {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: TopologyError,
    },
    /// The directory cannot be held by this server.
    #[error(transparent)]
    Held(#[from] DirectoryError),
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source} (is another program using it? stop that, or give {node} another address in the cluster file)"
    )]
    Address {
        /// Which.
        address: String,
        /// The node whose it is.
        node: String,
        /// What the system says.
        source: io::Error,
    },
    /// A record of the log is not one of this program's.
    #[error("{}: record {number} does not decode ({why}): written by another version?", dir.display())]
    Record {
        /// The directory of the log.
        dir: PathBuf,
        /// Its number.
        number: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The node was removed from its cluster.
    #[error("node {0} was removed from the cluster: its directory is of no more use")]
    Removed(String),
    /// The node's region was declared lost, and others go on in its place.
    #[error(
        "region {region} was declared lost at {since} (meridian region fence), and others go on \
         without it: node {node} does not come back. Its directory is kept as it is, with what \
         nobody else had. To let this machine in again prepare an empty directory for a new node \
         (meridian cluster add-region, then add-node)"
    )]
    Fenced {
        /// The node.
        node: String,
        /// Its region.
        region: String,
        /// When that was.
        since: String,
    },
    /// The log cannot be opened, or refused a write or a sync: nobody knows what was kept.
    #[error("the log: {0}")]
    Log(String),
    /// The blocks cannot be opened.
    #[error("the blocks: {0}")]
    Blocks(String),
    /// The operating system refused what every server needs.
    #[error("cannot {action}: {source}")]
    System {
        /// For example `wait for signals`.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// What a server exits with that was removed from its cluster, or lost with its region.
pub const REMOVED_CODE: u8 = 4;
/// What a server exits with that must not come back, as it has lost what it promised.
pub const FORGOT_CODE: u8 = 5;

impl ServerError {
    /// Why a node is not part of the cluster any more; none if it is.
    pub(crate) fn of_gone(topology: &Topology, node: NodeId) -> Option<ServerError> {
        let of = topology.node(node);
        if let Some(lost) = topology.lost_region(of.region).filter(|_| topology.is_lost(node)) {
            let region = topology.regions[usize::from(of.region.0)].name.clone();
            return Some(ServerError::Fenced {
                node: of.name.clone(),
                region,
                since: lost.since(),
            });
        }
        topology.is_gone(node).then(|| ServerError::Removed(of.name.clone()))
    }

    /// What the process of the operating system should exit with: 5 if the node has lost what it
    /// promised, 4 if it was removed or its region is lost, 3 if the disk failed under way (or was
    /// found damaged), 2 if the server cannot start as it is configured, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServerError::Log(_) | ServerError::Blocks(_) | ServerError::Record { .. } => 3,
            ServerError::File { .. }
            | ServerError::Directory { .. }
            | ServerError::Cluster { .. }
            | ServerError::Held(_)
            | ServerError::Address { .. } => 2,
            ServerError::Removed(_) | ServerError::Fenced { .. } => REMOVED_CODE,
            ServerError::Forgot { .. } => FORGOT_CODE,
            ServerError::System { .. } => 1,
        }
    }
}
