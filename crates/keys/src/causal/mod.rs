//! Keys of all regions, causally consistent: each node is a replica of its region's group of Hermes
//! and a source, a replica of the service, and a receiver of Eunomia (decision 41).
//!
//! A session reads and updates at any node of its region, where keys are linearizable. What is
//! committed there goes to the other regions, whose nodes hold it once all that it depends on is
//! there. This is the part of the clients' keys that knows of other regions; it is no more than
//! `meridian-hermes` and `meridian-eunomia` in one [`meridian_core::Process`].
//!
//! - An update begins when its session asks, and has its timestamp then. It is an RMW of Hermes
//!   with a name of its own, whose answer is all of the update.
//! - So the replicas of Hermes keep what other regions may lack, until all have it
//!   ([`meridian_hermes::completions`]): a source that starts again finds its labels and data there
//!   and has nothing of that on its own disk, and any node has the data of any other.
//! - An update whose outcome is unknown to its coordinator holds back the source's promise until
//!   the group knows.
//! - An update of another region is an RMW, too, that changes nothing where something later is
//!   held. It is applied once Hermes has committed that, so all of the region have it, for good.
//! - The first live node of a region follows the others. It tells its fellows how far it is; what
//!   they miss of that, other regions say, which were told.
//!
//! | module | what |
//! | --- | --- |
//! | [`regions`] | who takes part |
//! | [`change`] | what a key holds, and what is done with it |
//! | [`message`] | what nodes say, what they are asked and tell |
//! | [`node`] | the process: its parts, and how they speak with those of other nodes |
//! | `make` | updates that are made here |
//! | `data` | what of them other regions are sent, and ask for |
//! | `read` | reads of one key, and of several at one moment |
//! | `merge` | updates that were made elsewhere |
//! | `joining` | regions join and leave while all serve |
//! | `lost` | what is kept of a region that is lost |
//! | `sweep` | which of what is kept is looked at, whether all regions have it |
//! | `taking` | sources come and go with the members of their group |
//! | [`shard`] | what a thread of a server runs: the process, and what it says to the steward |
//! | [`desk`] | requests of connections, each of which is a session |
//! | [`token`] | what moves a session to another region |

pub mod change;
mod data;
pub mod desk;
mod joining;
mod lost;
mod make;
mod merge;
pub mod message;
mod mutation;
pub mod node;
mod read;
pub mod regions;
pub mod shard;
mod sweep;
mod taking;
pub mod token;

pub use change::{Change, Make, Outcome, held, seen_with};
pub use message::{Command, Found, Message, Output, Record, Timer, Update};
pub use mutation::Mutation;
pub use node::Causal;
pub use regions::Regions;
pub use shard::CausalKeys;
pub use token::{Token, TokenError};
