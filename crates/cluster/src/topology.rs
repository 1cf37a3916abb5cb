//! Which nodes, regions and groups there are, as [`ClusterFile`] says.

pub use crate::file::{
    CLUSTER_FORMAT, ClusterFile, DeliveryOrder, Draining, Kept, LostEntry, Membership, NodeEntry,
    RegionEntry, TopologyError,
};
use crate::grants::Grant;
use crate::keeping::Keeping;
use crate::levels::Levels;
use crate::lost::LostRegion;
use meridian_core::ids::GROUPS_MAX;
use meridian_core::level::Speaks;
use meridian_core::{GroupId, NodeId, RegionId};
use meridian_eunomia::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// For example `us`.
    pub name: String,
    /// See [`RegionEntry::added_ms`].
    pub added_ms: Option<u64>,
    /// See [`RegionEntry::leaves_ms`].
    pub leaves_ms: Option<u64>,
    /// See [`RegionEntry::first`].
    pub first: Option<String>,
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
    /// Whether it was added to a cluster that was there before.
    pub added: bool,
    /// Whether it is to be in no group any more.
    pub leaves: bool,
    /// It will leave when others have what it holds.
    pub draining: Option<Draining>,
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
    /// How often they have changed.
    pub number: u64,
    /// Who replicated it before.
    pub before: Option<Vec<NodeId>>,
    /// Who will replicate it, while that changes.
    pub next: Option<Vec<NodeId>>,
    /// The change does not begin before this node is up.
    pub waits_for: Option<NodeId>,
}

impl Group {
    fn new(name: &str, region: Option<RegionId>) -> Group {
        let members = Vec::new();
        let (before, next, waits_for) = (None, None, None);
        Group { name: name.into(), region, members, number: 0, before, next, waits_for }
    }

    /// All who replicate it now or soon.
    pub fn involved(&self) -> impl Iterator<Item = NodeId> + '_ {
        let next = self.next.iter().flatten().filter(|node| !self.members.contains(node));
        self.members.iter().chain(next).copied()
    }
}

/// The nodes, regions and groups of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Grows with each change.
    pub version: u64,
    /// See [`ClusterFile::cluster`].
    pub cluster: u64,
    /// See [`ClusterFile::created_ms`].
    pub created_ms: u64,
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
    /// Who keeps the configuration.
    pub keeping: Keeping,
    /// See [`Kept::levels`].
    pub levels: Levels,
    /// See [`Kept::grants`].
    pub grants: BTreeMap<String, Grant>,
    /// See [`Kept::key_prefixes`].
    pub key_prefixes: BTreeMap<String, BTreeSet<String>>,
    /// See [`Kept::revoked`].
    pub revoked: BTreeSet<String>,
    /// See [`Kept::standings`].
    pub standings: Option<Registry>,
    /// See [`Topology::lost`].
    pub(crate) lost: BTreeMap<GroupId, LostRegion>,
}

