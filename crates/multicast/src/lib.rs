//! Genuine atomic multicast: PrimCast.
#![forbid(unsafe_code)]

pub mod message;

pub use message::{Epoch, Start, Timestamp};
