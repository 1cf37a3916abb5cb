//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// An update of another region replaces whatever is held.
    ReplacesAnything,
    /// An update of another region counts as applied when Hermes is asked to hold it.
    SaysEarly,
    /// A source that starts again does not look for what it had not sent.
    ForgetsOutbox,
    /// A source that starts again takes up its labels with the numbers of its start before.
    RepeatsNumbers,
    /// What a source has left is forgotten when it goes.
    DropsEnded,
    /// An RMW does not depend on what it has found.
    IgnoresFound,
    /// Several keys are read each when it can be, and not all at one moment.
    ReadsApart,
    /// A region that leaves does not wait until others have what it has made.
    LeavesAtOnce,
    /// A node says that it applies nothing more of a lost region while it does not know what has
    /// become of what it has begun.
    SealsEarly,
    /// What was applied of another region is kept only until this one has applied all up to there.
    ForgetsAtSiteTime,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
