//! What a client decides, without IO: a [`Session`] is the process of one client, which the
//! embeddable client and the simulator run.
//!
//! | module | what |
//! | --- | --- |
//! | [`session`] | the process: updates and reads, deadlines, the client's vector |
//! | [`calls`] | what its owner asks it for, and is told |
//! | `update` | one update: its name, and what must be answered before it is sent |
//! | `following` | what another client has seen, and this one goes on from |
//! | [`cuts`] | which groups are cut off, and until when a call that needs one may wait |
//! | [`tops`] | directories that live elsewhere than their names, shown while nobody answers |
//! | `waiting` | calls that wait for such a group |
//! | `inquiries` | one question to one group: which node is asked, and when another one |
//! | [`names`] | one session for each set of destinations; updates given up, what cancels them |
//! | [`ahead`] | what is fetched of a file before somebody reads it |
//! | [`blocks`] | blocks on their way: which nodes are asked, when one is stored or lost |
//! | `caps` | what it may answer itself, and what it keeps for that |
//! | [`deadlocks`] | whether programs wait for each other's locks in a cycle |
//! | `nodes` | the nodes: the configuration, the order in which they come for a block |
//! | [`writeback`] | what is written to a file and not yet stored, and in which order it goes out |
//! | [`drill`] | which updates can be done while a region is cut off |
//! | [`forecast`] | how long an update or a look will take, before it is asked for |
//! | `random` | numbers for names, from a seed |
//! | [`timeline`] | where the time of one update went, over the client and the nodes |
//! | [`opens`] | which open files the partitions are told of |
//! | [`taking`] | how a snapshot of all groups is taken, and who keeps it |
//! | [`routes`] | which node of a group to ask, and which to avoid for a while |
//!
//! Invariants:
//! - V1: whatever an answered call showed, every later call of the same client sees it or what came
//!   after.
//! - V2: an update is sent under one name however often it is sent, so it takes effect at most
//!   once.
//! - V3: an update that was given up takes no effect after a later one that touches the same and
//!   was acknowledged.
#![forbid(unsafe_code)]

pub mod accesses;
pub mod ahead;
pub mod blocks;
pub mod calls;
pub(crate) mod caps;
pub mod cuts;
pub mod deadlocks;
pub mod drill;
mod following;
pub mod forecast;
mod inquiries;
pub mod mutation;
pub mod names;
mod nodes;
pub mod opens;
mod parked;
mod random;
pub mod room;
pub mod routes;
pub mod session;
pub mod taking;
pub mod timeline;
pub mod tops;
mod update;
mod waiting;
pub mod writeback;

pub use ahead::ReadAhead;
pub use blocks::placing::{Placing, Progress};
pub use blocks::{Block, BlockNames, Part};
pub use calls::{CallId, Command, Due, Failure, Keeping, Message, Output, ToLand};
pub use caps::{HELD_MAX, Holding, Moment, Pages, SPAN};
pub use deadlocks::Deadlocks;
pub use mutation::Mutation;
pub use names::{Name, Names};
pub use opens::Opens;
pub use routes::Routes;
pub use session::Session;
pub use taking::Taking;
pub use tops::Tops;
pub use writeback::WriteBack;
