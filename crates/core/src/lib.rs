//! What every crate of Meridian shares: identifiers, time, the [`Process`] trait, links
//! between processes, and the codec for frames.
//!
//! Nothing here does IO, reads a clock, starts a thread or draws a random number.
//!
//! | module | what |
//! | --- | --- |
//! | [`ids`] | names of regions, nodes, groups, processes, clients and messages |
//! | [`time`] | points in time |
//! | [`process`] | the trait of all protocols, their events and effects |
//! | [`aside`] | what is kept beside the state of a process, and decides nothing |
//! | [`compose`] | processes that consist of others |
//! | [`table`] | a hash table without an order, for the state of processes |
//! | [`shelf`] | entries at places that do not change, by key |
//! | [`short`] | keys and values that lie where they are held |
//! | [`room`] | how much room a list keeps when what was in it has gone |
//! | [`mix`](mod@mix) | a hash of a number |
//! | [`frame`] | how messages travel: length, version, checksum |
//! | [`carried`] | long bytes in frames, that are not copied |
//! | [`hello`] | what is said first on each connection |
//! | [`principal`] | who speaks on a connection, as a certificate says, and what that allows |
//! | [`introduction`] | who may speak with whom, and begin, by what is remembered of it |
//! | [`standing`] | how far the memory of a server goes, and what others remember of that |
//! | [`echo`] | how long it takes to a peer and back |
//! | [`link`] | FIFO without loss between two processes, over connections that break |
#![forbid(unsafe_code)]

pub mod aside;
pub mod carried;
pub mod compose;
pub mod echo;
pub mod frame;
pub mod hello;
pub mod ids;
pub mod introduction;
pub mod level;
pub mod link;
pub mod mix;
pub mod principal;
pub mod process;
pub mod room;
pub mod shelf;
pub mod short;
pub mod standing;
pub mod table;
pub mod time;

pub use aside::Aside;
pub use compose::Embedding;
pub use hello::Endpoint;
pub use ids::{
    BlockId, ClientId, GroupId, MessageId, NodeId, Position, ProcessId, RegionId, Stamp,
};
pub use mix::mix;
pub use process::{Effect, Event, Outbox, Process, Visible};
pub use shelf::{Keyed, Secret, Shelf, Slot};
pub use short::{Key, Value};
pub use table::Table;
pub use time::Time;

/// Whether bugs can be planted to see that the tests find them: in builds with debug assertions.
///
/// A constant, so that a release build contains neither the bugs nor the questions whether there is
/// one.
pub const PLANTED_BUGS: bool = cfg!(debug_assertions);
