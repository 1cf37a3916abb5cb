//! Which nodes, regions and groups there are, and the file that says so.
//!
//! `cluster.json` is written by `meridian demo` and read by every node and client. Identifiers
//! ([`NodeId`], [`RegionId`], [`GroupId`]) are places in its lists, so the lists only ever grow.

use crate::ids::{GroupId, NodeId, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The version of `cluster.json` that this program writes and reads.
pub const CLUSTER_FORMAT: u32 = 1;

/// How many groups there may be: a group's id is in the numbers of its inodes.
pub const GROUPS_MAX: usize = 2048;

/// Which order the messages of a cluster have; the same at all nodes, and never changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryOrder {
    /// One order that all agree on.
    #[default]
    Sequential,
    /// Beside that, what begins after something else has ended comes after it.
    Linearizable,
}

impl DeliveryOrder {
    /// Its name in `cluster.json`.
    pub fn name(self) -> &'static str {
        match self {
            DeliveryOrder::Sequential => "sequential",
            DeliveryOrder::Linearizable => "linearizable",
        }
    }

    fn is_default(&self) -> bool {
        *self == DeliveryOrder::default()
    }
}

/// The contents of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// [`CLUSTER_FORMAT`].
    pub format: u32,
    /// A random name of this cluster: nodes and clients of another are turned away.
    pub cluster: u64,
    /// All nodes, those of one region next to each other.
    pub nodes: Vec<NodeEntry>,
    /// Milliseconds of round trip added between two regions, by `"us-eu"`; 0 where absent.
    #[serde(default)]
    pub rtt_ms: BTreeMap<String, u32>,
    /// The order of messages; sequential where absent.
    #[serde(default, skip_serializing_if = "DeliveryOrder::is_default")]
    pub order: DeliveryOrder,
}

/// One node in `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The groups that it is a member of.
    pub groups: Vec<String>,
}

/// Why a `cluster.json` cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TopologyError {
    /// Not JSON of the right shape.
    #[error("not a cluster file: {0}")]
    Syntax(String),
    /// Written by another version.
    #[error("cluster file of format {found}, this program reads {CLUSTER_FORMAT}")]
    Format {
        /// What it says.
        found: u32,
    },
    /// It contradicts itself.
    #[error("cluster file: {0}")]
    Invalid(String),
}

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// For example `us`.
    pub name: String,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// For example `us-1`.
    pub name: String,
    /// Where it is.
    pub region: RegionId,
    /// Where it listens.
    pub address: String,
}

/// A group, which is also a partition of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// `global`, or the region's name.
    pub name: String,
    /// The region that it is placed in; `None` for the group in all regions.
    pub region: Option<RegionId>,
    /// The nodes that replicate it, in order.
    pub members: Vec<NodeId>,
}

/// The nodes, regions and groups of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// See [`ClusterFile::cluster`].
    pub cluster: u64,
    /// By [`RegionId`].
    pub regions: Vec<Region>,
    /// By [`NodeId`].
    pub nodes: Vec<Node>,
    /// By [`GroupId`].
    pub groups: Vec<Group>,
    /// Half of the round trip that is added between two regions.
    pub one_way: BTreeMap<(RegionId, RegionId), Duration>,
    /// The order of messages.
    pub order: DeliveryOrder,
}

impl Topology {
    /// Reads the text of a `cluster.json`.
    ///
    /// # Errors
    /// If it is not one, is of another version, or contradicts itself.
    pub fn parse(json: &str) -> Result<(Topology, ClusterFile), TopologyError> {
        let file: ClusterFile =
            serde_json::from_str(json).map_err(|e| TopologyError::Syntax(e.to_string()))?;
        Ok((Topology::new(&file)?, file))
    }

    /// The topology that `file` describes.
    ///
    /// # Errors
    /// If it is of another version or contradicts itself.
    pub fn new(file: &ClusterFile) -> Result<Topology, TopologyError> {
        if file.format != CLUSTER_FORMAT {
            return Err(TopologyError::Format { found: file.format });
        }
        let invalid = |text: String| Err(TopologyError::Invalid(text));
        let mut topology = Topology {
            cluster: file.cluster,
            regions: Vec::new(),
            nodes: Vec::new(),
            groups: vec![Group { name: "global".into(), region: None, members: Vec::new() }],
            one_way: BTreeMap::new(),
            order: file.order,
        };
        for entry in &file.nodes {
            if topology.node_named(&entry.name).is_some() {
                return invalid(format!("node {} stands there twice", entry.name));
            }
            if entry.region == "global" || entry.region.is_empty() {
                return invalid(format!("a region cannot be called {:?}", entry.region));
            }
            let region = topology.region_named(&entry.region).unwrap_or_else(|| {
                topology.regions.push(Region { name: entry.region.clone() });
                let region =
                    RegionId(u16::try_from(topology.regions.len() - 1).unwrap_or(u16::MAX));
                let group =
                    Group { name: entry.region.clone(), region: Some(region), members: Vec::new() };
                topology.groups.push(group);
                region
            });
            let node = NodeId(u16::try_from(topology.nodes.len()).unwrap_or(u16::MAX));
            topology.nodes.push(Node {
                name: entry.name.clone(),
                region,
                address: entry.address.clone(),
            });
            for name in &entry.groups {
                match topology.groups.iter_mut().find(|group| group.name == *name) {
                    Some(group) => group.members.push(node),
                    None => return invalid(format!("node {}: no group {name}", entry.name)),
                }
            }
        }
        if topology.groups.len() > GROUPS_MAX {
            return invalid(format!("{} groups, at most {GROUPS_MAX}", topology.groups.len()));
        }
        if let Some(group) = topology.groups.iter().find(|group| group.members.is_empty()) {
            return invalid(format!("group {} has no members", group.name));
        }
        for (pair, rtt_ms) in &file.rtt_ms {
            let regions = pair
                .split_once('-')
                .and_then(|(a, b)| Some((topology.region_named(a)?, topology.region_named(b)?)));
            let Some((a, b)) = regions else {
                return invalid(format!("rtt_ms: {pair} does not name two regions"));
            };
            let one_way = Duration::from_micros(u64::from(*rtt_ms) * 500);
            topology.one_way.insert((a, b), one_way);
            topology.one_way.insert((b, a), one_way);
        }
        Ok(topology)
    }