impl Topology {
    /// Reads the text of a `cluster.json`.
    ///
    /// # Errors
    /// If it is not one, is of another version or of a level that is not spoken here, or
    /// contradicts itself.
    pub fn parse(json: &str) -> Result<(Topology, ClusterFile), TopologyError> {
        // Before the rest: this program does not know what a later level adds to the file.
        let level = ClusterFile::read_level(json)?;
        if !Speaks::HERE.has(level) {
            return Err(TopologyError::Level(level));
        }
        let file = ClusterFile::read(json)?;
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
            version: file.configuration.version,
            cluster: file.cluster,
            created_ms: file.created_ms,
            regions: Vec::new(),
            nodes: Vec::new(),
            groups: vec![Group::new("global", None)],
            one_way: BTreeMap::new(),
            order: file.order,
            keeping: Keeping::default(),
            levels: file.configuration.levels.clone(),
            grants: file.configuration.grants.clone(),
            key_prefixes: file.configuration.key_prefixes.clone(),
            revoked: file.configuration.revoked.clone(),
            standings: file.configuration.standings.clone(),
            lost: BTreeMap::new(),
        };
        for entry in &file.nodes {
            if topology.node_named(&entry.name).is_some() {
                return invalid(format!("node {} stands there twice", entry.name));
            }
            if entry.region == "global" || entry.region.is_empty() {
                return invalid(format!("a region cannot be called {:?}", entry.region));
            }
            let region = topology.region_of(&entry.region, &file.configuration);
            topology.nodes.push(Node {
                name: entry.name.clone(),
                region,
                address: entry.address.clone(),
                added: file.configuration.added.contains(&entry.name),
                leaves: entry.groups.is_empty(),
                draining: entry.draining.clone(),
            });
        }
        topology.enter(&file.nodes)?;
        let mut groups = file.configuration.groups.iter();
        groups.try_for_each(|(name, of)| topology.apply(name, of))?;
        topology.keeping = Keeping::new(&topology, &file.configuration)?;
        topology.lost = LostRegion::all(&topology, &file.configuration)?;
        if topology.groups.len() > GROUPS_MAX {
            return invalid(format!("{} groups, at most {GROUPS_MAX}", topology.groups.len()));
        }
        // A region whose only node never came has none.
        let empty = topology.group_ids().find(|id| {
            let never_came = topology.region_of_group(*id).is_some_and(|of| of.added_ms.is_some());
            topology.group(*id).members.is_empty() && !never_came
        });
        if let Some(group) = empty {
            return invalid(format!("group {} has no members", topology.group_name(group)));
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

    /// The region of that name, which is there from now on, with its group.
    fn region_of(&mut self, name: &str, kept: &Kept) -> RegionId {
        self.region_named(name).unwrap_or_else(|| {
            let region = RegionId(u16::try_from(self.regions.len()).unwrap_or(u16::MAX));
            let RegionEntry { added_ms, leaves_ms, first, lost: _ } =
                kept.regions.get(name).cloned().unwrap_or_default();
            self.regions.push(Region { name: name.into(), added_ms, leaves_ms, first });
            self.groups.push(Group::new(name, Some(region)));
            region
        })
    }

    /// The nodes are in the groups that they name.
    fn enter(&mut self, nodes: &[NodeEntry]) -> Result<(), TopologyError> {
        for (node, entry) in self.node_ids().zip(nodes) {
            for name in &entry.groups {
                let group = self.groups.iter_mut().find(|group| group.name == *name);
                let unknown = || format!("node {}: no group {name}", entry.name);
                group.ok_or_else(|| TopologyError::Invalid(unknown()))?.members.push(node);
            }
        }
        Ok(())
    }

    fn apply(&mut self, name: &str, membership: &Membership) -> Result<(), TopologyError> {
        let nodes = |names: &[String]| {
            let node = |node: &String| {
                let unknown = || TopologyError::Invalid(format!("group {name}: no node {node}"));
                self.node_named(node).ok_or_else(unknown)
            };
            names.iter().map(node).collect::<Result<Vec<_>, _>>()
        };
        let members = nodes(&membership.members)?;
        let (before, next) = (nodes(&membership.before)?, nodes(&membership.next)?);
        let waits_for = nodes(membership.waits_for.as_slice())?.pop();
        let Some(group) = self.groups.iter_mut().find(|group| group.name == name) else {
            return Err(TopologyError::Invalid(format!("no group {name}, and it has members")));
        };
        (group.number, group.members) = (membership.number, members);
        group.before = Some(before).filter(|before| !before.is_empty());
        group.next = Some(next).filter(|next| !next.is_empty());
        group.waits_for = waits_for;
        Ok(())
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

    /// The group of each region, with the region's name.
    pub fn region_groups(&self) -> impl Iterator<Item = (GroupId, &str)> {
        let groups = self.group_ids().map(|id| (id, self.group(id)));
        groups.filter(|(_, group)| group.region.is_some()).map(|(id, group)| (id, &*group.name))
    }

    /// The same of the regions that the cluster was made with.
    pub fn first_regions(&self) -> impl Iterator<Item = (GroupId, &str)> {
        let is_first =
            |group: GroupId| self.region_of_group(group).is_some_and(|of| of.added_ms.is_none());
        self.region_groups().filter(move |(group, _)| is_first(*group))
    }

    /// The region in which a group is placed; none of `global` and of a group that is not known.
    pub fn region_of_group(&self, group: GroupId) -> Option<&Region> {
        let region = self.groups.get(usize::from(group.0))?.region?;
        self.regions.get(usize::from(region.0))
    }

    /// Whether a group may be spoken of: it was there from the start, or its first node has been
    /// up. Before that it may be taken back, and another begin in its place.
    pub fn has_begun(&self, group: GroupId) -> bool {
        self.groups.get(usize::from(group.0)).is_some_and(|of| {
            let waits = of.number == 0 && of.next.is_none() && of.waits_for.is_some();
            !waits && !of.members.is_empty()
        })
    }

    /// What clients with grants may do with keys: of each the name, what its keys begin with, and
    /// whether it changes nothing. Without a prefix it may do nothing with keys.
    pub fn granted_keys(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>, bool)> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.grants.iter().map(|(name, grant)| {
            let prefixes = self.key_prefixes.get(name).unwrap_or(&NONE);
            (name, prefixes, grant.read_only)
        })
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

    /// The groups that `node` is a member of, or will be soon, in order.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = GroupId> + '_ {
        let is_in = move |group: &Group| group.involved().any(|member| member == node);
        self.group_ids().filter(move |group| is_in(self.group(*group)))
    }

    /// The regions that hold what all hold: those that have begun, do not go and are not lost.
    pub fn staying_regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        let groups = self.group_ids().filter(|group| self.has_begun(*group));
        groups.filter_map(|group| self.group(group).region).filter(|id| !self.has_left(*id))
    }

