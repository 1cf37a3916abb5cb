//! Immutable data blocks: the segment files that keep them, and what a node answers with them.
//!
//! | module | what |
//! | --- | --- |
//! | [`record`] | how a block lies in a segment file |
//! | [`store`] | the segment files and the index over them |
//! | [`desk`] | what a node answers with its blocks |
#![forbid(unsafe_code)]

pub mod desk;
pub mod record;
pub mod store;

pub use store::{BlockError, Blocks, Counters, Store};
