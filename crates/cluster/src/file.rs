//! `cluster.json` is written by `meridian demo` and `init`, and read by every node and client:
//! which nodes keep the configuration, and the last one seen. Identifiers ([`NodeId`],
//! [`RegionId`], [`GroupId`]) are places in its lists, so the lists only ever grow: a node that was
//! removed stays as one of no group.
//!
//! [`NodeId`]: meridian_core::NodeId
//! [`RegionId`]: meridian_core::RegionId
//! [`GroupId`]: meridian_core::GroupId

use crate::grants::Grant;
use crate::levels::Levels;
pub use crate::lost::LostEntry;
pub use crate::order::DeliveryOrder;
use meridian_core::level::{Level, Speaks};
use meridian_eunomia::Registry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of `cluster.json` that this program writes and reads.
pub const CLUSTER_FORMAT: u32 = 2;

/// The contents of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// [`CLUSTER_FORMAT`].
    pub format: u32,
    /// A random name of this cluster: nodes and clients of another are turned away.
    pub cluster: u64,
    /// When it was made, in milliseconds since 1970; 0 in a file from before that was written.
    #[serde(default)]
    pub created_ms: u64,
    /// All nodes, those of one region next to each other.
    pub nodes: Vec<NodeEntry>,
    /// Milliseconds of round trip added between two regions, by `"us-eu"`; 0 where absent.
    #[serde(default)]
    pub rtt_ms: BTreeMap<String, u32>,
    /// The order of messages; sequential where absent.
    #[serde(default, skip_serializing_if = "DeliveryOrder::is_default")]
    pub order: DeliveryOrder,
    /// Its nodes and clients speak plain text, and whoever reaches a port may do all. Else they
    /// speak TLS, and show certificates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_plain_text: bool,
    /// How it has changed, and who keeps it; nothing in a file from before there was that.
    #[serde(default, skip_serializing_if = "Kept::is_default")]
    pub configuration: Kept,
}

/// Only what tells the version and the level, so that another one is named and not called broken.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
    #[serde(default)]
    configuration: LevelOnly,
}

#[derive(Default, Deserialize)]
struct LevelOnly {
    #[serde(default)]
    levels: NowOnly,
}

#[derive(Default, Deserialize)]
struct NowOnly {
    #[serde(default)]
    now: Level,
}

impl ClusterFile {
    /// Reads one, of whatever feature level its cluster is.
    ///
    /// # Errors
    /// If it is not one, or of another version.
    pub fn read(json: &str) -> Result<ClusterFile, TopologyError> {
        ClusterFile::read_level(json)?;
        serde_json::from_str(json).map_err(syntax)
    }

    /// Reads by which level its cluster goes, and nothing else.
    ///
    /// # Errors
    /// If it is not one, or of another version.
    pub fn read_level(json: &str) -> Result<Level, TopologyError> {
        let FormatOnly { format: found, configuration } =
            serde_json::from_str(json).map_err(syntax)?;
        match found {
            CLUSTER_FORMAT => Ok(configuration.levels.now),
            found => Err(TopologyError::Format { found }),
        }
    }

    /// Where those listen that keep the configuration, or may still do so, and are not lost.
    pub fn keepers(&self) -> impl Iterator<Item = &String> {
        let kept = &self.configuration;
        let keeps = |name: &String| kept.replicas.contains(name) || kept.replaced.contains(name);
        let fences = || kept.regions.values().filter_map(|of| of.lost.as_ref());
        let lost = move |name: &String| fences().any(|lost| lost.nodes.contains(name));
        let nodes = self.nodes.iter().filter(move |node| keeps(&node.name) && !lost(&node.name));
        nodes.map(|node| &node.address)
    }
}

fn syntax(error: serde_json::Error) -> TopologyError {
    TopologyError::Syntax(error.to_string())
}

