//! What a node had whose server has stopped: its replicas as they were, and its blocks, read from
//! its directory, which stays as it is.
//!
//! The log and the blocks are opened by the code that a server opens them with. That repairs what a
//! crash has left; here it does so on an [`OverlayDisk`], which forgets it. The records go to a
//! [`Node`], as at a start; it takes no step.

use crate::config::NodeDir;
use crate::error::ServerError;
use crate::server::stopped;
use bytes::Bytes;
use meridian_blocks::store::{Blocks, Options};
use meridian_blocks::{BlockError, Store};
use meridian_cluster::Topology;
use meridian_core::{BlockId, GroupId, NodeId};
use meridian_host::Node;
use meridian_host::replica::Doubtful;
use meridian_runtime::journal::describe;
use meridian_runtime::storage;
use meridian_storage::{Disk, OverlayDisk, ReadOnlyDisk};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Nothing is stored: no segment is made, and no room kept.
const READ_ONLY: Options = Options { segment_bytes: 0, salt: 0, reserve_bytes: 0 };

/// A node's directory that is read. No server can use it meanwhile.
pub struct Salvage {
    /// The cluster, as the cluster file has it.
    pub topology: Arc<Topology>,
    /// Which node it was.
    pub me: NodeId,
    /// Its process, as it was made durable. It is only to be read.
    pub node: Node,
    /// The messages of which its log does not say what came of them, by group. Some are taken as
    /// decided ([`Node::deliver_rest`]).
    pub doubtful: Vec<(GroupId, Doubtful)>,
    /// Its own blocks first.
    blocks: Vec<Blocks>,
    _held: Vec<NodeDir>,
}

/// Why bytes of a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The block is in none of the directories.
    #[error("block {0} is not here")]
    Missing(BlockId),
    /// It is in one, and not as it was stored.
    #[error("block {0} is damaged: {1}")]
    Damaged(BlockId, String),
}

impl Salvage {
    /// Reads `dir`. Blocks are looked for there, and in the directories `beside`, which are of
    /// other nodes of the cluster.
    ///
    /// # Errors
    /// If one of them is none of a node of the cluster and of this version, or a server uses it; or
    /// if its log is damaged, or the disk refuses.
    ///
    /// # Panics
    /// If records of the log contradict each other, as at a start of the node.
    pub fn read(
        dir: &Path,
        beside: &[PathBuf],
        cluster: Option<&Path>,
    ) -> Result<Salvage, ServerError> {
        let held = NodeDir::open_to_read(dir)?;
        let (topology, _, me) = held.cluster_once(cluster)?;
        let topology = Arc::new(topology);
        let log = dir.join("wal");
        if !log.is_dir() {
            let why = "is not there: the node has never run here, or has lost its log".into();
            return Err(ServerError::Directory { path: log, why });
        }
        let mut node = Node::new(topology.clone(), me);
        storage::read::<Node>(overlay(), &log, |record| node.replay_former(record))
            .map_err(|error| stopped(&held, error))?;
        let mut doubtful = node.deliver_rest();
        for (group, replica) in node.replicas() {
            doubtful.extend(replica.doubtful().map(|message| (group, message)));
        }
        let mut all = vec![held];
        for dir in beside {
            let other = NodeDir::open_to_read(dir)?;
            if other.file.cluster != topology.cluster {
                let path = dir.clone();
                let why = format!("is of another cluster than {}", all[0].dir.display());
                return Err(ServerError::Directory { path, why });
            }
            all.push(other);
        }
        let blocks = all.iter().filter_map(|dir| blocks_of(&dir.dir).transpose());
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        Ok(Salvage { topology, me, node, doubtful, blocks, _held: all })
    }

    /// Whether a block is in one of the directories. It is not looked at whether it is sound.
    pub fn holds(&self, block: BlockId) -> bool {
        self.blocks.iter().any(|blocks| blocks.holds(block))
    }

