//! The trace of a run: a line for each event, in the words of its subject, or for some of them.

use crate::harness;
use crate::world::{Happened, Watcher, What};
use meridian_core::{Process, Time};

/// Says in words what happens in the worlds of a subject.
pub trait Teller<P: Process> {
    /// The name of a process.
    fn name(&self, peer: P::Peer) -> String {
        format!("{peer:?}")
    }

    /// What happened: names for structures.
    fn words(&self, what: &What<'_, P>) -> String {
        what.to_string()
    }

    /// The names of the messages that an event is about: those which clients know, not those of
    /// the protocol. Called with all events, in order, as a later one may need to know the earlier.
    fn about(&mut self, _event: &Happened<'_, P>) -> Vec<String> {
        Vec::new()
    }
}

/// Shows structures as they are, and knows no names of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<P: Process> Teller<P> for Plain {}

/// Which events are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Those about the message of this name only.
    pub message: Option<String>,
    /// Those at the process of this name only, or between it and another.
    pub process: Option<String>,
    /// None that were earlier.
    pub from: Time,
    /// None that were later.
    pub until: Time,
}

impl Default for Filter {
    /// All.
    fn default() -> Self {
        Filter { message: None, process: None, from: Time(0), until: Time(u64::MAX) }
    }
}

/// Writes a line for each event that is to be told.
pub struct Trace<T> {
    teller: T,
    filter: Filter,
    write: Box<dyn FnMut(&str)>,
    told: u64,
}

impl<T> Trace<T> {
    /// To standard error.
    pub fn new(teller: T, filter: Filter) -> Self {
        Trace::to(teller, filter, harness::print)
    }

    /// To `write`, line by line.
    pub fn to(teller: T, filter: Filter, write: impl FnMut(&str) + 'static) -> Self {
        Trace { teller, filter, write: Box::new(write), told: 0 }
    }
}

impl<T> Drop for Trace<T> {
    /// A name that nobody has is a mistake that one would not see otherwise.
    fn drop(&mut self) {
        if self.told == 0 && self.filter != Filter::default() {
            (self.write)("no event is as was asked for: see the names in a trace of all events");
        }
    }
}

impl<P: Process, T: Teller<P>> Watcher<P> for Trace<T> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        let Filter { message, process, from, until } = &self.filter;
        if let Some(message) = message
            && !self.teller.about(event).contains(message)
        {
            return;
        }
        let at = self.teller.name(event.at);
        let to = event.to.map(|to| self.teller.name(to));
        let is_there = |process: &String| at == *process || to.as_ref() == Some(process);
        if !(*from..=*until).contains(&event.now) || !process.as_ref().is_none_or(is_there) {
            return;
        }
        let to = to.map(|to| format!(" -> {to}")).unwrap_or_default();
        let (ms, words) = (event.now.0 as f64 / 1e6, self.teller.words(event.what));
        let Happened { number, kind, .. } = event;
        (self.write)(&format!("#{number} {ms:.3} ms {kind} {at}{to}: {words}"));
        self.told += 1;
    }
}

impl<P: Process> Teller<P> for Box<dyn Teller<P>> {
    fn name(&self, peer: P::Peer) -> String {
        (**self).name(peer)
    }

    fn words(&self, what: &What<'_, P>) -> String {
        (**self).words(what)
    }

    fn about(&mut self, event: &Happened<'_, P>) -> Vec<String> {
        (**self).about(event)
    }
}
