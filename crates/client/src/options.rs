//! What a client is told when it begins.

use meridian_fs::{Durability, Place};
use meridian_transport::Security;
use std::path::PathBuf;
use std::time::Duration;

/// How a client shall be.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The region that it is in, by name: its nodes are asked first.
    pub region: String,
    /// How its connections are secured, as the nodes have it.
    pub security: Security,
    /// After how long a call gives up.
    pub timeout: Duration,
    /// How many bytes of blocks it keeps.
    pub cache_bytes: usize,
    /// Whether a mount over it keeps names and attributes, and its kernel, until they are recalled
    /// (decision 57).
    pub keep_looks: bool,
    /// When what programs do through a mount over it is durable, where a directory or file does not
    /// say.
    pub durability: Durability,
    /// The cluster file that commands in a mount over it use.
    pub cluster_file: Option<PathBuf>,
    /// A call that needs a region which is cut off waits until that has lasted so long; by default
    /// as long as it waits anyhow. Later ones are tried for a moment.
    pub on_cut: Duration,
    /// Whether it only notes what it would ask for: see [`crate::plan`].
    pub plans: bool,
    /// The directory that paths begin with: that of the whole tree, or the one below which the
    /// servers let it do anything.
    pub root: Place,
}

impl ClientOptions {
    /// The defaults, in `region`: plain text, 30 s, 64 MiB, and no looks are kept.
    pub fn new(region: impl Into<String>) -> ClientOptions {
        let (timeout, cache_bytes) = (Duration::from_secs(30), 64 << 20);
        let (keep_looks, cluster_file) = (false, None);
        ClientOptions {
            region: region.into(),
            security: Security::default(),
            timeout,
            cache_bytes,
            keep_looks,
            durability: Durability::default(),
            cluster_file,
            on_cut: timeout,
            plans: false,
            root: Place::ROOT,
        }
    }
}
