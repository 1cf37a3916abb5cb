//! A node as its records tell, though it is a member of no group any more: for who reads what it
//! had. It takes part in nothing.

use super::{Node, Record};
use crate::replica::{Doubtful, Replica, Stage};
use meridian_core::{GroupId, Process, Time};
use meridian_multicast::Output;

impl Node {
    /// As [`Process::replay`], but records of a group that this node has left count, too: it was
    /// removed, or declared lost with its region. Such a node is only to be read; of the
    /// configuration, and of how far copies were looked after, it knows nothing.
    ///
    /// # Panics
    /// As that: if the records contradict each other.
    pub fn replay_former(&mut self, record: Record) {
        let group = match &record {
            Record::Multicast { group, .. }
            | Record::Vote { to: group, .. }
            | Record::VotesReport { by: group, .. } => Some(*group),
            Record::Inherited(_) => None, // It makes the replica.
            Record::Drain(_) | Record::Configuration(_) => return,
        };
        if let Some(group) = group
            && !self.replicas.contains_key(&group)
        {
            let replica = Replica::former(&self.topology, group, self.me);
            self.replicas.insert(group, replica);
        }
        self.replay(record);
    }

    /// Applies, after all records, what a group alone had to decide and its replica here has in its
    /// log: that a message is delivered is not flushed, so of what a node applied last its records
    /// do not say that it was decided. Returns these messages. Some may never have been decided:
    /// such a node is only to be read.
    pub fn deliver_rest(&mut self) -> Vec<(GroupId, Doubtful)> {
        let groups: Vec<_> = self.replicas.keys().copied().collect();
        let mut told = Vec::new();
        for group in groups {
            let replica = self.replicas.get_mut(&group);
            let rest = replica.map(|replica| replica.multicast.deliver_rest());
            for delivery in rest.unwrap_or_default() {
                told.push((group, Doubtful::of(&delivery.start, Stage::Assumed, Vec::new())));
                self.on_output(Time(0), group, Output::Deliver(delivery), None);
            }
        }
        told
    }

    /// Its replicas, by their groups.
    pub fn replicas(&self) -> impl Iterator<Item = (GroupId, &Replica)> {
        self.replicas.iter().map(|(group, replica)| (*group, replica))
    }
}
