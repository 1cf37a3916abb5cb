//! Clients that may use some keys, while what they may use is changed.
//!
//! Nodes have the real threads of keys, each with a shard, its clients ([`meridian_keys::Desk`])
//! and what the configuration grants these; the configuration is the real one, too. Clients name
//! keys of others wherever keys can be named, walk and watch. What each version grants, and what a
//! request needs, is said once more, in the simplest way.
//!
//! | module | what |
//! | --- | --- |
//! | [`node`] | what a server runs |
//! | [`granted`] | what versions of the configuration grant, and what requests need |
//! | [`clients`] | clients, who changes the configuration, and the checks |
//! | [`thread`] | one thread of that: a shard, and clients |
//! | [`trial`] | what is drawn, the run, the end; planted bugs |
//! | [`words`] | the words of a trace |

pub mod clients;
pub mod granted;
pub mod node;
pub mod thread;
pub mod trial;
pub mod words;

pub use trial::Trial;

use super::{Named, draw_all, names_of_planted};

/// `meridian sim grants`.
pub const NAMED: Named = Named {
    name: "grants",
    about: "Clients that may use some keys, while that changes, with all kinds of faults",
    help: "\
Each seed is a run of three nodes in simulated time, with keys in two shards. Some clients may use
keys that begin with certain prefixes, others all. That is changed again and again: more is granted,
less, nothing, or all. Nodes hear of it late, and their threads one after the other. Clients ask for
several keys at once, walk, watch and change, among them keys that they may not use. Nodes crash,
stop and are cut off. Checked is that no command is carried out which no version of the
configuration allowed that the node could have had while it was under way, that nothing of a refused
command is done, that walks and watches show only what was granted, and that what was granted all
the time is not refused. A node that has said that a version is in force has it from then on.

Examples:
  meridian sim grants --seeds 10000
  meridian sim grants --seed 137 --trace",
    messages: "a connection, as c1027, or a key, as x:1",
    explained: None,
    settings: &[],
    pin: draw_all::<Trial>,
    planted: names_of_planted::<Trial>,
};