    /// `len` bytes of a block from `start` on. The whole block is checked; where one directory has
    /// it damaged, the next is tried.
    ///
    /// # Errors
    /// If none has all of them.
    pub fn bytes(&self, block: BlockId, start: u32, len: u32) -> Result<Bytes, Unread> {
        let mut why = Unread::Missing(block);
        for blocks in &self.blocks {
            match blocks.get(block, start, len) {
                Ok(bytes) if bytes.len() == len as usize => return Ok(bytes),
                Ok(_) => why = Unread::Damaged(block, "it is shorter than its file says".into()),
                Err(BlockError::NoBlock(_)) => {}
                Err(error) => why = Unread::Damaged(block, describe(&error)),
            }
        }
        Err(why)
    }
}

/// The files of this machine, with what is changed of them kept aside.
fn overlay() -> Arc<dyn Disk> {
    Arc::new(OverlayDisk::new(Arc::new(ReadOnlyDisk)))
}

/// The blocks of a node, if it ever had any.
fn blocks_of(dir: &Path) -> Result<Option<Blocks>, ServerError> {
    let dir = dir.join("blocks");
    if !dir.is_dir() {
        return Ok(None);
    }
    let opened = Store::open(overlay(), &dir, READ_ONLY);
    let (store, _) = opened.map_err(|error| ServerError::Blocks(describe(&error)))?;
    Ok(Some(store.blocks()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{prepare, write_cluster};
    use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
    use meridian_core::MessageId;
    use meridian_fs::operation::NewNode;
    use meridian_fs::{Kind, Place, Query, Timestamp, Update, Vector};
    use meridian_host::update::Payload;
    use meridian_host::{Record, sessions};
    use meridian_multicast::message::Entry;
    use meridian_multicast::{self as multicast, Epoch};
    use meridian_runtime::directory::{Directory, DirectoryError};
    use meridian_runtime::journal;
    use meridian_runtime::logged::{Logged, pieces};
    use meridian_storage::RealDisk;
    use std::collections::BTreeMap;
    use std::fs;

    const US: GroupId = GroupId(1);

    /// All files below a directory.
    fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| match path.is_dir() {
                true => contents(&path),
                false => BTreeMap::from([(path.clone(), fs::read(&path).unwrap())]),
            })
            .collect()
    }

    /// The directories of two nodes, the first of which has left its groups.
    fn cluster(root: &Path) -> [PathBuf; 2] {
        let entry = |name: &str, groups: &[&str]| NodeEntry {
            name: name.into(),
            region: "us".into(),
            pid: None,
            address: "127.0.0.1:1".into(),
            groups: groups.iter().map(|group| (*group).into()).collect(),
            draining: None,
        };
        let (rtt_ms, order) = Default::default();
        let file = ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: 7,
            nodes: vec![entry("us-1", &[]), entry("us-2", &["global", "us"])],
            rtt_ms,
            order,
            configuration: Default::default(),
        };
        write_cluster(&root.join("cluster.json"), &file).unwrap();
        ["us-1", "us-2"].map(|name| {
            let dir = root.join(name);
            prepare(&dir, 7, name).unwrap();
            drop(Directory::lock(&dir).unwrap()); // As a server does.
            dir
        })
    }

    /// A log in which a file is made.
    fn log(dir: &Path) {
        let update = Update::Create {
            parent: Place::top(US),
            name: "file".into(),
            node: NewNode::new(Kind::File, 0o644),
        };
        let id = MessageId { client: sessions::name(7 << 32, &[US]), sequence: 1 };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let epoch = Epoch { config: 0, number: 1, leader: NodeId(0) };
        let (ts, start) = (multicast::Timestamp(1), payload.into_start(id, 1, &[US]).into());
        let entries = Arc::from([Entry { epoch, ts, start, final_ts: None }]);
        let mut journal =
            journal::open(Arc::new(RealDisk), &dir.join("wal"), Arc::new(|| {})).unwrap().journal;
        for record in [
            multicast::Record::NewState { epoch, from: 0, entries: Vec::new() },
            multicast::Record::Append { from: 0, entries },
            multicast::Record::Delivered { id, ts },
        ] {
            let record = Record::Multicast { group: US, record };
            for piece in pieces(&Logged::<_, NodeId>::Process(&record)) {
                journal.append(piece);
            }
        }
        journal.close().unwrap();
    }

    fn blocks(dir: &Path, held: &[(BlockId, &[u8])]) {
        let options = Options { segment_bytes: 1 << 16, salt: 5, reserve_bytes: 0 };
        let dir = dir.join("blocks");
        let (mut store, _) = Store::open(Arc::new(RealDisk), &dir, options).unwrap();
        held.iter().for_each(|(block, data)| store.put(*block, data).unwrap());
        store.sync().unwrap();
    }

    #[test]
    fn a_directory_is_read_as_at_a_start_and_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other] = cluster(root.path());
        let missing = Salvage::read(&dir, &[], None).err().unwrap().to_string();
        assert!(missing.contains("has never run here"), "{missing}");
        log(&dir);
        blocks(&dir, &[(BlockId(1), b"one"), (BlockId(2), b"two")]);
        blocks(&other, &[(BlockId(2), b"two"), (BlockId(3), b"three")]);
        let before = contents(root.path());
        let alone = Salvage::read(&dir, &[], None).unwrap();
        let inode = Place::top(US);
        let lookup = Query::Lookup { parent: inode, name: "file".into() };
        assert!(alone.node.replica(US).unwrap().partition().read(&lookup).is_ok());
        assert_eq!(alone.bytes(BlockId(1), 1, 2).unwrap(), "ne");
        assert_eq!(alone.bytes(BlockId(3), 0, 5), Err(Unread::Missing(BlockId(3))));
        assert!(matches!(alone.bytes(BlockId(1), 1, 3), Err(Unread::Damaged(..))));
        drop(alone);
        let both = Salvage::read(&dir, std::slice::from_ref(&other), None).unwrap();
        assert!(both.holds(BlockId(1)) && both.holds(BlockId(3)) && !both.holds(BlockId(4)));
        assert_eq!(both.bytes(BlockId(3), 0, 5).unwrap(), "three");
        let used = Directory::lock(&other).err().unwrap();
        assert!(matches!(used, DirectoryError::Locked(_)), "{used}");
        drop(both);
        assert!(contents(root.path()) == before, "something was changed");
    }

    #[test]
    fn a_block_that_one_directory_has_damaged_is_read_from_another() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other] = cluster(root.path());
        log(&dir);
        blocks(&dir, &[(BlockId(2), b"two"), (BlockId(3), b"three")]);
        blocks(&other, &[(BlockId(2), b"two")]);
        let segments = fs::read_dir(dir.join("blocks")).unwrap().map(|entry| entry.unwrap().path());
        let is_segment = |path: &PathBuf| path.to_string_lossy().contains("blocks-");
        let segment = segments.into_iter().find(is_segment).unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let at = bytes.windows(3).position(|of| of == b"two").unwrap();
        bytes[at] = b'T';
        fs::write(&segment, bytes).unwrap();
        let alone = Salvage::read(&dir, &[], None).unwrap();
        assert!(alone.bytes(BlockId(2), 0, 3).is_err());
        assert_eq!(alone.bytes(BlockId(3), 0, 5).unwrap(), "three");
        drop(alone);
        let both = Salvage::read(&dir, &[other], None).unwrap();
        assert_eq!(both.bytes(BlockId(2), 0, 3).unwrap(), "two");
    }

    #[test]
    fn what_a_server_uses_or_is_of_another_cluster_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other] = cluster(root.path());
        log(&dir);
        let held = Directory::lock(&dir).unwrap();
        let refused = Salvage::read(&dir, &[], None).err().unwrap();
        assert!(matches!(refused, ServerError::Held(DirectoryError::Locked(_))), "{refused}");
        drop(held);
        let held = Directory::lock(&other).unwrap();
        let refused = Salvage::read(&dir, std::slice::from_ref(&other), None).err().unwrap();
        assert!(matches!(refused, ServerError::Held(DirectoryError::Locked(_))), "{refused}");
        drop(held);
        let strange = root.path().join("strange");
        prepare(&strange, 8, "us-2").unwrap();
        let refused = Salvage::read(&dir, &[strange], None).err().unwrap().to_string();
        assert!(refused.contains("is of another cluster"), "{refused}");
    }
}
