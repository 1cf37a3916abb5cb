//! Regions that come and go: each group learns of the others, and `global` has their directories
//! made and removed (decision 84).

use super::{Replica, Wish, configs_of};
use crate::update::Change;
use meridian_cluster::Topology;
use meridian_cluster::topology::Region;
use meridian_core::{GroupId, NodeId, Time};
use meridian_fs::{Timestamp, Update};
use meridian_multicast::{Config, Role, Start};
use std::time::Duration;

/// The session in which `global` says which regions there are.
const REGIONS_SESSION: u64 = 0x7265_6769_6f6e_7300;

/// What was refused is said again after so long: something may be left in the directory of a region
/// that goes, or another file have the name of one that comes.
const SAY_AGAIN: Duration = Duration::from_secs(2);

/// What was said last of regions, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RegionsSaid {
    start: Option<Start>,
    at: Time,
}

impl Replica {
    /// The groups that have begun and that this one does not know of.
    pub(crate) fn unknown_groups(&self, topology: &Topology, me: NodeId) -> Vec<Config> {
        let knows = |group: &GroupId| self.multicast.members().has(*group);
        let news = topology.group_ids().filter(|group| topology.has_begun(*group) && !knows(group));
        news.flat_map(|group| configs_of(topology, group, false, me)).collect()
    }

    /// As primary of `global`: has the directories of regions made and removed.
    pub(crate) fn say_regions(&mut self, now: Time, topology: &Topology, out: &mut Vec<Wish>) {
        let leads = self.multicast.role() == Role::Primary && self.may_answer();
        if self.group != GroupId::GLOBAL || !leads || now.since(self.regions.at) < SAY_AGAIN {
            return;
        }
        let change = topology.region_groups().find_map(|(group, _)| self.due(topology, group));
        let Some(change) = change else { return };
        let dest: Vec<_> = change.update.partitions().into_iter().collect();
        let start = self.said_once((REGIONS_SESSION, &dest), self.regions.start.as_ref(), change);
        (self.regions.start, self.regions.at) = (Some(start.clone()), now);
        out.push(Wish::Multicast(start));
    }

    /// What is to be done with the directory of a region, if anything.
    fn due(&self, topology: &Topology, group: GroupId) -> Option<Change> {
        let Region { name, added_ms, leaves_ms, .. } = topology.region_of_group(group)?;
        let is_there = self.partition.has_region(group);
        let (partition, name) = (group, name.clone().into_bytes().into());
        match (added_ms, leaves_ms) {
            (_, Some(since)) if is_there => {
                let update = Update::RemoveRegion { partition, name };
                Some(Change::new(Timestamp::from_millis(*since), update))
            }
            (Some(since), None) if !is_there => {
                // Who is in `global` has been told of the region by those that agree on it.
                let members = &topology.group(group).members;
                let global = &topology.group(GroupId::GLOBAL).members;
                let counts = members.iter().any(|node| global.contains(node));
                let made = Timestamp::from_millis(*since);
                let update = Update::AddRegion { partition, name, made };
                (counts && topology.has_begun(group)).then(|| Change::new(made, update))
            }
            _ => None,
        }
    }
}
