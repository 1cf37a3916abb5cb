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
            let mut grown = false;
            let mut all: Vec<Late> = moved.iter().copied().collect();
            let mut numbers: Table<Late, usize> = Table::default();
            for (number, late) in all.iter().enumerate() {
                numbers.insert(*late, number);
            }
            let mut before: Vec<Vec<usize>> = vec![Vec::new(); all.len()];
            let (mut fails, mut next) = (Vec::new(), 0);
            while let Some(late) = all.get(next).copied() {
                let Late { at, process, frame, now } = late;
                let from = known.frames.values[frame as usize].0;
                let step = self.known_step(known, at, process, Input::Frame(frame), now);
                let inputs = known.inputs.get(&step.next).cloned().unwrap_or_default();
                let may_be_first = |(input, then): &(Input, Time)| {
                    let is_behind = |of: u32| {
                        let link = known.frames.values[of as usize].0;
                        of == frame || link == from && self.place(from).is_some()
                    };
                    *then >= now && !matches!(input, Input::Frame(of) if is_behind(*of))
                };
                let inputs: Vec<_> = inputs.into_iter().filter(may_be_first).collect();
                for input in inputs {
                    grown |= known.explored(process, input.0, input.1);
                    let Some(then) = self.swapped(known, late, input) else {
                        fails.push(next);
                        continue;
                    };
                    let number = *numbers.or_insert_with(then, || {
                        all.push(then);
                        before.push(Vec::new());
                        all.len() - 1
                    });
                    before[number].push(next);
                }
                next += 1;
            }
            if !fails.is_empty() {
                let mut banned = BTreeSet::new();
                while let Some(fails_at) = fails.pop() {
                    if banned.insert(fails_at) {
                        fails.extend(&before[fails_at]);
                    }
                }
                let count = banned.len();
                let pairs = banned.into_iter().map(|at| (all[at].process, all[at].frame));
                if all_states {
                    known.movers.banned_frames.extend(pairs.map(|(_, frame)| frame));
                } else {
                    known.movers.banned.extend(pairs);
                }
                return (count, all.len());
            }
            if !grown {
                return (0, all.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locals::Frames;
    use meridian_core::{ClientId, GroupId, MessageId};
    use meridian_multicast::{Message, PrimCast, Start};
    use meridian_sim::search::Cluster;
    use std::sync::Arc;
    use std::time::Duration;

    /// Which of two STARTs comes first makes a difference; one that comes twice makes none.
    #[test]
    fn what_makes_a_difference_is_not_moved() {
        let make = |me, groups: &_| PrimCast::new(me, Arc::clone(groups));
        let cluster = Cluster::new(&[1], 1, make).settle(Duration::from_secs(3));
        let (ids, processes): (Vec<_>, Vec<_>) = cluster.processes().unzip();
        let start = |name| {
            let id = MessageId { client: ClientId(name), sequence: 1 };
            Start::new(id, [GroupId(0)], Vec::new())
        };
        let names = [1, 2].map(|name| start(name).id).to_vec();
        let locals: Locals<PrimCast> = Locals::new(ids[..1].to_vec(), Frames::Single, names);
        let process = locals.process(processes[0].clone());
        let [a, b] =
            [1, 2].map(|name| locals.frame(ids[1], vec![Message::Start(Arc::new(start(name)))]));
        let now = cluster.now();
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
