//! What a thread of a server runs for the causal keys of all regions: to the steward of its node it
//! is one more shard (see [`crate::steward`]).

use super::message::{Command as Asked, Message, Output as Told, Record, Timer};
use super::node::Causal;
use crate::change::Rmw;
use crate::node::{Reporter, is_no_use};
use crate::steward::Report;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::{self as hermes, Modify};

/// What its owner wants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // It is looked at and gone.
pub enum Command<M> {
    /// Of the keys.
    Keys(Asked<M>),
    /// A client reads from memory, so that a lease is wanted ([`CausalKeys::wants_use`]).
    Use,
}

/// What its owner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // It is looked at and gone.
pub enum Output {
    /// Of the keys.
    Keys(Told),
    /// The steward of this node is to be told.
    Report(Report),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct CausalKeys<M = Rmw> {
    keys: Causal<M>,
    reporter: Reporter,
}

impl<M: Modify> CausalKeys<M> {
    /// Of these.
    pub fn new(keys: Causal<M>) -> Self {
        CausalKeys { keys, reporter: Reporter::default() }
    }

    /// What its clients read from.
    pub fn keys(&self) -> &Causal<M> {
        &self.keys
    }

    /// Whether [`Command::Use`] would make a difference.
    pub fn wants_use(&self, now: Time) -> bool {
        self.reporter.wants_use(now)
    }

    fn report_use(&mut self, now: Time, out: &mut Outbox<Self>) {
        if let Some(used) = self.reporter.used(now) {
            out.output(Output::Report(used));
        }
    }

    /// Also what other regions send wants a lease.
    fn step_keys(&mut self, now: Time, event: Event<Causal<M>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.keys.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Within);
        if let Some(began) = self.reporter.began(self.keys.replica()) {
            out.output(Output::Report(began));
        }
        if self.keys.is_under_way() {
            self.report_use(now, out);
        }
    }
}

/// Whether no client is behind that.
fn is_for_no_client<M>(command: &Asked<M>) -> bool {
    match command {
        Asked::Replica(command) => is_no_use(command),
        Asked::Await { .. } | Asked::Forget { .. } | Asked::Configure(_) => true,
        Asked::Read { .. } | Asked::ReadAll { .. } | Asked::Update(_) | Asked::Lapse { .. } => {
            false
        }
    }
}

impl<M: Modify> Process for CausalKeys<M> {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command<M>;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let event = match event {
            Event::Started => {
                out.output(Output::Report(self.reporter.found(self.keys.replica())));
                Event::Started
            }
            Event::Command(Command::Use) => return self.report_use(now, out),
            Event::Command(Command::Keys(command)) => {
                if !is_for_no_client(&command) {
                    self.report_use(now, out);
                }
                Event::Command(command)
            }
            Event::Timer(timer) => {
                if let Timer::Replica(_) = timer {
                    self.report_use(now, out);
                }
                Event::Timer(timer)
            }
            Event::Message { from, message } => Event::Message { from, message },
            Event::Restarted(peer) => Event::Restarted(peer),
            Event::Idle => Event::Idle,
        };
        self.step_keys(now, event, out);
    }

    fn replay(&mut self, record: Record) {
        self.keys.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        self.keys.checkpoint()
    }
}

/// The keys differ from what is seen outside in their outputs only.
struct Within;

impl<M: Modify> Embedding<Causal<M>, CausalKeys<M>> for Within {
    fn message(&mut self, to: NodeId, message: Message) -> (NodeId, Message) {
        (to, message)
    }

    fn record(&mut self, record: Record) -> Record {
        record
    }

    fn timer(&mut self, timer: Timer) -> Timer {
        timer
    }

    fn output(&mut self, output: Told, out: &mut Outbox<CausalKeys<M>>) {
        out.output(match output {
            Told::Replica(hermes::Output::Complete { epoch }) => {
                Output::Report(Report::Complete(epoch))
            }
            output => Output::Keys(output),
        });
    }
}
