//! Faults that are planted to see that they are found. The release build has none of them.

/// Whether planted bugs are compiled in. Where they are not, each question for one is false at
/// compile time, and what would follow from it is not there.
pub const PLANTED: bool = cfg!(any(debug_assertions, feature = "planted"));

/// The bug that is planted in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Planted(Mutation);

impl Planted {
    /// None.
    pub const NONE: Planted = Planted(Mutation::Correct);

    /// This one.
    ///
    /// # Panics
    /// In a build without planted bugs: a search for it would find nothing, and say so.
    pub fn new(mutation: Mutation) -> Planted {
        let correct = mutation == Mutation::Correct;
        assert!(PLANTED || correct, "this build has no planted bugs: {mutation:?}");
        Planted(mutation)
    }

    /// Whether it is this one.
    #[inline(always)]
    pub fn is(self, mutation: Mutation) -> bool {
        PLANTED && self.0 == mutation
    }
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    Correct,
    /// Delivers without line 28.
    NoLeaderClock,
    /// Delivers without line 29.
    NoQuorumClock,
    /// Delivers without line 30's order: whatever is final first.
    NoOrder,
    /// A restart begins with clock 0.
    NoCeiling,
    /// Acknowledges before the epoch stands, and goes on as primary after a restart.
    ResumesEpoch,
    /// Does not persist what it promised.
    ForgetsPromise,
    /// Proposes a message again that was delivered and asked for again.
    ForgetsDone,
    /// Counts ACKs of other groups whatever their epoch.
    MixesEpochs,
    /// Does not raise its clock to timestamps of other groups (line 50).
    ForgetsBump,
    /// Counts clocks of epochs above its own (line 16).
    CountsFutureClocks,
    /// Sends PROMISE and NEW-EPOCH before their record.
    PromisesFirst,
    /// Counts the primary's clock though entries before it are missing.
    BumpOvertakes,
    /// Shows clocks above the ceiling that is durable.
    IgnoresCeiling,
    /// Drops what the primary of its epoch says before it knows that the epoch stands (line 42 as
    /// printed).
    DropsEarlyAppend,
    /// Does not show a clock that NEW-STATE raised (lines 73-74 as printed).
    HidesRaisedClock,
    /// In the linearizable order, asks only how far a message's own groups are stable, not those
    /// that they are linked with: orders pairs, not chains, like Algorithm 4 as printed.
    IgnoresLinks,
    /// In the linearizable order, lets messages pass others though a chain may lead from their
    /// other groups back to those.
    PassesUnclosed,
    /// Opens an epoch with promises of its own configuration's quorum only.
    NewQuorumOnly,
    /// Takes part at once after it has lost its memory.
    RejoinsAtOnce,
    /// Counts what an earlier incarnation of another said.
    CountsTheDead,
    /// Tells other groups that what only this primary holds is decided.
    DecidesAlone,
    /// As a follower, acknowledges entries that are noted only, and not durable.
    AcknowledgesNoted,
    /// Counts what members of a lost group acknowledge after its report.
    HearsTheLost,
    /// As an heir, begins with the reports of a majority.
    InheritsFromMajority,
    /// Leaves out of its report what it has delivered.
    ReportsUndelivered,
    /// As an heir, begins with a clock that is only past what was reported.
    ForgetsReportedClock,
    /// Takes timestamps of a lost group from processes that are not sealed.
    TrustsUnsealed,
}
