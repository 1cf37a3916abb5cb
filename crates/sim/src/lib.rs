//! The deterministic simulator, fault injection and the checkers of histories.
//!
//! A [`World`] runs many processes of one protocol ([`meridian_core::Process`]) in virtual time, in
//! one thread. One seed decides everything: how long messages travel, when a flush ends, who
//! crashes in the midst of what, which records survive. So a failure is repeated by its seed.
//!
//! | module | what |
//! | --- | --- |
//! | `world` | [`World`], [`Setup`]: time and what is planned; how processes step; the durability rule; [`Owner`], the workload on top |
//! | `faults` | [`Faults`]: crashes, netsplits, resets, pauses, checkpoints, clocks |
//! | [`lossy`] | any protocol behind a network that loses, repeats and reorders |
//! | [`trial`] | [`Subject`], [`run`]: a workload and faults for a while, then healing and a judgement |
//! | [`trace`] | a line for each event of a run, in words |
//! | [`explain`] | why a message came where and when it did |
//! | [`checkers`] | linearizability over any sequential specification; causal consistency; recorded histories |
//! | [`explore`] | a model checker: all orders of arrival in small cases |
//! | [`sessions`] | clients of causally consistent stores, which move between regions |
//! | [`stores`] | the blocks of simulated nodes: real stores on their disks |
//! | `harness` | seeds of tests, traces, panics: all that meets the outside |
//! | [`of`] | the subjects: the multicast, replicated state machines, whole nodes with files |
//!
//! Time and loss are simulated; that a network repeats or reorders packets is what
//! [`meridian_core::link`] hides from every process, and is tested there; who does not need that
//! link is tried [`lossy`].
#![forbid(unsafe_code)]

pub mod checkers;
pub mod explain;
pub mod explore;
mod faults;
mod harness;
pub mod lossy;
pub mod of;
mod processors;
pub mod sessions;
pub mod stores;
pub mod trace;
pub mod trial;
mod words;
mod world;

pub use faults::{CutId, Faults, Unflushed};
pub use harness::{each_seed, how_to_repeat, one_seed, share};
pub use processors::each_is_caught;
pub use rand;
pub use trial::{Detail, Failure, Report, Subject, run, run_with};
pub use world::{
    Delay, DiskBug, DiskFailure, Happened, Logs, Owner, Random, Setup, Stimulus, Watcher, Way,
    What, World,
};
