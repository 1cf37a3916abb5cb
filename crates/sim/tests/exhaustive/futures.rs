//! To whom a process may still send anything: by its state, from the steps that were met.
//!
//! A search assumes what the one before it has seen, and is repeated if it sees more. Why nothing is missed by that is told in
//! [`crate::model`].

use crate::locals::Locals;
use crate::model::{Checked, Set};
use meridian_core::Table;

/// For each state of a process that was met, to whom it sends in steps from there on.
#[derive(Default)]
pub struct Futures(Table<u32, Set>);

impl<P: Checked> Locals<P> {
    /// To whom each of these processes may still send; none where that is not known.
    pub fn futures(&self, processes: impl Iterator<Item = u32>) -> Vec<Option<Set>> {
        let known = self.lock();
        processes.map(|process| known.futures.0.get(&process).copied()).collect()
    }

    /// Works out anew what processes may still send. How many states there are of which less was assumed until now.
    pub fn foresee(&self) -> usize {
        let mut known = self.lock();
        let known = &mut *known;
        let mut found: Table<u32, Set> = Table::default();
        let mut before: Table<u32, Vec<u32>> = Table::default();
        let mut todo = Vec::new();
        for (process, next, to) in known.ways() {
            before.or_insert_with(next, Vec::new).push(process);
            found.or_insert_with(next, Set::default);
            *found.or_insert_with(process, Set::default) |= to;
            todo.push(process);
        }
        while let Some(next) = todo.pop() {
            let to = found.get(&next).copied().unwrap_or_default();
            for process in before.get(&next).into_iter().flatten() {
                let known = found.or_insert_with(*process, Set::default);
                if *known | to != *known {
                    *known |= to;
                    todo.push(*process);
                }
            }
        }
        let wrong = |process: &u32| {
            let assumed = known.futures.0.get(process).copied();
            assumed.is_some_and(|assumed| found.get(process).is_some_and(|to| to & !assumed != 0))
        };
        let wrong = (0..known.count()).filter(wrong).count();
        known.futures = Futures(found);
        wrong
    }
}

#[cfg(test)]
mod tests {
    use crate::locals::Input;
    use crate::locals::tests::{Group, group};
    use crate::model::SILENCE;

    /// A follower passes a START on to its primary. That it may come to suspect that one, and then speaks to all, was not met.
    #[test]
    fn what_was_not_expected_is_noticed() {
        let Group { locals, processes, starts: [start, _], now } = group(3);
        let before = processes[1];
        let held = locals.step(1, before, Input::Frame(start), now, true).next;
        let futures = || locals.futures([before, held].into_iter());
        assert_eq!(futures(), [None, None]);
        assert_eq!(locals.foresee(), 0, "nothing was assumed yet");
        assert_eq!(futures(), [Some(1), Some(0)]);
        let late = now + SILENCE;
        locals.step(1, held, Input::Timer, late, false);
        assert_eq!(locals.foresee(), 0, "that was only looked at");
        locals.step(1, held, Input::Timer, late, true);
        assert_eq!(locals.foresee(), 2);
        assert_eq!(futures(), [Some(0b101); 2]);
        assert_eq!(locals.foresee(), 0, "that is known now");
    }
}
