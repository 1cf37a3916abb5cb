//! Trials of Hermes ([`meridian_hermes`]) with its reliable membership: clients and faults for a
//! while, then healing, and a judgement.
//!
//! | module | what |
//! | --- | --- |
//! | [`register`] | what a key is to a client |
//! | [`node`] | what a server runs |
//! | [`clients`] | clients, and what they see |
//! | [`replacing`] | nodes that come and go |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`words`], [`explain`] | the words of a trace; why an update became Valid here and now |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |
//! | [`explored`] | small cases, in all orders of arrival |

pub mod clients;
pub mod explain;
pub mod explored;
pub mod node;
pub mod planted;
pub mod register;
pub mod replacing;
pub mod trial;
pub mod words;

pub use trial::Trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use meridian_hermes::{Acks, Durability, Reads};

const EXPLAINED: &str = "\
What is told: who sent the INV of the update first, and who replayed it; who sent an ACK to them,
and when they sent VAL; and for each replica, when it held the update, when that was Valid there,
and what took its place; and whose ACK the coordinator waited for last.

Examples:
  meridian sim hermes --seed 137 --trace --message k1
  meridian sim explain hermes 137 k1@2.0";

/// `meridian sim hermes`.
pub const NAMED: Named = Named {
    name: "hermes",
    about: "Replicated keys, with all kinds of faults",
    help: "\
Each seed is a run of three to five nodes in simulated time, that replicate a few keys by Hermes,
and decide by Paxos who is a member. Clients read, write, delete, append and swap, and ask again
what was not answered. The network loses, repeats and delays messages, links are cut and reset,
nodes stop for longer than their leases, clocks run at different speed, nodes crash, lose all keys,
and come back as shadow replicas; or they have them on disk, and may all crash at once. In half of
the runs nodes are added and removed, and hear of it late or in the wrong order. Then all is mended.
Checked are that what clients saw of each key is linearizable, that all is answered in the
end, that all nodes are members again and hold the same, and that no key stays invalid. If all have
lost what they had in memory, they must begin anew with nothing, and only then. Who was removed must
be let go in the end, and not before all that should hold keys do.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim hermes --seeds 100000
  meridian sim hermes --seeds 1000 --reads check --acks all
  meridian sim hermes --seed 137 --trace",
    messages: "a key, as k3, or an update by its key and place, as k3@4.1",
    explained: Some(EXPLAINED),
    settings: &[
        Setting { name: "nodes", values: &["N"], help: "How many nodes there are" },
        Setting {
            name: "reads",
            values: &["lease", "check"],
            help: "Who vouches for reads: a lease, or a membership check",
        },
        Setting {
            name: "acks",
            values: &["coordinator", "all"],
            help: "To whom a write is acknowledged",
        },
        Setting { name: "durability", values: &["memory", "disk"], help: "Where nodes keep keys" },
    ],
    pin,
    planted: names_of_planted::<Trial>,
};

/// More nodes say nothing new.
const NODES_MAX: u16 = 7;

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<Trial>()?.unwrap_or_default();
    let nodes = pins.get::<u16>("nodes")?;
    if nodes.is_some_and(|nodes| !(1..=NODES_MAX).contains(&nodes)) {
        return Err(format!("there are 1 to {NODES_MAX} nodes"));
    }
    let reads = pins.one_of("reads", &[("lease", Reads::Lease), ("check", Reads::Check)])?;
    let acks = [("coordinator", Acks::Coordinator), ("all", Acks::All)];
    let durability = [("memory", Durability::Memory), ("disk", Durability::Disk)];
    Ok(Box::new(Trial {
        nodes: nodes.or(trial.nodes),
        reads: reads.or(trial.reads),
        acks: pins.one_of("acks", &acks)?.or(trial.acks),
        durability: pins.one_of("durability", &durability)?.or(trial.durability),
        ..trial
    }))
}
