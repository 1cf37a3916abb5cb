//! Linearizable replicated keys: any replica reads from its own memory, and any replica writes, in
//! one round trip to all others.
//!
//! After Hermes (Hermes, sections 3 and 8). An update invalidates the key at all replicas with its
//! new value (INV), is committed when all have acknowledged it (ACK), and then validated (VAL). Its
//! place among the updates of its key is its [`Timestamp`]. Who takes part is decided elsewhere,
//! by a reliable membership with epochs and leases: [`Command::Install`] and [`Command::Lease`].
//! [`reliable`] is one, for all shards of a node.
//!
//! Where this differs from the paper:
//! - RMWs have other timestamps, and rules of their own: the paper's are not linearizable, and say
//!   "aborted" of RMWs that happen (decision 30).
//! - An update begins only where its key is Valid; so an INV names a committed base.
//! - A replica asks a live coordinator what became of an update, and replays only those of
//!   coordinators that have gone; these all, as soon as the epoch begins.
//! - A membership check asks all, not a majority ([`Reads::Check`]).
//! - A request that is asked again is executed once ([`completions`]).
//!
//! Always on is O1 of the paper: a write that was superseded sends no VAL.
//!
//! This crate decides; it has no IO and no clock. [`Hermes`] is a
//! [`meridian_core::Process`]; links may lose, repeat and reorder. One of it is one shard: an
//! owner with many cores runs one on each.
//!
//! | module | what | paper |
//! | --- | --- | --- |
//! | [`timestamp`] | the order of updates | 3.1, 3.6 |
//! | [`members`] | epochs, live and shadow replicas | 2.4 |
//! | [`message`] | what replicas say, what the owner asks and is told | 3 |
//! | [`options`] | how a replica behaves | 3.3, 8 |
//! | `store`, `busy` | what is held; keys that are not Valid | 3.1 |
//! | [`completions`] | requests that are asked again | |
//! | [`process`] | all of it together | |
//! | `coordinator` | updates from their requests to their answers | 3.2, 3.6 |
//! | `follower` | updates that others coordinate | 3.2, 3.6 |
//! | `batch` | INVs, ACKs and VALs that travel together (decision 55) | |
//! | `replay` | losses, new epochs | 3.4 |
//! | `reads` | who vouches for a read | 8 |
//! | `join` | shadow replicas | 3.4 |
//! | `durable` | what is kept on disk (decision 33) | |
//! | [`reliable`], [`registry`] | who is a member, and who has a lease (decision 31) | 2.4 |
//! | `leases`, `wishes` | leases given and had; what is asked of all | 2.4 |
//! | `voters` | who grants leases follows the cluster (decision 59) | |
//! | `attention` | when that may doze (decision 34) | |
#![forbid(unsafe_code)]

mod attention;
mod batch;
mod busy;
pub mod completions;
mod coordinator;
mod durable;
mod follower;
mod join;
mod leases;
pub mod members;
pub mod message;
mod mutation;
pub mod options;
pub mod process;
mod reads;
pub mod registry;
pub mod reliable;
mod replay;
mod store;
pub mod timestamp;
mod voters;
mod wishes;

pub use batch::Numbers;
pub use busy::State;
pub use members::{Epoch, MEMBERS_MAX, Membership};
pub use message::{
    Action, Answer, Body, Command, Completed, Completion, Kind, Message, Modified, Modify, Output,
    Record, Refusal, Request, Timer, Update,
};
pub use mutation::Mutation;
pub use options::{Acks, Durability, Options, Reads};
pub use process::Hermes;
pub use timestamp::{Timestamp, Writer};
