//! Whether what clients saw of one register can be explained by one order of their operations, each between the
//! moments at which it was asked and answered: linearizability, by the search of Wing and Gong with Lowe's memory of
//! what was tried already. Registers are independent, so each is judged alone.
//!
//! An operation whose client never heard of it may have happened at any time after it was asked, or never.

use super::service::{Action, Register};
use std::collections::BTreeSet;

/// So many states are looked at, at most: hopeless otherwise, and no answer.
const STATES_MAX: usize = 2_000_000;

/// What a client did with one register. Moments are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who.
    pub client: usize,
    /// What it asked for.
    pub action: Action,
    /// When it was asked for.
    pub asked: u64,
    /// When it was answered, and with what.
    pub answered: Option<(u64, Register)>,
}

/// Looks for an order that explains all.
///
/// # Errors
/// There is none; tells how far one got. Or the search takes too long.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut sorted: Vec<Operation> = operations.to_vec();
    sorted.sort_by_key(|operation| operation.asked);
    let mut search = Search { seen: BTreeSet::new(), best: (0, Register::default()) };
    let done = vec![0; sorted.len().div_ceil(64)];
    let mut todo = vec![(done, Register::default())];
    while let Some((done, register)) = todo.pop() {
        if search.seen.len() > STATES_MAX {
            return Err(format!("undecided after {STATES_MAX} states"));
        }
        if search.expand(&sorted, done, register, &mut todo) {
            return Ok(());
        }
    }
    let (count, register) = search.best;
    let at = sorted.iter().filter_map(|operation| operation.answered).map(|(at, _)| at);
    let mut ends: Vec<u64> = at.collect();
    ends.sort_unstable();
    let from = ends.get(count.saturating_sub(3)).copied().unwrap_or(0);
    let to = ends.get(count + 3).copied().unwrap_or(u64::MAX);
    let near = sorted.iter().filter(|operation| {
        operation.asked <= to && operation.answered.is_none_or(|(at, _)| at >= from)
    });
    let mut text =
        format!("no order explains more than {count} answers, that end with {register:?}; nearby:");
    near.take(20).for_each(|operation| text += &format!("\n  {operation:?}"));
    Err(text)
}

struct Search {
    seen: BTreeSet<(Vec<u64>, Register)>,
    /// The most answers explained, and what the register was then.
    best: (usize, Register),
}

impl Search {
    /// Adds what can come next to `todo`; true if nothing need.
    fn expand(
        &mut self,
        operations: &[Operation],
        done: Vec<u64>,
        register: Register,
        todo: &mut Vec<(Vec<u64>, Register)>,
    ) -> bool {
        if !self.seen.insert((done.clone(), register)) {
            return false;
        }
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        let left = || operations.iter().enumerate().filter(|(at, _)| !is_done(*at));
        let Some(first) = left().filter_map(|(_, o)| Some(o.answered?.0)).min() else {
            return true;
        };
        let answered = operations.iter().filter(|o| o.answered.is_some()).count();
        let explained = answered - left().filter(|(_, o)| o.answered.is_some()).count();
        if explained >= self.best.0 {
            self.best = (explained, register);
        }
        // Versions only grow: whoever saw an earlier one can come no more, and each is made once.
        let seen = |(_, o): (usize, &Operation)| Some(o.answered?.1.version);
        if left().filter_map(seen).any(|version| version < register.version) {
            return false;
        }
        let makes_next = |(_, o): (usize, &Operation)| {
            let writes = matches!(o.action, Action::Write(_) | Action::Add(_));
            writes && o.answered.is_some_and(|(_, seen)| seen.version == register.version + 1)
        };
        let made = left().any(makes_next);
        let may_be_next = left().take_while(|(_, o)| o.asked < first);
        let mut next: Vec<_> = may_be_next
            .filter_map(|(at, operation)| {
                let after = register.after(operation.action);
                let fits = operation.answered.is_none_or(|(_, seen)| seen == after);
                let guess = operation.answered.is_none();
                let useful = !guess || (after != register && !made);
                (fits && useful).then_some((operation.answered.is_some(), at, after))
            })
            .collect();
        // What changes nothing and fits may come at once: nothing is lost by that.
        if let Some(read) = next.iter().find(|(_, _, after)| *after == register) {
            next = vec![*read];
        }
        // What was answered is tried first: it is taken from the end.
        next.sort_unstable_by_key(|(answered, at, _)| (*answered, std::cmp::Reverse(*at)));
        for (_, at, after) in next {
            let mut done = done.clone();
            done[at / 64] |= 1 << (at % 64);
            todo.push((done, after));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, asked: u64, answered: Option<(u64, u64, u64)>) -> Operation {
        let answered = answered.map(|(at, value, version)| (at, Register { value, version }));
        Operation { client: 0, action, asked, answered }
    }

    #[test]
    fn what_happened_one_after_the_other_is_fine() {
        let history = [
            operation(Action::Write(5), 1, Some((2, 5, 1))),
            operation(Action::Read, 3, Some((4, 5, 1))),
            operation(Action::Swap(4, 9), 5, Some((6, 5, 1))),
            operation(Action::Add(2), 7, Some((8, 7, 2))),
        ];
        assert_eq!(check(&history), Ok(()));
    }

    #[test]
    fn a_read_of_the_past_is_found() {
        let history = [
            operation(Action::Write(5), 1, Some((2, 5, 1))),
            operation(Action::Read, 3, Some((4, 0, 0))),
        ];
        assert!(check(&history).unwrap_err().contains("no order explains more than 1 answers"));
        let overlapping = [history[0], operation(Action::Read, 1, Some((4, 0, 0)))];
        assert_eq!(check(&overlapping), Ok(()));
    }

    #[test]
    fn two_reads_agree_on_the_order_of_what_overlaps() {
        let mut history = vec![
            operation(Action::Write(1), 1, None),
            operation(Action::Read, 2, Some((3, 1, 1))),
            operation(Action::Read, 4, Some((5, 0, 0))),
        ];
        assert!(check(&history).is_err());
        history[2] = operation(Action::Read, 4, Some((5, 1, 1)));
        assert_eq!(check(&history), Ok(()));
    }

    #[test]
    fn what_was_never_answered_may_or_may_not_have_happened() {
        let unknown = operation(Action::Add(3), 1, None);
        for (value, version) in [(0, 0), (3, 1)] {
            let read = operation(Action::Read, 9, Some((10, value, version)));
            assert_eq!(check(&[unknown, read]), Ok(()));
        }
        let twice = operation(Action::Read, 9, Some((10, 6, 2)));
        assert!(check(&[unknown, twice]).is_err());
    }

    #[test]
    fn a_lost_write_is_found_among_many() {
        let mut history = Vec::new();
        for at in 0..200 {
            let (asked, answered) = (at * 10, at * 10 + 25);
            history.push(operation(Action::Add(1), asked, Some((answered, at + 1, at + 1))));
        }
        assert_eq!(check(&history), Ok(()));
        history[150].answered = Some((1525, 150, 150));
        assert!(check(&history).is_err());
    }
}
