//! The client of Meridian: what a mount, a command or a program of one's own speaks to the nodes
//! with.
//!
//! | module | what |
//! | --- | --- |
//! | [`client`] | updates and reads of the tree, as futures |
//! | `driver` | drives the session, which decides all that is not about bytes of files |
//! | [`connection`] | one connection to one node, opened when needed |
//! | [`data`] | blocks: stored on the ring of each region that holds the file |
//! | [`cache`] | blocks read or written a moment ago |
//! | [`dirty`] | bytes written and not yet sent: a plain value |
//! | `words` | what is said of updates |
//! | [`files`] | open files, write-back, names: what POSIX needs, without a word of FUSE |
#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod connection;
pub mod data;
pub mod dirty;
mod driver;
pub mod error;
pub mod files;
mod random;
mod words;

pub use client::{Client, ClientOptions, Prepared};
pub use error::{ClientError, ConnectError};
pub use files::Files;
