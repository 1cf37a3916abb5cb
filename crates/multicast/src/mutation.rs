//! Faults that are planted to see that they are found.

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
    /// Acknowledges before the epoch stands (notes, point 4), and goes on as primary after a restart.
    ResumesEpoch,
    /// Does not persist what it promised.
    ForgetsPromise,
    /// Proposes a message again that was delivered and asked for again.
    ForgetsDone,
    /// Counts ACKs of other groups whatever their epoch (notes, point 5).
    MixesEpochs,
    /// Does not raise its clock to timestamps of other groups (line 50).
    ForgetsBump,
    /// Counts clocks of epochs above its own (line 16).
    CountsFutureClocks,
    /// Sends PROMISE and NEW-EPOCH before their record.
    PromisesFirst,
    /// Counts the primary's clock though entries before it are missing (notes, point 1).
    BumpOvertakes,
    /// Shows clocks above the ceiling that is durable (notes, point 25).
    IgnoresCeiling,
    /// Drops what the primary of its epoch says before it knows that the epoch stands (line 42 as printed;
    /// notes, point 3).
    DropsEarlyAppend,
    /// Does not show a clock that NEW-STATE raised (lines 73-74 as printed; notes, point 20b).
    HidesRaisedClock,
    /// In the linearizable order, asks only how far a message's own groups are stable, not those that they are
    /// linked with: orders pairs, not chains, like Algorithm 4 as printed.
    IgnoresLinks,
    /// In the linearizable order, lets messages pass others though a chain may lead from their other groups back to those.
    PassesUnclosed,
    /// Opens an epoch with promises of its own configuration's quorum only.
    NewQuorumOnly,
    /// Takes part at once after it has lost its memory.
    RejoinsAtOnce,
    /// Counts what an earlier incarnation of another said.
    CountsTheDead,
    /// Tells other groups that what only this primary holds is decided.
    DecidesAlone,
}
