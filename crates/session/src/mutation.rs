//! Bugs that are planted to see that the tests find them; a release build contains none of them.

use meridian_core::PLANTED_BUGS;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// Does not remember what was given up, so that no later message cancels it.
    ForgetsGivenUp,
    /// Does not wait until what was given up in other groups is cancelled there.
    SkipsCancelling,
    /// Does not learn the horizon from a refusal, so that its next name is as old as the refused.
    ForgetsHorizon,
    /// Does not raise its vector when updates are answered.
    KeepsVector,
    /// Sends an update again under another name.
    NamesRepeatsAnew,
    /// Takes a block for stored once one node of the nearest region has it.
    CountsOneNode,
    /// Places both copies of a block on one node.
    PlacesTwice,
    /// Places blocks on nodes that are drained.
    PlacesOnDraining,
    /// Takes a damaged answer for the block.
    TakesDamaged,
    /// Asks only one of the nodes that may hold a block.
    AsksOneHolder,
    /// Sends an update before the blocks that it names are stored.
    SendsBeforeStored,
    /// Lets a write at an offset overtake appended bytes.
    OvertakesAppended,
    /// Drops what was set of a file whose bytes are kept.
    DropsSettings,
    /// Sets what was set before bytes were written as if that were after them.
    SetsOnNewerBytes,
    /// Discards the blocks of an update of which nobody knows whether it happens.
    DiscardsUnknown,
    /// Names written bytes anew though they may have been written already.
    NamesFlightAnew,
    /// Tells no partition what is open.
    NeverHolds,
    /// Goes on in the shard of a message that is delayed.
    NeverDetours,
    /// Goes on in another shard with what touches the same, too.
    DetoursAlways,
    /// Takes any group's answer for the acknowledgment, though others may hold something elsewhere.
    TakesAnyAnswer,
    /// Counts the lease of its capabilities from the reply.
    CountsFromReply,
    /// Takes a directory that it holds exclusively for known whole, and asks for no entries.
    TakesPartForWhole,
    /// Keeps answers of reads that began before it held the inode.
    FillsFromEarlier,
    /// Has pages kept that were read before it held the file.
    KeepsOldPages,
    /// Takes pages for dropped that were dropped before the file was recalled, and held again.
    KeepsAnyHolding,
    /// Keeps what a listing showed before it held that.
    KeepsListed,
    /// Keeps what came along with a grant though it has changed it meanwhile.
    KeepsChanged,
    /// Keeps what a look has brought of directories further below, from before it held them.
    KeepsBrought,
    /// Keeps the bytes of a file that it changes.
    KeepsBytes,
    /// Shows what it kept back when its lease has run out.
    ShowsLapsed,
    /// Releases a directory in which it keeps something back.
    ReleasesUnlanded,
    /// Releases a directory in which it keeps back what was written to files.
    ReleasesUnwritten,
    /// Keeps the removal of a name back though the file may have others.
    RemovesOneName,
    /// Shows no file under a name from which one went that has landed, though another came since.
    EndsNames,
    /// Has what is set of a file sent with what it was told to send before.
    JoinsCalled,
    /// What is kept back in order is overtaken by later updates.
    Overtakes,
    /// Takes a file that was its own once for its own, whoever may know of it since.
    OwnsForever,
    /// Takes its owner's mode for that of all directories.
    IgnoresModes,
    /// Releases a capability before what it kept is dropped.
    ReleasesFirst,
    /// Goes on after another at once, without what that has seen.
    IgnoresToken,
    /// Takes a group for cut off as a question waits, and does not look whether it answers others.
    CutsUnseen,
    /// Counts the silence of a group from the last question on.
    BeginsSilenceAnew,
    /// Does not ask a group that is cut off but for calls.
    NeverLooksAgain,
    /// Gives up calls early as any group is cut off.
    HurriesAll,
    /// Asks again at once for what it needs by itself of a group that is out of reach.
    RepeatsAtOnce,
    /// Shows nothing of a directory whose partition is cut off.
    HidesTops,
    /// Tells nobody what it made of a directory that lives elsewhere than its name.
    TellsNoTop,
    /// Looks for a cycle of waits in what each partition has shown alone.
    JoinsNothing,
    /// Takes what it gave up in another shard for cancelled by the next message to its groups.
    DetoursUncancelled,
    /// Takes a snapshot though a state in it had seen more of another group than that has there.
    IgnoresCauses,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all: false at compile time in a release
    /// build.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}
