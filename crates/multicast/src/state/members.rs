//! Who is a member of which group: configurations, numbered by group from the first.
//!
//! A configuration of a group is ordered in that group by a message of its own
//! ([`crate::Start::configure`]) and comes into force with the next epoch: an epoch names the
//! configuration whose quorums count in it. Other groups learn it from that epoch's primary, before
//! anything else that it says. No configuration is ordered before the one before it is in force: so
//! whoever knows `c + 1` knows that an epoch of `c` stood. An epoch of `c + 1` is opened with
//! promises of a quorum of `c + 1`, and of a quorum of `c` too unless one of the promisers is in an
//! epoch of `c + 1` already; none of `c` stands ever after. What `c` decided is in the `T` of the
//! highest epoch among those promises.
//!
//! How an owner changes a group, which it does one change after the other:
//!
//! 1. It multicasts [`crate::Start::configure`] with the next number to the group. When that is
//!    delivered, [`crate::PrimCast::members`] knows it; it had no effect if another configuration
//!    of that number came first.
//! 2. It starts the new processes ([`crate::PrimCast::joining`]) with what a member knows then.
//!    Until they have state of the group they promise and hear, but do not stand for primary. They
//!    begin with a snapshot of the application, which the primary gives once it has told all other
//!    groups that they come.
//! 3. Once a member is primary in an epoch of the new configuration, those that left may be
//!    stopped. A node that left comes back only with the disk that it had, or under another number.
//!
//! A group that is lost goes on with other members, too, which its owner decides without it
//! ([`crate::Fence`]): earlier configurations count for nothing then.
//!
//! A group is added by a message to all groups that carries the new group's first configuration,
//! number 0; or its owner agrees on that elsewhere and tells each process
//! ([`crate::Command::Learn`]). Then its processes are started.

use meridian_core::{GroupId, NodeId, ProcessId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A configuration of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// The group.
    pub group: GroupId,
    /// Its number: one more than that of the configuration which it replaces; 0 for a new group.
    pub number: u64,
    /// The nodes that replicate the group, in order.
    pub members: Vec<NodeId>,
}

/// The configurations that are known of all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members {
    groups: BTreeMap<GroupId, BTreeMap<u64, Vec<NodeId>>>,
    /// Written apart: earlier programs have no such thing.
    #[serde(skip)]
    pub(crate) lost: Lost,
}

/// Of groups that were lost: the first configuration that counts, and who was a member before.
pub(crate) type Lost = BTreeMap<GroupId, (u64, BTreeSet<NodeId>)>;

/// So many configurations of a group are remembered: those that messages under way may still name.
const REMEMBERED: usize = 8;

/// A group of more members than this is a mistake.
const MEMBERS_MAX: usize = 256;

impl Members {
    /// All groups, in configuration `number`.
    pub fn new(groups: &BTreeMap<GroupId, Vec<NodeId>>, number: u64) -> Members {
        let of = |(group, members): (&GroupId, &Vec<NodeId>)| {
            (*group, BTreeMap::from([(number, members.clone())]))
        };
        Members { groups: groups.iter().map(of).collect(), lost: BTreeMap::new() }
    }

    /// Learns a configuration; whether it was not known. They may be learned in any order.
    pub fn learn(&mut self, config: &Config) -> bool {
        let valid = (1..=MEMBERS_MAX).contains(&config.members.len());
        let known = self.groups.get(&config.group);
        if !valid || known.is_some_and(|known| known.contains_key(&config.number)) {
            return false;
        }
        if let Some((first, lost)) = self.lost.get_mut(&config.group)
            && config.number < *first
        {
            lost.extend(&config.members);
            return false;
        }
        let known = self.groups.entry(config.group).or_default();
        known.insert(config.number, config.members.clone());
        while known.len() > REMEMBERED {
            known.pop_first();
        }
        known.contains_key(&config.number)
    }

    /// The group of this configuration was lost, and goes on in it: the earlier ones count for
    /// nothing any more.
    pub fn fence(&mut self, config: &Config) {
        let known = self.groups.entry(config.group).or_default();
        let later = known.split_off(&config.number);
        let gone = std::mem::replace(known, later);
        known.entry(config.number).or_insert_with(|| config.members.clone());
        let (first, lost) = self.lost.entry(config.group).or_default();
        *first = config.number.max(*first);
        lost.extend(gone.into_values().flatten());
    }

    /// A process is lost, though its group is not: what it says counts for nothing any more.
    pub fn lose(&mut self, process: ProcessId) {
        self.lost.entry(process.group).or_default().1.insert(process.node);
    }

