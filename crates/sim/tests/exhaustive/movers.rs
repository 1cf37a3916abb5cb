//! Frames that may arrive as early as they can: *left movers*, after Lipton (1975). Why nothing is missed by that is told
//! in [`crate::model`].
//!
//! A frame is one, for a process in some state, if it makes no difference whether it is taken before or after anything
//! else that may come to the process until then: the process ends in the same state, has sent the same on each link, and
//! delivered the same. That is assumed wherever it holds for what is under way, and checked at the end for all
//! that was met: [`Locals::check_moved`].

use crate::locals::{Input, Known, Locals, Step};
use crate::model::Checked;
use meridian_core::{Table, Time};
use std::collections::BTreeSet;

/// A frame that was not taken before something else, or will not be: the process, its state and its time then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Late {
    at: usize,
    process: u32,
    frame: u32,
    now: Time,
}

/// What was taken to be a left mover, and what is none.
#[derive(Default)]
pub struct Movers {
    moved: BTreeSet<Late>,
    /// States with frames, and frames, in whatever state.
    banned: BTreeSet<(u32, u32)>,
    banned_frames: BTreeSet<u32>,
}

impl Movers {
    fn is_banned(&self, process: u32, frame: u32) -> bool {
        self.banned.contains(&(process, frame)) || self.banned_frames.contains(&frame)
    }

    fn ban(&mut self, banned: &[Late], all_states: bool) {
        if all_states {
            self.banned_frames.extend(banned.iter().map(|late| late.frame));
        } else {
            self.banned.extend(banned.iter().map(|late| (late.process, late.frame)));
        }
    }
}

/// Frames that were moved, as if they had come later and later.
struct Walk {
    all: Vec<Late>,
    /// Where each stands in `all`.
    numbers: Table<Late, usize>,
    /// For each those that become it after some input.
    before: Vec<Vec<usize>>,
    /// Those for which some input makes a difference.
    fails: Vec<usize>,
    /// Whether steps were explored that had only been looked at: then there are more inputs.
    grown: bool,
}

impl Walk {
    fn from(moved: &BTreeSet<Late>) -> Walk {
        let all: Vec<Late> = moved.iter().copied().collect();
        let mut numbers = Table::default();
        for (number, late) in all.iter().enumerate() {
            numbers.insert(*late, number);
        }
        let before = vec![Vec::new(); all.len()];
        Walk { all, numbers, before, fails: Vec::new(), grown: false }
    }

    /// The one with the number `from` becomes `later`.
    fn reach(&mut self, later: Late, from: usize) {
        let number = *self.numbers.or_insert_with(later, || {
            self.all.push(later);
            self.before.push(Vec::new());
            self.all.len() - 1
        });
        self.before[number].push(from);
    }

    /// Those for which something makes a difference, at once or later.
    fn banned(&self) -> Vec<Late> {
        let (mut banned, mut todo) = (BTreeSet::new(), self.fails.clone());
        while let Some(number) = todo.pop() {
            if banned.insert(number) {
                todo.extend(&self.before[number]);
            }
        }
        banned.into_iter().map(|number| self.all[number]).collect()
    }
}

impl Step {
    fn says_anything(&self) -> bool {
        !self.sends.is_empty() || !self.delivers.is_empty()
    }

    fn says_as(&self, other: &Step) -> bool {
        !self.failed
            && !other.failed
            && self.sends == other.sends
            && self.delivers == other.delivers
    }

    /// Whether what both have said does not tell which was first.
    fn is_apart_from(&self, other: &Step) -> bool {
        let shares = |(to, _): &(usize, u32)| other.sends.iter().any(|(other, _)| to == other);
        !self.sends.iter().any(shares) && (self.delivers.is_empty() || other.delivers.is_empty())
    }
}

impl<P: Checked> Locals<P> {
    /// What the process would be, in which `late` was taken after `input` and not before; none if that makes a difference.
    fn swapped(&self, known: &mut Known<P>, late: Late, input: (Input, Time)) -> Option<Late> {
        let Late { at, process, frame, now } = late;
        let (input, then) = input;
        let first = self.known_step(known, at, process, Input::Frame(frame), now);
        let second = self.known_step(known, at, first.next, input, then);
        let sooner = self.known_step(known, at, process, input, then);
        let later = self.known_step(known, at, sooner.next, Input::Frame(frame), then);
        let same = later.next == second.next
            && first.says_as(&later)
            && sooner.says_as(&second)
            && first.is_apart_from(&sooner);
        same.then_some(Late { process: sooner.next, now: then, ..late })
    }

