//! Planted bugs, and for each a trial that shows it soon.

use super::changing::{Change, Plan};
use super::sessions::Profile;
use super::trial::Trial;
use crate::faults::Faults;
use crate::lossy::Loss;
use meridian_eunomia::Mutation;
use std::time::Duration;

/// All that are looked for.
pub const ALL: &[Mutation] = &[
    Mutation::PromisesTooMuch,
    Mutation::ForgetsPromises,
    Mutation::SkipsASource,
    Mutation::DropsOnStable,
    Mutation::SkipsGaps,
    Mutation::IgnoresRegions,
    Mutation::IgnoresDep,
    Mutation::SaysTooMuch,
    Mutation::AppliesAgain,
    Mutation::MovesAtOnce,
    Mutation::WaitsForTheGone,
    Mutation::DropsTheGone,
    Mutation::AppliesOfTheGone,
    Mutation::ForgetsTheLost,
    Mutation::GoesOnWithoutTheSecond,
    Mutation::MovesPastTheDropped,
    Mutation::CopiesTooEarly,
    Mutation::ServesBeforeCopy,
];

const MS: Duration = Duration::from_millis(1);

/// Many sessions that read what others have just written.
const CROWD: Profile = Profile {
    sessions: 6,
    keys: 3,
    think: Duration::from_millis(12),
    reads: 65,
    moves: 0,
    slow: 0,
};

/// The same changes after 300 ms and after 700 ms.
fn twice(change: Change, later: u16) -> Option<Plan> {
    Some(Plan { later, changes: vec![(300 * MS, change), (700 * MS, change)] })
}

/// The trial with this bug.
pub fn trial(mutation: Mutation) -> Trial {
    let bad = Loss { lost: 60, repeated: 100, delayed: 200, delay: 60 * MS };
    let calm = Trial {
        profile: Some(CROWD),
        plan: Some(Plan::default()),
        loss: Some(Loss::default()),
        faults: Some(Faults::none()),
        ..Trial::default()
    };
    let lossy = Trial { loss: Some(bad), ..calm.clone() };
    let crashes = Faults { crash: Some(20 * MS), outage: 15 * MS, ..Faults::none() };
    let trial = match mutation {
        Mutation::PromisesTooMuch => Trial { profile: Some(Profile { slow: 60, ..CROWD }), ..calm },
        Mutation::ForgetsPromises => {
            let faults = Faults { skew_ppm: Some(50_000), ..crashes };
            Trial { faults: Some(faults), ..calm }
        }
        Mutation::SaysTooMuch => Trial { faults: Some(crashes), ..lossy },
        Mutation::MovesAtOnce => Trial { profile: Some(Profile { moves: 20, ..CROWD }), ..lossy },
        Mutation::WaitsForTheGone => Trial { plan: twice(Change::Lose, 0), ..calm },
        Mutation::DropsTheGone | Mutation::AppliesOfTheGone | Mutation::ForgetsTheLost => {
            let profile = Some(Profile { reads: 30, ..CROWD });
            Trial { profile, plan: twice(Change::Lose, 0), ..lossy }
        }
        Mutation::GoesOnWithoutTheSecond => {
            let changes = [300, 500, 700].map(|at| (at * MS, Change::Lose)).to_vec();
            let profile = Some(Profile { reads: 30, ..CROWD });
            let plan = Some(Plan { later: 0, changes });
            Trial { regions: Some(6), profile, plan, ..lossy }
        }
        Mutation::MovesPastTheDropped => {
            let profile = Some(Profile { moves: 30, ..CROWD });
            Trial { profile, plan: twice(Change::Lose, 0), ..lossy }
        }
        Mutation::ServesBeforeCopy => {
            let profile = Some(Profile { moves: 30, ..CROWD });
            Trial { profile, plan: twice(Change::Join, 2), ..lossy }
        }
        Mutation::CopiesTooEarly => {
            let profile = Some(Profile { reads: 10, keys: 200, ..CROWD });
            Trial { profile, plan: twice(Change::Join, 2), ..calm }
        }
        Mutation::Correct | Mutation::SkipsASource => calm,
        Mutation::DropsOnStable
        | Mutation::SkipsGaps
        | Mutation::IgnoresRegions
        | Mutation::IgnoresDep
        | Mutation::AppliesAgain
        | Mutation::BeginsAnywhere
        | Mutation::CountsLaterPromises
        | Mutation::HearsOneOfARegion => lossy,
    };
    Trial { mutation, ..trial }
}

/// All trials, by the names of their bugs.
pub fn trials() -> Vec<(String, Trial)> {
    ALL.iter().map(|mutation| (format!("{mutation:?}"), trial(*mutation))).collect()
}
