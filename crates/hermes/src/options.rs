//! How a replica behaves.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Who vouches that a read sees all that was written before it (Hermes, sections 2.4 and 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reads {
    /// The lease of the membership. Needs clocks that run about equally fast.
    Lease,
    /// A membership check: all followers say that they are still in the epoch, once for all reads
    /// of a moment. Needs no clocks, and a round trip.
    Check,
}

/// To whom a follower acknowledges a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acks {
    /// To its coordinator, which sends VALs: 3(n - 1) messages for a write.
    Coordinator,
    /// To all (Hermes, O3): whoever has heard all ACKs needs no VAL. n(n - 1) messages for a write:
    /// as many with three replicas, and validated half a round trip earlier; more with more.
    /// RMWs are acknowledged to their coordinator all the same: a follower that showed one before
    /// its coordinator knows could let another RMW defeat it.
    All,
}

/// Where a replica keeps what it holds (decision 33).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In memory: a crash takes it, and the replica is sent everything by another.
    Memory,
    /// In its log, too: what it acknowledges is durable before, and a start finds it.
    Disk,
}

/// How a replica behaves. All replicas of a group must have the same [`Reads`] and [`Acks`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Who vouches for reads.
    pub reads: Reads,
    /// To whom writes are acknowledged.
    pub acks: Acks,
    /// Where it keeps what it holds.
    pub durability: Durability,
    /// How many virtual ids a node draws from for its writes (Hermes, O2); 1 for none.
    pub virtual_ids: u16,
    /// mlt, the message-loss timeout (Hermes, section 3.4): what was not answered for so long is
    /// sent again, and who coordinates a key that is not Valid for so long is asked about it. A
    /// few times the slowest round trip: where links lose nothing, it is needed after a link broke.
    pub message_loss_timeout: Duration,
    /// So often an RMW is tried at most before it is said to be aborted.
    pub attempts_max: u32,
    /// So many requests wait for keys at most; more are refused.
    pub parked_max: usize,
    /// When so many bytes of values are under way, what else is asked waits for that, in order. It
    /// bounds what waits in the links to other replicas, together with the longest value.
    pub under_way_bytes: usize,
    /// The results of the last requests of so many clients are kept at most.
    pub clients_max: usize,
    /// So many bytes of keys and values go to a shadow replica in one message, or one entry.
    pub chunk_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reads: Reads::Lease,
            acks: Acks::Coordinator,
            durability: Durability::Memory,
            virtual_ids: 1,
            message_loss_timeout: Duration::from_millis(100),
            attempts_max: 32,
            parked_max: 1 << 20,
            under_way_bytes: 32 << 20,
            clients_max: 1 << 20,
            chunk_bytes: 256 << 10,
        }
    }
}
