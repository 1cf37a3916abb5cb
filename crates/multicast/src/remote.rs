//! What other groups proposed: `local-ts(m, h)` for `h` not our own group (Algorithm 1, line 9).
//!
//! A local timestamp is decided once a quorum of its group has acknowledged it in one epoch.

use crate::clocks::quorum;
use crate::message::{Epoch, RemoteAck, Timestamp};
use meridian_core::{GroupId, MessageId, ProcessId, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The ACKs of other groups for messages not delivered here yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remote {
    messages: BTreeMap<MessageId, Proposals>,
}

/// The proposals for one message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposals {
    /// When the first ACK came.
    pub since: Time,
    groups: BTreeMap<GroupId, Tally>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Tally {
    decided: Option<Timestamp>,
    acks: BTreeMap<(Epoch, Timestamp), BTreeSet<ProcessId>>,
}

impl Remote {
    /// `from`, one of `members` processes of its group, acknowledged. Returns the group's local
    /// timestamp if that decided it.
    ///
    /// # Panics
    /// If two quorums of a group acknowledged different timestamps (Lemma 4).
    pub fn ack(
        &mut self,
        from: ProcessId,
        ack: RemoteAck,
        members: usize,
        now: Time,
    ) -> Option<Timestamp> {
        let proposals = self.messages.entry(ack.id);
        let proposals =
            proposals.or_insert_with(|| Proposals { since: now, groups: BTreeMap::new() });
        let tally = proposals.groups.entry(from.group).or_default();
        let acks = tally.acks.entry((ack.epoch, ack.ts)).or_default();
        acks.insert(from);
        if acks.len() < quorum(members) {
            return None;
        }
        let known = *tally.decided.get_or_insert(ack.ts);
        assert!(known == ack.ts, "Lemma 4: {} has local {known:?} and {:?}", ack.id, ack.ts);
        (acks.len() == quorum(members)).then_some(ack.ts)
    }

    /// The decided local timestamp of `id` in `group`.
    pub fn decided(&self, id: MessageId, group: GroupId) -> Option<Timestamp> {
        self.messages.get(&id)?.groups.get(&group)?.decided
    }

    /// The greatest decided local timestamp of `id` in any other group.
    pub fn bound(&self, id: MessageId) -> Option<Timestamp> {
        self.messages.get(&id)?.groups.values().filter_map(|tally| tally.decided).max()
    }

    /// The messages that someone acknowledged, with those who did.
    pub fn acknowledged(
        &self,
    ) -> impl Iterator<Item = (MessageId, &Proposals, impl Iterator<Item = ProcessId> + '_)> {
        self.messages.iter().map(|(id, proposals)| {
            let tallies = proposals.groups.values().flat_map(|tally| tally.acks.values());
            (*id, proposals, tallies.flatten().copied())
        })
    }

    /// The message is delivered.
    pub fn forget(&mut self, id: MessageId) {
        self.messages.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{ClientId, NodeId};

    /// Line 10: the quorum must be of one epoch; acknowledgements of two epochs do not add up.
    #[test]
    fn a_quorum_of_one_epoch_decides() {
        let id = MessageId { client: ClientId(1), sequence: 1 };
        let epoch = |number| Epoch { number, leader: NodeId(0) };
        let from = |node| ProcessId { group: GroupId(1), node: NodeId(node) };
        let ack = |number, ts| RemoteAck { id, epoch: epoch(number), ts: Timestamp(ts) };
        let mut remote = Remote::default();
        assert_eq!(remote.ack(from(0), ack(1, 5), 3, Time(0)), None);
        assert_eq!(remote.ack(from(0), ack(1, 5), 3, Time(0)), None);
        assert_eq!(remote.ack(from(1), ack(2, 5), 3, Time(0)), None);
        assert_eq!(remote.decided(id, GroupId(1)), None);
        assert_eq!(remote.ack(from(2), ack(2, 5), 3, Time(0)), Some(Timestamp(5)));
        assert_eq!(remote.bound(id), Some(Timestamp(5)));
    }
}
