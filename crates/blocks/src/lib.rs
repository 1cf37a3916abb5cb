//! Immutable data blocks: the segment files that keep them.
//!
//! | module | what |
//! | --- | --- |
//! | [`record`] | how a block lies in a segment file |
//! | [`store`] | the segment files and the index over them |
#![forbid(unsafe_code)]

pub mod record;
pub mod store;

pub use store::{BlockError, Counters, Store};
