//! Who watches a world event by event: a trace, or who explains a run.

use meridian_core::{Event, Process, Time};
use std::fmt;

/// Told of all that happens in a world, in order; changes nothing in it.
pub trait Watcher<P: Process> {
    /// Something happened.
    fn happened(&mut self, event: &Happened<'_, P>);

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

/// The structures as they are. (`Event` has no `Debug` unless the process has.)
impl<P: Process> fmt::Display for What<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Event(Event::Started) => f.write_str("started"),
            What::Event(Event::Message { from, message }) => {
                write!(f, "from {from:?}: {message:?}")
            }
            What::Event(Event::Command(command)) => write!(f, "command {command:?}"),
            What::Event(Event::Timer(timer)) => write!(f, "timer {timer:?}"),
            What::Event(Event::Restarted(peer)) => write!(f, "restarted {peer:?}"),
            What::Event(Event::Idle) => f.write_str("idle"),
            What::Command(command) => write!(f, "{command:?}"),
            What::Record(record) => write!(f, "{record:?}"),
            What::Message(message) => write!(f, "{message:?}"),
            What::Output(output) => write!(f, "{output:?}"),
            What::Words(words) => f.write_fmt(*words),
        }
    }
}
