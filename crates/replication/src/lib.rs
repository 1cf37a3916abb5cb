//! State machine replication: a deterministic service of your own on several replicas, of which a
//! minority may fail.
//!
//! You write a [`Service`]: what a request does to your state. Each [`Replica`] has a copy of it
//! and executes the same requests in the same order, which they agree on by MultiPaxos. A
//! [`Client`] asks until it is answered, and each of its requests is executed exactly once.
//!
//! This crate is all that a program needs: `cargo add meridian-replication tokio`, the latter with
//! the features `macros` and `rt-multi-thread`. It holds no logic of its own.
//!
//! # A service on three replicas
//!
//! `cargo run -p meridian-replication --example service`
//!
//! ```no_run
#![doc = include_str!("../examples/service.rs")]
//! ```
//!
//! On several machines each program starts one replica, and is told where all of them listen:
//!
//! ```
//! use meridian_replication::{NodeId, Options, Storage};
//! use std::collections::BTreeMap;
//!
//! let members = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"];
//! let members: BTreeMap<_, _> =
//!     (0..).map(NodeId).zip(members.map(String::from)).collect();
//! let options = Options::new("kv", NodeId(0), members, Storage::directory("/var/lib/kv"));
//! // Replica::start(options, Map::default()).await?
//! # assert_eq!(options.members.len(), 3);
//! ```
//!
//! # Ask
//!
//! | what | how it is ordered | costs |
//! | --- | --- | --- |
//! | [`Client::execute`] | with all requests of all clients; executed once, however often it was sent | a round trip to a majority, and what [`Recovery`] writes |
//! | [`Client::read`], [`Consistency::Linearizable`] | after all that was answered before it was asked | a round trip to a majority for all reads that wait together, or none with [`Leases`](protocol::Leases) |
//! | [`Client::read`], [`Consistency::Stale`] | anywhere in the past of one replica | nothing |
//!
//! A client has one request under way. Clones are other clients on the same connection: one for
//! each task that asks. Each [`ClientError`] says whether the request may have been executed.
//!
//! # End
//!
//! [`Replica::close`] stops one: when it returns, the sockets are closed and all that it persisted
//! is on disk. It is also stopped when all its clones are dropped. To be killed costs no more than
//! that clients wait until another leads ([`suspect_after`](ProtocolOptions::suspect_after), half a
//! second by default). [`Replica::stopped`] tells that, and why, one has ended by itself.
//!
//! # When the service is slower than its clients
//!
//! Nothing grows without a bound. Requests that cannot be executed yet wait in the leader, up to
//! [`queue_bytes_max`](ProtocolOptions::queue_bytes_max); then it reads no more of what clients
//! send, their sockets fill, and [`Client::execute`] waits. [`Service::execute`] is called on the
//! replica's thread, so a service that takes long holds up its own replica only: it must not wait
//! for anything. A client that does not take its answers is read no more, then left. When the log
//! is as long as [`log_bytes_max`](ProtocolOptions::log_bytes_max), as the service makes no
//! snapshot, no more requests are taken until it does.
//!
//! # Recover
//!
//! With [`Storage::Directory`] a replica that starts again goes on where it was, also if all were
//! down (`--example restart`). It starts at the address that it had: who the members are and where
//! they listen is a part of what they agree on, and is changed as the members are. A log that has
//! grown is replaced by a snapshot of the service ([`Service::snapshot`]), and a replica that was
//! away for too long is given one by another. What survives, and what that costs, says
//! [`Recovery`]:
//!
//! | [`Recovery`] | writes | survives |
//! | --- | --- | --- |
//! | [`FullSs`](Recovery::FullSs), the default | each vote | all replicas crash at once |
//! | [`ViewSs`](Recovery::ViewSs) | each view | a minority at a time crashes and comes back |
//! | [`EpochSs`](Recovery::EpochSs) | each start | the same |
//! | [`CrashStop`](Recovery::CrashStop) | a mark | a minority crashes, and is replaced |
//!
//! **A replica whose disk is gone is not the one it was**: its promises are forgotten, and the
//! others refuse it. Replace it by one that has never been: [`Client::reconfigure`] with
//! [`Change::Replace`], and a new [`NodeId`]. Members are added and removed in the same way, while
//! the service goes on.
//!
//! # Certificates
//!
//! By default connections are plain text, and whoever reaches a port may ask. With
//! [`Security`](transport::Security) in [`Options`] and [`ClientOptions`] all speak TLS 1.3 and
//! show certificates of one authority, which [`transport`] makes, too. A replica must show the name
//! that [`Options::names`] has for it. All of that: `--example secured`.
//!
//! # A network of your own
//!
//! [`Replica`] and [`Client`] speak TCP. What decides knows no network, clock or disk:
//! [`protocol::Paxos`] is a value that is stepped with an event and the time, and answers with what
//! is to be sent, written and told. Run it on whatever you have: `--example own_transport` does it
//! with threads and channels, in forty lines.
//!
//! # Test your service
//!
//! With the feature `simulator`, for `[dev-dependencies]`, your service runs on simulated replicas:
//! messages are lost, links cut, replicas crash in the midst of a write and start again, in virtual
//! time. Then it is judged: all answers must be those that one copy of your service would have
//! given (they are linearizable), and all replicas must be equal. So you need not say what is
//! right. It finds what is not deterministic, and what a snapshot forgets. A failure names the seed
//! that shows it again.
//!
//! ```
//! # #[cfg(feature = "simulator")] {
//! use meridian_replication::simulator::{Ask, Trial, trials_hold};
//! use meridian_replication::{Bytes, Service};
//!
//! #[derive(Clone, Default)]
//! struct Counter(u8);
//!
//! impl Service for Counter {
//!     fn execute(&mut self, _: &Bytes) -> Bytes {
//!         self.0 = self.0.wrapping_add(1);
//!         self.snapshot()
//!     }
//!     fn query(&self, _: &[u8]) -> Bytes {
//!         self.snapshot()
//!     }
//!     fn snapshot(&self) -> Bytes {
//!         Bytes::copy_from_slice(&[self.0])
//!     }
//!     fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
//!         self.0 = *snapshot.first().ok_or("an empty snapshot")?;
//!         Ok(())
//!     }
//! }
//!
//! trials_hold(0..3, &Trial::new(Counter::default(), |_| Ask::Execute(Bytes::new())));
//! # }
//! ```
//!
//! # Versions
//!
//! Frames and logs carry a version, and one that is not known is refused with both numbers. Before
//! 1.0 a minor version may change them; the changelog says so. All replicas of a service must be of
//! one version then.
#![forbid(unsafe_code)]

