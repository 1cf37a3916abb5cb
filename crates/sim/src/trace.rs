//! The trace of a run: a line for each event, in the words of its subject, or for some of them.

use crate::harness;
use crate::words;
use crate::world::{Happened, Watcher, Way, What};
use meridian_core::{Event, Process, Time};

/// Says in words what happens in the worlds of a subject. What it leaves out is told as a
/// structure.
pub trait Teller<P: Process> {
    /// The name of a process: one word.
    fn name(&self, peer: P::Peer) -> String {
        format!("{peer:?}")
    }

    /// What a process says to another.
    fn message(&self, _way: Way<P::Peer>, message: &P::Message) -> String {
        format!("{message:?}")
    }

    /// What a process is asked.
    fn command(&self, command: &P::Command) -> String {
        format!("{command:?}")
    }

    /// What it writes to its log.
    fn record(&self, record: &P::Record) -> String {
        format!("{record:?}")
    }

    /// What it tells its owner.
    fn output(&self, output: &P::Output) -> String {
        format!("{output:?}")
    }

    /// What its timer is for.
    fn timer(&self, timer: P::Timer) -> String {
        format!("{timer:?}")
    }

    /// What happened.
    fn words(&self, event: &Happened<'_, P>) -> String {
        match event.what {
            What::Event(Event::Started) => "started".into(),
            What::Event(Event::Timer(timer)) => format!("timer {}", self.timer(*timer)),
            What::Event(Event::Restarted(peer)) => {
                format!("hears that {} starts anew", self.name(*peer))
            }
            What::Event(Event::Idle) => "idle".into(),
            What::Event(Event::Command(command)) => self.command(command),
            What::Event(Event::Message { from, message }) => {
                let way = Way { from: *from, to: event.at };
                format!("from {}: {}", self.name(*from), self.message(way, message))
            }
            What::Message(message) => self.message(event.way(), message),
            What::Command(command) => self.command(command),
            What::Record(record) => self.record(record),
            What::Output(output) => self.output(output),
            What::Words(words) => words.to_string(),
        }
    }

    /// The names of the messages that an event is about: those which clients know, not those of
    /// the protocol. Called with all events, in order and before their words, as a later one may
    /// need to know the earlier.
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
pub struct Trace<T: ?Sized> {
    teller: Box<T>,
    filter: Filter,
    write: Box<dyn FnMut(&str)>,
    told: u64,
}

impl<T: ?Sized> Trace<T> {
    /// To standard error.
    pub fn new(teller: Box<T>, filter: Filter) -> Self {
        Trace::to(teller, filter, harness::print)
    }

    /// To `write`, line by line.
    pub fn to(teller: Box<T>, filter: Filter, write: impl FnMut(&str) + 'static) -> Self {
        Trace { teller, filter, write: Box::new(write), told: 0 }
    }
}

impl<T: ?Sized> Drop for Trace<T> {
    /// A name that nobody has is a mistake that one would not see otherwise.
    fn drop(&mut self) {
        if self.told == 0 && self.filter != Filter::default() {
            (self.write)("no event is as was asked for: see the names in a trace of all events");
        }
    }
}

impl<P: Process, T: Teller<P> + ?Sized> Watcher<P> for Trace<T> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        let Filter { message, process, from, until } = &self.filter;
        let about = self.teller.about(event);
        if message.as_ref().is_some_and(|message| !about.contains(message)) {
            return;
        }
        let at = self.teller.name(event.at);
        let to = event.to.map(|to| self.teller.name(to));
        let is_there = |process: &String| at == *process || to.as_ref() == Some(process);
        if !(*from..=*until).contains(&event.now) || !process.as_ref().is_none_or(is_there) {
            return;
        }
        let to = to.map(|to| format!(" -> {to}")).unwrap_or_default();
        let (ms, words) = (event.now.0 as f64 / 1e6, self.teller.words(event));
        let Happened { number, kind, .. } = event;
        (self.write)(&words::cut(format!("#{number} {ms:.3} ms {kind} {at}{to}: {words}")));
        self.told += 1;
    }
}
