//! Linearizability over any sequential specification (Herlihy and Wing 1990).
//!
//! Looks for one order of the operations, each between the moments at which it was called and
//! answered, that explains all answers. The search is that of Wing and Gong 1993, with the
//! memory of Lowe 2017 of what was tried already: a configuration is what was ordered so far, and
//! the state then.
//!
//! An operation without an answer may have happened at any time after its call, or never.
//!
//! Two shortcuts lose no order: an answered operation that fits, and changes no state in which it
//! fits, comes at once (in any order that has it later it can be moved here); an unanswered one
//! that changes nothing here does not come here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// So many configurations are looked at, at most: beyond it memory is short, and the check gives no
/// verdict.
const CONFIGURATIONS_MAX: usize = 2_000_000;

/// How the answer begins where there is no verdict, after the name of an object.
pub const UNDECIDED: &str = "undecided after";

/// So many operations near the place where no order goes on are named.
const NEARBY_MAX: usize = 20;

/// What an object does when one operation comes after the other.
pub trait Specification {
    /// The object.
    type State: Clone + Ord + Debug;
    /// What is asked of it.
    type Operation: Debug;
    /// What it answers.
    type Outcome: PartialEq + Debug;

    /// Before the first operation.
    fn initial(&self) -> Self::State;

    /// What an operation makes of the object, and the answer.
    fn apply(
        &self,
        state: &Self::State,
        operation: &Self::Operation,
    ) -> (Self::State, Self::Outcome);

    /// Whether an operation changes no state in which it has this outcome: a read, or a swap that
    /// failed. A write does, even if it finds what it writes. It may say false whenever it does not
    /// know; what it says makes the search shorter.
    fn changes_nothing(&self, _operation: &Self::Operation, _outcome: &Self::Outcome) -> bool {
        false
    }

    /// Whether an operation can no more have this outcome once the object is in this state. It may
    /// say false whenever it does not know; what it says makes the search shorter.
    fn is_past(
        &self,
        _state: &Self::State,
        _operation: &Self::Operation,
        _outcome: &Self::Outcome,
    ) -> bool {
        false
    }
}

/// An operation of a client, in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<O, R> {
    /// What was asked.
    pub operation: O,
    /// When: any clock that all clients share.
    pub called: u64,
    /// When it was answered, and with what; `None` if nobody knows.
    pub answered: Option<(u64, R)>,
}

/// The calls of an object with that specification.
pub type CallOf<S> = Call<<S as Specification>::Operation, <S as Specification>::Outcome>;

/// Judges each object by itself: linearizability is local (Herlihy and Wing 1990, theorem 1).
///
/// # Errors
/// As [`check`], with the name of the object.
pub fn check_each<'a, S, K>(
    specification: &S,
    calls: impl IntoIterator<Item = (K, &'a CallOf<S>)>,
) -> Result<(), String>
where
    S: Specification,
    S::Operation: 'a,
    S::Outcome: 'a,
    K: Ord + Debug,
{
    let mut by_key: BTreeMap<K, Vec<&CallOf<S>>> = BTreeMap::new();
    for (key, call) in calls {
        by_key.entry(key).or_default().push(call);
    }
    let mut each = by_key.into_iter();
    each.try_for_each(|(key, calls)| {
        check(specification, calls).map_err(|what| format!("linearizable: {key:?}: {what}"))
    })
}

/// Looks for an order that explains all calls of one object.
///
/// # Errors
/// There is none; tells how far one gets. Or the search takes too long.
pub fn check<'a, S: Specification>(
    specification: &S,
    calls: impl IntoIterator<Item = &'a CallOf<S>>,
) -> Result<(), String>
where
    S::Operation: 'a,
    S::Outcome: 'a,
{
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort_by_key(|call| call.called);
    let (known, unknown) = calls.into_iter().partition(|call| call.answered.is_some());
    let state = specification.initial();
    let first = Configuration { first: 0, beyond: Vec::new(), guessed: Vec::new(), state };
    let best = (0, first.state.clone());
    let mut search = Search { specification, known, unknown, seen: BTreeSet::new(), best };
    let mut todo = vec![first];
    while let Some(next) = todo.pop() {
        if search.seen.len() > CONFIGURATIONS_MAX {
            return Err(format!("{UNDECIDED} {CONFIGURATIONS_MAX} configurations"));
        }
        if search.expand(next, &mut todo) {
            return Ok(());
        }
    }
    Err(search.explain())
}

/// What was ordered, and the state then.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<T> {
    /// All answered calls below this one.
    first: usize,
    /// And these above it, ascending.
    beyond: Vec<usize>,
    /// Calls without an answer that were guessed to have happened, ascending.
    guessed: Vec<usize>,
    state: T,
}

impl<T> Configuration<T> {
    /// How many answers it explains.
    fn explained(&self) -> usize {
        self.first + self.beyond.len()
    }

