//! Runs that differ from a regular one in few places: for what is too large to be explored in all
//! orders.

use crate::model::{Action, Checked, Multicasts, Source, State, bits};
use std::collections::VecDeque;

/// How far a run may differ from the regular one, in which messages arrive in about the order in
/// which they were sent: at each link in turn, the one that waits for the longest time.
///
/// This is a bound, and no reduction: what needs more delays is not found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slow {
    /// So often the link whose turn it is may become slow instead, or that START: nothing more
    /// arrives on it before all else is quiet. Or its turn comes once more after all others.
    pub times: u8,
}

/// Whose turn it is.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Turns {
    /// The first one first.
    next: VecDeque<Source>,
    slow: Vec<Source>,
    times: u8,
}

impl Turns {
    /// Nobody's.
    pub fn new(slow: Slow) -> Turns {
        Turns { times: slow.times, ..Turns::default() }
    }

    /// There is something, where nothing was.
    pub fn come(&mut self, source: Source) {
        if !self.slow.contains(&source) {
            self.next.push_back(source);
        }
    }

    /// The one whose turn it is has had it.
    pub fn take(&mut self) {
        self.next.pop_front();
    }

    /// It becomes slow.
    pub fn slow(&mut self) {
        self.slow.extend(self.next.pop_front());
        self.times -= 1;
    }

    /// Its turn comes after all others.
    pub fn later(&mut self) {
        self.next.rotate_left(1);
        self.times -= 1;
    }

    /// It is slow no more.
    pub fn hurry(&mut self, source: Source) {
        self.slow.retain(|slow| *slow != source);
        self.next.push_back(source);
    }
}

impl<P: Checked> Multicasts<P> {
    /// What may happen in a bounded run.
    pub(crate) fn bounded_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let turns = &state.turns;
        match turns.next.front() {
            Some(source) => actions.push(Action::Arrive(*source)),
            None => actions.extend(turns.slow.iter().copied().map(Action::Hurry)),
        }
        if actions.is_empty() {
            return;
        }
        if turns.times > 0 && !turns.next.is_empty() {
            actions.push(Action::Slow);
            if turns.next.len() > 1 {
                actions.push(Action::Later);
            }
        }
        if !state.suspected {
            actions.extend(bits(self.suspicious).map(Action::Suspect));
        }
    }
}
