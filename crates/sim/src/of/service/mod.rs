//! A service of one's own under faults: replicas of any [`meridian_paxos::Service`], with clients
//! that ask it whatever its author wants.
//!
//! Nothing has to be said of what is right. Replicas must do as the service does alone: the answers
//! must be those of one copy that is asked one thing after the other, each at a moment between call
//! and answer (linearizability), all replicas must end equal, and nobody may wait for ever. So a
//! service is found out that looks at a clock, counts on the order of a hash map, or leaves
//! something out of its snapshot.
//!
//! | module | what |
//! | --- | --- |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`clients`] | clients of the service, and what they saw |
//! | [`alone`] | the service alone, as what its replicas must equal |

pub mod alone;
pub mod clients;
pub mod trial;

pub use alone::{Alone, Ask};
pub use clients::Clients;
pub use trial::Trial;

use meridian_core::{GroupId, NodeId, ProcessId};

/// A replica behind a network that loses, repeats and reorders.
pub type Replica<S> = crate::lossy::Lossy<meridian_paxos::Paxos<S>>;

fn process(node: NodeId) -> ProcessId {
    ProcessId { group: GroupId(0), node }
}
