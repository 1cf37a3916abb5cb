//! Trials of Eunomia ([`meridian_eunomia`]): regions with shards, replicas of the service and
//! receivers; sessions and faults for a while, then healing, and a judgement. In half of the
//! trials regions join, leave and are lost.
//!
//! | module | what |
//! | --- | --- |
//! | [`sessions`] | sessions, what they see, and all checks |
//! | [`changing`] | regions that join, leave and are lost |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`words`], [`explain`] | the words of a trace; why an update became visible here and now |
//! | [`parts`] | what an explanation looks at in a process |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |

pub mod changing;
pub mod explain;
pub mod parts;
pub mod planted;
pub mod sessions;
pub mod trial;
pub mod words;

pub use trial::Trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use meridian_eunomia::REGIONS_MAX;

/// A process behind a network that loses, repeats and reorders.
pub type Member = crate::lossy::Lossy<meridian_eunomia::Member>;

const EXPLAINED: &str = "\
What is told: when the source of the update began and committed it, and what it depends on; for each
replica of the service, when it had the label, whose promises it waited for and until when, when the
label was stable, and when it was sent to which receiver; for each receiver, when it had the label,
what it depends on that was missing then and until when, and when it asked for it; when the data was
there, and when it was applied. Last, for each other region, from when on it shows the update, and
what it waited for last.

Examples:
  meridian sim eunomia --seed 137 --trace --message k3
  meridian sim explain eunomia 137 812345344";

/// `meridian sim eunomia`.
pub const NAMED: Named = Named {
    name: "eunomia",
    about: "Keys across regions, with all kinds of faults",
    help: "\
Each seed is a run of three to five regions in simulated time, each with shards that hold its keys,
replicas of its Eunomia service, and a receiver. Sessions read and write in their region, and move
to another with what they have seen. The network loses, repeats and delays messages, links and
regions are cut off, processes stop and crash, also all at once, and clocks show anything, run at
different speed and jump. In half of the runs one or two regions more join, and regions leave or are
lost, while all go on. Then all is mended. Checked are that what sessions saw is causally
consistent, that each update is applied once in each region, of a lost one in all that stay or in
none, and that all hold the same in the end.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim eunomia --seeds 100000
  meridian sim eunomia --seeds 1000 --regions 5
  meridian sim eunomia --seed 137 --trace",
    messages: "a label by its timestamp, as 812345344, or a key, as k3",
    explained: Some(EXPLAINED),
    settings: &[Setting {
        name: "regions",
        values: &["N"],
        help: "How many regions there are at first",
    }],
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
