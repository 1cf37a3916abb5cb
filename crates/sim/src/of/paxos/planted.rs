//! Planted bugs, and for each a trial that shows it soon.

use super::trial::Trial;
use crate::faults::Faults;
use crate::lossy::Loss;
use meridian_paxos::{Mutation, Recovery};
use std::time::Duration;

/// All that there are.
pub const ALL: [Mutation; 19] = [
    Mutation::AcceptsOldView,
    Mutation::ForgetsPromise,
    Mutation::ForgetsAccepted,
    Mutation::ExecutesDuplicates,
    Mutation::SkipsGaps,
    Mutation::IgnoresVotes,
    Mutation::TakesAnyVote,
    Mutation::SmallQuorum,
    Mutation::SnapshotsWithoutReplies,
    Mutation::ForgetsSkip,
    Mutation::CountsOldEpochs,
    Mutation::RejoinsAtOnce,
    Mutation::RecoversFromCandidate,
    Mutation::ReadsUnconfirmed,
    Mutation::ReadsEarly,
    Mutation::BreaksLease,
    Mutation::ConfirmsByFormerMembers,
    Mutation::ReadsUnpromised,
    Mutation::ConfiguresAtOnce,
];

/// The trial with this bug.
pub fn trial(mutation: Mutation) -> Trial {
    let ms = Duration::from_millis(1);
    let of = |recovery| Trial { changes: Some(false), ..Trial::of(recovery) };
    let deposed = Faults {
        depose: Some(100 * ms),
        netsplit: Some(250 * ms),
        crash: Some(200 * ms),
        outage: 60 * ms,
        split: 150 * ms,
        ..Faults::none()
    };
    let split = Faults { netsplit: Some(150 * ms), split: 400 * ms, ..Faults::none() };
    let bad = Some(Loss { lost: 120, repeated: 100, delayed: 150, delay: 400 * ms });
    let trial = match mutation {
        Mutation::Correct => Trial::default(),
        Mutation::ForgetsPromise | Mutation::TakesAnyVote => {
            Trial { faults: Some(deposed), loss: bad, ..of(Recovery::FullSs) }
        }
        Mutation::CountsOldEpochs => {
            Trial { faults: Some(deposed), loss: bad, replicas: Some(5), ..of(Recovery::EpochSs) }
        }
        Mutation::RecoversFromCandidate => {
            Trial { faults: Some(deposed), loss: bad, ..of(Recovery::ViewSs) }
        }
        Mutation::ReadsUnconfirmed => {
            let leases = Some(false);
            Trial { faults: Some(split), reads: Some(50), leases, ..of(Recovery::ViewSs) }
        }
        Mutation::ConfirmsByFormerMembers | Mutation::ReadsUnpromised => {
            let (changes, leases) = (Some(true), Some(false));
            let reads = Some(50);
            Trial { faults: Some(split), reads, changes, leases, ..of(Recovery::FullSs) }
        }
        Mutation::BreaksLease => {
            let leases = Some(true);
            Trial { faults: Some(split), reads: Some(50), leases, ..of(Recovery::FullSs) }
        }
        Mutation::ConfiguresAtOnce => {
            let changes = Some(true);
            Trial { faults: Some(split), changes, hasty: true, ..of(Recovery::FullSs) }
        }
        Mutation::AcceptsOldView
        | Mutation::ForgetsAccepted
        | Mutation::ExecutesDuplicates
        | Mutation::SkipsGaps
        | Mutation::IgnoresVotes
        | Mutation::SmallQuorum
        | Mutation::SnapshotsWithoutReplies => Trial::of(Recovery::FullSs),
        Mutation::ForgetsSkip | Mutation::RejoinsAtOnce | Mutation::ReadsEarly => {
            Trial::of(Recovery::EpochSs)
        }
    };
    Trial { mutation, ..trial }
}