    /// Whether a process was a member of its group when that was lost, or was lost beside it.
    pub fn is_lost(&self, process: ProcessId) -> bool {
        self.lost.get(&process.group).is_some_and(|(_, lost)| lost.contains(&process.node))
    }

    /// Learns all that another knows.
    pub fn merge(&mut self, other: &Members) {
        for (group, (first, lost)) in &other.lost {
            let first_heirs = other.in_config(*group, *first).filter(|_| *first > 0);
            if let Some(members) = first_heirs {
                self.fence(&Config { group: *group, number: *first, members: members.to_vec() });
            }
            self.lost.entry(*group).or_insert((*first, BTreeSet::new())).1.extend(lost);
        }
        for (group, configs) in &other.groups {
            for (number, members) in configs {
                let (group, number, members) = (*group, *number, members.clone());
                self.learn(&Config { group, number, members });
            }
        }
    }

    /// All configurations that are known, by group, ascending.
    pub fn configs(&self) -> impl Iterator<Item = Config> + '_ {
        self.groups.keys().flat_map(|group| self.from_number(*group, 0))
    }

    /// The configurations of `group` that are known from `number` on, ascending.
    pub fn from_number(&self, group: GroupId, number: u64) -> impl Iterator<Item = Config> + '_ {
        let configs = self.groups.get(&group).into_iter();
        let configs = configs.flat_map(move |configs| configs.range(number..));
        configs.map(move |(number, members)| {
            let (number, members) = (*number, members.clone());
            Config { group, number, members }
        })
    }

    /// The members of `group` in the configurations from `number` on, the latest first.
    pub fn lists(&self, group: GroupId, number: u64) -> impl Iterator<Item = &[NodeId]> + '_ {
        let configs = self.groups.get(&group).into_iter();
        configs.flat_map(move |configs| configs.range(number..).rev()).map(|(_, list)| &list[..])
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
        let Some(configs) = self.groups.get(&group) else { return false };
        let latest = configs.last_key_value().is_some_and(|(_, members)| members.contains(&node));
        latest || configs.values().any(|members| members.contains(&node))
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
    fn of_a_lost_group_only_the_heirs_count() {
        let (g, nodes) = (GroupId(0), |of: [u16; 2]| of.map(NodeId).to_vec());
        let config = |number, of| Config { group: g, number, members: nodes(of) };
        let mut members = Members::new(&BTreeMap::from([(g, nodes([1, 2]))]), 0);
        members.fence(&config(2, [5, 6]));
        assert_eq!((members.number(g), members.of(g)), (2, &nodes([5, 6])[..]));
        assert!(!members.learn(&config(1, [2, 3])), "it was ordered, and is known late");
        let lost = |members: &Members| (1..7).filter(|n| members.is_lost(g.of(NodeId(*n)))).count();
        assert_eq!((lost(&members), members.contains(g, NodeId(1))), (3, false));
        assert!(members.learn(&config(3, [6, 7])));
        let mut other = Members::new(&BTreeMap::from([(g, nodes([1, 2]))]), 0);
        other.merge(&members);
        assert_eq!((lost(&other), other.configs().count(), other.number(g)), (3, 2, 3));
    }

    #[test]
    fn the_latest_counts_and_earlier_ones_are_known() {
        let g = GroupId(0);
        let first = BTreeMap::from([(g, vec![NodeId(1), NodeId(2)])]);
        let mut members = Members::new(&first, 0);
        let next = Config { group: g, number: 1, members: vec![NodeId(2), NodeId(3)] };
        assert!(members.learn(&next) && !members.learn(&next));
        let another = Config { members: vec![NodeId(9)], ..next.clone() };
        assert!(!members.learn(&another), "the first of a number counts");
        assert_eq!(members.of(g), [NodeId(2), NodeId(3)]);
        assert_eq!(members.in_config(g, 0), Some(&[NodeId(1), NodeId(2)][..]));
        assert!(members.contains(g, NodeId(1)) && !members.contains(g, NodeId(4)));
        assert!(!members.learn(&Config { members: vec![], number: 2, ..next.clone() }));
        assert_eq!(members.latest(g), Some(next.clone()));
        assert!(members.learn(&Config { number: 5, ..next.clone() }));
        assert!(members.learn(&Config { number: 3, ..next.clone() }), "late");
        assert_eq!((members.number(g), members.from_number(g, 1).count()), (5, 3));
        for number in 6..20 {
            members.learn(&Config { number, ..next.clone() });
        }
        assert_eq!(members.configs().count(), REMEMBERED);
        assert!(!members.learn(&next), "long forgotten");
        assert_eq!(members.of(GroupId(9)), []);
    }
}