    /// Whether a region goes, has gone or is lost.
    pub fn has_left(&self, region: RegionId) -> bool {
        let leaves = self.regions[usize::from(region.0)].leaves_ms.is_some();
        leaves || self.lost_region(region).is_some()
    }

    /// Their names, in order.
    pub fn region_names(&self) -> Vec<&str> {
        let name = |id: RegionId| &*self.regions[usize::from(id.0)].name;
        self.staying_regions().map(name).collect()
    }

    /// The nodes in `region` that are to stay, in order.
    pub fn nodes_in(&self, region: RegionId) -> impl Iterator<Item = NodeId> + '_ {
        let stays = |node: &Node| !node.leaves && node.draining.is_none();
        let is_in = move |node: &Node| node.region == region && stays(node);
        self.node_ids().filter(move |node| is_in(self.node(*node)) && !self.is_lost(*node))
    }

    /// Those of them that have been up: a block may be given to them.
    pub fn staying_in(&self, region: RegionId) -> impl Iterator<Item = NodeId> + '_ {
        let comes = |node| self.groups.iter().any(|group| group.waits_for == Some(node));
        self.nodes_in(region).filter(move |node| !comes(*node))
    }

    /// The nodes in `region` that are drained, in order.
    pub fn draining_in(&self, region: RegionId) -> impl Iterator<Item = (NodeId, &Draining)> {
        let nodes = self.node_ids().filter(move |node| self.node(*node).region == region);
        nodes.filter_map(|node| Some((node, self.node(node).draining.as_ref()?)))
    }

    /// The ids of all nodes, in order, also of those that were removed.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..u16::try_from(self.nodes.len()).unwrap_or(u16::MAX)).map(NodeId)
    }

    /// Whether `node` was removed: it is in no group, and will be in none.
    pub fn is_gone(&self, node: NodeId) -> bool {
        self.node(node).leaves && self.groups_of(node).next().is_none()
    }

    /// The nodes that were not removed, in order.
    pub fn present(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.node_ids().filter(|node| !self.is_gone(*node))
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
            draining: None,
        };
        ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: 7,
            nodes: vec![node("us-1", "us"), node("us-2", "us"), node("eu-1", "eu")],
            rtt_ms: BTreeMap::from([("us-eu".to_string(), 80)]),
            order: DeliveryOrder::Linearizable,
            configuration: Kept::default(),
        }
    }

    #[test]
    fn a_node_that_was_removed_leaves_a_hole() {
        let mut file = file();
        file.nodes[0].groups.clear();
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let changing = |name: &str| Membership {
            members: names(&["us-1", "us-2"]),
            next: names(&["us-2"]),
            ..file.configuration.groups.get(name).cloned().unwrap_or_default()
        };
        file.configuration.groups = BTreeMap::from([("us".to_string(), changing("us"))]);
        let topology = Topology::new(&file).unwrap();
        let (us_1, us_2, us) = (NodeId(0), NodeId(1), GroupId(1));
        assert_eq!(
            topology.groups_of(us_1).collect::<Vec<_>>(),
            [us],
            "as long as it counts there"
        );
        assert_eq!(topology.group(us).involved().collect::<Vec<_>>(), [us_1, us_2]);
        assert_eq!(topology.nodes_in(RegionId(0)).collect::<Vec<_>>(), [us_2]);
        assert!(!topology.is_gone(us_1));
        let changed = Membership {
            number: 1,
            members: names(&["us-2"]),
            before: names(&["us-1", "us-2"]),
            ..Membership::default()
        };
        file.configuration.groups.insert("us".into(), changed);
        let topology = Topology::parse(&serde_json::to_string(&file).unwrap()).unwrap().0;
        assert!(topology.is_gone(us_1) && !topology.is_gone(us_2));
        assert_eq!(topology.node_named("eu-1"), Some(NodeId(2)), "no other takes its place");
        assert_eq!(topology.present().collect::<Vec<_>>(), [us_2, NodeId(2)]);
        assert_eq!((topology.group(us).number, topology.group(us).members.len()), (1, 1));
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
