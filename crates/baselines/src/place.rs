//! Who is who.

use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{Groups, Start, clocks};

/// A process among the others. The leader of a group is its first member.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub me: ProcessId,
    groups: Groups,
}

impl Place {
    /// # Panics
    /// If `me` is not a member of its group.
    pub fn new(me: ProcessId, groups: Groups) -> Place {
        assert!(groups[&me.group].contains(&me.node), "{me} is not in its group");
        Place { me, groups }
    }

    /// The members of `group`; none if there is no such group.
    pub fn members(&self, group: GroupId) -> &[NodeId] {
        self.groups.get(&group).map_or(&[], Vec::as_slice)
    }

    /// The leader of `group`, if there is such a group.
    pub fn leader(&self, group: GroupId) -> Option<ProcessId> {
        self.members(group).first().map(|node| ProcessId { group, node: *node })
    }

    /// Whether `process` leads its group.
    pub fn leads(&self, process: ProcessId) -> bool {
        self.leader(process.group) == Some(process)
    }

    /// The leader of the own group.
    pub fn my_leader(&self) -> ProcessId {
        ProcessId { group: self.me.group, node: self.members(self.me.group)[0] }
    }

    /// Whether this process leads its group.
    pub fn i_lead(&self) -> bool {
        self.my_leader() == self.me
    }

    /// How many are a quorum of `group`.
    pub fn quorum(&self, group: GroupId) -> usize {
        clocks::quorum(self.members(group).len())
    }

    /// The processes of `group` without this one.
    pub fn others(&self, group: GroupId) -> impl Iterator<Item = ProcessId> + '_ {
        let processes =
            self.members(group).iter().map(move |node| ProcessId { group, node: *node });
        processes.filter(|process| *process != self.me)
    }

    /// Whether `process` is one of this cluster.
    pub fn knows(&self, process: ProcessId) -> bool {
        self.members(process.group).contains(&process.node)
    }

    /// Whether a message could be multicast: its destinations ascend and exist.
    pub fn is_valid(&self, start: &Start) -> bool {
        let ascending = start.dest.windows(2).all(|pair| pair[0] < pair[1]);
        let known = |group: &GroupId| !self.members(*group).is_empty();
        ascending && !start.dest.is_empty() && start.dest.iter().all(known)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! Small clusters.

    use super::*;
    use crate::batch::Batch;
    use meridian_core::{ClientId, Effect, MessageId, Outbox, Process};
    use meridian_multicast::Delivery;
    use std::sync::Arc;

    /// Groups 0, 1, .. with nodes 0, 1, ..
    pub fn groups(sizes: &[u16]) -> Groups {
        let of = |(group, size): (u16, &u16)| (GroupId(group), (0..*size).map(NodeId).collect());
        Arc::new((0..).zip(sizes).map(of).collect())
    }

    pub fn process(group: u16, node: u16) -> ProcessId {
        ProcessId { group: GroupId(group), node: NodeId(node) }
    }

    pub fn id(sequence: u64) -> MessageId {
        MessageId { client: ClientId(1), sequence }
    }

    pub fn start(sequence: u64, dest: &[u16]) -> Start {
        let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
        Start::new(id(sequence), dest, vec![7])
    }

    /// What was sent, one by one, and the numbers of what was delivered.
    pub fn said<I, P>(out: &mut Outbox<P>) -> (Vec<(ProcessId, I)>, Vec<u64>)
    where
        P: Process<Peer = ProcessId, Message = Batch<I>, Output = Delivery>,
    {
        let (mut sent, mut delivered) = (Vec::new(), Vec::new());
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    sent.extend(message.0.into_iter().map(|item| (to, item)));
                }
                Effect::Output(delivery) => delivered.push(delivery.start.id.sequence),
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
        (sent, delivered)
    }

    #[test]
    fn messages_without_proper_destinations_are_no_messages() {
        let place = Place::new(process(0, 1), groups(&[2, 2]));
        assert!(place.is_valid(&start(1, &[0, 1])) && place.is_valid(&start(1, &[1])));
        for wrong in [&[][..], &[1, 0], &[0, 0], &[0, 2]] {
            assert!(!place.is_valid(&start(1, wrong)), "{wrong:?}");
        }
    }
}
