//! One client hands another what it has seen: from then on the other sees nothing older. The first
//! does nothing until the other has looked.

use super::client::{Doing, deadline};
use crate::world::Random;
use meridian_core::Time;
use meridian_fs::Vector;
use meridian_session::{CallId, Command, Failure, Output};
use rand::RngExt;

/// See the module.
#[derive(Debug)]
pub(super) struct Taking {
    /// Who has handed it over.
    pub from: usize,
    /// What that one has seen.
    seen: Vector,
    /// What it would see now if it looked; once the token is taken this is looked at.
    shown: Option<Doing>,
    /// What is waited for.
    call: CallId,
    /// Whether the token was taken.
    taken: bool,
}

/// What came of it.
pub(super) enum Came {
    /// This is to be asked.
    Ask(Command),
    /// This was looked at, and the answer.
    Looked(Doing, Output),
    /// It is left.
    Left,
}

impl Taking {
    pub fn new(from: usize, seen: Vector, shown: Doing) -> Taking {
        Taking { from, seen, shown: Some(shown), call: CallId(0), taken: false }
    }

    pub fn waits_for(&self, call: CallId) -> bool {
        self.call == call
    }

    /// What is asked next, as a new call.
    pub fn ask(&mut self, now: Time, last: &mut CallId, random: &mut Random) -> Command {
        last.0 += 1;
        self.call = *last;
        let (call, deadline) = (self.call, deadline(now, random));
        let query = self.shown.as_ref().and_then(Doing::query).filter(|_| self.taken);
        match query {
            Some(query) => Command::Read { call, query, deadline },
            None => Command::Follow { call, seen: self.seen.clone(), deadline },
        }
    }

    pub fn on_output(
        &mut self,
        output: Output,
        now: Time,
        last: &mut CallId,
        random: &mut Random,
    ) -> Came {
        match output {
            Output::Followed { .. } => self.taken = true,
            Output::GaveUp { failure, .. } => {
                let groups = |groups: &Vec<_>| groups.iter().all(|of| self.seen.0.contains_key(of));
                let named = matches!(&failure, Failure::Behind { groups: of } if groups(of));
                assert!(named || self.taken, "a token is not taken: {failure:?}");
                if random.random_bool(0.5) {
                    return Came::Left;
                }
            }
            output => {
                let shown = self.shown.take().expect("looked at once");
                return Came::Looked(shown, output);
            }
        }
        Came::Ask(self.ask(now, last, random))
    }
}
