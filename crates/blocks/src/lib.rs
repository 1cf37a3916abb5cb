//! Immutable data blocks: the ring that places them and the segment files that keep them.
//!
//! | module | what |
//! | --- | --- |
//! | [`ring`] | which nodes hold a block |
//! | [`disk`] | what is asked of a disk: the border between this crate and the operating system |
//! | [`format`](mod@format) | the file that says of which version a directory is |
//! | [`record`] | how a block lies in a segment file |
//! | [`store`] | the segment files and the index over them |
//! | [`sim_disk`] | a disk in memory that loses, tears and reorders what was not synced |
#![forbid(unsafe_code)]

pub mod disk;
pub mod format;
pub mod record;
pub mod ring;
pub mod sim_disk;
pub mod store;

pub use disk::{Disk, DiskFile};
pub use ring::{REPLICAS, Ring, placement};
pub use sim_disk::SimDisk;
pub use store::{BlockError, Counters, Store};
