//! What a cluster is and how it changes.
//!
//! | module | what |
//! | --- | --- |
//! | [`file`] | `cluster.json` |
//! | [`topology`] | which nodes, regions and groups there are |
//! | [`levels`] | by which feature level a cluster goes |
//! | [`lost`] | regions that are lost for good, and who goes on in their place |
//! | [`keeping`] | which nodes keep the configuration |
//! | [`ring`] | which nodes hold a block |
//! | [`configuration`] | the configuration of a cluster as a service that paxos replicates |
#![forbid(unsafe_code)]

pub mod configuration;
pub mod file;
pub mod grants;
pub mod keeping;
pub mod levels;
pub mod lost;
mod order;
pub mod ring;
pub mod topology;

pub use configuration::Configuration;
pub use lost::LostRegion;
pub use ring::Ring;
pub use topology::Topology;
