//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Accepts proposals of views before its own.
    AcceptsOldView,
    /// Does not write its view to disk, so that a restart forgets what it promised.
    ForgetsPromise,
    /// Does not write what it accepts to disk.
    ForgetsAccepted,
    /// Executes a request again that was decided twice (report, Figure 8).
    ExecutesDuplicates,
    /// Executes past an instance that is not decided.
    SkipsGaps,
    /// Proposes what it wants in Phase 2, whatever Phase 1 has shown.
    IgnoresVotes,
    /// Takes the value that it saw first in Phase 1, not that of the highest view.
    TakesAnyVote,
    /// Decides with one acceptor less than a majority.
    SmallQuorum,
    /// Leaves the replies out of snapshots.
    SnapshotsWithoutReplies,
    /// Executes all of an instance that a snapshot contains the first requests of.
    ForgetsSkip,
    /// Counts PREPARE-OKs of earlier starts of their senders (Algorithm 4, line 33).
    CountsOldEpochs,
    /// Takes part at once after it has lost its memory.
    RejoinsAtOnce,
    /// Takes an answer to its RECOVERY from a leader that has not finished Phase 1.
    RecoversFromCandidate,
    /// Answers reads as leader without asking whether it still is.
    ReadsUnconfirmed,
    /// Answers reads as soon as they are confirmed, before what was under way is executed.
    ReadsEarly,
    /// Promises another leader before its lease ends.
    BreaksLease,
    /// Confirms reads by the members of the next instance, not by those of the read's index.
    ConfirmsByFormerMembers,
    /// Confirms reads though no majority of the members of the read's index has told what it
    /// accepted.
    ReadsUnpromised,
    /// Uses the members that the log ends with, not those of the instance.
    ConfiguresAtOnce,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
