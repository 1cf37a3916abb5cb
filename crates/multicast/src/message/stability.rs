//! The family of stability: what is delivered for good, so that `T` can be truncated.

use super::{Dest, Rank};
use meridian_core::{MessageId, ProcessId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What processes say of their durable deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StabilityMessage {
    /// What is stable at the sender.
    Stable(Stable),
    /// What is stable at the sender, to the primary that relays for its group.
    StableFor(StableFor),
    /// What was stable at others, forwarded.
    Forwarded(Arc<[StableOf]>),
    /// The receiver is to say what is stable there: the sender keeps an entry for it, which it may
    /// never have held.
    StableWanted,
}

/// All messages with a final rank up to this one are durably delivered at the sender, and applied,
/// but for some.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stable {
    /// The rank of the last of them.
    pub delivered: Rank,
    /// Those that are not.
    pub except: Arc<[MessageId]>,
}

/// What is stable at the sender, to the primary that relays for its group: it forwards this to the
/// groups named, and to its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StableFor {
    /// The other groups that need to know.
    pub groups: Dest,
    /// What is stable at the sender.
    pub stable: Stable,
}

/// What is stable at a process, forwarded by another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StableOf {
    /// Which process.
    pub process: ProcessId,
    /// What is stable there.
    pub stable: Stable,
}
