//! The file system's metadata: a deterministic tree, cut into partitions.
//!
//! | module | what |
//! | --- | --- |
//! | [`types`] | inodes' numbers, places, attributes, extents, locks |
//! | [`operation`] | updates, which are multicast |
//! | [`query`] | queries, which one replica answers |
//! | `scope` | which partitions an update concerns |
//! | `mode` | how either is executed |
//! | [`error`] | why an update or a query is refused |
//! | [`partition`] | the state of one partition; takes deliveries and votes |
//! | `keys` | what an update touches, and why the rest commutes |
//! | `pending` | messages that are delivered and not decided |
//! | [`vote`] | how several partitions agree on an update |
//! | `acl` | access control lists and permission bits |
//! | [`access`] | what clients may do that may not do all |
//! | [`settled`] | what is set of a file together with what was written to it |
//! | [`durability`] | when what programs do is durable, as directories and files say it |
//! | `apply`, `execute` | what updates of several inodes and of one inode do |
//! | `read` | answers to queries |
//! | `regions` | entries of the root for regions that come and go |
//! | `tops` | what is known of directories that live elsewhere than their names |
//! | [`quota`] | how much may lie below a directory, and how much does |
//! | [`counting`] | how what is below a directory that is not empty gets under a quota |
//! | `tree`, `inode`, `extents`, `locks`, `leases` | the state itself |
//! | `caps`, `holders` | who may answer looks by itself |
//! | `made` | what a client makes it holds, if it asks for that |
//! | `hash` | hashes that are the same everywhere |
//! | `words` | what updates are called |
//! | [`inventory`] | all that some partitions hold, by paths |
//! | [`holdings`] | how much there is in a partition, and what clients hold of it |
//! | [`invariants`] | walks that panic if the state contradicts itself |
//!
//! Deliberately absent: who is at the other end of a connection (an operation brings the rights of
//! its client, or none if that may do all), times (each update brings its own), blocks' bytes, and
//! any knowledge of the network.
#![forbid(unsafe_code)]

pub mod access;
mod acl;
mod apply;
pub mod batch;
pub mod blocks;
mod caps;
pub mod counting;
pub mod durability;
pub mod error;
mod execute;
mod extents;
mod hash;
mod holders;
pub mod holdings;
mod inode;
pub mod invariants;
pub mod inventory;
mod keys;
mod leases;
mod locking;
mod locks;
mod made;
mod mode;
#[doc(hidden)]
pub mod mutation;
pub mod operation;
pub mod partition;
mod pending;
pub mod query;
pub mod quota;
mod read;
mod regions;
mod scope;
pub mod settled;
mod tops;
mod tree;
pub mod types;
pub mod vote;
mod waits;
mod words;

pub use access::Rights;
pub use caps::{GRANT_MAX, Subject};
pub use durability::Durability;
pub use error::FsError;
pub use holdings::Holdings;
pub use keys::quota_keys;
pub use made::MadeHeld;
pub use mode::Mode;
pub use operation::{CapStep, Done, Operation, Update};
pub use partition::{Effect, Partition};
pub use query::{Answer, Listed, Query};
pub use settled::Setting;
pub use types::{Attributes, Entry, Extent, Ino, Kind, Place, Rank, Timestamp, Vector};
pub use vote::Vote;
pub use waits::{CYCLE_MAX, Stand, Standing, Under, Wait, Waits, cycle_of};
