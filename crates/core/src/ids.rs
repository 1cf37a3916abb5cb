//! Names. All are small, `Copy` and ordered; none can be mistaken for another.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How many groups there may be: a group's id is in the numbers of its inodes.
pub const GROUPS_MAX: usize = 2048;

/// A region: a place of the world whose nodes are near each other. An index into the
/// cluster's list of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegionId(pub u16);

/// A node: one server process of the operating system. An index into the cluster's
/// list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A group: the processes that order commands together, and with it the partition of the tree
/// that they replicate. An index into the cluster's list of groups; 0 is [`GroupId::GLOBAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group whose partition is replicated in every region.
    pub const GLOBAL: GroupId = GroupId(0);

    /// The process of this group on `node`.
    pub const fn of(self, node: NodeId) -> ProcessId {
        ProcessId { group: self, node }
    }
}

/// A process: the replica of one group on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The group that it is a member of.
    pub group: GroupId,
    /// The node that it runs on.
    pub node: NodeId,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}/n{}", self.group.0, self.node.0)
    }
}

/// A client, drawn at random from 64 bits when it starts; never used again by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// The name of a multicast message: its client, and the number which that client gave it.
///
/// A client numbers from 1 and uses no number twice. A message sent again keeps its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId {
    /// Who multicast it.
    pub client: ClientId,
    /// The client's number for it.
    pub sequence: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.client.0, self.sequence)
    }
}

/// Why words are not the name of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no message: it is named as 7b2f019ac4.12 is")]
pub struct NoMessage(String);

impl FromStr for MessageId {
    type Err = NoMessage;

    fn from_str(words: &str) -> Result<MessageId, NoMessage> {
        let parse = || {
            let (client, sequence) = words.split_once('.')?;
            let client = ClientId(u64::from_str_radix(client, 16).ok()?);
            Some(MessageId { client, sequence: sequence.parse().ok()? })
        };
        parse().ok_or_else(|| NoMessage(words.into()))
    }
}

/// The final timestamp of a multicast message, the same at all its destinations; 0 is before all.
/// Of two with the same one, that with the lesser [`MessageId`] is first. Comparable only between
/// messages that have a destination in common.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Stamp(pub u64);

/// How many messages one process has delivered: 0 before the first. Processes of a group may
/// deliver messages that commute in different orders, so it names nothing outside of its process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Position(pub u64);

/// The name of a data block, drawn by the client that writes it ([`BlockId::named`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u128);

impl BlockId {
    /// A name for a block of files in `partition`, drawn at `born_ms` (milliseconds since 1970 by
    /// the clock of its client); `random` must be drawn anew for each.
    ///
    /// It says for how long an update may come that names it, and which partition knows whether one
    /// has: see docs/decisions/0042-blocks-that-no-file-names-are-freed.md.
    pub fn named(partition: GroupId, born_ms: u64, random: u64) -> BlockId {
        let born = u128::from(born_ms.min(BORN_MAX));
        BlockId(u128::from(partition.0) << 112 | born << 64 | u128::from(random))
    }

    /// The partition whose files may lie in it.
    pub fn partition(self) -> GroupId {
        GroupId((self.0 >> 112) as u16)
    }

    /// When its name was drawn, as its client believed.
    pub fn born_ms(self) -> u64 {
        (self.0 >> 64) as u64 & BORN_MAX
    }
}

/// Milliseconds are told in 48 bits: up to the year 10889.
const BORN_MAX: u64 = (1 << 48) - 1;

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{:032x}", self.0)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_is_shown() {
        let id = MessageId { client: ClientId(0x7b_2f01_9ac4), sequence: 12 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for words in ["", "7b2f", "7b2f.", ".1", "x.1", "7b2f.1.2", "7b2f.-1"] {
            assert!(words.parse::<MessageId>().is_err(), "{words}");
        }
    }
}
