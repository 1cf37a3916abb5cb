//! Genuine atomic multicast: PrimCast (thesis, chapter 4; Algorithms 1-3).
//!
//! A message is multicast to one or more groups of processes. All that deliver two messages deliver
//! them in the same order, and only the sender and the destinations take part. [`PrimCast`] is one
//! process of one group; its owner sends each message to (at least) one process of each destination
//! group as [`Command::Start`].
//!
//! Over TCP it is run by `meridian-runtime`; `cargo run -p meridian-multicast --example tcp` shows two groups
//! of three members, in 76 lines: `crates/multicast/examples/tcp.rs`.
//!
//! | module | what |
//! | --- | --- |
//! | [`message`] | what is multicast, what processes say, what is made durable |
//! | [`process`] | the process: its state, and which handler takes which event |
//! | `dispatch` | which handler takes which message |
//! | [`protocol`] | what all multicast protocols have in common |
//! | [`log`] | `T`, the sequence of proposals |
//! | [`queue`] | those not delivered, in the order in which they will be |
//! | [`members`] | configurations: who is in which group |
//! | [`clocks`] | `min-clock`, `quorum-clock` |
//! | [`remote`] | `local-ts` of other groups |
//! | [`done`] | `D`, as far as it can be asked for |
//! | `starts` | `M`: messages to be proposed |
//! | `stream` | what a primary has sent a follower |
//! | `normal` | Algorithm 2: proposing, acknowledging, delivering |
//! | `others` | the same between groups |
//! | `relay` | groups whose primary speaks for them |
//! | [`stable`] | the linearizable order |
//! | `hybrid` | hybrid clocks |
//! | `reach` | groups that are cut off |
//! | `epoch` | Algorithm 3: changing the primary |
//! | `reconfigure` | changing the members |
//! | `memory` | coming back without a disk |
//! | `upkeep` | heartbeats and repeats: what the thesis leaves open |
//! | `truncation` | what is delivered for good, and needed no more |
//! | [`snapshot`] | bringing up a process that the log cannot bring up |
//! | [`skeen`] | Skeen's algorithm, to compare with |
//!
//! # Where it differs from the pages
//!
//! - **ACKs are cumulative**: an epoch and a length of `T`. To other groups a primary streams the entries that
//!   are addressed to them (docs/decisions/0009). The proposals and the primary's clock travel together, and a follower counts the
//!   primary's clock only if it holds `T` up to the length shown with it: so the rule that ACK and BUMP
//!   arrive in order does not rest on the links.
//! - **The clock travels in ACCEPT too.** NEW-STATE raises clocks, and no later BUMP might show it.
//!   The leader's own counts only with its ACKs: its clock after a restart is past proposals that a
//!   follower may lack.
//! - **Nobody is primary at the start.** The first process of a group opens its first epoch like any
//!   later one, so a primary that lost its memory never goes on in an epoch that others know.
//! - **A process asks before it stands for primary**: unless a quorum misses the primary too, it does not.
//! - **A group may speak through its primary** ([`Speakers::Primary`]): fewer messages, and a step or two more inside the
//!   group; for groups whose members are near each other (docs/decisions/0016).
//! - **The linearizable order** is not the thesis's, which does not hold for chains of messages: see [`stable`].
//! - **Conflicts are said by keys** (section 4.4.3; docs/decisions/0010). Messages that conflict with none that is
//!   undecided are delivered, also while a group cannot be reached; new ones to that group are refused.
//! - **Groups change** by messages of their own: see [`members`]. That is the one thing which is not genuine: a new
//!   configuration is told to all groups.
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
//!
//! The primary's proposals are sent before they are durable at the primary: elsewhere they count as its
//! vote only with its own ACK, which follows its record. That is safe because a process that restarts never proposes again in an epoch of
//! its own: it opens a new one. ACKs of other groups are not durable: they are sent again to whoever
//! restarts, until all destinations have delivered.
#![forbid(unsafe_code)]

pub mod clocks;
mod closure;
mod deliver;
mod dispatch;
pub mod done;
mod epoch;
mod hybrid;
pub mod log;
pub mod members;
mod memory;
pub mod message;
pub mod mutation;
mod normal;
mod others;
mod passing;
pub mod process;
pub mod protocol;
pub mod queue;
mod reach;
mod reconfigure;
mod relay;
pub mod remote;
pub mod skeen;
pub mod snapshot;
pub mod stable;
mod starts;
mod stream;
#[cfg(test)]
mod tests;
mod truncation;
mod upkeep;

pub use members::{Config, Members};
pub use message::{
    Command, Delivery, Dest, Epoch, Message, Output, Rank, Record, Start, Timestamp, Touches,
    conflicts,
};
pub use process::{ClockSource, Groups, Mutation, Options, Order, PrimCast, Role, Speakers};
pub use protocol::Protocol;
pub use truncation::Limits;
