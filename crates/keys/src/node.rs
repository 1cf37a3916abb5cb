//! What one thread of a server runs for keys: the membership of its replicas, and the replica.
//!
//! The membership is told by the replica when it has everything, and when it has use of a lease or
//! waits for others; it tells the replica of epochs and leases.
//! All that a start must remember is the membership's: values are kept in memory, at all replicas.
//!
//! RMWs are those of commands; the simulator has its own.

use crate::change::Rmw;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Answer, Hermes, Modify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Of the membership.
    Membership(reliable::Message),
    /// Of the replica.
    Replica(hermes::Message),
}

/// What its owner wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<M> {
    /// Of the replica.
    Replica(hermes::Command<M>),
    /// A client reads from memory, so that a lease is wanted ([`Keys::wants_use`]).
    Use,
}

/// An answer of the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// To this question.
    pub token: u64,
    /// What it is.
    pub answer: Answer,
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the membership.
    Membership(reliable::Timer),
    /// Of the replica.
    Replica(hermes::Timer),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Keys<M = Rmw> {
    membership: ReliableMembership,
    replica: Hermes<M>,
}

impl<M: Modify> Keys<M> {
    /// The one of `me`, beside those of the other `replicas`. `seed` must differ between any two
    /// starts of any of them.
    pub fn new(
        me: NodeId,
        replicas: &BTreeSet<NodeId>,
        options: (hermes::Options, reliable::Options),
        seed: u64,
    ) -> Self {
        let (keys, leases) = options;
        let membership = ReliableMembership::new(me, replicas, leases, seed);
        Keys::of(membership, Hermes::new(me, keys, seed))
    }

    /// Of these two.
    pub fn of(membership: ReliableMembership, replica: Hermes<M>) -> Self {
        Keys { membership, replica }
    }

    /// What its clients read from.
    pub fn replica(&self) -> &Hermes<M> {
        &self.replica
    }

    /// Who takes part, and how that is decided.
    pub fn membership(&self) -> &ReliableMembership {
        &self.membership
    }

    /// Whether [`Command::Use`] would make a difference.
    pub fn wants_use(&self, now: Time) -> bool {
        self.membership.wants_use(now)
    }

    /// The replica is used, or waits for others.
    fn use_membership(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.wants_use(now) {
            self.step_membership(now, Event::Command(reliable::Command::Use), out);
        }
    }

    fn step_membership(
        &mut self,
        now: Time,
        event: Event<ReliableMembership>,
        out: &mut Outbox<Self>,
    ) {
        let (mut inner, mut told) = (Outbox::new(), Told { commands: Vec::new() });
        self.membership.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut told);
        for command in told.commands {
            self.step_replica(now, Event::Command(command), out);
        }
    }

    fn step_replica(&mut self, now: Time, event: Event<Hermes<M>>, out: &mut Outbox<Self>) {
        let (mut inner, mut complete) = (Outbox::new(), Complete::default());
        self.replica.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut complete);
        if let Some(epoch) = complete.epoch {
            let command = reliable::Command::Complete { epoch };
            self.step_membership(now, Event::Command(command), out);
        }
    }
}

impl<M: Modify> Process for Keys<M> {
    type Peer = NodeId;
    type Message = Message;
    type Record = reliable::Record;
    type Command = Command<M>;
    type Output = Answered;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.step_membership(now, Event::Started, out);
                self.step_replica(now, Event::Started, out);
            }
            Event::Message { from, message: Message::Membership(message) } => {
                self.step_membership(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Replica(message) } => {
                self.step_replica(now, Event::Message { from, message }, out);
            }
            Event::Command(Command::Use) => self.use_membership(now, out),
            Event::Command(Command::Replica(command)) => {
                self.use_membership(now, out);
                self.step_replica(now, Event::Command(command), out);
            }
            Event::Timer(Timer::Membership(timer)) => {
                self.step_membership(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Replica(timer)) => {
                self.use_membership(now, out);
                self.step_replica(now, Event::Timer(timer), out);
            }
            Event::Restarted(peer) => {
                self.step_membership(now, Event::Restarted(peer), out);
                self.step_replica(now, Event::Restarted(peer), out);
            }
            Event::Idle => {
                self.step_membership(now, Event::Idle, out);
                self.step_replica(now, Event::Idle, out);
            }
        }
    }

    fn replay(&mut self, record: reliable::Record) {
        self.membership.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = reliable::Record> + Send> {
        self.membership.checkpoint()
    }
}

/// What the membership tells the replica.
struct Told<M> {
    commands: Vec<hermes::Command<M>>,
}

impl<M: Modify> Embedding<ReliableMembership, Keys<M>> for Told<M> {
    fn message(&mut self, to: NodeId, message: reliable::Message) -> (NodeId, Message) {
        (to, Message::Membership(message))
    }

    fn record(&mut self, record: reliable::Record) -> reliable::Record {
        record
    }

    fn timer(&mut self, timer: reliable::Timer) -> Timer {
        Timer::Membership(timer)
    }

    fn output(&mut self, output: reliable::Output, _: &mut Outbox<Keys<M>>) {
        self.commands.push(match output {
            reliable::Output::Install(membership) => hermes::Command::Install(membership),
            reliable::Output::Lease { until } => hermes::Command::Lease { until },
        });
    }
}

/// What the replica tells the membership; its answers go to the owner.
#[derive(Default)]
struct Complete {
    epoch: Option<hermes::Epoch>,
}

impl<M: Modify> Embedding<Hermes<M>, Keys<M>> for Complete {
    fn message(&mut self, to: NodeId, message: hermes::Message) -> (NodeId, Message) {
        (to, Message::Replica(message))
    }

    fn record(&mut self, record: hermes::Record) -> reliable::Record {
        match record {}
    }

    fn timer(&mut self, timer: hermes::Timer) -> Timer {
        Timer::Replica(timer)
    }

    fn output(&mut self, output: hermes::Output, out: &mut Outbox<Keys<M>>) {
        match output {
            hermes::Output::Answer { token, answer } => out.output(Answered { token, answer }),
            hermes::Output::Complete { epoch } => self.epoch = Some(epoch),
        }
    }
}
