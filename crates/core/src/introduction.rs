//! What is decided when two members introduce themselves to each other: whether each has all that
//! it had when the other last heard of it, and whether one that starts may begin.
//!
//! A disk that is empty, or as it was an hour ago, is whole in itself. Whoever votes with it may
//! vote against what it acknowledged. So a member that remembers anything takes no step before each
//! of the others has answered, or has not for long: see [`crate::standing`].
//!
//! Invariants:
//! - I1: a member of which another remembers more than it does itself never begins once that one
//!   has answered, and stops if it has begun.
//! - I2: a member that has all that it ever said to have is never turned away.

use crate::PLANTED_BUGS;
use crate::hello::{Endpoint, HelloError, Identity};
use crate::standing::{Lost, Standing, Start};
use std::collections::BTreeSet;
use std::fmt;

/// Somebody comes with less than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten<I> {
    /// Who does.
    pub who: I,
    /// Who knows.
    pub by: I,
    /// What is missing.
    pub lost: Lost,
}

impl<I> Forgotten<I> {
    /// The same in words, with these names.
    pub fn describe(&self, name: impl Fn(&I) -> String) -> String {
        let (who, by, lost) = (name(&self.who), name(&self.by), self.lost);
        format!(
            "{who} has lost its memory, as {by} knows: {lost}. It must not come back under its name"
        )
    }
}

impl<I: fmt::Display> fmt::Display for Forgotten<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(I::to_string))
    }
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// What others know is compared with the present start only, not with those before.
    SkipsPast,
}

/// What a member says of itself.
#[derive(Clone, Debug)]
pub struct Member<I> {
    /// Its name.
    pub me: I,
    /// Whether it remembers what it said before its last start.
    pub durable: bool,
    /// How far its memory went at this start.
    pub standing: Standing,
    /// All its starts, this one last.
    pub starts: Vec<Start>,
}

/// Whether a member that starts may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet: others have not answered.
    Waits,
    /// It may, or has.
    Begins,
    /// It must stop: others remember more of it than it does itself.
    Stops,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Introduction<I> {
    member: Member<I>,
    /// Those that it waits for.
    silent: BTreeSet<I>,
    forgotten: Option<Forgotten<I>>,
    mutation: Mutation,
}

impl<I: Endpoint> Introduction<I> {
    /// A member that starts, among these others. One that remembers nothing waits for nobody: it
    /// says at each start that it has lost its memory.
    pub fn new(member: Member<I>, others: impl IntoIterator<Item = I>) -> Introduction<I> {
        let silent = others.into_iter().filter(|_| member.durable).collect();
        Introduction { member, silent, forgotten: None, mutation: Mutation::Correct }
    }

    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Introduction<I> {
        Introduction { mutation, ..self }
    }

    /// Whether the member remembers what it said before its last start.
    pub fn is_durable(&self) -> bool {
        self.member.durable
    }

    /// What it says to `to`, of which it knows so much, now that its log has so many records.
    pub fn identity(&self, to: I, logged: u64, known: Option<Standing>) -> Identity<I> {
        let Member { me, durable, standing, .. } = self.member;
        let standing = Standing { logged: logged.max(standing.logged), ..standing };
        Identity { from: me, to, durable, standing, known }
    }

    /// Those that have not answered, and are waited for.
    pub fn silent(&self) -> &BTreeSet<I> {
        &self.silent
    }

    /// Another has said who it is, to whom this member says, or has said, `ours`. Whether both may
    /// speak with each other.
    ///
    /// # Errors
    /// If they may not: why. If that is what this member has lost, it must stop.
    pub fn on_met(
        &mut self,
        ours: &Identity<I>,
        theirs: &Identity<I>,
    ) -> Result<(), HelloError<I>> {
        let refused = |text: String| Err(HelloError::Refused(text));
        if theirs.from != ours.to {
            return refused(format!("{} where {} should be", theirs.from, ours.to));
        }
        if theirs.to != ours.from {
            return refused(format!("{} wants {}, this is {}", theirs.from, theirs.to, ours.from));
        }
        self.silent.remove(&theirs.from);
        if let Err(forgotten) = self.check_own(ours, theirs) {
            self.forgotten.get_or_insert(forgotten);
            return Err(HelloError::Forgot(forgotten));
        }
        remembers(ours, theirs).map_err(HelloError::Forgot)
    }

    /// Another does not know this member, or speaks another language: it is not waited for.
    pub fn on_stranger(&mut self, other: I) {
        self.silent.remove(&other);
    }

    /// Those that have not answered by now are not waited for.
    pub fn on_patience_lost(&mut self) {
        self.silent.clear();
    }

    /// Whether the member may begin.
    pub fn verdict(&self) -> Verdict {
        match (&self.forgotten, self.silent.is_empty()) {
            (Some(_), _) => Verdict::Stops,
            (None, true) => Verdict::Begins,
            (None, false) => Verdict::Waits,
        }
    }

    /// What others remember of it, and it does not.
    pub fn forgotten(&self) -> Option<Forgotten<I>> {
        self.forgotten
    }

