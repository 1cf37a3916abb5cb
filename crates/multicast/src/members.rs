//! Who is a member of which group: configurations, numbered by group from the first.
//!
//! A configuration of a group is ordered in that group by a message of its own ([`Config`] in a
//! [`crate::Start`]) and comes into force with the next epoch: an epoch names the configuration whose
//! quorums count in it. Other groups learn it from that epoch's primary, before anything else that it says.
//! No configuration is ordered before the one before it is in force, so an epoch of configuration
//! `c + 1` is opened with promises of a quorum of `c` and of a quorum of `c + 1`, and none of `c` ever after.

use meridian_core::{GroupId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A configuration of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// The group.
    pub group: GroupId,
    /// Its number: one more than that of the configuration which it replaces; any for a new group.
    pub number: u64,
    /// The nodes that replicate the group, in order.
    pub members: Vec<NodeId>,
}

/// The configurations that are known of all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members {
    groups: BTreeMap<GroupId, BTreeMap<u64, Vec<NodeId>>>,
}

/// So many configurations of a group are remembered: those that messages under way may still name.
const REMEMBERED: usize = 8;

impl Members {
    /// All groups, in configuration `number`.
    pub fn new(groups: &BTreeMap<GroupId, Vec<NodeId>>, number: u64) -> Members {
        let of = |(group, members): (&GroupId, &Vec<NodeId>)| {
            (*group, BTreeMap::from([(number, members.clone())]))
        };
        Members { groups: groups.iter().map(of).collect() }
    }

    /// Learns a configuration; whether it is the latest of its group now.
    pub fn learn(&mut self, config: &Config) -> bool {
        let known = self.groups.entry(config.group).or_default();
        let latest = known.last_key_value().is_none_or(|(number, _)| *number < config.number);
        if latest && !config.members.is_empty() {
            known.insert(config.number, config.members.clone());
            while known.len() > REMEMBERED {
                known.pop_first();
            }
            return true;
        }
        false
    }

    /// Learns all that another knows.
    pub fn merge(&mut self, other: &Members) {
        for (group, configs) in &other.groups {
            for (number, members) in configs {
                let (group, number, members) = (*group, *number, members.clone());
                self.learn(&Config { group, number, members });
            }
        }
    }

    /// The latest configuration of `group`.
    pub fn latest(&self, group: GroupId) -> Option<Config> {
        let (number, members) = self.groups.get(&group)?.last_key_value()?;
        Some(Config { group, number: *number, members: members.clone() })
    }

    /// The number of the latest configuration of `group`.
    pub fn number(&self, group: GroupId) -> u64 {
        let latest = self.groups.get(&group).and_then(|configs| configs.last_key_value());
        latest.map_or(0, |(number, _)| *number)
    }

    /// The members of `group` in its latest configuration; none if there is no such group.
    pub fn of(&self, group: GroupId) -> &[NodeId] {
        let latest = self.groups.get(&group).and_then(|configs| configs.last_key_value());
        latest.map_or(&[], |(_, members)| members)
    }

    /// The members of `group` in a configuration, if that is known.
    pub fn in_config(&self, group: GroupId, number: u64) -> Option<&[NodeId]> {
        self.groups.get(&group)?.get(&number).map(Vec::as_slice)
    }

    /// Whether `node` is a member of `group` in any configuration that is known.
    pub fn contains(&self, group: GroupId, node: NodeId) -> bool {
        let configs = self.groups.get(&group);
        configs.is_some_and(|configs| configs.values().any(|members| members.contains(&node)))
    }

    /// Whether there is such a group.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_counts_and_earlier_ones_are_known() {
        let g = GroupId(0);
        let first = BTreeMap::from([(g, vec![NodeId(1), NodeId(2)])]);
        let mut members = Members::new(&first, 0);
        let next = Config { group: g, number: 1, members: vec![NodeId(2), NodeId(3)] };
        assert!(members.learn(&next) && !members.learn(&next));
        assert_eq!(members.of(g), [NodeId(2), NodeId(3)]);
        assert_eq!(members.in_config(g, 0), Some(&[NodeId(1), NodeId(2)][..]));
        assert!(members.contains(g, NodeId(1)) && !members.contains(g, NodeId(4)));
        assert!(!members.learn(&Config { members: vec![], number: 2, ..next.clone() }));
        assert_eq!(members.latest(g), Some(next));
        assert_eq!(members.of(GroupId(9)), []);
    }
}
