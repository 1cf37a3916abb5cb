//! What one node decides: protocols, partitions and sessions joined into one Process.
#![forbid(unsafe_code)]

pub mod api;
