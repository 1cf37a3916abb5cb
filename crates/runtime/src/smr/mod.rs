//! State machine replication over TCP: replicas of a service, and their clients.
//!
//! A [`Replica`] is a [`meridian_paxos::Paxos`] with sockets, a clock and storage; a [`Client`]
//! finds the leader and asks again until it is answered, so that each request is executed exactly
//! once.
//!
//! | module | what |
//! | --- | --- |
//! | [`replica`] | starts, watches and ends a replica |
//! | [`desk`] | between a replica's process and its clients |
//! | `alone` | a replica that is a member of its own |
//! | [`client`] | a client, for programs |
//! | `driver`, `pending`, `line` | what is behind clients: one connection, and what waits for answers on it |
//! | [`wire`] | what clients and replicas say to each other |

mod alone;
pub mod client;
pub mod desk;
mod driver;
mod line;
mod pending;
pub mod replica;
pub mod wire;

pub use client::{Client, ClientError, ClientOptions};
pub use desk::{ChangedBy, Desk};
pub use replica::{Options, Replica, UNDER_WAY_MAX};
