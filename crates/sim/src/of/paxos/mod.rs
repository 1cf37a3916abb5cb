//! Trials of state machine replication ([`meridian_paxos`]): clients and faults for a while, then
//! healing, and a judgement.
//!
//! | module | what |
//! | --- | --- |
//! | [`trial`] | what is drawn, the run, the end |
//! | [`clients`] | clients as the library's own behave; what replicas answer |
//! | [`service`] | registers that know what was executed |
//! | [`watch`] | what must hold of replicas at all times |
//! | [`words`], [`explain`] | the words of a trace; why a request was executed here and now |
//! | [`explored`] | small cases, in all orders of arrival |
//! | [`planted`] | planted bugs, and a trial for each that shows it soon |

pub mod clients;
pub mod explain;
pub mod explored;
pub mod planted;
pub mod service;
pub mod trial;
pub mod watch;
pub mod words;

pub use trial::{Cluster, Stage, Trial};

use super::{Named, Pins, Setting, Trials, names_of_planted};
use meridian_paxos::{Recovery, Routing};

const EXPLAINED: &str = "\
What is told: who was asked first; in which instances and views leaders proposed the request, and
who accepted that; who knew first that an instance with it is decided; and for each replica, when it
knew that, which earlier decisions were missing then, when it executed the instance and for which
decision that waited last; and who answered.

Examples:
  meridian sim paxos --seed 137 --trace --until 900
  meridian sim explain paxos 137 10002.3";

/// `meridian sim paxos`.
pub const NAMED: Named = Named {
    name: "paxos",
    about: "State machine replication, with all kinds of faults",
    help: "\
Each seed is a run of three or five replicas in simulated time, with clients as the library's own:
the network loses, repeats and delays messages, links are cut and reset, replicas stop and crash in
the midst of what they do, and start again with what their disks kept in the recovery mode; members
are added, removed and replaced. Then all is mended. Checked are, at all times, that no instance has
two decisions, that equal positions have equal states, that no request is executed twice and no
answer changes, that who has stopped answers nothing, and that logs stay short; at the end, that all
is answered and all members are equal, that nothing answered is lost, and that what clients saw is
linearizable.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim paxos --seeds 100000
  meridian sim paxos --seeds 1000 --mode epoch-ss --replicas 5 --changes true
  meridian sim paxos --seed 137 --trace",
    messages: "a request by its client and the client's number, as 10002.3, or an instance, as 7",
    explained: Some(EXPLAINED),
    settings: &[
        Setting {
            name: "mode",
            values: &["crash-stop", "full-ss", "epoch-ss", "view-ss"],
            help: "What survives a crash: nothing (who has crashed is replaced), all (each vote is on disk \
                   before it counts), how often each replica has started, the view",
        },
        Setting { name: "replicas", values: &["R"], help: "How many replicas there are at first" },
        Setting {
            name: "routing",
            values: &["redirect", "forward"],
            help: "What followers do with requests: they name the leader, or forward them to it",
        },
        Setting {
            name: "leases",
            values: &["true", "false"],
            help: "Whether the leader answers reads by a lease",
        },
        Setting { name: "changes", values: &["true", "false"], help: "Whether members change" },
    ],
    pin,
    planted: names_of_planted::<Trial>,
};

/// More replicas say nothing new.
const REPLICAS_MAX: u16 = 7;

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<Trial>()?.unwrap_or_default();
    let routing = [("redirect", Routing::Redirect), ("forward", Routing::Forward)];
    let replicas = pins.get::<u16>("replicas")?;
    if replicas.is_some_and(|replicas| !(1..=REPLICAS_MAX).contains(&replicas)) {
        return Err(format!("there are 1 to {REPLICAS_MAX} replicas"));
    }
    Ok(Box::new(Trial {
        recovery: pins.get::<Recovery>("mode")?.or(trial.recovery),
        replicas: replicas.or(trial.replicas),
        routing: pins.one_of("routing", &routing)?.or(trial.routing),
        leases: pins.get("leases")?.or(trial.leases),
        changes: pins.get("changes")?.or(trial.changes),
        ..trial
    }))
}

/// A replica behind a network that loses, repeats and reorders.
pub type Replica = crate::lossy::Lossy<meridian_paxos::Paxos<service::Registers>>;
