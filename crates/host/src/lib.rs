//! What one node decides: protocols, partitions and sessions joined into one Process.
//!
//! [`Node`] runs, for each group that its node is a member of, a [`replica::Replica`]: a process of
//! the multicast, the partition that it orders, and what its clients were answered. It is pure like
//! what it joins, so the simulator runs it whole.
//!
//! | module | what |
//! | --- | --- |
//! | [`cluster`] | the cluster's configuration, as a service that paxos replicates |
//! | [`api`] | what clients and nodes say to each other |
//! | [`node`] | the node as a `Process`: routing of messages, votes, requests, records |
//! | [`replica`] | one group's replica: deliveries applied, clients answered, leases watched |
//! | `reads` | reads that wait |
//! | [`sessions`] | what was answered to whom: exactly once |
#![forbid(unsafe_code)]

pub mod api;
pub mod cluster;
pub mod node;
mod reads;
pub mod replica;
pub mod sessions;

pub use node::{Command, Message, Node, Output, Record};
pub use replica::ConnectionId;
