//! Judges of histories that know no protocol: what clients saw, and whether it may be.
//!
//! The properties of atomic multicast are judged in [`crate::of::multicast::checkers`].

pub mod causal;
pub mod linearizable;
pub mod recorded;
