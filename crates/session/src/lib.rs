//! What a client decides, without IO: the names under which its updates are sent, what it has given
//! up and how that is kept from happening later, and which node is asked.
//!
//! | module | what |
//! | --- | --- |
//! | [`names`] | one session for each set of destinations; updates given up, what cancels them |
//! | [`routes`] | which node of a group to ask, and which to avoid for a while |
//!
//! Invariants:
//! - V2: an update is sent under one name however often it is sent, so it takes effect at most
//!   once.
//! - V3: an update that was given up takes no effect after a later one that touches the same and
//!   was acknowledged.
#![forbid(unsafe_code)]

pub mod names;
pub mod routes;

pub use names::{Name, Names};
pub use routes::Routes;
