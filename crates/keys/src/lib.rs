//! The key-value service, without IO: what clients say, and what each command means.
//!
//! | module | what |
//! | --- | --- |
//! | [`resp`] | requests out of bytes, replies into bytes: RESP 2 and 3 |
//! | [`command`] | all commands, and what a request asks for |
//! | [`access`] | what a command makes of one key |
//! | [`item`] | what a key has, as replicas keep it |
//! | [`change`] | such a command as replicas of Hermes understand it |
//! | [`causal`] | keys of all regions: a replica of Hermes as a source of Eunomia |
//! | [`desk`] | the clients of a replica: requests in, replies out in their order |
//! | [`node`] | a replica of one shard, as a process |
//! | [`steward`] | the membership of all shards of a node, as another |
//! | [`connection`] | what a connection remembers |
//! | [`grant`] | what a client may do that may not do all |
//! | [`names`] | names of clients whose requests are made once |
//! | [`slots`] | which shard has a key |
//! | [`glob`] | patterns over keys |
#![forbid(unsafe_code)]

pub mod access;
pub mod causal;
pub mod change;
pub mod command;
pub mod connection;
pub mod desk;
pub mod glob;
pub mod grant;
pub mod item;
pub mod names;
pub mod node;
pub mod resp;
pub mod slots;
pub mod steward;

pub use access::{Access, Change, Modify, Read};
pub use command::Command;
pub use connection::Peer;
pub use desk::Desk;
pub use grant::{Grant, Grants};
pub use item::{Item, Moment};
pub use node::Keys;
pub use steward::Steward;
