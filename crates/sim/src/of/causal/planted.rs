//! Planted bugs, and for each a trial that shows it soon.

use super::changing::{Nodes, Plan, Way};
use super::sessions::Profile;
use super::trial::Trial;
use crate::faults::Faults;
use crate::lossy::Loss;
use meridian_eunomia as eunomia;
use meridian_hermes::Durability;
use meridian_keys::causal::Mutation;
use std::time::Duration;

/// All of this process.
pub const ALL: &[Mutation] = &[
    Mutation::ReplacesAnything,
    Mutation::SaysEarly,
    Mutation::ForgetsOutbox,
    Mutation::RepeatsNumbers,
    Mutation::DropsEnded,
    Mutation::IgnoresFound,
    Mutation::ReadsApart,
    Mutation::LeavesAtOnce,
    Mutation::SealsEarly,
    Mutation::ForgetsAtSiteTime,
];

/// Those of Eunomia that matter where its sources are replicas of Hermes.
pub const OF_EUNOMIA: &[eunomia::Mutation] = &[
    eunomia::Mutation::PromisesTooMuch,
    eunomia::Mutation::IgnoresDep,
    eunomia::Mutation::IgnoresRegions,
    eunomia::Mutation::MovesAtOnce,
    eunomia::Mutation::BeginsAnywhere,
    eunomia::Mutation::CopiesTooEarly,
    eunomia::Mutation::ServesBeforeCopy,
    eunomia::Mutation::DropsTheGone,
    eunomia::Mutation::AppliesOfTheGone,
    eunomia::Mutation::HearsOneOfARegion,
    eunomia::Mutation::GoesOnWithoutTheSecond,
    eunomia::Mutation::MovesPastTheDropped,
];

const MS: Duration = Duration::from_millis(1);

/// Many sessions that read what others have just written.
const CROWD: Profile = Profile {
    sessions: 6,
    keys: 3,
    think: Duration::from_millis(12),
    reads: 60,
    moves: 0,
    rmws: 30,
    snapshots: 0,
};

/// More of them, in more of a hurry.
const THRONG: Profile =
    Profile { sessions: 12, think: Duration::from_millis(5), reads: 50, keys: 4, ..CROWD };

fn calm() -> Trial {
    let bad = Loss { lost: 60, repeated: 100, delayed: 200, delay: 60 * MS };
    Trial {
        regions: Some(3),
        nodes: Some(2),
        durability: Some(Durability::Disk),
        profile: Some(CROWD),
        loss: Some(bad),
        faults: Some(Faults::none()),
        ..Trial::default()
    }
}

/// Nodes come again and again, and clocks show anything.
fn comers() -> Trial {
    let faults = Faults { skew_ppm: Some(2_000), ..Faults::none() };
    let profile = Some(Profile { reads: 30, ..THRONG });
    let plan: fn(Nodes) -> Plan = |first| Plan::comes(first, 250 * MS, 3);
    Trial { faults: Some(faults), profile, plan: Some(plan), ..calm() }
}

/// A region stops at once, and is called lost soon.
fn losers() -> Trial {
    let plan: fn(Nodes) -> Plan = |first| Plan::loses(first, 400 * MS, 30 * MS, Way::Stopped);
    let profile = Some(Profile { reads: 30, keys: 12, ..THRONG });
    Trial { plan: Some(plan), profile, ..calm() }
}

/// A region is cut off, goes on, and is called lost at once.
fn loses_one_that_is_cut_off() -> Trial {
    let plan: fn(Nodes) -> Plan = |first| Plan::loses(first, 400 * MS, MS, Way::CutOff);
    Trial { plan: Some(plan), ..losers() }
}

