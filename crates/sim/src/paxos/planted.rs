//! Planted bugs, and for each a trial that shows it soon.

use super::trial::Trial;
use meridian_paxos::Mutation;

/// All that there are.
pub const ALL: [Mutation; 18] = [
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
    Mutation::ConfiguresAtOnce,
    Mutation::Correct,
];

/// The trial with this bug.
pub fn trial(mutation: Mutation) -> Trial {
    Trial { mutation, ..Trial::default() }
}
