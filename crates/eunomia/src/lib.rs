//! Causally consistent keys across regions: each region serves reads and updates by itself, and
//! what a session has seen is never missing behind what it wrote, wherever one looks.
//!
//! After Eunomia (Eunomia, chapter 3). Sources give updates timestamps without asking anyone. A
//! service in each region, behind the back of its clients, finds out up to which time all updates
//! are known, and sends their labels to other regions in one order. A receiver there has updates
//! applied once all that they depend on is. Data travels apart from labels.
//!
//! Where this differs from the thesis, with reasons, is decision 40; in short:
//! - Updates of a source may be in flight at the same time, and promises are apart from labels.
//! - A label is dropped only when all regions have applied its update. Sources keep them, too, so
//!   the replicas of the service have nothing on disk.
//! - Each receiver says which replica sends to it; there is no other election.
//! - Receivers apply updates at the same time unless one depends on the other.
//! - Of concurrent updates to a key the one with the greater [`Order`] stays, everywhere.
//! - Regions join, leave and are removed while all serve: decision 88.
//!
//! This crate decides; it has no IO, no clock and no disk. Links may lose, repeat and reorder. The
//! three processes are [`Shard`], [`Replica`] and [`Receiver`]; [`Member`] is any of them. Who has
//! keys of its own takes [`Source`] in place of [`Shard`].
//!
//! | module | what | Eunomia |
//! | --- | --- | --- |
//! | [`timestamp`] | hybrid time, vectors, the order of a key's updates | 3.1, 3.4.1 |
//! | [`session`] | what a client has seen; tokens | Algorithm 1 |
//! | [`message`] | who takes part, what they say | |
//! | `fixed` | labels and vectors as bytes of a fixed layout | |
//! | [`options`] | how they behave | |
//! | [`source`] | timestamps and promises | Algorithm 2 |
//! | [`inbox`] | updates of other regions, until they are applied | 3.4.2.2 |
//! | [`shard`] | keys on a source | Algorithm 2, 3.4.1, 3.4.2.2 |
//! | [`stabilizer`] | what is stable | Algorithm 3 |
//! | [`replica`] | the service | Algorithm 4 |
//! | [`receiver`] | what is applied when; sessions that move | Algorithm 5, 3.4.2.3 |
//! | [`regions`] | which regions there are | |
//! | [`registry`] | who decides that | |
//! | [`member`] | any of the processes | |
#![forbid(unsafe_code)]

mod fixed;
pub mod inbox;
pub mod member;
pub mod message;
mod mutation;
pub mod options;
pub mod receiver;
pub mod regions;
pub mod registry;
pub mod replica;
pub mod session;
pub mod shard;
pub mod source;
pub mod stabilizer;
pub mod timestamp;

pub use inbox::Inbox;
pub use member::Member;
pub use message::{Batch, Label, Message, Peer, Role, Site, Timer, Topology, Update, place_of};
pub use mutation::Mutation;
pub use options::Options;
pub use receiver::Receiver;
pub use regions::{Refusal, Regions, Standing, Word};
pub use registry::Registry;
pub use replica::Replica;
pub use session::Session;
pub use shard::Shard;
pub use source::Source;
pub use stabilizer::Stabilizer;
pub use timestamp::{Order, REGIONS_MAX, SOURCES_MAX, Seen, Timestamp, Vector};
