//! What a cluster is and how it changes.
//!
//! | module | what |
//! | --- | --- |
//! | [`topology`] | which nodes, regions and groups there are, and `cluster.json` |
//! | [`configuration`] | the configuration of a cluster as a service that paxos replicates |
#![forbid(unsafe_code)]

pub mod configuration;
pub mod topology;

pub use configuration::Configuration;
pub use topology::Topology;
