//! Genuine atomic multicast: PrimCast (thesis, chapter 4; Algorithms 1-3).
//!
//! A message is multicast to one or more groups of processes. All that deliver two messages deliver
//! them in the same order, and only the sender and the destinations take part. [`PrimCast`] is one
//! process of one group; its owner sends each message to (at least) one process of each destination
//! group as [`Command::Start`].
//!
//! It has no IO and no clock. Programs use it by `meridian-atomic-multicast`, which brings TCP,
//! disks, certificates and clients. The messages, two sequence diagrams, and who owns which state
//! are in `docs/multicast.md`.
//!
//! | module | what |
//! | --- | --- |
//! | [`message`] | what is multicast, and what processes say to each other, by family |
//! | [`record`] | what is made durable |
//! | [`options`] | how a deployment uses the protocol; what the strategies ask of a process |
//! | [`process`] | the process: its state, and which handler takes which event |
//! | [`protocol`] | what all multicast protocols have in common |
//! | [`outside`] | senders that are members of no group, and what a member does for them |
//! | [`mutation`] | bugs that are planted in debug builds |
//! | [`state`] | the parts of the state, of which none knows another process or a handler |
//! | `handlers` | what a process does, one file for each part of the protocol |
//!
//! | handlers | what |
//! | --- | --- |
//! | `dispatch` | which handler takes which message, and whose messages count |
//! | `idle` | the duties of a process when no more input is ready |
//! | `normal`, `remote` | Algorithm 2: proposing and acknowledging, in a group and between groups |
//! | `deliver` | the order of deliveries |
//! | `dissemination` | groups whose primary relays |
//! | `linearizable`, `passing` | the linearizable order |
//! | `hybrid` | hybrid clocks |
//! | `reach` | groups that are cut off |
//! | `fence` | groups that are lost, and go on as others |
//! | `epoch`, `reconfigure` | Algorithm 3: changing the primary; changing the members |
//! | `stability` | what is delivered for good, and needed no more |
//! | `snapshot`, `memory` | bringing up a process without `T`; coming back without a disk |
//! | `retransmission` | heartbeats and repeats: what the thesis leaves open |
//!
//! # Where it differs from the pages
//!
//! - **ACKs are cumulative**: an epoch and a length of `T`. To other groups a primary streams the
//!   entries that are addressed to them (docs/decisions/0009-acks-between-groups-are-a-stream.md).
//!   The proposals and the primary's clock travel together, and a follower counts the primary's
//!   clock only if it holds `T` up to the length shown with it: so the rule that ACK and BUMP
//!   arrive in order does not rest on the links.
//! - **The clock travels in ACCEPT too.** NEW-STATE raises clocks, and no later BUMP might show it.
//!   The leader's own counts only with its ACKs: its clock after a restart is past proposals that a
//!   follower may lack.
//! - **Nobody is primary at the start.** The first process of a group opens its first epoch like
//!   any later one, so a primary that lost its memory never goes on in an epoch that others know.
//! - **A process asks before it stands for primary**: unless a quorum misses the primary too, it
//!   does not.
//! - **A group may speak through its primary** ([`Dissemination::ViaLeader`]): fewer messages, and
//!   a step or two more inside the group; for groups whose members are near each other
//!   (docs/decisions/0016-near-groups-speak-through-their-primaries.md).
//! - **The linearizable order** is not the thesis's, which does not hold for chains of messages:
//!   see [`stable`].
//! - **Conflicts are said by keys** (section 4.4.3; docs/decisions/0010-conflicts-are-keys.md).
//!   Messages that conflict with none that is undecided are delivered, also while a group cannot be
//!   reached; new ones to that group are refused.
//! - **Groups change** by messages of their own: see [`state::members`]. That is the one thing
//!   which is not genuine: a new configuration is told to all groups.
//!
//! # What is durable when
//!
//! By the durability rule of [`meridian_core::process`] a record persisted before a send is durable
//! before that send is seen:
//!
//! | before | durable is |
//! | --- | --- |
//! | NEW-EPOCH, PROMISE | `E_prom` |
//! | ACCEPT | `T` as replaced, and `E_cur` |
//! | ACK, inside the group and to others | the entries of `T` that it covers |
//! | any message with a clock | a ceiling at or above that clock; a restart begins at the ceiling |
//! | Stable | all deliveries up to it, but for its exceptions |
//! | anything after a fence | that, and what was known of the lost group |
//!
//! A follower that need not acknowledge at once notes entries, and persists a mark before anything
//! that it sends: what was noted before a record is durable with it. Until then its own vote does
//! not count for them ([`Notice::WithNext`]).
//!
//! The primary's proposals are sent before they are durable at the primary: elsewhere they count as
//! its vote only with its own ACK, which follows its record. That is safe because a process that
//! restarts never proposes again in an epoch of its own: it opens a new one. ACKs of other groups
//! are not durable: they are sent again to whoever restarts, until all destinations have delivered.
#![forbid(unsafe_code)]

mod handlers;
pub mod message;
pub mod mutation;
pub mod options;
pub mod outside;
pub mod process;
pub mod protocol;
pub mod record;
pub mod state;
#[cfg(test)]
mod tests;

pub use handlers::obstacles::Obstacles;
pub use message::{
    Command, Delivery, Dest, Epoch, Fence, Message, Output, Rank, Start, Timestamp, Touches,
    conflicts,
};
pub use mutation::Mutation;
pub use options::{ClockSource, Deliveries, Dissemination, Groups, Limits, Notice, Options, Order};
pub use process::PrimCast;
pub use protocol::Protocol;
pub use record::Record;
pub use state::epochs::Role;
pub use state::fences::Parts;
pub use state::members::{Config, Members};
pub use state::retransmission::Timer;
pub use state::{clocks, done};
