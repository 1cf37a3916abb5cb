//! What the engine of [`meridian_runtime`] needs to run a node. It decides nothing.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | a node's directory: `node.json`, the lock, the incarnation |
//! | `identity` | which log and blocks are the node's own: with others it does not start |
//! | `reach` | how far its blocks went: with older ones it does not start |
//! | [`configuration`] | who keeps the cluster's configuration, and how it is followed |
//! | [`service`] | what a process must be for a server to run it |
//! | [`salvage`] | what a node had whose server has stopped |
//! | [`server`] | start, run until told to stop, stop |
//! | `application` | requests of clients into commands, outputs into replies |
//! | [`blocks`] | the threads of a node's blocks |
#![forbid(unsafe_code)]

mod application;
pub mod blocks;
pub mod board;
pub mod config;
pub mod configuration;
pub mod error;
mod identity;
pub mod keys;
mod reach;
pub mod salvage;
pub mod server;
pub mod service;

pub use config::{NodeFile, cluster_path, prepare};
pub use configuration::{Keepers, KeepersError};
pub use error::{FORGOT_CODE, REMOVED_CODE, ServerError};
pub use identity::has_run;
pub use salvage::{Salvage, Unread};
pub use server::{ServerDisk, ServerOptions, run, serve};
pub use service::Service;
