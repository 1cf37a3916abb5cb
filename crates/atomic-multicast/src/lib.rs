//! Atomic multicast: messages to any set of groups, delivered in the same order wherever two of
//! them meet.
//!
//! A *group* is some processes of which a minority may fail. A message goes to one group or
//! several, and only the sender and these take part (it is *genuine*), so groups that have nothing
//! to do with each other do not slow each other down. Who delivers two messages delivers them in
//! the order in which all others do. So partitions of a service can be changed together, or one by
//! one, without a place through which all goes. The protocol is PrimCast.
//!
//! This crate is all that a program needs: `cargo add meridian-atomic-multicast tokio`, the latter
//! with the features `macros` and `rt-multi-thread`. It holds no logic of its own.
//!
//! # Two groups
//!
//! `cargo run -p meridian-atomic-multicast --example groups`
//!
//! ```no_run
#![doc = include_str!("../examples/groups.rs")]
//! ```
//!
//! On several machines each program starts one [`Member`] with [`Options::new`], and is told where
//! all members of all groups listen.
//!
//! # Who may multicast
//!
//! - **A member**, to sets of groups with its own: [`Member::multicast`] is answered when the
//!   message is delivered here.
//! - **Anybody**, to any set: a [`Client`] is in no group. It asks a member of a destination, and
//!   another when that one does not answer; the message is delivered once however often it was
//!   asked for, also when members end and primaries change. Its answer is the timestamp, once the
//!   message is delivered at one member, which means that it will be at all; or a [`Failure`], and
//!   [`Failure::is_certain`] tells whether it is known not to be delivered
//!   (`--example outside`).
//!
//! Messages that touch nothing in common need no order between them: [`Touches`] in [`Outgoing`]
//! says what one touches, and those that conflict with nothing undecided are delivered at once.
//!
//! # End
//!
//! [`Member::close`] stops one: when it returns, the sockets are closed and all that it persisted
//! is on disk. It is also stopped when all its clones are dropped. Another member leads within
//! about a second if it was a primary.
//!
//! # When the program is slower than its messages
//!
//! Nothing grows without a bound. While nobody reads [`Deliveries`], up to 65,536 of them or 64 MiB
//! wait; then the member reads no sockets, and the others of its group go on without it. When a
//! majority of a group is held up so, its messages are not ordered, and [`Member::multicast`] and
//! [`Client::multicast`] wait. So a program whose members all stop reading stops being sent to. A
//! [`Client`] has [at most 1,024 messages](client::UNDER_WAY_MAX) and 32 MiB under way; the next
//! waits.
//!
//! # Recover
//!
//! With [`Storage::Directory`] a member that starts again goes on where it was, and tells its
//! program again what it delivered since the last state that [`Member::keep`] was given. A program
//! that runs for long gives that now and then: it takes the place of the log, and brings up members
//! that were away for too long (`--example restart`). With [`Storage::Memory`] a member that ends
//! is gone; the others refuse another one of its name.
//!
//! # Certificates
//!
//! By default connections are plain text, and whoever reaches a port may multicast. With
//! [`Security`](transport::Security) in [`Options`] and [`ClientOptions`] all speak TLS 1.3 and
//! show certificates of one authority, which [`transport`] makes, too. A member must show the name
//! that [`Options::names`] has for it; a client's certificate may have any (`--example outside`).
//!
//! # A network of your own
//!
//! [`Member`] and [`Client`] speak TCP. What decides knows no network, clock or disk:
//! [`PrimCast`] is a value that is stepped with an event and the time, and answers with what is to
//! be sent, written and told ([`protocol::Process`]). `meridian-replication` has an example of such
//! a loop, which is the same for all protocols: `--example own_transport` there.
//!
//! # Test your application
//!
//! With the feature `simulator`, for `[dev-dependencies]`, your application runs on simulated
//! members, in virtual time: messages are late, links are cut and reset, members stand still or
//! crash, all from one seed (`--example simulated`).
//!
//! # Versions
//!
//! Frames and logs carry a version, and one that is not known is refused with both numbers. Before
//! 1.0 a minor version may change them; the changelog says so. All members and clients must be of
//! one version then.
#![forbid(unsafe_code)]

pub use bytes::Bytes;
pub use meridian_core::{GroupId, NodeId, Position, ProcessId};
pub use meridian_multicast::outside::Failure;
pub use meridian_multicast::{
    Delivery, Groups, Options as ProtocolOptions, Order, PrimCast, Timestamp, Touches,
};
pub use meridian_runtime::outside::{Client, ClientOptions};
pub use meridian_runtime::{
    Clock, Delay, Delivered, Deliveries, Listen, Member, MemberError, MulticastError, Names,
    Options, Outgoing, Patience, Storage, Worker,
};

/// The bounds of a client that is in no group.
pub mod client {
    pub use meridian_multicast::outside::{GIVE_UP_MAX, PAYLOAD_MAX};
    pub use meridian_runtime::outside::{UNDER_WAY_BYTES_MAX, UNDER_WAY_MAX};
}

/// The protocol by itself, for a network, a clock and a disk of one's own.
pub mod protocol {
    pub use meridian_core::{ClientId, Effect, Event, MessageId, Outbox, Process, Time};
    pub use meridian_multicast::outside::{Desk, Say, Sender};
    pub use meridian_multicast::{
        ClockSource, Command, Dest, Dissemination, Limits, Message, Notice, Output, Record, Role,
        Start, Timer,
    };
}

/// Certificates, and connections on which both ends show one.
pub mod transport {
    pub use meridian_core::principal::{Principal, Role};
    pub use meridian_transport::{
        Authority, Credentials, CredentialsError, Files, Issued, Refusal, Security,
    };
}

/// Tests of one's own application: members in virtual time, with faults.
#[cfg(feature = "simulator")]
pub mod simulator {
    pub use meridian_sim::of::multicast::{checkers, history, plain, replica};
    pub use meridian_sim::rand::{RngExt, SeedableRng, seq};
    pub use meridian_sim::{
        Delay, Faults, Logs, Owner, Random, Setup, Stimulus, Subject, World, each_seed, run,
    };
}
