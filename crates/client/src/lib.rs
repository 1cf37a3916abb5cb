//! The client of Meridian: what a mount, a command or a program of one's own speaks to the nodes
//! with.
//!
//! | module | what |
//! | --- | --- |
//! | `options` | what a client is told when it begins |
//! | [`client`] | updates and reads of the tree, as futures |
//! | `driver` | drives the session, which decides |
//! | [`connection`] | one connection to one node, opened when needed |
//! | [`data`] | blocks: stored and read, as futures |
//! | [`cache`] | blocks read or written a moment ago |
//! | `fetches` | parts of blocks that are being fetched |
//! | `incoming` | frames that come from a node |
//! | [`times`] | how long what was asked for took, by who ordered it |
//! | [`snapshot`] | the whole tree at one timestamp, kept by nodes while it is read |
//! | [`timeline`] | where the time of an update went; which took longest |
//! | [`plan`] | what calls would ask, of a client that sends no update |
//! | `words` | what is said of why updates failed |
//! | [`keys`] | the client of keys: any node of a region, each change once |
//! | [`files`] | open files and names: what POSIX needs, without a word of FUSE |
#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod connection;
pub mod data;
mod driver;
pub mod error;
mod fetches;
pub mod files;
mod incoming;
pub mod keys;
mod options;
pub mod plan;
mod random;
pub mod snapshot;
pub mod timeline;
pub mod times;
mod words;

pub use client::{Client, Prepared};
pub use error::{ClientError, ConnectError, TakeError};
pub use files::Files;
pub use meridian_fs::Durability;
pub use meridian_session::Moment;
pub use options::ClientOptions;
pub use snapshot::Snapshot;