    /// Whether a frame may be taken at once, `others` being what else may come to the process, as far as that is seen
    /// here; `silently` if it must not cause anything elsewhere, as the process may stop before.
    pub fn moves(
        &self,
        at: usize,
        process: u32,
        frame: u32,
        now: Time,
        others: &[(Input, Time)],
        silently: bool,
    ) -> bool {
        let mut known = self.lock();
        let late = Late { at, process, frame, now };
        let step = self.known_step(&mut known, at, process, Input::Frame(frame), now);
        let banned = known.movers.is_banned(process, frame);
        let moves = !(banned || step.failed || silently && step.says_anything())
            && others.iter().all(|input| self.swapped(&mut known, late, *input).is_some());
        if moves {
            known.movers.moved.insert(late);
        }
        moves
    }

    /// Checks what was taken at once: as if each of these frames had come later, after any inputs that its receiver had
    /// from then on. What makes a difference is not moved again, with `all_states` whatever the state of its receiver. How
    /// many such there were, and how many pairs of a state and a frame were looked at.
    pub fn check_moved(&self, all_states: bool) -> (usize, usize) {
        let mut known = self.lock();
        let known = &mut *known;
        let moved = std::mem::take(&mut known.movers.moved);
        loop {
            let walk = self.walk(known, &moved);
            let banned = walk.banned();
            if !banned.is_empty() || !walk.grown {
                known.movers.ban(&banned, all_states);
                return (banned.len(), walk.all.len());
            }
        }
    }

    /// Lets each of these frames come after each of the inputs that its receiver had once it had taken it, and so on.
    fn walk(&self, known: &mut Known<P>, moved: &BTreeSet<Late>) -> Walk {
        let (mut walk, mut next) = (Walk::from(moved), 0);
        while let Some(late) = walk.all.get(next).copied() {
            for input in self.inputs_before(known, late) {
                walk.grown |= known.explored(late.process, input.0, input.1);
                match self.swapped(known, late, input) {
                    Some(later) => walk.reach(later, next),
                    None => walk.fails.push(next),
                }
            }
            next += 1;
        }
        walk
    }

    /// What may come to the process before the frame, if that comes late: what came to it after the frame, but for what is
    /// behind that on its link.
    fn inputs_before(&self, known: &mut Known<P>, late: Late) -> Vec<(Input, Time)> {
        let Late { at, process, frame, now } = late;
        let step = self.known_step(known, at, process, Input::Frame(frame), now);
        let from = |frame: u32| known.frames.values[frame as usize].0;
        // (Each START travels on its own.)
        let is_behind =
            |of: u32| of == frame || from(of) == from(frame) && self.place(from(frame)).is_some();
        let may_be_first = |(input, then): &&(Input, Time)| {
            *then >= now && !matches!(input, Input::Frame(of) if is_behind(*of))
        };
        let inputs = known.inputs.get(&step.next).into_iter().flatten();
        inputs.filter(may_be_first).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locals::tests::{Group, group};

    /// Which of two STARTs comes first makes a difference; one that comes twice makes none.
    #[test]
    fn what_makes_a_difference_is_not_moved() {
        let Group { locals, processes, starts: [a, b], now } = group(1);
        let process = processes[0];
        let other = [(Input::Frame(b), now)];
        assert!(
            !locals.moves(0, process, a, now, &other, false),
            "they are delivered in some order"
        );
        let next = locals.step(0, process, Input::Frame(a), now, true).next;
        assert!(locals.moves(0, next, a, now, &other, false), "it comes twice");
        locals.step(0, next, Input::Frame(b), now, true);
        let (fails, looked_at) = locals.check_moved(false);
        assert!(fails == 0 && looked_at == 2, "{fails} of {looked_at}");
        // As if nobody had known that the other will come.
        assert!(locals.moves(0, process, a, now, &[], false));
        assert_eq!(locals.check_moved(false), (1, 1));
        assert!(!locals.moves(0, process, a, now, &[], false), "that is known now");
    }
}
