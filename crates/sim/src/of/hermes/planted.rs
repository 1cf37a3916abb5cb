//! Planted bugs, and for each a trial that shows it soon.

use super::clients::Profile;
use super::replacing::Plan;
use super::trial::Trial;
use crate::faults::Faults;
use crate::lossy::Loss;
use meridian_hermes::reliable::Fault;
use meridian_hermes::{Durability, Mutation, Reads};
use std::time::Duration;

/// Those that trials find; the others have scenarios in the tests of their crate.
pub const ALL: &[Mutation] = &[
    Mutation::ValidatesAnything,
    Mutation::ReadsInvalid,
    Mutation::ReadsWithoutLease,
    Mutation::MissesAnAck,
    Mutation::AcksLowerRmw,
    Mutation::AcksWholeBatches,
    Mutation::ValidatesNumbers,
    Mutation::AnswersCombined,
    Mutation::ForgetsRequests,
    Mutation::NeverReplays,
    Mutation::AcksBeforeDurable,
    Mutation::TrustsItsDisk,
];

/// Those of the membership that trials find; the others have scenarios in the tests of their crate.
pub const FAULTS: &[Fault] = &[
    Fault::BreaksGrants,
    Fault::StretchesLease,
    Fault::SuspectsDozing,
    Fault::LetsGoEarly,
    Fault::DismissesAtOnce,
];

const MS: Duration = Duration::from_millis(1);

/// Many update one key at once.
const CROWD: Profile = Profile {
    clients: 6,
    keys: 1,
    think: Duration::from_millis(3),
    reads: 30,
    rmws: 50,
    rest: None,
};

/// Nodes are cut off, and read.
fn split() -> Trial {
    let netsplit = Some(200 * MS);
    let faults = Faults { netsplit, split: 400 * MS, ..Faults::none() };
    let profile = Some(Profile { reads: 60, rmws: 20, ..CROWD });
    Trial { faults: Some(faults), profile, reads: Some(Reads::Lease), ..Trial::default() }
}

/// Nothing goes wrong, and clients rest for longer than nodes stay awake.
fn calm() -> Trial {
    let profile = Some(Profile { clients: 2, rest: Some(600 * MS), ..CROWD });
    let (faults, loss) = (Some(Faults::none()), Some(Loss::default()));
    Trial { faults, loss, profile, dozes: Some(true), ..Trial::default() }
}

/// All nodes are replaced while the network is cut.
fn replaced() -> Trial {
    let netsplit = Some(60 * MS);
    let faults = Faults { netsplit, split: 700 * MS, ..Faults::none() };
    let profile = Some(Profile { reads: 60, rmws: 20, ..CROWD });
    // What is lost delays those that come.
    let loss = Some(Loss { lost: 60, repeated: 0, delayed: 200, delay: 40 * MS });
    let (lease, reads, plan) = (Some(600 * MS), Some(Reads::Lease), Some(Plan::all(300 * MS)));
    let dozes = Some(false);
    Trial { faults: Some(faults), profile, lease, reads, loss, plan, dozes, ..Trial::default() }
}

/// A node is to go, and is kept.
fn taken_back() -> Trial {
    let (faults, plan) = (Some(Faults::none()), Some(Plan::taken_back(1000 * MS)));
    Trial { faults, plan, loss: Some(Loss::default()), ..Trial::default() }
}

/// All lose power again and again, and have their keys on disk.
fn without_power() -> Trial {
    let crash_all = Some(150 * MS);
    let faults = Faults { crash_all, outage: 40 * MS, ..Faults::none() };
    let profile = Some(Profile { reads: 50, ..CROWD });
    let durability = Some(Durability::Disk);
    Trial { faults: Some(faults), profile, durability, nodes: Some(3), ..Trial::default() }
}

/// More writes wait at a replica than one, and nothing is lost: of too many calls at once the order
/// could not be found.
fn combined() -> Trial {
    let profile = Profile { clients: 9, reads: 60, rmws: 0, ..CROWD };
    let (faults, loss) = (Some(Faults::none()), Some(Loss::default()));
    let reads = Some(Reads::Lease);
    Trial { faults, loss, reads, profile: Some(profile), nodes: Some(3), ..Trial::default() }
}

/// The trial with this bug.
pub fn trial(mutation: Mutation) -> Trial {
    let bad = Loss { lost: 60, repeated: 100, delayed: 200, delay: 40 * MS };
    let crowd =
        || Trial { profile: Some(CROWD), loss: Some(bad), nodes: Some(3), ..Trial::default() };
    let crashes = Faults { crash: Some(150 * MS), outage: 80 * MS, ..Faults::none() };
    let trial = match mutation {
        Mutation::ReadsWithoutLease => split(),
        Mutation::PaperTimestamps | Mutation::AcksLowerRmw | Mutation::AcksWholeBatches => {
            Trial { faults: Some(Faults::none()), ..crowd() }
        }
        Mutation::NeverReplays | Mutation::ForgetsRequests => {
            Trial { faults: Some(crashes), ..crowd() }
        }
        Mutation::AcksBeforeDurable | Mutation::TrustsItsDisk => without_power(),
        Mutation::AnswersCombined => combined(),
        Mutation::Correct
        | Mutation::KeepsLostKeys
        | Mutation::ValidatesAnything
        | Mutation::ReadsInvalid
        | Mutation::ValidatesNumbers
        | Mutation::MissesAnAck
        | Mutation::AbortsEarly
        | Mutation::DonatesEarly
        | Mutation::LeavesUndecided
        | Mutation::AcksOwnRmw
        | Mutation::CountsOldEpochs => crowd(),
    };
    Trial { mutation, ..trial }
}

/// All trials, by the names of their bugs.
pub fn trials() -> Vec<(String, Trial)> {
    let keys = ALL.iter().map(|mutation| (format!("{mutation:?}"), trial(*mutation)));
    // Who is removed too early has a long time to show what is old.
    let lease = Some(600 * MS);
    let of = |fault| match fault {
        Fault::SuspectsDozing => calm(),
        Fault::LetsGoEarly => replaced(),
        Fault::DismissesAtOnce => taken_back(),
        _ => Trial { lease, ..split() },
    };
    let members =
        FAULTS.iter().map(|fault| (format!("{fault:?}"), Trial { fault: *fault, ..of(*fault) }));
    keys.chain(members).collect()
}
