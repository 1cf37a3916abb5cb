//! The scheduler of bounded runs: links and inputs take turns, in the order in which something came
//! to be under way there.

use super::{Action, Source};
use std::collections::VecDeque;

/// Whose turn it is.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(super) struct Turns {
    /// The first one first.
    next: VecDeque<Source>,
    /// These wait until all else is quiet.
    starved: Vec<Source>,
    /// So many delays are left.
    delays: u8,
}

impl Turns {
    pub fn new(delays: u8) -> Turns {
        Turns { delays, ..Turns::default() }
    }

    /// What may happen.
    pub fn actions(&self, actions: &mut Vec<Action>) {
        match self.next.front() {
            Some(source) => actions.push(Action::Arrive(*source)),
            None => actions.extend(self.starved.iter().copied().map(Action::Resume)),
        }
        if self.delays > 0 && !self.next.is_empty() {
            actions.push(Action::Starve);
            if self.next.len() > 1 {
                actions.push(Action::Delay);
            }
        }
    }

    /// There is something, where nothing was.
    pub fn come(&mut self, source: Source) {
        if !self.starved.contains(&source) {
            self.next.push_back(source);
        }
    }

    /// The same, unless it waits already.
    pub fn come_once(&mut self, source: Source) {
        if !self.next.contains(&source) {
            self.come(source);
        }
    }

    /// The one whose turn it is has had it.
    pub fn take(&mut self) {
        self.next.pop_front();
    }

    pub fn starve(&mut self) {
        self.starved.extend(self.next.pop_front());
        self.delays -= 1;
    }

    pub fn delay(&mut self) {
        self.next.rotate_left(1);
        self.delays -= 1;
    }

    pub fn resume(&mut self, source: Source) {
        self.starved.retain(|starved| *starved != source);
        self.next.push_back(source);
    }
}