/// The trial with this bug.
pub fn trial(mutation: Mutation) -> Trial {
    let calm = calm();
    let crashes = Faults { crash: Some(60 * MS), outage: 60 * MS, ..Faults::none() };
    let stops = Faults { pause: Some(80 * MS), stop: 600 * MS, ..Faults::none() };
    let trial = match mutation {
        Mutation::ForgetsOutbox | Mutation::RepeatsNumbers => {
            Trial { faults: Some(crashes), ..calm }
        }
        Mutation::DropsEnded => {
            Trial { faults: Some(stops), nodes: Some(3), profile: Some(THRONG), ..calm }
        }
        Mutation::IgnoresFound => {
            Trial { profile: Some(Profile { rmws: 100, keys: 6, ..THRONG }), ..calm }
        }
        Mutation::ReadsApart => {
            let profile = Profile { snapshots: 90, rmws: 0, ..THRONG };
            Trial { profile: Some(profile), nodes: Some(3), ..calm }
        }
        Mutation::LeavesAtOnce => {
            let plan: fn(Nodes) -> Plan = |first| Plan::leaves(first, 400 * MS);
            let profile = Some(Profile { reads: 10, keys: 12, ..THRONG });
            Trial { plan: Some(plan), profile, ..calm }
        }
        Mutation::ForgetsAtSiteTime => losers(),
        Mutation::SealsEarly => Trial { nodes: Some(3), ..losers() },
        Mutation::Correct | Mutation::ReplacesAnything | Mutation::SaysEarly => calm,
    };
    Trial { mutation, ..trial }
}

/// The trial with this bug of Eunomia.
pub fn trial_of_eunomia(eunomia: eunomia::Mutation) -> Trial {
    if eunomia == eunomia::Mutation::BeginsAnywhere {
        return Trial { eunomia, ..comers() };
    }
    match eunomia {
        eunomia::Mutation::DropsTheGone => return Trial { eunomia, ..losers() },
        eunomia::Mutation::AppliesOfTheGone | eunomia::Mutation::HearsOneOfARegion => {
            let plan: fn(Nodes) -> Plan = |first| Plan::loses(first, 400 * MS, MS, Way::Alive);
            return Trial { eunomia, plan: Some(plan), ..losers() };
        }
        eunomia::Mutation::GoesOnWithoutTheSecond => {
            let plan: fn(Nodes) -> Plan = |first| Plan::loses_two(first, 400 * MS, 250 * MS);
            return Trial { eunomia, plan: Some(plan), regions: Some(4), ..losers() };
        }
        eunomia::Mutation::MovesPastTheDropped => {
            let cut_off = loses_one_that_is_cut_off();
            let profile = Some(Profile { moves: 20, reads: 50, ..THRONG });
            return Trial { eunomia, profile, ..cut_off };
        }
        _ => {}
    }
    let calm = calm();
    let joins = |nodes: u16| -> fn(Nodes) -> Plan {
        match nodes {
            1 => |first| Plan::joins(first, 200 * MS, 1),
            _ => |first| Plan::joins(first, 200 * MS, 2),
        }
    };
    if eunomia == eunomia::Mutation::CopiesTooEarly {
        let profile = Some(Profile { reads: 10, keys: 200, ..THRONG });
        let loss = Some(Loss::default());
        return Trial { eunomia, plan: Some(joins(1)), profile, loss, ..calm };
    }
    if eunomia == eunomia::Mutation::ServesBeforeCopy {
        let profile = Some(Profile { moves: 30, ..CROWD });
        return Trial { eunomia, plan: Some(joins(2)), profile, ..calm };
    }
    let (profile, loss) = match eunomia {
        eunomia::Mutation::MovesAtOnce => (Profile { moves: 20, ..CROWD }, calm.loss),
        eunomia::Mutation::IgnoresRegions => (THRONG, Some(Loss::default())),
        _ => (CROWD, calm.loss),
    };
    Trial { eunomia, profile: Some(profile), loss, ..calm }
}

/// All trials, by the names of their bugs.
pub fn trials() -> Vec<(String, Trial)> {
    let own = ALL.iter().map(|mutation| (format!("{mutation:?}"), trial(*mutation)));
    let others = OF_EUNOMIA.iter();
    own.chain(others.map(|mutation| (format!("{mutation:?}"), trial_of_eunomia(*mutation))))
        .collect()
}