    fn with(mut self, at: usize, state: T) -> Self {
        let place = self.beyond.partition_point(|other| *other < at);
        self.beyond.insert(place, at);
        while self.beyond.first() == Some(&self.first) {
            self.beyond.remove(0);
            self.first += 1;
        }
        Configuration { state, ..self }
    }

    fn with_guess(mut self, at: usize, state: T) -> Self {
        let place = self.guessed.partition_point(|other| *other < at);
        self.guessed.insert(place, at);
        Configuration { state, ..self }
    }
}

struct Search<'a, S: Specification> {
    specification: &'a S,
    /// By the time of the call.
    known: Vec<&'a CallOf<S>>,
    unknown: Vec<&'a CallOf<S>>,
    seen: BTreeSet<Configuration<S::State>>,
    /// The most answers explained, and the state then.
    best: (usize, S::State),
}

impl<S: Specification> Search<'_, S> {
    /// Adds what can come next to `todo`; true if nothing need.
    fn expand(
        &mut self,
        now: Configuration<S::State>,
        todo: &mut Vec<Configuration<S::State>>,
    ) -> bool {
        if now.first == self.known.len() {
            return true;
        }
        if !self.seen.insert(now.clone()) {
            return false;
        }
        if now.explained() >= self.best.0 {
            self.best = (now.explained(), now.state.clone());
        }
        let (open, end) = self.open(&now);
        let specification = self.specification;
        let mut next = Vec::new();
        for at in open {
            let Call { operation, answered, .. } = self.known[at];
            let Some((_, outcome)) = answered else { continue };
            if specification.is_past(&now.state, operation, outcome) {
                return false;
            }
            let (state, answer) = specification.apply(&now.state, operation);
            if answer != *outcome {
                continue;
            }
            if specification.changes_nothing(operation, outcome) {
                todo.push(now.with(at, state));
                return false;
            }
            next.push((at, state));
        }
        for (at, call) in self.unknown.iter().enumerate() {
            let (state, _) = specification.apply(&now.state, &call.operation);
            let comes = call.called < end && !now.guessed.contains(&at);
            if comes && state != now.state {
                todo.push(now.clone().with_guess(at, state));
            }
        }
        // What was answered is tried first, the earliest call before others: it is taken from the
        // end.
        let answered = next.into_iter().rev();
        todo.extend(answered.map(|(at, state)| now.clone().with(at, state)));
        false
    }

    /// The answered calls that may come next, and the first answer that none may come after.
    fn open(&self, now: &Configuration<S::State>) -> (Vec<usize>, u64) {
        let (mut open, mut end) = (Vec::new(), u64::MAX);
        for (at, call) in self.known.iter().enumerate().skip(now.first) {
            if call.called >= end {
                break;
            }
            if now.beyond.binary_search(&at).is_err() {
                open.push(at);
                end = end.min(call.answered.as_ref().map_or(u64::MAX, |(end, _)| *end));
            }
        }
        open.retain(|at| self.known[*at].called < end);
        (open, end)
    }

    fn explain(&self) -> String {
        let (count, state) = &self.best;
        let ends = self.known.iter().filter_map(|call| call.answered.as_ref());
        let mut ends: Vec<u64> = ends.map(|(end, _)| *end).collect();
        ends.sort_unstable();
        let from = ends.get(count.saturating_sub(3)).copied().unwrap_or(0);
        let to = ends.get(count + 3).copied().unwrap_or(u64::MAX);
        let near = |call: &&&CallOf<S>| {
            call.called <= to && call.answered.as_ref().is_none_or(|(end, _)| *end >= from)
        };
        let mut text = format!(
            "no order explains more than {count} answers, that end with {state:?}; nearby:"
        );
        let all = self.known.iter().chain(&self.unknown).filter(near);
        all.take(NEARBY_MAX).for_each(|call| text += &format!("\n  {call:?}"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Random;
    use rand::{RngExt, SeedableRng};

    /// A register of small numbers.
    struct Register;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operation {
        Read,
        Write(u8),
        Swap(u8, u8),
    }
    use Operation::*;

    impl Specification for Register {
        type State = u8;
        type Operation = Operation;
        type Outcome = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn apply(&self, state: &u8, operation: &Operation) -> (u8, u8) {
            match *operation {
                Read => (*state, *state),
                Write(value) => (value, value),
                Swap(old, new) if old == *state => (new, old),
                Swap(..) => (*state, *state),
            }
        }

        fn changes_nothing(&self, operation: &Operation, outcome: &u8) -> bool {
            match *operation {
                Read => true,
                Write(_) => false,
                Swap(old, _) => *outcome != old,
            }
        }
    }

    fn call(operation: Operation, called: u64, end: u64, outcome: u8) -> CallOf<Register> {
        Call { operation, called, answered: Some((end, outcome)) }
    }

    fn judged(calls: &[CallOf<Register>]) -> Result<(), String> {
        check(&Register, calls)
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let calls = [call(Write(5), 1, 2, 5), call(Read, 3, 4, 5), call(Swap(4, 9), 5, 6, 5)];
        assert_eq!(judged(&calls), Ok(()));
        assert_eq!(judged(&[]), Ok(()));
    }

    #[test]
    fn a_read_of_the_past_is_found() {
        let calls = [call(Write(5), 1, 2, 5), call(Read, 3, 4, 0)];
        assert!(judged(&calls).unwrap_err().contains("no order explains more than 1 answers"));
        let overlapping = [calls[0].clone(), call(Read, 1, 4, 0)];
        assert_eq!(judged(&overlapping), Ok(()));
    }

    #[test]
    fn two_reads_agree_on_the_order_of_what_overlaps() {
        let unknown = Call { operation: Write(1), called: 1, answered: None };
        let (new, old) = (call(Read, 2, 3, 1), call(Read, 4, 5, 0));
        assert!(judged(&[unknown.clone(), new.clone(), old]).is_err());
        assert_eq!(judged(&[unknown, new, call(Read, 4, 5, 1)]), Ok(()));
    }

    #[test]
    fn what_was_never_answered_may_or_may_not_have_happened() {
        let unknown = Call { operation: Swap(0, 3), called: 1, answered: None };
        for value in [0, 3] {
            assert_eq!(judged(&[unknown.clone(), call(Read, 9, 10, value)]), Ok(()));
        }
        let back = [unknown, call(Read, 9, 10, 3), call(Write(0), 11, 12, 0)];
        let again = [back.to_vec(), vec![call(Read, 13, 14, 3)]].concat();
        assert!(judged(&again).is_err(), "it happens once");
    }

    /// Found by comparing with all orders: the write fits before all others, where it changes
    /// nothing, but the last read needs it where it does.
    #[test]
    fn a_write_of_what_is_there_may_come_later() {
        let calls = [call(Write(0), 1, 9, 0), call(Swap(0, 1), 1, 3, 0), call(Read, 10, 11, 0)];
        assert_eq!(judged(&calls), Ok(()));
    }

    #[test]
    fn a_lost_write_is_found_among_many() {
        let of = |at: u64| call(Write((at % 100) as u8), at * 10, at * 10 + 15, (at % 100) as u8);
        let mut calls: Vec<_> = (0..200).map(of).collect();
        calls.push(call(Read, 1520, 1524, 52));
        assert_eq!(judged(&calls), Ok(()));
        calls.push(call(Read, 1541, 1543, 50));
        assert!(judged(&calls).is_err());
    }

    #[test]
    fn objects_are_judged_by_themselves() {
        let (write, read) = (call(Write(5), 1, 2, 5), call(Read, 3, 4, 0));
        assert_eq!(check_each(&Register, [("x", &write), ("y", &read)]), Ok(()));
        let one = check_each(&Register, [("x", &write), ("x", &read)]);
        assert!(one.unwrap_err().starts_with("linearizable: \"x\": "));
    }

    /// Whether some order of some of the unknown and all others explains all, by trying each.
    fn brute_force(left: &mut Vec<CallOf<Register>>, state: u8) -> bool {
        if left.iter().all(|call| call.answered.is_none()) {
            return true;
        }
        (0..left.len()).any(|at| {
            let call = left.remove(at);
            let (next, answer) = Register.apply(&state, &call.operation);
            let before = |other: &CallOf<Register>| {
                other.answered.is_some_and(|(end, _)| end <= call.called)
            };
            let fits = call.answered.is_none_or(|(_, outcome)| outcome == answer);
            let found = fits && !left.iter().any(before) && brute_force(left, next);
            left.insert(at, call);
            found
        })
    }

    #[test]
    fn small_histories_are_judged_as_by_trying_all_orders() {
        let random = &mut Random::seed_from_u64(7);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let mut calls = Vec::new();
            for _ in 0..random.random_range(2..7) {
                let (a, b) = (random.random_range(0..3), random.random_range(0..3));
                let operation = [Read, Write(a), Swap(a, b)][random.random_range(0..3)];
                let called = random.random_range(0..12);
                let end = called + random.random_range(1..8);
                let outcome = random.random_range(0..3);
                let known = random.random_ratio(4, 5);
                calls.push(Call { operation, called, answered: known.then_some((end, outcome)) });
            }
            let explained = brute_force(&mut calls.clone(), 0);
            assert_eq!(judged(&calls).is_ok(), explained, "{calls:?}");
            *(if explained { &mut good } else { &mut bad }) += 1;
        }
        assert!(good > 2000 && bad > 2000, "{good} and {bad}");
    }
}
