//! Immutable data blocks: the ring that places them and the segment files that keep them.
//!
//! | module | what |
//! | --- | --- |
//! | [`ring`] | which nodes hold a block |
//! | [`record`] | how a block lies in a segment file |
//! | [`store`] | the segment files and the index over them |
#![forbid(unsafe_code)]

pub mod record;
pub mod ring;
pub mod store;

pub use ring::{REPLICAS, Ring, placement};
pub use store::{BlockError, Counters, Store};