    /// The region of that name.
    pub fn region_named(&self, name: &str) -> Option<RegionId> {
        index(self.regions.iter().position(|region| region.name == name)).map(RegionId)
    }

    /// The node of that name.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        index(self.nodes.iter().position(|node| node.name == name)).map(NodeId)
    }

    /// The group of that name.
    pub fn group_named(&self, name: &str) -> Option<GroupId> {
        index(self.groups.iter().position(|group| group.name == name)).map(GroupId)
    }

    /// The node with that id.
    ///
    /// # Panics
    /// If there is none.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[usize::from(id.0)]
    }

    /// The group with that id.
    ///
    /// # Panics
    /// If there is none.
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[usize::from(id.0)]
    }

    /// What a group is called, also if there is none of that id.
    pub fn group_name(&self, id: GroupId) -> String {
        let group = self.groups.get(usize::from(id.0));
        group.map_or_else(|| format!("{id:?}"), |group| group.name.clone())
    }

    /// All groups with their ids.
    pub fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..u16::try_from(self.groups.len()).unwrap_or(u16::MAX)).map(GroupId)
    }

    /// The group placed in `region`.
    ///
    /// # Panics
    /// If the region has none: [`Topology::new`] makes one for each.
    pub fn group_of_region(&self, region: RegionId) -> GroupId {
        let at = self.groups.iter().position(|group| group.region == Some(region));
        index(at).map(GroupId).expect("each region has a group")
    }

    /// The groups that `node` is a member of, in order.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = GroupId> + '_ {
        self.group_ids().filter(move |group| self.group(*group).members.contains(&node))
    }

    /// The nodes in `region`, in order.
    pub fn nodes_in(&self, region: RegionId) -> impl Iterator<Item = NodeId> + '_ {
        let ids = (0..u16::try_from(self.nodes.len()).unwrap_or(u16::MAX)).map(NodeId);
        ids.filter(move |node| self.node(*node).region == region)
    }

    /// What is added to a message's way from one region to another.
    pub fn delay(&self, from: RegionId, to: RegionId) -> Duration {
        self.one_way.get(&(from, to)).copied().unwrap_or_default()
    }
}

fn index(place: Option<usize>) -> Option<u16> {
    place.and_then(|place| u16::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ClusterFile {
        let node = |name: &str, region: &str| NodeEntry {
            name: name.into(),
            region: region.into(),
            pid: None,
            address: "127.0.0.1:1".into(),
            groups: vec!["global".into(), region.into()],
        };
        ClusterFile {
            format: CLUSTER_FORMAT,
            cluster: 7,
            nodes: vec![node("us-1", "us"), node("us-2", "us"), node("eu-1", "eu")],
            rtt_ms: BTreeMap::from([("us-eu".to_string(), 80)]),
            order: DeliveryOrder::Linearizable,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let json = serde_json::to_string(&file()).unwrap();
        let (topology, read) = Topology::parse(&json).unwrap();
        assert_eq!(read, file());
        let eu = topology.region_named("eu").unwrap();
        assert_eq!(topology.group(topology.group_of_region(eu)).members, [NodeId(2)]);
        assert_eq!(topology.group(GroupId::GLOBAL).members.len(), 3);
        assert_eq!(topology.delay(RegionId(0), eu), Duration::from_millis(40));
        assert_eq!(topology.delay(eu, eu), Duration::ZERO);
        assert_eq!(topology.groups_of(NodeId(2)).collect::<Vec<_>>(), [GroupId(0), GroupId(2)]);
        assert_eq!(topology.order, DeliveryOrder::Linearizable);
    }

    #[test]
    fn files_from_before_there_was_an_order_are_sequential() {
        let mut file = file();
        file.order = DeliveryOrder::Sequential;
        let json = serde_json::to_string(&file).unwrap();
        assert!(!json.contains("order"), "{json}");
        assert_eq!(Topology::parse(&json).unwrap().0.order, DeliveryOrder::Sequential);
        let unknown = json.replace("\"format\"", "\"order\":\"random\",\"format\"");
        assert!(Topology::parse(&unknown).is_err());
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let refused = |change: fn(&mut ClusterFile)| {
            let mut file = file();
            change(&mut file);
            Topology::new(&file).unwrap_err().to_string()
        };
        assert!(refused(|f| f.format = 9).contains("format 9"));
        assert!(refused(|f| f.nodes[1].name = "us-1".into()).contains("twice"));
        assert!(refused(|f| f.nodes[1].groups.push("mars".into())).contains("mars"));
        let unknown = |f: &mut ClusterFile| f.rtt_ms.extend([("us-mars".to_string(), 1)]);
        assert!(refused(unknown).contains("us-mars"));
        assert!(Topology::parse("{").is_err());
    }
}