pub use bytes::Bytes;
pub use meridian_core::{GroupId, NodeId};
pub use meridian_paxos::{
    Change, Configuration, Consistency, Hint, Options as ProtocolOptions, Recovery, Service, Status,
};
pub use meridian_runtime::smr::{Client, ClientError, ClientOptions, Options, Replica};
pub use meridian_runtime::{Clock, Delay, Listen, MemberError, Storage, Worker};

/// The protocol by itself, for a network, a clock and a disk of one's own.
pub mod protocol {
    pub use meridian_core::{
        ClientId, Effect, Event, GroupId, Outbox, Position, Process, ProcessId, Time,
    };
    pub use meridian_paxos::{
        Answer, Batch, Changed, ClientIds, Command, Instance, Kind, Leases, Message,
        Options as ProtocolOptions, OptionsError, Output, Paxos, Record, Recovery, Request,
        Routing, Stopped, Timer, View, change_payload,
    };
}

/// Certificates, and connections on which both ends show one.
pub mod transport {
    pub use meridian_core::principal::{Principal, Role};
    pub use meridian_transport::{
        Authority, Credentials, CredentialsError, Files, Issued, Refusal, Security,
    };
}

/// Tests of one's own service: trials in virtual time, with faults.
#[cfg(feature = "simulator")]
pub mod simulator {
    pub use meridian_sim::lossy::Loss;
    pub use meridian_sim::of::service::{Alone, Ask, Trial};
    pub use meridian_sim::of::{first_failure, trials_hold};
    pub use meridian_sim::rand::{RngExt, SeedableRng, seq};
    pub use meridian_sim::trial::Counts;
    pub use meridian_sim::{Detail, Failure, Faults, Random, Report, each_seed, run, run_with};
}
