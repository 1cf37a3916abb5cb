//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Answers an update though others hold what it changed.
    AnswersAtOnce,
    /// Ends capabilities whose client has renewed them meanwhile.
    ExpiresAnyhow,
    /// A primary goes on counting for a quota only if it has begun to.
    AbandonsCounts,
    /// Takes every client for one that may do all.
    AdmitsAll,
    /// A snapshot has whatever has come when it is asked for, before or after its timestamp.
    TakesAtOnce,
    /// Frees blocks though a snapshot names them.
    FreesKept,
    /// A snapshot counts as whole though messages before its timestamp are missing.
    WaitsForNothing,
    /// Does not note that votes come.
    MissesSteps,
    /// Notes under another's name that an update is applied.
    MisnamesSteps,
    /// Hears votes of a lost group after it has reported which it knows.
    HearsLostVotes,
    /// Reports nothing of the votes that it has heard.
    ForgetsHeard,
    /// Heirs go on before all have reported.
    BeginsEarly,
    /// Heirs that have begun do not tell others with what.
    HandsOnNothing,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