/// What `cluster.json` says of itself: the part that the replicas of the configuration add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Grows with each change.
    pub version: u64,
    /// The names of the nodes that keep the configuration.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replicas: BTreeSet<String>,
    /// Those that kept it first, if others do now: each of these begins with them, and learns of
    /// the others from them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub first: BTreeSet<String>,
    /// Those that are to keep it and do not take part yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub joining: BTreeSet<String>,
    /// In whose place they come: these go on until the others take part.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaced: BTreeSet<String>,
    /// The nodes that were added, also those that were removed since.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub added: BTreeSet<String>,
    /// The nodes whose removal left their region fewer nodes than it needs, and why that had to be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forced: BTreeMap<String, String>,
    /// By which feature level it goes.
    #[serde(default, skip_serializing_if = "Levels::is_default")]
    pub levels: Levels,
    /// What clients may do that may not do all, by the names in their certificates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub grants: BTreeMap<String, Grant>,
    /// What the keys begin with that clients with grants may use, by the same names. No keys are
    /// there for who has a grant and no name here. Apart from [`Grant`], which requests have in it:
    /// their encoding has no room for a field that older programs do not know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub key_prefixes: BTreeMap<String, BTreeSet<String>>,
    /// Whose certificates count no more, as `ROLE/NAME`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub revoked: BTreeSet<String>,
    /// The regions that came after the others, go, or are lost, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regions: BTreeMap<String, RegionEntry>,
    /// Which regions have keys of all regions, once one has joined or left (decision 88); before
    /// that all have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standings: Option<Registry>,
    /// The groups whose members have changed, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Membership>,
}

impl Kept {
    fn is_default(&self) -> bool {
        *self == Kept::default()
    }
}

/// The members of a group that have changed, by the names of their nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// How often they have changed.
    pub number: u64,
    /// Who they are now: a quorum of these counts.
    pub members: Vec<String>,
    /// Who they were before, if they have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Who they will be, while they change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// The node that comes, as long as it is not up: the change does not begin before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// A region that came after the others, goes (decision 84), or is lost (decision 107).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionEntry {
    /// When it was added, in milliseconds since 1970; none of one that the cluster was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_ms: Option<u64>,
    /// Since when it goes: first its directory, when nothing is left in it, then its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves_ms: Option<u64>,
    /// The node with which it began: with that one its local keys begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// It is lost for good, and others go on with its group (decision 107).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostEntry>,
}

/// One node in `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// For example `us-1`; also the name of its folder.
    pub name: String,
    /// For example `us`.
    pub region: String,
    /// The process of the operating system, as long as the demo knows it.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Where it listens, for peers and clients alike: `127.0.0.1:7101`.
    pub address: String,
    /// The groups that it is a member of, or will be soon; none if it was removed, or will be.
    pub groups: Vec<String>,
    /// It is to leave its groups as soon as others have what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<Draining>,
}

/// A node gives what it holds to the nodes of its region that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draining {
    /// The version since which these nodes of the region stay, and no others. A report counts that
    /// was made for the same ones.
    pub since: u64,
    /// The node does not answer: the others see to it that what they hold is on enough of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub down: bool,
    /// The node has reported itself, and goes for good: it gives up what it cannot be given again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_good: bool,
    /// The nodes that have reported that what they hold is on enough nodes that stay.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reported: BTreeSet<String>,
}

/// Why a `cluster.json` cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TopologyError {
    /// Not JSON of the right shape.
    #[error("not a cluster file: {0}")]
    Syntax(String),
    /// Written by another version.
    #[error(
        "cluster file of format {found}, this program reads {CLUSTER_FORMAT}: go on with the version that wrote it, or \
         begin a new cluster (meridian demo with another --data)"
    )]
    Format {
        /// What it says.
        found: u32,
    },
    /// The cluster goes by a feature level that this program does not speak.
    #[error(
        "the cluster goes by feature level {0}, and this program speaks {here}: it is {age} than the cluster, install \
         the version that the other nodes have (`meridian cluster level` names them)",
        here = Speaks::HERE,
        age = if *.0 > Speaks::HERE.newest { "older" } else { "newer" }
    )]
    Level(Level),
    /// It contradicts itself.
    #[error("cluster file: {0}")]
    Invalid(String),
}
