//! The server's shell: sockets, write-ahead log, configuration. It decides nothing.
//!
//! One thread runs one [`meridian_core::Process`] and all sockets of one node. What it must never
//! get wrong is the durability rule, and that lies in one small file, [`meridian_runtime::gate`].
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | a node's directory: `node.json`, the lock, the incarnation |
//! | [`configuration`] | who keeps the cluster's configuration, and how it is followed |
//! | [`service`] | what a process must be for a server to run it |
//! | [`server`] | start, run until told to stop, stop |
//! | `driver` | events into the process, effects out of it |
//! | [`journal`], [`storage`] | what the driver asks of the disk, and who does it |
//! | [`blocks`] | the blocks; the log is [`meridian_runtime::wal`] |
//! | `shared` | what the tasks of one server share |
//! | `peer`, `client` | connections |
#![forbid(unsafe_code)]

pub mod blocks;
mod client;
pub mod config;
pub mod configuration;
mod driver;
pub mod error;
pub mod journal;
mod peer;
pub mod server;
pub mod service;
mod shared;
pub mod storage;

pub use config::{NodeFile, prepare};
pub use configuration::{Keepers, KeepersError};
pub use error::{REMOVED_CODE, ServerError};
pub use server::{ServerOptions, run, serve};
pub use service::Service;
