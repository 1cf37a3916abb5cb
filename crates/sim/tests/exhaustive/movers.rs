//! Frames that may arrive as early as they can: *left movers*, after Lipton (1975). Why nothing is
//! missed by that is told in [`crate::model`].
//!
//! A frame is one, for a process in some state, if it makes no difference whether it is taken
//! before or after anything else that may come to the process until then: the process ends in the
//! same state, has sent the same on each link, and delivered the same. That is assumed wherever it
//! holds for what is under way, and checked at the end for all that was met:
//! [`Locals::check_moved`].

use crate::locals::{Input, Known, Locals, Now, Step};
use crate::model::Checked;
use meridian_core::{Table, Time};
use std::collections::BTreeSet;

/// A frame that was not taken before something else, or will not be: the process, its state and its
/// time then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Late {
    at: usize,
    process: u32,
    frame: u32,
    now: Time,
    /// Its sender had heard of nothing that the receiver has not heard of: it makes no difference
    /// which of two says what both say together.
    told: bool,
}

/// What was taken to be a left mover, and what is none.
#[derive(Default)]
pub struct Movers {
    moved: BTreeSet<Late>,
    /// States with frames, and frames, in whatever state.
    banned: BTreeSet<(u32, u32, bool)>,
    banned_frames: BTreeSet<(u32, bool)>,
}

impl Movers {
    fn is_banned(&self, late: Late) -> bool {
        let Late { process, frame, told, .. } = late;
        self.banned.contains(&(process, frame, told)) || self.banned_frames.contains(&(frame, told))
    }

