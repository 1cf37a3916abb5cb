//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Timestamps of RMWs as in the paper: an unseen write may come between an RMW and its base.
    PaperTimestamps,
    /// Counts ACKs of earlier epochs.
    CountsOldEpochs,
    /// Takes a VAL of any timestamp for one of what it holds.
    ValidatesAnything,
    /// Answers reads of keys that are not Valid.
    ReadsInvalid,
    /// Answers reads after its lease has ended.
    ReadsWithoutLease,
    /// Commits with the ACKs of all but one.
    MissesAnAck,
    /// Acknowledges an RMW though it holds something later.
    AcksLowerRmw,
    /// Acknowledges all of a batch of INVs, those that it refuses among them (against B2).
    AcksWholeBatches,
    /// Takes a number in a batch of VALs for whatever it holds of the key (against B2).
    ValidatesNumbers,
    /// Answers writes that were combined before the one that stands for them is committed.
    AnswersCombined,
    /// Says that an RMW is aborted as soon as it hears of something later (against M4).
    AbortsEarly,
    /// Acknowledges the replay of an RMW that it coordinates itself (against M5).
    AcksOwnRmw,
    /// Does not know requests again that it has executed.
    ForgetsRequests,
    /// Does not replay what a dead coordinator has left.
    NeverReplays,
    /// A donor answers before all live replicas have installed the epoch of the shadow replica.
    DonatesEarly,
    /// A shadow replica does not ask again what became of RMWs that its donor was in doubt of.
    LeavesUndecided,
    /// Does not wait until what it has taken from another is durable.
    AcksBeforeDurable,
    /// A shadow replica keeps what its disk had.
    KeepsLostKeys,
    /// Takes all that its disk has for committed.
    TrustsItsDisk,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
