//! Regions that are lost for good: who goes on in the place of their groups (decision 107).

use crate::Topology;
use crate::topology::{Kept, TopologyError};
use meridian_core::{GroupId, NodeId, ProcessId, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A region that is lost, in `cluster.json`. It never changes, but for `stands`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostEntry {
    /// The number of the configuration in which its group goes on.
    pub number: u64,
    /// The nodes of another region that the group goes on with.
    pub heirs: Vec<String>,
    /// By group, who has to report what it knows of the lost group: all members of all others.
    pub reporters: BTreeMap<String, Vec<String>>,
    /// By group, the members of others that are lost beside: nodes of the region.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, Vec<String>>,
    /// The region's nodes.
    pub nodes: Vec<String>,
    /// No node had keys of all regions, so nothing of these is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyless: bool,
    /// The others agree on what is kept of its keys of all regions (decision 111).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agreed: bool,
    /// Since when it is lost, in milliseconds since 1970.
    pub since_ms: u64,
    /// The heirs go on: the fence is open no longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands: bool,
}

/// A region that is lost for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LostRegion {
    /// Which.
    pub region: RegionId,
    /// Its group.
    pub group: GroupId,
    /// The number of the configuration in which that goes on.
    pub number: u64,
    /// With whom it began that: they were never members of it before.
    pub heirs: Vec<NodeId>,
    /// Who has to report what it knows of the group: all members of all others.
    pub reporters: Vec<ProcessId>,
    /// The members of other groups that are lost beside.
    pub beside: Vec<ProcessId>,
    /// The region's nodes.
    pub nodes: Vec<NodeId>,
    /// What others keep for it of keys of all regions stays for ever: it was fenced where nodes had
    /// such keys, and did not agree on what is kept of its own.
    pub keys_stay: bool,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether the heirs go on. Until then the fence is open.
    pub stands: bool,
}

impl LostRegion {
    /// Those that `kept` names.
    ///
    /// # Errors
    /// If it names a region, a group or a node that there is not.
    pub(crate) fn all(
        topology: &Topology,
        kept: &Kept,
    ) -> Result<BTreeMap<GroupId, LostRegion>, TopologyError> {
        let lost = kept.regions.iter().filter_map(|(name, of)| Some((name, of.lost.as_ref()?)));
        let all = lost.map(|(name, entry)| LostRegion::new(topology, name, entry));
        all.map(|lost| lost.map(|lost| (lost.group, lost))).collect()
    }

    fn new(topology: &Topology, name: &str, entry: &LostEntry) -> Result<Self, TopologyError> {
        let unknown = |what: String| TopologyError::Invalid(format!("{name} is lost: no {what}"));
        let region = topology.region_named(name);
        let region = region.ok_or_else(|| unknown(format!("region {name}")))?;
        let nodes = |names: &[String]| {
            let node = |node: &String| topology.node_named(node).ok_or_else(|| node.clone());
            let nodes: Result<Vec<_>, _> = names.iter().map(node).collect();
            nodes.map_err(|name| unknown(format!("node {name}")))
        };
        let processes = |by_group: &BTreeMap<String, Vec<String>>| {
            let mut found = Vec::new();
            for (group, members) in by_group {
                let id = topology.group_named(group);
                let id = id.ok_or_else(|| unknown(format!("group {group}")))?;
                found.extend(nodes(members)?.into_iter().map(|node| id.of(node)));
            }
            found.sort();
            Ok::<_, TopologyError>(found)
        };
        Ok(LostRegion {
            region,
            group: topology.group_of_region(region),
            number: entry.number,
            heirs: nodes(&entry.heirs)?,
            reporters: processes(&entry.reporters)?,
            beside: processes(&entry.beside)?,
            nodes: nodes(&entry.nodes)?,
            keys_stay: !entry.keyless && !entry.agreed,
            since_ms: entry.since_ms,
            stands: entry.stands,
        })
    }

    /// Since when it is lost, as a date and a time in the zone of Greenwich.
    pub fn since(&self) -> String {
        in_utc(self.since_ms)
    }
}

/// So many milliseconds after the beginning of 1970 as a date and a time in the zone of Greenwich.
pub fn in_utc(ms: u64) -> String {
    let (days, minutes) = (ms / 86_400_000, ms / 60_000 % 1440);
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// The year, the month and the day that come so many days after the first of 1970. Years begin in
/// March here, so that the day which is not in all of them is the last.
fn date_of(days: u64) -> (u64, u64, u64) {
    const CYCLE_DAYS: u64 = 146_097; // Of 400 years.
    let days = days + 719_468; // Since the first of March of the year 0.
    let (cycle, of_cycle) = (days / CYCLE_DAYS, days % CYCLE_DAYS);
    let leaps = of_cycle / 1460 + of_cycle / 146_096 - of_cycle / 36_524;
    let year = (of_cycle - leaps) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let january = u64::from(month >= 10);
    (cycle * 400 + year + january, if january == 1 { month - 9 } else { month + 3 }, day)
}

impl Topology {
    /// The regions that are lost for good, by their groups.
    pub fn lost(&self) -> &BTreeMap<GroupId, LostRegion> {
        &self.lost
    }

    /// Whether `group` was lost: it goes on with heirs, or is about to.
    pub fn has_lost(&self, group: GroupId) -> bool {
        self.lost.contains_key(&group)
    }

    /// What is known of a region if it is lost.
    pub fn lost_region(&self, region: RegionId) -> Option<&LostRegion> {
        self.lost.values().find(|lost| lost.region == region)
    }

    /// The nodes of lost regions.
    pub fn lost_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.lost.values().flat_map(|lost| &lost.nodes).copied()
    }

    /// Whether `node` was declared lost with its region.
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.lost_nodes().any(|lost| lost == node)
    }

    /// The lost nodes that are to keep the configuration: all others do already. The next node that
    /// comes takes the seat of one of them.
    pub fn lost_seats(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.keeping.replicas.iter().copied().filter(|node| self.is_lost(*node))
    }

    /// The lost region whose heirs do not go on yet.
    pub fn open_fence(&self) -> Option<&LostRegion> {
        self.lost.values().find(|lost| !lost.stands)
    }
}

#[cfg(test)]
mod tests {
    use super::date_of;

    #[test]
    fn days_have_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_786, (2026, 11, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date_of(days), date);
        }
    }
}
