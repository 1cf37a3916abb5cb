//! How a group gets its next members.

use super::Replica;
use meridian_cluster::topology::Group;
use meridian_core::{ClientId, MessageId};
use meridian_multicast::{Role, Start};

/// The client in the names of messages that change members, with the group's number: none of the
/// others, which are drawn at random, has its name.
const MEMBERS_CLIENT: u64 = 0x6d65_6d62_6572_0000;

impl Replica {
    /// The message by which the group gets its next members, if it is for this replica to have that
    /// ordered: the primary does, as long as the members before count and nothing else was ordered.
    /// It is one message however often it is said: what configuration has which number is decided
    /// elsewhere.
    pub fn next_members(&self, group: &Group) -> Option<Start> {
        let next = group.next.as_ref()?;
        let known = self.multicast.members().number(self.group);
        let leads = self.multicast.role() == Role::Primary;
        if !leads
            || group.waits_for.is_some()
            || self.multicast.epoch().config != group.number
            || known != group.number
        {
            return None;
        }
        let number = group.number + 1;
        let client = ClientId(MEMBERS_CLIENT | u64::from(self.group.0));
        let id = MessageId { client, sequence: number };
        let start = Start::configure(id, self.group, number, next.clone());
        Some(Start { low: number, ..start })
    }

    /// The number of the configuration whose quorums count, if this replica is the one to know.
    pub fn in_force(&self) -> Option<u64> {
        let leads = self.multicast.role() == Role::Primary;
        leads.then(|| self.multicast.epoch().config)
    }
}