    /// Whether this member has all that it had when the other last heard of it. It knows all its
    /// starts, so it sees more than the other.
    fn check_own(&self, ours: &Identity<I>, theirs: &Identity<I>) -> Result<(), Forgotten<I>> {
        remembers(theirs, ours)?;
        let skips = PLANTED_BUGS && self.mutation == Mutation::SkipsPast;
        let Some(known) = theirs.known.filter(|_| ours.durable && !skips) else { return Ok(()) };
        let checked = ours.standing.check_past(&self.member.starts, &known);
        checked.map_err(|lost| Forgotten { who: ours.from, by: theirs.from, lost })
    }
}

/// Whether `who` has all that it had when `other` last heard of it.
fn remembers<I: Endpoint>(other: &Identity<I>, who: &Identity<I>) -> Result<(), Forgotten<I>> {
    let Some(known) = other.known else { return Ok(()) };
    let checked = match who.durable {
        true => who.standing.check(&known),
        false if known.incarnation != who.standing.incarnation => Err(Lost::Memory),
        false => Ok(()),
    };
    checked.map_err(|lost| Forgotten { who: who.from, by: other.from, lost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn standing(incarnation: u64, logged: u64) -> Standing {
        Standing { disk: 7, incarnation, mark: 1, began: logged, logged }
    }

    fn member(durable: bool, starts: &[(u64, u64)]) -> Introduction<NodeId> {
        let start = |&(incarnation, began)| Start { incarnation, mark: 1, began };
        let starts: Vec<_> = starts.iter().map(start).collect();
        let last = starts.last().expect("it starts");
        let standing = standing(last.incarnation, last.began);
        let member = Member { me: NodeId(0), durable, standing, starts };
        Introduction::new(member, [NodeId(1), NodeId(2)])
    }

    /// What another says that remembers this of the member.
    fn other(from: u16, known: Option<Standing>) -> Identity<NodeId> {
        let standing = standing(3, 30);
        Identity { from: NodeId(from), to: NodeId(0), durable: true, standing, known }
    }

    fn meet(
        member: &mut Introduction<NodeId>,
        theirs: &Identity<NodeId>,
        known: Option<Standing>,
    ) -> Result<(), HelloError<NodeId>> {
        let ours = member.identity(theirs.from, 0, known);
        member.on_met(&ours, theirs)
    }

    /// I2.
    #[test]
    fn who_has_all_that_it_had_begins_when_all_have_answered() {
        let mut member = member(true, &[(4, 90), (5, 110)]);
        assert_eq!(member.verdict(), Verdict::Waits);
        let known = Standing { began: 90, ..standing(4, 100) };
        assert_eq!(meet(&mut member, &other(1, Some(known)), None), Ok(()));
        assert_eq!(member.verdict(), Verdict::Waits);
        member.on_stranger(NodeId(2));
        assert_eq!(member.verdict(), Verdict::Begins);
        let mut alone = self::member(true, &[(1, 0)]);
        alone.on_patience_lost();
        assert_eq!(alone.verdict(), Verdict::Begins);
        assert_eq!(self::member(false, &[(1, 0)]).verdict(), Verdict::Begins);
    }

    /// I1: also if it has started so often since that its log is as long again.
    #[test]
    fn who_has_less_than_another_remembers_stops() {
        let newer = Some(Standing { began: 40, ..standing(4, 100) });
        for starts in [vec![(5, 80)], vec![(4, 40), (5, 99), (6, 100), (7, 101)]] {
            let mut member = member(true, &starts);
            let met = meet(&mut member, &other(1, newer), None);
            let Err(HelloError::Forgot(forgotten)) = met else { panic!("{met:?}") };
            assert_eq!((forgotten.who, forgotten.by), (NodeId(0), NodeId(1)));
            assert_eq!(member.verdict(), Verdict::Stops);
            assert_eq!(member.forgotten(), Some(forgotten));
            let told = forgotten.describe(|node| format!("us-{}", node.0));
            assert!(told.starts_with("us-0 has lost its memory, as us-1 knows"), "{told}");
        }
    }

    #[test]
    fn others_that_have_lost_something_are_turned_away_and_not_waited_for() {
        let mut member = member(true, &[(1, 0)]);
        for known in [standing(4, 10), standing(2, 31), Standing { disk: 8, ..standing(3, 30) }] {
            let met = meet(&mut member, &other(1, None), Some(known));
            assert!(matches!(met, Err(HelloError::Forgot(of)) if of.who == NodeId(1)), "{met:?}");
        }
        assert_eq!(meet(&mut member, &other(1, None), Some(standing(2, 30))), Ok(()));
        assert_eq!(*member.silent(), BTreeSet::from([NodeId(2)]));
        let wrong = Identity { to: NodeId(9), ..other(2, None) };
        assert!(matches!(meet(&mut member, &wrong, None), Err(HelloError::Refused(_))));
        let ours = member.identity(NodeId(1), 0, None);
        assert!(matches!(member.on_met(&ours, &other(2, None)), Err(HelloError::Refused(_))));
        assert_eq!(member.verdict(), Verdict::Waits);
    }

    #[test]
    fn who_keeps_nothing_is_met_by_those_that_know_this_start_only() {
        let mut member = member(true, &[(1, 0)]);
        let forgetful = Identity { durable: false, ..other(1, None) };
        assert_eq!(meet(&mut member, &forgetful, Some(standing(3, 99))), Ok(()));
        let met = meet(&mut member, &forgetful, Some(standing(2, 0)));
        assert!(matches!(met, Err(HelloError::Forgot(Forgotten { lost: Lost::Memory, .. }))));
    }
}
