//! To whom a process may still send anything: by its state, from the steps that were met.
//!
//! A search assumes what the one before it has seen, and is repeated if it sees more. Why nothing
//! is missed by that is told in [`crate::model`].

use crate::locals::Locals;
use crate::model::{Checked, Set};
use std::sync::Arc;

/// For each state of a process that was met, to whom it sends in steps from there on: by whom it
/// may hear of until then.
#[derive(Default)]
pub struct Futures {
    /// How many there may be that it hears of: the processes, and what comes from outside.
    sources: usize,
    /// For each state, and each set of sources, to whom.
    to: Vec<Set>,
    /// Which states were met.
    met: Vec<bool>,
}

impl Futures {
    /// To whom it may send that hears of `from` only; none if that is not known.
    pub fn of(&self, process: u32, from: usize) -> Option<Set> {
        let process = process as usize;
        let met = self.met.get(process).copied().unwrap_or_default();
        met.then(|| self.to[(process << self.sources) | from])
    }

    fn rows(&self) -> usize {
        self.met.len()
    }

    fn row(&self, process: usize) -> &[Set] {
        &self.to[process << self.sources..(process + 1) << self.sources]
    }

    /// A step from one state to another, which says something to `to`. Whether that was news.
    fn learn(&mut self, (process, next): (u32, u32), source: usize, to: Set) -> bool {
        let (mut news, count) = (false, 1 << self.sources);
        let (at, next) = ((process as usize) << self.sources, (next as usize) << self.sources);
        for from in (0..count).filter(|from| from & (1 << source) != 0) {
            let all = self.to[at + from] | to | self.to[next + from];
            news |= all != self.to[at + from];
            self.to[at + from] = all;
        }
        news
    }
}

impl<P: Checked> Locals<P> {
    /// To whom processes may still send.
    pub fn futures(&self) -> Arc<Futures> {
        Arc::clone(&self.read().futures)
    }

    /// Works out anew what processes may still send. How many states there are of which less was
    /// assumed until now.
    pub fn foresee(&self) -> usize {
        let mut known = self.write();
        let known = &mut *known;
        let (sources, count) = (self.count() + 1, known.count() as usize);
        let (to, met) = (vec![0; count << sources], vec![false; count]);
        let mut found = Futures { sources, to, met };
        let ways = known.ways();
        let ways: Vec<_> = ways
            .into_iter()
            .map(|(process, input, next, to)| ((process, next), self.source(known, input), to))
            .collect();
        for ((process, next), ..) in &ways {
            found.met[*process as usize] = true;
            found.met[*next as usize] = true;
        }
        // Most steps lead to a state with a greater number.
        while ways
            .iter()
            .rev()
            .fold(false, |news, (way, source, to)| found.learn(*way, *source, *to) || news)
        {
        }
        let assumed = &known.futures;
        let wrong = |process: &usize| {
            let mut rows = found.row(*process).iter().zip(assumed.row(*process));
            assumed.met[*process] && rows.any(|(to, assumed)| to & !assumed != 0)
        };
        let wrong = (0..assumed.rows()).filter(wrong).count();
        known.futures = Arc::new(found);
        wrong
    }
}

#[cfg(test)]
mod tests {
    use crate::locals::Input;
    use crate::locals::tests::{Group, group};
    use crate::model::SILENCE;

    /// A follower passes a START on to its primary. That it may come to suspect that one, and then
    /// speaks to all, was not met.
    #[test]
    fn what_was_not_expected_is_noticed() {
        let Group { locals, processes, starts: [start, _], now } = group(3);
        let before = processes[1];
        let held = locals.step(1, before, Input::Frame(start), now, true).next;
        // If it hears of the primary only, and of whoever is outside, too.
        let futures = || {
            let known = locals.futures();
            [before, held].map(|process| [0b0001, 0b1001].map(|from| known.of(process, from)))
        };
        assert_eq!(futures(), [[None; 2]; 2]);
        assert_eq!(locals.foresee(), 0, "nothing was assumed yet");
        assert_eq!(futures(), [[Some(0), Some(1)], [Some(0); 2]]);
        let late = now + SILENCE;
        locals.step(1, held, Input::Timer, late, false);
        assert_eq!(locals.foresee(), 0, "that was only looked at");
        locals.step(1, held, Input::Timer, late, true);
        assert_eq!(locals.foresee(), 2);
        assert_eq!(futures(), [[Some(0), Some(0b101)]; 2]);
        assert_eq!(locals.foresee(), 0, "that is known now");
    }
}
