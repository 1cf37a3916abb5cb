//! What one node decides: protocols, partitions and sessions joined into one Process.
//!
//! [`Node`] runs, for each group that its node is a member of, a [`replica::Replica`]: a process of
//! the multicast, the partition that it orders, and what its clients were answered. It is pure like
//! what it joins, so the simulator runs it whole.
//!
//! | module | what |
//! | --- | --- |
//! | [`api`] | what clients and nodes say to each other |
//! | [`carried`] | blocks in that, of which no copy is made |
//! | [`node`] | the node as a `Process`: routing of messages, votes, requests, records |
//! | [`configuration`] | the node's replica of the configuration, if it keeps that |
//! | [`drain`] | what a node holds is given to others before it goes |
//! | [`replica`] | one group's replica: deliveries applied, clients answered, leases watched |
//! | `reads` | reads that wait |
//! | [`sessions`] | what came of each session's updates: exactly once, and nothing after it was given up |
//! | [`space`] | blocks that no file names are freed |
//! | [`steps`] | what was done lately for which message, and when |
//! | [`update`] | an update as it is multicast |
#![forbid(unsafe_code)]

pub mod api;
pub mod carried;
pub mod configuration;
pub mod drain;
#[doc(hidden)]
pub mod mutation;
pub mod node;
mod reads;
pub mod replica;
pub mod sessions;
pub mod space;
pub mod steps;
pub mod update;

pub use node::{Command, Message, Node, Output, Record, Timer};
pub use replica::ConnectionId;
