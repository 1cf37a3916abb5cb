//! Records and files that survive crashes.
//!
//! Only [`real_disk`] does IO; all else works on the [`Disk`] that it is given.
//!
//! | module | what |
//! | --- | --- |
//! | [`disk`] | what is asked of a disk: the border between this crate and the operating system |
//! | [`real_disk`] | the files of this machine |
//! | [`overlay`] | a disk over another, which is not changed |
//! | [`sim_disk`] | a disk in memory that loses, tears and reorders what was not synced |
//! | [`format`](mod@format) | the file that says of which version a directory is |
//! | [`record`] | how records lie in a file: length, number, checksums |
//! | [`wal`] | the write-ahead log: group commit, checkpoints, recovery |
#![forbid(unsafe_code)]

pub mod disk;
pub mod format;
pub mod overlay;
pub mod real_disk;
pub mod record;
pub mod sim_disk;
pub mod wal;

pub use disk::{Disk, DiskFile, Room};
pub use overlay::OverlayDisk;
pub use real_disk::{ReadOnlyDisk, RealDisk};
pub use sim_disk::SimDisk;
