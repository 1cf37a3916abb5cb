//! What every crate of Meridian shares: identifiers, time, the [`Process`] trait, links
//! between processes, and the codecs for frames and for log records.
//!
//! Nothing here does IO, reads a clock, starts a thread or draws a random number.
//!
//! | module | what |
//! | --- | --- |
//! | [`ids`] | names of regions, nodes, groups, processes, clients and messages |
//! | [`time`] | points in time and the tokens of timers |
//! | [`process`] | the trait of all protocols, their events and effects |
//! | [`table`] | a hash table without an order, for the state of processes |
//! | [`room`] | how much room a list keeps when what was in it has gone |
//! | [`topology`] | which nodes, regions and groups there are, and `cluster.json` |
//! | [`frame`] | how messages travel: length, version, checksum |
//! | [`log`] | how records lie in a file: length, number, checksums |
//! | [`link`] | FIFO without loss between two processes, over connections that break |
#![forbid(unsafe_code)]

pub mod frame;
pub mod ids;
pub mod link;
pub mod log;
pub mod process;
pub mod room;
pub mod table;
pub mod time;
pub mod topology;

pub use ids::{
    BlockId, ClientId, GroupId, MessageId, NodeId, Position, ProcessId, RegionId, Stamp,
};
pub use process::{Effect, Event, Outbox, Process};
pub use table::Table;
pub use time::{Time, Token};
pub use topology::Topology;
