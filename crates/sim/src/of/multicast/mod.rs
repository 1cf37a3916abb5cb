//! Atomic multicast ([`meridian_multicast`]): clients and faults for a while, then healing, and a
//! judgement.
//!
//! | module | what |
//! | --- | --- |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`replica`] | a process of the multicast with the simplest application |
//! | [`workload`], [`profile`] | clients, and how they behave |
//! | [`changes`] | trials in which members change, or keep nothing on disk |
//! | [`fences`] | trials in which groups are lost, and go on as others |
//! | [`plain`] | the plainest workload, for any protocol of the multicast |
//! | [`explored`] | small cases in all orders of arrival |
//! | [`short`] | many short runs of any multicast protocol, without faults |
//! | [`words`], [`explain`] | the words of a trace; why a message was delivered here and now |
//! | [`history`], [`checkers`] | what happened in a run, and whether it may |
//! | [`loss`] | the same where a group was lost |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |

pub mod changes;
pub mod checkers;
pub mod explain;
pub mod explored;
pub mod fences;
pub mod history;
pub mod loss;
pub mod plain;
pub mod planted;
mod profile;
mod relation;
pub mod replica;
pub mod short;
pub mod trial;
pub mod words;
pub mod workload;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use meridian_multicast::{ClockSource, Dissemination, Mutation, Options, Order};
use short::Short;
use trial::Trial;

/// Processes of a run at most: more say nothing new, slowly.
const PROCESSES_MAX: u32 = 60;

const EXPLAINED: &str = "\
What is told: the final timestamp; what each group proposed, when, and when that was decided; and
for each process that the message went to, when each condition of its delivery was met and by which
event, what was before it, and what its delivery waited for last.

Examples:
  meridian sim multicast --seed 137 --trace --process g0/n1 --until 9000
  meridian sim explain multicast 137 3.7";

/// `meridian sim multicast`.
pub const NAMED: Named = Named {
    name: "multicast",
    about: "Atomic multicast, with all kinds of faults",
    help: "\
Each seed is a run of some groups of processes in simulated time: clients multicast, links are slow,
cut and reset, processes crash and start again from what their disks kept, clocks differ and jump.
Then all is mended. Checked are integrity, prefix order, global total order, genuineness, timestamps
and safe timestamps at all times; agreement, validity and that everything is delivered, at the end.

With --short a seed is a run without faults of a handful of messages, in the linearizable order if
no other is given. It takes a fraction of a millisecond, so that what is rare is found.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim multicast --seeds 100000
  meridian sim multicast --short --seeds 100000
  meridian sim multicast --seeds 1000 --groups 2 --replicas 5 --clock hybrid
  meridian sim multicast --seed 137 --trace",
    messages: "a message by its client and the client's number, as 3.7",
    explained: Some(EXPLAINED),
    settings: &[
        Setting { name: "short", values: &[], help: "Short runs without faults" },
        Setting {
            name: "order",
            values: &["sequential", "linearizable"],
            help: "The order of deliveries: acyclic over all processes, or also as in real time",
        },
        Setting {
            name: "clock",
            values: &["logical", "hybrid"],
            help: "Where timestamps come from: counted, or microseconds of a clock and more",
        },
        Setting {
            name: "dissemination",
            values: &["all-to-all", "via-leader"],
            help: "Who of a group speaks with other groups: all members, or its primary",
        },
        Setting { name: "groups", values: &["G"], help: "How many groups there are" },
        Setting { name: "replicas", values: &["R"], help: "How many processes each group has" },
    ],
    pin,
    planted: names_of_planted::<Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let orders = [("sequential", Order::Sequential), ("linearizable", Order::Linearizable)];
    let order = pins.one_of("order", &orders)?;
    let clocks = [("logical", ClockSource::Logical), ("hybrid", ClockSource::Hybrid)];
    let clock = pins.one_of("clock", &clocks)?;
    let dissemination =
        [("all-to-all", Dissemination::AllToAll), ("via-leader", Dissemination::ViaLeader)];
    let dissemination = pins.one_of("dissemination", &dissemination)?;
    let (groups, replicas) = (pins.get::<u16>("groups")?, pins.get::<u16>("replicas")?);
    let sizes = match (groups, replicas) {
        (None, None) => None,
        (Some(1..), Some(1..)) => {
            let sizes = groups.zip(replicas);
            let sizes = sizes.map(|(groups, size)| vec![size; usize::from(groups)]);
            sizes
                .filter(|sizes| {
                    sizes.iter().map(|size| u32::from(*size)).sum::<u32>() <= PROCESSES_MAX
                })
                .ok_or(format!("too many processes: at most {PROCESSES_MAX}"))
                .map(Some)?
        }
        _ => return Err("--groups and --replicas go together, and are not 0".into()),
    };
    let planted = pins.planted::<Trial>()?;
    if pins.has("short") {
        let order = order.unwrap_or(Order::Linearizable);
        let (clock, dissemination) = (clock.unwrap_or_default(), dissemination.unwrap_or_default());
        let mutation = planted.map_or(Mutation::Correct, |trial| trial.mutation);
        let options = Options { order, clock, dissemination, ..Options::default() };
        return Ok(Box::new(Short::new(sizes, options, mutation)));
    }
    let trial = planted.unwrap_or_default();
    Ok(Box::new(Trial {
        order: order.or(trial.order),
        clock: clock.or(trial.clock),
        dissemination: dissemination.or(trial.dissemination),
        sizes: sizes.or(trial.sizes),
        ..trial
    }))
}
