//! The deterministic simulator, fault injection and the checkers of histories.
//!
//! A [`World`] runs many processes of one protocol ([`meridian_core::Process`]) in virtual time, in
//! one thread. One seed decides everything: how long messages travel, when a flush ends, who
//! crashes in the midst of what, which records survive. So a failure is repeated by its seed.
//!
//! | module | what |
//! | --- | --- |
//! | `world` | [`World`], [`Setup`]: time and what is planned |
//! | `run` | how processes step; the durability rule |
//! | `slot`, `link` | a process with its log and clock; the way between two |
//! | `faults` | [`Faults`]: crashes, netsplits, resets, pauses, checkpoints, clocks |
//! | `owner` | [`Owner`]: the workload on top |
//! | [`replica`], [`workload`] | processes of the multicast with the simplest application; clients |
//! | [`trial`] | clients and faults for a while, then peace and a judgement: what tests and command run |
//! | [`changes`] | trials in which members change, or keep nothing on disk |
//! | [`plain`] | the plainest workload, for any protocol of the multicast |
//! | [`files`] | clients that use the file system of whole nodes |
//! | [`paxos`] | replicated state machines under faults, and a network that loses and repeats |
//! | [`search`] | many short runs of any multicast protocol |
//! | [`history`], [`checkers`] | what happened in a run of the multicast, and whether it may |
//!
//! Time and loss are simulated; that a network repeats or reorders packets is only for [`paxos`]: it is what
//! [`meridian_core::link`] hides from every process, and is tested there.
#![forbid(unsafe_code)]

pub mod changes;
pub mod checkers;
mod faults;
pub mod files;
mod harness;
pub mod history;
mod link;
mod manner;
mod owner;
pub mod paxos;
pub mod plain;
pub mod planted;
pub mod replica;
mod run;
pub mod search;
mod slot;
#[cfg(test)]
mod toy_tests;
pub mod trial;
pub mod workload;
mod world;

pub use faults::{CutId, Faults, Unflushed};
pub use harness::{each_is_caught, each_seed, how_to_repeat};
pub use history::{Entry, History};
pub use owner::{Ask, Owner};
pub use trial::{Failure, Report, Trial, run};
pub use world::{Delay, Random, Setup, World};
