//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// A source promises the time of its clock though updates with lower timestamps are in flight.
    PromisesTooMuch,
    /// A source that starts again may use timestamps below what it has promised.
    ForgetsPromises,
    /// A source that comes begins where its clock shows.
    BeginsAnywhere,
    /// A service that does not know of a change of the sources counts what is promised after it.
    CountsLaterPromises,
    /// The stable time does not wait for source 0.
    SkipsASource,
    /// A label is dropped once it is stable and sent, though no receiver is known to have it, as in
    /// Eunomia, Algorithm 4.
    DropsOnStable,
    /// A receiver takes a stream though something before it is missing.
    SkipsGaps,
    /// A receiver applies updates before what they depend on in other regions.
    IgnoresRegions,
    /// A receiver applies updates before what they depend on in their own region.
    IgnoresDep,
    /// A receiver says that it has applied what it has only received.
    SaysTooMuch,
    /// A shard applies what comes, whatever the key holds.
    AppliesAgain,
    /// A session that moves need not wait.
    MovesAtOnce,
    /// What a region that is not there any more has not applied is kept for it.
    WaitsForTheGone,
    /// Each region keeps of a lost one only what it has applied itself.
    DropsTheGone,
    /// A region that has said what it has of a lost one goes on applying it.
    AppliesOfTheGone,
    /// A shard forgets an update of another region once it has applied it.
    ForgetsTheLost,
    /// What is being agreed on of a lost region stays as it was when another one is lost.
    GoesOnWithoutTheSecond,
    /// It is agreed on what is kept of a lost region when one process of each region has said that
    /// it applies nothing more.
    HearsOneOfARegion,
    /// A session goes on where updates that it has seen were dropped.
    MovesPastTheDropped,
    /// A region that joins serves sessions at once.
    ServesBeforeCopy,
    /// A region copies before all others know that it comes.
    CopiesTooEarly,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
