//! State machine replication: a deterministic [`Service`] of your own on several replicas, of which
//! a minority may fail.
//!
//! After JPaxos (report, sections 3 to 8): MultiPaxos with batching and pipelining, catch-up,
//! snapshots, replies exactly once, and four ways to recover ([`Recovery`]). Beyond it: the members
//! can change while it serves ([`Change`]), a replica that comes back deposes nobody, and reads
//! need not go through the log ([`Consistency`]). `docs/paxos.md` has the messages, two sequences,
//! and what differs from the report.
//!
//! This crate decides; it has no IO and no clock. [`Paxos`] is a [`meridian_core::Process`]:
//! `meridian-runtime` runs it over TCP, `meridian-sim` under faults. Programs use it by
//! `meridian-replication`, which has all that they need.
//!
//! | module | what | report |
//! | --- | --- | --- |
//! | [`service`] | what is replicated | 4.1.2, 5.4 |
//! | [`options`] | how a replica behaves | 5.1.1, 6.3, 7 |
//! | [`message`] | what replicas say, what is kept, what the owner asks and is told | |
//! | [`view`], [`batch`], [`configuration`] | numbers, values, members | 3.2, 6.2 |
//! | `log` | what is known of each instance | 4.2 |
//! | `machine` | the replicated state: service, replies, members, snapshots | 5.1, 5.4 |
//! | [`process`] | all of it together | |
//! | `proposer` | the leader: Phase 1, batches, the window | 3.2, 6 |
//! | `acceptor` | promises, votes, decisions | 3.2, 5.2.2 |
//! | `detector` | who is suspected, who becomes leader | 5.2.1 |
//! | `requests` | clients' requests until they are answered | 4.3.3, 4.4, 5.1 |
//! | `reads` | reads without the log | |
//! | `state` | what a replica has: one part a file, none of which knows the replica | |
//! | `catch_up` | what was decided without this replica | 5.3 |
//! | `recovery` | a replica that lost its memory | 7.5, 7.6 |
#![forbid(unsafe_code)]

mod acceptor;
pub mod batch;
mod catch_up;
pub mod configuration;
mod detector;
mod log;
mod machine;
pub mod message;
mod mutation;
pub mod options;
pub mod process;
mod proposer;
mod reads;
mod recovery;
mod requests;
pub mod service;
mod state;
mod status;
pub mod view;

pub use batch::{Batch, Kind, Request};
pub use configuration::{ALPHA, Change, Changed, Configuration};
pub use message::{Answer, Command, Consistency, Message, Output, Record, Stopped, Timer};
pub use mutation::Mutation;
pub use options::{ClientIds, Leases, Options, OptionsError, Recovery, Routing};
pub use process::{Paxos, change_payload};
pub use service::{Hint, Service};
pub use status::Status;
pub use view::{Instance, View};
