//! The trait of all protocols: a deterministic state machine without IO.
//!
//! A runtime (the server, the simulator) feeds a [`Process`] with [`Event`]s and carries out the
//! [`Effect`]s. It keeps one promise to all protocols, **the durability rule**: a send or an output
//! is seen outside only after every record that the same process persisted before it is durable.
//! The runtime may go on stepping while a flush is under way; it never reorders.
//!
//! A process may send to itself as to any peer. It may also count its own vote at once: whatever
//! follows from that is seen outside only after the record before it.
//!
//! Messages between two processes arrive in order and none is lost while neither of them restarts
//! and the link between them is not reset; after either, both see [`Event::Restarted`].

use crate::room::Room;
use crate::time::Time;
use std::fmt::Debug;
use std::hash::Hash;

/// A deterministic process: equal state, `now` and `event` give equal effects.
pub trait Process: Sized {
    /// How it names those whom it exchanges messages with, itself among them.
    type Peer: Copy + Ord + Debug;
    /// What it exchanges with its peers.
    type Message: Clone + Debug;
    /// What it asks to be made durable.
    type Record: Clone + Debug;
    /// What its owner asks of it.
    type Command: Clone + Debug;
    /// What it tells its owner.
    type Output: Clone + Debug;
    /// What its timers are for: a variant for each duty, so that none runs another's. A process
    /// made of others names in it which of them has set the timer.
    type Timer: Copy + Ord + Debug + Hash;

    /// Takes one event and appends to `out` what is to be done, in order.
    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>);

    /// Rebuilds what `record` says; called with the records found on disk, in order, on a
    /// process just made, before [`Event::Started`].
    ///
    /// # Panics
    /// If the records contradict each other: they were not written by this process.
    fn replay(&mut self, record: Self::Record);

    /// The records which alone rebuild all that was persisted or noted so far: with them on disk,
    /// everything before may be deleted. Cheap to call; the work is done as the records are drawn,
    /// possibly on another thread.
    fn checkpoint(&self) -> Box<dyn Iterator<Item = Self::Record> + Send>;

    /// What it asked for is seen outside from now on: all that was persisted before is durable. For
    /// who notes when that was; what the process does must not depend on it.
    fn passed(&mut self, _now: Time, _visible: &Visible<Self>) {}
}

/// What is seen outside of a process, once all that was persisted before is durable.
#[derive(Debug)]
pub enum Visible<P: Process> {
    /// See [`Effect::Send`].
    Send {
        /// To whom; may be the process itself.
        to: P::Peer,
        /// What.
        message: P::Message,
    },
    /// See [`Effect::Output`].
    Output(P::Output),
}

/// Something that happened to a process.
#[derive(Clone, Debug)]
pub enum Event<P: Process> {
    /// It runs, after all records found on disk were replayed. The first event, once.
    Started,
    /// A peer (or it itself) sent this.
    Message {
        /// Who sent it.
        from: P::Peer,
        /// What it said.
        message: P::Message,
    },
    /// The owner asks for this.
    Command(P::Command),
    /// The time of a timer has come.
    Timer(P::Timer),
    /// The peer started anew, or the link to it was reset: messages that were under way in either
    /// direction may be lost.
    Restarted(P::Peer),
    /// No more input is ready now: send what was held back so that it travels together.
    /// Comes after each batch of events, never later than the runtime would wait for input.
    Idle,
}

/// Something that is to be done for a process.
#[derive(Clone, Debug)]
pub enum Effect<P: Process> {
    /// Send this, once all that was persisted before is durable.
    Send {
        /// To whom; may be the process itself.
        to: P::Peer,
        /// What.
        message: P::Message,
    },
    /// Make this durable; sends and outputs after it wait for that.
    Persist(P::Record),
    /// Write this to the log with whatever is flushed next; nothing waits for it. The log keeps the
    /// order of both kinds: when a later `Persist` is durable, so is this.
    Note(P::Record),
    /// Tell the owner, once all that was persisted before is durable.
    Output(P::Output),
    /// Step with [`Event::Timer`] when the time has come; not gated by persistence.
    Timer {
        /// When.
        at: Time,
        /// To be given back.
        timer: P::Timer,
    },
}

/// The effects of a step, in order.
#[derive(Debug)]
pub struct Outbox<P: Process> {
    effects: Vec<Effect<P>>,
}

impl<P: Process> Default for Outbox<P> {
    fn default() -> Self {
        Outbox { effects: Vec::new() }
    }
}

impl<P: Process> Outbox<P> {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for [`Effect::Send`].
    pub fn send(&mut self, to: P::Peer, message: P::Message) {
        self.effects.push(Effect::Send { to, message });
    }

    /// Asks for [`Effect::Persist`].
    pub fn persist(&mut self, record: P::Record) {
        self.effects.push(Effect::Persist(record));
    }

    /// Asks for [`Effect::Note`].
    pub fn note(&mut self, record: P::Record) {
        self.effects.push(Effect::Note(record));
    }

    /// Asks for [`Effect::Output`].
    pub fn output(&mut self, output: P::Output) {
        self.effects.push(Effect::Output(output));
    }

    /// Asks for [`Effect::Timer`].
    pub fn timer(&mut self, at: Time, timer: P::Timer) {
        self.effects.push(Effect::Timer { at, timer });
    }

    /// Takes the effects, in order; the outbox can be used again.
    pub fn drain(&mut self) -> impl Iterator<Item = Effect<P>> + '_ {
        self.effects.give_back();
        self.effects.drain(..)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}

impl<P: Process> Extend<Effect<P>> for Outbox<P> {
    fn extend<T: IntoIterator<Item = Effect<P>>>(&mut self, effects: T) {
        self.effects.extend(effects);
    }
}
