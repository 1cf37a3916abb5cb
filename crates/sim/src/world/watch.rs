//! Who watches a world event by event: a trace, or who explains a run.

use meridian_core::{Event, Process, Time};
use std::fmt;

/// Told of all that happens in a world, in order; changes nothing in it.
pub trait Watcher<P: Process> {
    /// Something happened.
    fn happened(&mut self, event: &Happened<'_, P>);

    /// A process was made of what its disk has, and has not stepped yet.
    fn restored(&mut self, _at: P::Peer, _process: &P) {}

    /// A process has stepped; what it asked for then follows.
    fn stepped(&mut self, _at: P::Peer, _process: &P, _now: Time) {}
}

/// Something that happened.
pub struct Happened<'a, P: Process> {
    /// Which event of the world it was a part of.
    pub number: u64,
    /// The time of the world.
    pub now: Time,
    /// In a word: `step`, `send`, `output`, `crash`, and others.
    pub kind: &'a str,
    /// At which process.
    pub at: P::Peer,
    /// The other process that it concerns, if it does.
    pub to: Option<P::Peer>,
    /// What.
    pub what: &'a What<'a, P>,
}

/// Whether a message is sent, or else comes; between whom; what it says.
pub type Said<'a, P> = (bool, Way<<P as Process>::Peer>, &'a <P as Process>::Message);

impl<'a, P: Process> Happened<'a, P> {
    /// From the process to the other one, or to itself.
    pub fn way(&self) -> Way<P::Peer> {
        Way { from: self.at, to: self.to.unwrap_or(self.at) }
    }

    /// If a message is sent (`true`), or a process steps with one: between whom it travels, and
    /// what it says.
    pub fn said(&self) -> Option<Said<'a, P>> {
        match *self.what {
            What::Message(message) => Some((true, self.way(), message)),
            What::Event(Event::Message { from, message }) => {
                Some((false, Way { from: *from, to: self.at }, message))
            }
            _ => None,
        }
    }

    /// If a command comes to a process, or it steps with one: which.
    pub fn asked(&self) -> Option<&'a P::Command> {
        match *self.what {
            What::Command(command) | What::Event(Event::Command(command)) => Some(command),
            _ => None,
        }
    }
}

/// Between whom a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way<Peer> {
    /// Who sends it.
    pub from: Peer,
    /// Who receives it; may be the same.
    pub to: Peer,
}

/// What happened.
pub enum What<'a, P: Process> {
    /// A process steps with this.
    Event(&'a Event<P>),
    /// A command has come to a process.
    Command(&'a P::Command),
    /// A record was appended to the log.
    Record(&'a P::Record),
    /// A message was sent.
    Message(&'a P::Message),
    /// The owner was told something.
    Output(&'a P::Output),
    /// What the world did, in words.
    Words(fmt::Arguments<'a>),
}
