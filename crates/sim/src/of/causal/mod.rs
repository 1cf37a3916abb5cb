//! Trials of keys of all regions ([`meridian_keys::causal`]): regions of groups of Hermes, whose
//! nodes are sources, services and receivers of Eunomia; sessions and faults for a while, then
//! healing, and a judgement.
//!
//! | module | what |
//! | --- | --- |
//! | [`node`] | a node: membership and keys |
//! | [`changing`] | nodes that come and go, regions that join, leave and are lost |
//! | [`sessions`] | sessions, what they see, and all checks |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`words`] | the words of a trace; [`crate::of::eunomia::explain`] has why and when |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |

pub mod changing;
pub mod node;
pub mod planted;
pub mod sessions;
pub mod trial;
pub mod words;

pub use trial::Trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use meridian_eunomia::REGIONS_MAX;

/// A node behind a network that loses, repeats and reorders.
pub type Member = crate::lossy::Lossy<node::Node>;

const EXPLAINED: &str = "\
What is told: as of the subject eunomia, where each node is a source, a replica of the service and a
receiver. An update is named by its label, not by its key and place.

Examples:
  meridian sim causal --seed 137 --trace --message k3
  meridian sim explain causal 137 812345344";

/// `meridian sim causal`.
pub const NAMED: Named = Named {
    name: "causal",
    about: "Keys of all regions on groups of Hermes, with all kinds of faults",
    help: "\
Each seed is a run of two or three regions in simulated time. The one to three nodes of each are a
group of Hermes with its membership; each is also a source, a replica of the service and a receiver
of Eunomia. Sessions read, write and swap at any node of their region, read several keys at one
moment, and move to another region with what they have seen. In half of the runs nodes come and go,
in half of them a region joins and one leaves,
and in half of them one is called lost: it stops, is cut off, or goes on as ever.
The network loses, repeats and delays messages, links and regions are cut off, nodes stop for longer
than their leases and crash, also all at once, and clocks show anything and run at different speed.
Then all is mended. Checked are that
what sessions saw is causally consistent, that no two swaps in a region replace the same value, that
each update is applied once in each region, of a lost one in all that stay or in none of them, that
all nodes hold the same in the end, and keep nothing for others then.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim causal --seeds 100000
  meridian sim causal --seeds 1000 --regions 3
  meridian sim causal --seed 137 --trace",
    messages: "a key, as k3, an update within a region, as k3@4.1, or a label, as 812345344",
    explained: Some(EXPLAINED),
    settings: &[Setting { name: "regions", values: &["N"], help: "How many regions there are" }],
    pin,
    planted: names_of_planted::<Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<Trial>()?.unwrap_or_default();
    let regions = pins.get::<u16>("regions")?;
    if regions.is_some_and(|regions| !(1..=REGIONS_MAX as u16).contains(&regions)) {
        return Err(format!("there are 1 to {REGIONS_MAX} regions"));
    }
    Ok(Box::new(Trial { regions: regions.or(trial.regions), ..trial }))
}
