//! One regular run: how a case begins when something has gone before it.

use super::intern::Input;
use super::{Action, Begun, Explorer, Model, Options, Set, Source, State, bits};
use meridian_core::{Event, Time};
use std::time::Duration;

/// A run in which each link has its turn, under way.
pub struct Regular<'a, M: Model> {
    explorer: Explorer<'a, M>,
    state: State,
}

impl<'a, M: Model> Regular<'a, M> {
    /// Before the first event.
    pub fn new(model: &'a M, options: Options<M::Process>) -> Self {
        let options =
            Options { delays: Some(0), crash: None, suspicion: None, ticks: 0, ..options };
        let mut explorer = Explorer::new(model, options);
        explorer.interned.forgets_disks = false;
        let state = explorer.first();
        Regular { explorer, state }
    }

    /// Goes on until all is quiet.
    pub fn run(&mut self) {
        while let Some(action) = self.explorer.actions(&self.state).pop() {
            self.explorer.take(&mut self.state, action);
        }
    }

    /// Time passes; then the timers of these processes fire.
    pub fn pause(&mut self, pause: Duration, who: Set) {
        self.explorer.elapsed += pause;
        for at in bits(who) {
            self.explorer.step(&mut self.state, at, Input::Timer);
        }
    }

    /// Goes on until something arrives from one process at another, which is withheld.
    ///
    /// # Panics
    /// If nothing does.
    pub fn withhold(&mut self, from: usize, to: usize) -> Vec<Event<M::Process>> {
        let wanted = Source::Link(from as u8, to as u8);
        while let Some(action) = self.explorer.actions(&self.state).pop() {
            if action == Action::Arrive(wanted) {
                self.state.turns.take();
                let flight = self.explorer.next_on(&mut self.state, (from as u8, to as u8));
                let flight = flight.expect("it was offered");
                return self.explorer.interned.frame(flight.frame);
            }
            self.explorer.take(&mut self.state, action);
        }
        panic!("nothing came from {from} to {to}");
    }

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.explorer.is_done(&self.state)
    }

    /// The processes now, and the time.
    pub fn end(self) -> (Vec<Begun<M::Process>>, Time) {
        let interned = &self.explorer.interned;
        let begun = self.explorer.model.processes().into_iter().zip(&self.state.locals);
        let begun = begun.map(|(begun, local)| Begun {
            process: interned.processes.value(local.process).clone(),
            disk: interned.disks.value(local.disk).clone(),
            ..begun
        });
        (begun.collect(), self.explorer.model.now() + self.explorer.elapsed)
    }
}
