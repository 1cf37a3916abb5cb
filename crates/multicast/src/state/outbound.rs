//! What other groups were sent of our `T` and of our configuration, and whether they can be
//! reached.

use crate::state::reach::Reach;
use meridian_core::{GroupId, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// So many entries are in one message at most.
pub(crate) const ENTRIES_MAX: usize = 4096;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outbound {
    /// The length of `T` up to which other groups were sent ACKs.
    pub acked: u64,
    /// As primary, the length of `T` up to which other groups were sent entries.
    pub streamed: u64,
    /// Which processes of other groups have the stream of this epoch, up to which index.
    pub followers: BTreeMap<ProcessId, u64>,
    /// Which processes are to be sent the whole stream again.
    pub stream_to: BTreeSet<ProcessId>,
    /// Which processes are to be sent our ACK again.
    pub ack_to: BTreeSet<ProcessId>,
    /// The number of our group's configuration that all other groups were told.
    pub config_told: u64,
    /// Which other groups can be reached.
    pub reach: Reach,
}

impl Outbound {
    /// A group was lost: its members need nothing.
    pub fn forget(&mut self, group: GroupId) {
        self.followers.retain(|process, _| process.group != group);
        self.stream_to.retain(|process| process.group != group);
        self.ack_to.retain(|process| process.group != group);
    }

    /// A new epoch: all entries and ACKs are sent again, those of retained gaps too.
    pub fn start_epoch(&mut self) {
        self.acked = 0;
        self.streamed = 0;
        self.followers.clear();
        self.reach.start_epoch();
    }
}