    fn ban(&mut self, banned: &[Late], all_states: bool) {
        if all_states {
            self.banned_frames.extend(banned.iter().map(|late| (late.frame, late.told)));
        } else {
            self.banned.extend(banned.iter().map(|late| (late.process, late.frame, late.told)));
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

    /// Whether this one and then that say, on each link, what those do.
    fn with_says_as(&self, next: &Step, first: &Step, second: &Step) -> bool {
        let says = |a: &Step, b: &Step, to: usize| {
            let all = a.sends.iter().chain(&b.sends);
            all.filter(|(at, _)| *at == to).map(|(_, frame)| *frame).collect::<Vec<_>>()
        };
        let fails = [self, next, first, second].iter().any(|step| step.failed);
        let mut to = [self, next, first, second].into_iter().flat_map(|step| &step.sends);
        !fails
            && self
                .delivers
                .iter()
                .chain(&next.delivers)
                .eq(first.delivers.iter().chain(&second.delivers))
            && to.all(|(to, _)| says(self, next, *to) == says(first, second, *to))
    }

    /// Whether what both have said does not tell which was first.
    fn is_apart_from(&self, other: &Step) -> bool {
        let shares = |(to, _): &(usize, u32)| other.sends.iter().any(|(other, _)| to == other);
        !self.sends.iter().any(shares) && (self.delivers.is_empty() || other.delivers.is_empty())
    }
}

impl<P: Checked> Locals<P> {
    /// What the process would be, in which `late` was taken after `input` and not before; none if
    /// that makes a difference. Fails with a step that was not looked at yet.
    fn swapped(
        known: &Known<P>,
        late: Late,
        (input, then): (Input, Time),
    ) -> Result<Option<Late>, Now> {
        let Late { at, process, frame, now, told } = late;
        let step = |process, input, now| known.step(Now { at, process, input, now });
        let first = step(process, Input::Frame(frame), now)?;
        let second = step(first.next, input, then)?;
        let sooner = step(process, input, then)?;
        let later = step(sooner.next, Input::Frame(frame), then)?;
        let same = later.next == second.next
            && if told {
                first.with_says_as(second, sooner, later)
            } else {
                first.says_as(later) && sooner.says_as(second) && first.is_apart_from(sooner)
            };
        Ok(same.then_some(Late { process: sooner.next, now: then, ..late }))
    }

    /// Whether a frame may be taken at once, `others` being what else may come to the process, as
    /// far as that is seen here; `silently` if it must not cause anything elsewhere, as the process
    /// may stop before. `told`: see [`Late`].
    pub fn moves(
        &self,
        (at, process, frame, now): (usize, u32, u32, Time),
        others: &[(Input, Time)],
        silently: bool,
        told: bool,
    ) -> bool {
        let late = Late { at, process, frame, now, told };
        let looked_at = |known: &Known<P>| {
            let step = known.step(Now { at, process, input: Input::Frame(frame), now })?;
            let stays =
                known.movers.is_banned(late) || step.failed || silently && step.says_anything();
            let mut moves = !stays;
            for input in others {
                moves = moves && Self::swapped(known, late, *input)?.is_some();
            }
            Ok((moves, known.movers.moved.contains(&late)))
        };
        loop {
            let found = looked_at(&self.read());
            match found {
                Ok((moves, known)) => {
                    if moves && !known {
                        self.write().movers.moved.insert(late);
                    }
                    return moves;
                }
                Err(step) => drop(self.known_step(&mut self.write(), step)),
            }
        }
    }

    /// Checks what was taken at once: as if each of these frames had come later, after any inputs
    /// that its receiver had from then on. What makes a difference is not moved again, with
    /// `all_states` whatever the state of its receiver. How many such there were, and how many
    /// pairs of a state and a frame were looked at.
    pub fn check_moved(&self, all_states: bool) -> (usize, usize) {
        let mut known = self.write();
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

    /// Lets each of these frames come after each of the inputs that its receiver had once it had
    /// taken it, and so on.
    fn walk(&self, known: &mut Known<P>, moved: &BTreeSet<Late>) -> Walk {
        let (mut walk, mut next) = (Walk::from(moved), 0);
        while let Some(late) = walk.all.get(next).copied() {
            for input in self.inputs_before(known, late) {
                walk.grown |= known.explored(late.process, input.0, input.1);
                let swapped = loop {
                    match Self::swapped(known, late, input) {
                        Ok(swapped) => break swapped,
                        Err(step) => drop(self.known_step(known, step)),
                    }
                };
                match swapped {
                    Some(later) => walk.reach(later, next),
                    None => walk.fails.push(next),
                }
            }
            next += 1;
        }
        walk
    }

    /// What may come to the process before the frame, if that comes late: what came to it after the
    /// frame, but for what is behind that on its link.
    fn inputs_before(&self, known: &mut Known<P>, late: Late) -> Vec<(Input, Time)> {
        let Late { at, process, frame, now, .. } = late;
        let input = Input::Frame(frame);
        let step = self.known_step(known, Now { at, process, input, now });
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
            !locals.moves((0, process, a, now), &other, false, false),
            "they are delivered in some order"
        );
        let next = locals.step(0, process, Input::Frame(a), now, true).next;
        assert!(locals.moves((0, next, a, now), &other, false, false), "it comes twice");
        locals.step(0, next, Input::Frame(b), now, true);
        let (fails, looked_at) = locals.check_moved(false);
        assert!(fails == 0 && looked_at == 2, "{fails} of {looked_at}");
        // As if nobody had known that the other will come.
        assert!(locals.moves((0, process, a, now), &[], false, false));
        assert_eq!(locals.check_moved(false), (1, 1));
        assert!(!locals.moves((0, process, a, now), &[], false, false), "that is known now");
    }

    /// Which of two ACKs comes first decides upon which the message is delivered: that is no
    /// difference to who has heard of all that their senders have.
    #[test]
    fn who_has_heard_of_all_may_take_either_first() {
        let Group { locals, processes, starts: [start, _], now } = group(3);
        let step =
            |at: usize, process, frame| locals.step(at, process, Input::Frame(frame), now, true);
        let held = step(0, processes[0], start);
        let ack = |at: usize| {
            let (_, append) =
                held.sends.iter().find(|(to, _)| *to == at).expect("it is sent the entry");
            let acks = &step(at, processes[at], *append).sends;
            acks.iter().find(|(to, _)| *to == 0).expect("it acknowledges").1
        };
        let acks = [ack(1), ack(2)];
        assert_eq!(step(0, held.next, acks[0]).delivers, [0]);
        let other = [(Input::Frame(acks[1]), now)];
        let moves = |told| locals.moves((0, held.next, acks[0], now), &other, false, told);
        assert!(!moves(false));
        assert!(moves(true));
        assert_eq!(locals.check_moved(false).0, 0);
    }
}
