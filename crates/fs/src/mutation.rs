//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Grants nothing to those who wait when a lock is given back.
    ForgetsWaiters,
    /// Grants a lock to all who wait when one is given back.
    GrantsToAll,
    /// One who has gone goes on waiting.
    KeepsGone,
    /// Writes count under a lock that was lost.
    IgnoresTenure,
    /// Cycles of waits are believed without a look whether they are there.
    BelievesCycles,
    /// A rename leaves no whiteout.
    LeavesNoWhiteout,
    /// What is set together with written bytes is done in the opposite order.
    SettlesBackwards,
    /// A capability survives a write.
    KeepsCapability,
    /// What is made in a directory gets nothing of its list of access rights.
    InheritsNothing,
    /// A file that has got its first name is removed as if it had none.
    ReapsNamed,
    /// The partition of a new name keeps nothing of a directory that lives elsewhere.
    LosesTops,
    /// What is moved while it is being counted stays as it was.
    MissesMoved,
    /// A directory of which a part was counted is taken for counted.
    ClosesEarly,
    /// A read is noted though another time of reading was set since it was seen.
    NotesAnyRead,
    /// A region's directory goes with what is in it.
    RemovesFullRegions,
    /// Who may only work below one directory reaches all.
    ReachesAll,
    /// Others change and see a directory that a client holds exclusively.
    IgnoresExclusive,
    /// After a part of a batch that is refused the others are done.
    PassesRefused,
    /// A name goes that was kept back in a directory which its client does not hold any more.
    RemovesUnheld,
    /// A client is told that it holds what it makes, and nobody notes it.
    GrantsUnnoted,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
