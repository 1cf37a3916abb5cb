//! Planted bugs, and for each a trial that shows it soon: what judges the judges.

use crate::faults::Faults;
use crate::of::multicast::trial::{Disks, Links, Order, Trial, all_faults};
use crate::of::multicast::workload::Profile;
use meridian_multicast::{Dissemination, Mutation};
use std::time::Duration;

/// All that there are, but for those that [`crate::of::multicast::changes`] and `fences` there
/// show, and for [`OF_ORDER`].
pub const ALL: [Mutation; 17] = [
    Mutation::NoLeaderClock,
    Mutation::NoQuorumClock,
    Mutation::NoOrder,
    Mutation::NoCeiling,
    Mutation::ResumesEpoch,
    Mutation::ForgetsPromise,
    Mutation::ForgetsDone,
    Mutation::MixesEpochs,
    Mutation::ForgetsBump,
    Mutation::CountsFutureClocks,
    Mutation::PromisesFirst,
    Mutation::BumpOvertakes,
    Mutation::IgnoresCeiling,
    Mutation::DropsEarlyAppend,
    Mutation::HidesRaisedClock,
    Mutation::DecidesAlone,
    Mutation::AcknowledgesNoted,
];

/// Those that break the linearizable order: short runs and scenarios find them
/// (`tests/linearizable.rs`).
pub const OF_ORDER: [Mutation; 2] = [Mutation::IgnoresLinks, Mutation::PassesUnclosed];

/// The trial with this bug. (`ForgetsPromise`, `PromisesFirst` and `AcknowledgesNoted` need what no
/// chance brings about soon: see the scenarios in `tests/mutations.rs`.)
pub fn trial(mutation: Mutation) -> Trial {
    let trial = match mutation {
        Mutation::Correct
        | Mutation::IgnoresLinks
        | Mutation::PassesUnclosed
        | Mutation::NewQuorumOnly
        | Mutation::RejoinsAtOnce
        | Mutation::CountsTheDead
        | Mutation::HearsTheLost
        | Mutation::InheritsFromMajority
        | Mutation::ReportsUndelivered
        | Mutation::ForgetsReportedClock
        | Mutation::TrustsUnsealed => Trial::default(),
        Mutation::NoLeaderClock
        | Mutation::NoQuorumClock
        | Mutation::NoOrder
        | Mutation::NoCeiling
        | Mutation::MixesEpochs
        | Mutation::ForgetsBump
        | Mutation::BumpOvertakes
        | Mutation::IgnoresCeiling
        | Mutation::HidesRaisedClock
        | Mutation::ForgetsDone => faulty(&[3, 3]),
        Mutation::ResumesEpoch | Mutation::ForgetsPromise | Mutation::PromisesFirst => slow(&[3]),
        Mutation::CountsFutureClocks => slow(&[3, 3]),
        Mutation::DropsEarlyAppend => slow(&[5]),
        Mutation::DecidesAlone | Mutation::AcknowledgesNoted => {
            Trial { dissemination: Some(Dissemination::ViaLeader), ..faulty(&[3, 3]) }
        }
    };
    let (order, disks) = (Some(Order::Sequential), Some(Disks::Quick));
    Trial { mutation, order, disks, ..trial }
}

fn faulty(sizes: &[u16]) -> Trial {
    let profile = Some(Profile::default());
    Trial { faults: Some(all_faults()), links: Some(Links::Lan), profile, ..Trial::of(sizes) }
}

fn slow(sizes: &[u16]) -> Trial {
    let crash = Some(Duration::from_millis(400));
    let faults = Faults { crash, outage: Duration::from_millis(100), ..all_faults() };
    Trial { links: Some(Links::Slow), faults: Some(faults), ..Trial::of(sizes) }
}
