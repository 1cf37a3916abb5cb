//! What a thread of a server runs for keys: a replica of one shard of them.
//!
//! The membership of its node is elsewhere ([`crate::steward`]): it is told what the replica has,
//! and when that is used; the replica is told of epochs and leases ([`told`]).
//!
//! RMWs are those of commands; the simulator has its own.

use crate::change::Rmw;
use crate::steward::{Found, Report};
use bytes::Bytes;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::{self as hermes, Answer, Hermes, Modify, reliable};
use std::time::Duration;

/// A shard says so often at most that it is used.
const USE_AGAIN: Duration = Duration::from_millis(100);

/// What its owner wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<M> {
    /// Of the replica.
    Replica(hermes::Command<M>),
    /// A client reads from memory, so that a lease is wanted ([`Keys::wants_use`]).
    Use,
}

/// What its owner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// An answer of the replica.
    Answered {
        /// To this question.
        token: u64,
        /// What it is.
        answer: Answer,
    },
    /// As [`hermes::Output::Watching`].
    Watching,
    /// As [`hermes::Output::Committed`].
    Committed {
        /// This key.
        key: Bytes,
    },
    /// The steward of this node is to be told.
    Report(Report),
}

/// What the steward tells a replica.
pub fn told<M>(output: reliable::Output) -> hermes::Command<M> {
    match output {
        reliable::Output::Install(membership) => hermes::Command::Install(membership),
        reliable::Output::Lease { until } => hermes::Command::Lease { until },
    }
}

/// Whether no client is behind that.
pub(crate) fn is_no_use<M>(command: &hermes::Command<M>) -> bool {
    match command {
        hermes::Command::Install(_)
        | hermes::Command::Lease { .. }
        | hermes::Command::Forget(_)
        | hermes::Command::ForgetBefore(_) => true,
        hermes::Command::Read { .. } | hermes::Command::Update(_) | hermes::Command::Watch(_) => {
            false
        }
    }
}

/// What a replica has told the steward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter {
    /// When the steward was last told that the replica is used.
    used: Option<Time>,
    /// Whether its log had all that it acknowledged, when the steward was last told.
    held: bool,
}

impl Reporter {
    /// Whether it is to be told that the replica is used.
    pub fn wants_use(&self, now: Time) -> bool {
        self.used.is_none_or(|used| now >= used + USE_AGAIN)
    }

    /// The replica is used, or waits for others.
    pub fn used(&mut self, now: Time) -> Option<Report> {
        let wanted = self.wants_use(now);
        wanted.then(|| {
            self.used = Some(now);
            Report::Used
        })
    }

    /// What the replica has found on its disk.
    pub fn found<M: Modify>(&mut self, replica: &Hermes<M>) -> Report {
        self.held = replica.holds();
        Report::Found(match replica.is_on_disk() {
            false => Found::NoLog,
            true if self.held => Found::All,
            true => Found::NotAll,
        })
    }

    /// Whether its log has all that it acknowledges from now on.
    pub fn began<M: Modify>(&mut self, replica: &Hermes<M>) -> Option<Report> {
        let begins = !self.held && replica.holds();
        self.held |= begins;
        begins.then_some(Report::Began)
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Keys<M = Rmw> {
    replica: Hermes<M>,
    reporter: Reporter,
}

impl<M: Modify> Keys<M> {
    /// Of this replica.
    pub fn new(replica: Hermes<M>) -> Self {
        Keys { replica, reporter: Reporter::default() }
    }

    /// What its clients read from.
    pub fn replica(&self) -> &Hermes<M> {
        &self.replica
    }

    /// Whether [`Command::Use`] would make a difference.
    pub fn wants_use(&self, now: Time) -> bool {
        self.reporter.wants_use(now)
    }

    /// The replica is used, or waits for others.
    fn report_use(&mut self, now: Time, out: &mut Outbox<Self>) {
        if let Some(used) = self.reporter.used(now) {
            out.output(Output::Report(used));
        }
    }

    fn step_replica(&mut self, now: Time, event: Event<Hermes<M>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.replica.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Within);
        if let Some(began) = self.reporter.began(&self.replica) {
            out.output(Output::Report(began));
        }
    }
}

impl<M: Modify> Process for Keys<M> {
    type Peer = NodeId;
    type Message = hermes::Message;
    type Record = hermes::Record;
    type Command = Command<M>;
    type Output = Output;
    type Timer = hermes::Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let event = match event {
            Event::Started => {
                out.output(Output::Report(self.reporter.found(&self.replica)));
                Event::Started
            }
            Event::Command(Command::Use) => return self.report_use(now, out),
            Event::Command(Command::Replica(command)) => {
                if !is_no_use(&command) {
                    self.report_use(now, out);
                }
                Event::Command(command)
            }
            Event::Timer(timer) => {
                self.report_use(now, out);
                Event::Timer(timer)
            }
            Event::Message { from, message } => Event::Message { from, message },
            Event::Restarted(peer) => Event::Restarted(peer),
            Event::Idle => Event::Idle,
        };
        self.step_replica(now, event, out);
    }

    fn replay(&mut self, record: hermes::Record) {
        self.replica.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = hermes::Record> + Send> {
        self.replica.checkpoint()
    }
}

/// The replica differs from what is seen outside in its outputs only.
struct Within;

impl<M: Modify> Embedding<Hermes<M>, Keys<M>> for Within {
    fn message(&mut self, to: NodeId, message: hermes::Message) -> (NodeId, hermes::Message) {
        (to, message)
    }

    fn record(&mut self, record: hermes::Record) -> hermes::Record {
        record
    }

    fn timer(&mut self, timer: hermes::Timer) -> hermes::Timer {
        timer
    }

    fn output(&mut self, output: hermes::Output, out: &mut Outbox<Keys<M>>) {
        out.output(match output {
            hermes::Output::Answer { token, answer } => Output::Answered { token, answer },
            hermes::Output::Watching => Output::Watching,
            hermes::Output::Committed { key } => Output::Committed { key },
            hermes::Output::Complete { epoch } => Output::Report(Report::Complete(epoch)),
        });
    }
}
