//! Runs any protocol over TCP.
//!
//! A *member* is one process of one group with its sockets, its clock and its storage. Several can
//! live on one thread ([`Worker`]).
//!
//! | module | what |
//! | --- | --- |
//! | [`member`] | a member for programs that want messages in order and no more |
//! | `replica`, [`hosted`] | what is behind that, and what it needs of a protocol |
//! | [`smr`] | state machine replication: replicas of a service, and their clients |
//! | [`outside`] | clients that multicast and are members of no group |
//! | [`application`] | what runs on top of a member, on its thread |
//! | [`handle`] | members on threads, and how other threads speak with them |
//! | `engine` | events into the process, effects out of it: batches |
//! | `peers`, `peer`, [`delay`] | the other members, and what is on its way to each |
//! | `clients`, `serve` | connections of clients, on the same port |
//! | `plain` | connections of clients that speak a protocol of their own, on another port |
//! | [`lanes`] | threads of one server that are called at one port |
//! | `greeting` | how clients begin a connection |
//! | `introduction` | what a member asks the others before it does anything |
//! | `local`, `connection`, [`wire`] | tasks and sockets |
//! | [`names`] | what members are called in their certificates |
//! | [`clock`] | the time that steps are given |
//! | [`gate`] | the durability rule |
//! | [`journal`] | what a driver asks of the write-ahead log |
//! | [`logged`] | records of any length in a log of short ones |
//! | [`directory`] | the directory of one server: locked, and its starts counted |
//! | [`storage`] | where a member keeps its records |
#![forbid(unsafe_code)]

pub mod application;
mod clients;
pub mod clock;
mod connection;
pub mod delay;
pub mod directory;
mod engine;
pub mod error;
pub mod gate;
mod greeting;
pub mod handle;
pub mod hosted;
mod introduction;
pub mod journal;
pub mod lanes;
mod local;
pub mod logged;
pub mod member;
pub mod names;
pub mod outside;
mod peer;
mod peers;
mod plain;
mod replica;
mod serve;
pub mod smr;
pub mod storage;
mod store;
pub mod wire;

pub use application::{Application, At, Networked};
pub use clients::ConnectionId;
pub use clock::Clock;
pub use delay::Delay;
pub use error::{MemberError, MulticastError};
pub use handle::{Handle, Listen, Options, Worker};
pub use hosted::Hosted;
pub use lanes::{Arrivals, Lanes};
pub use member::{Delivered, Deliveries, Member, Outgoing, Patience};
pub use names::Names;
pub use peer::Counters;
pub use storage::Storage;
