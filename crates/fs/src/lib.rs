//! The file system's metadata: a deterministic tree, cut into partitions.
#![forbid(unsafe_code)]

pub mod error;
pub mod operation;
pub mod types;

pub use error::FsError;
pub use operation::{Answer, Done, Operation, Query, Update};
pub use types::{Attributes, Entry, Extent, Ino, Kind, Place, Timestamp, Vector};
