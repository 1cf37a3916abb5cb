//! What one thread of a server runs for keys: a replica of a shard of them, and in the first thread
//! the membership of all replicas of this node.
//!
//! The membership is told by the replica when it has everything, and when it has use of a lease or
//! waits for others; it tells the replica of epochs and leases.
//! A start remembers what the membership does, and, if so chosen, the keys (decision 33).
//!
//! The replicas of other shards are told the same, in the same order, by way of their owners
//! ([`Output::Told`]); the membership is told that this node has everything when all shards have.
//!
//! RMWs are those of commands; the simulator has its own.

use crate::change::Rmw;
use crate::slots::Shard;
use bytes::Bytes;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Answer, Epoch, Hermes, Modify};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A shard says so often at most that it is used.
const USE_AGAIN: Duration = Duration::from_millis(100);

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
    /// Another shard of this node has everything, in this epoch.
    Complete(Shard, Epoch),
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
    /// All other shards of this node are to be told: see [`told`].
    Told(reliable::Output),
    /// The first shard is to be told [`Command::Complete`].
    Complete(Epoch),
    /// The first shard is to be told [`Command::Use`].
    Used,
}

/// What the membership tells a replica.
pub fn told<M>(output: reliable::Output) -> hermes::Command<M> {
    match output {
        reliable::Output::Install(membership) => hermes::Command::Install(membership),
        reliable::Output::Lease { until } => hermes::Command::Lease { until },
    }
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the membership.
    Membership(reliable::Timer),
    /// Of the replica.
    Replica(hermes::Timer),
}

/// Whether no client is behind that.
fn is_no_use<M>(command: &hermes::Command<M>) -> bool {
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

/// Where the membership is.
#[derive(Clone, Debug)]
enum Membership {
    /// Here.
    Here {
        membership: Box<ReliableMembership>,
        /// So many shards this node has.
        shards: usize,
        /// In which epoch each has last had everything.
        complete: BTreeMap<Shard, Epoch>,
    },
    /// In the thread of the first shard, which was last told at this time that this one is used.
    Elsewhere { used: Time },
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Keys<M = Rmw> {
    membership: Membership,
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
        let (membership, complete) = (Box::new(membership), BTreeMap::new());
        Keys { membership: Membership::Here { membership, shards: 1, complete }, replica }
    }

    /// It is the first of so many shards.
    pub fn with_shards(mut self, wanted: usize) -> Self {
        if let Membership::Here { shards, .. } = &mut self.membership {
            *shards = wanted;
        }
        self
    }

    /// One of the other shards.
    pub fn of_shard(replica: Hermes<M>) -> Self {
        Keys { membership: Membership::Elsewhere { used: Time(0) }, replica }
    }

    /// What its clients read from.
    pub fn replica(&self) -> &Hermes<M> {
        &self.replica
    }

    /// Who takes part, and how that is decided.
    ///
    /// # Panics
    /// If this is not the first shard of its node.
    pub fn membership(&self) -> &ReliableMembership {
        match &self.membership {
            Membership::Here { membership, .. } => membership,
            Membership::Elsewhere { .. } => panic!("the first shard has the membership"),
        }
    }

    /// Whether [`Command::Use`] would make a difference.
    pub fn wants_use(&self, now: Time) -> bool {
        match &self.membership {
            Membership::Here { membership, .. } => membership.wants_use(now),
            Membership::Elsewhere { used } => now >= *used + USE_AGAIN,
        }
    }

    /// The replica is used, or waits for others.
    fn use_membership(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.wants_use(now) {
            return;
        }
        if let Membership::Elsewhere { used } = &mut self.membership {
            *used = now;
            return out.output(Output::Used);
        }
        self.step_membership(now, Event::Command(reliable::Command::Use), out);
    }

    /// A shard of this node has everything.
    fn on_complete(&mut self, now: Time, shard: Shard, epoch: Epoch, out: &mut Outbox<Self>) {
        let Membership::Here { shards, complete, .. } = &mut self.membership else {
            return out.output(Output::Complete(epoch));
        };
        complete.insert(shard, epoch);
        if complete.len() == *shards
            && let Some(epoch) = complete.values().min().copied()
        {
            let command = reliable::Command::Complete { epoch };
            self.step_membership(now, Event::Command(command), out);
        }
    }

    fn step_membership(
        &mut self,
        now: Time,
        event: Event<ReliableMembership>,
        out: &mut Outbox<Self>,
    ) {
        // Nobody speaks with a membership that is elsewhere.
        let Membership::Here { membership, shards, .. } = &mut self.membership else { return };
        let (mut inner, mut said) = (Outbox::new(), Said::default());
        membership.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut said);
        let several = *shards > 1;
        for output in said.outputs {
            if several {
                out.output(Output::Told(output.clone()));
            }
            self.step_replica(now, Event::Command(told(output)), out);
        }
    }

    fn step_replica(&mut self, now: Time, event: Event<Hermes<M>>, out: &mut Outbox<Self>) {
        let (mut inner, mut complete) = (Outbox::new(), Complete::default());
        self.replica.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut complete);
        if let Some(epoch) = complete.epoch {
            self.on_complete(now, Shard(0), epoch, out);
        }
    }
}

/// What is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Of the membership.
    Membership(reliable::Record),
    /// Of the replica.
    Replica(hermes::Record),
}

impl<M: Modify> Process for Keys<M> {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command<M>;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                let holds = self.replica.holds();
                if let Membership::Here { membership, shards, .. } = &mut self.membership {
                    // Nobody asks the other shards yet whether they hold all.
                    membership.set_holds(holds && *shards == 1);
                }
                self.step_replica(now, Event::Started, out);
                self.step_membership(now, Event::Started, out);
            }
            Event::Message { from, message: Message::Membership(message) } => {
                self.step_membership(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Replica(message) } => {
                self.step_replica(now, Event::Message { from, message }, out);
            }
            Event::Command(Command::Use) => self.use_membership(now, out),
            Event::Command(Command::Complete(shard, epoch)) => {
                self.on_complete(now, shard, epoch, out);
            }
            Event::Command(Command::Replica(command)) if is_no_use(&command) => {
                self.step_replica(now, Event::Command(command), out);
            }
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

    fn replay(&mut self, record: Record) {
        match (record, &mut self.membership) {
            (Record::Membership(record), Membership::Here { membership, .. }) => {
                membership.replay(record);
            }
            (Record::Membership(_), Membership::Elsewhere { .. }) => {}
            (Record::Replica(record), _) => self.replica.replay(record),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let replica = self.replica.checkpoint().map(Record::Replica);
        match &self.membership {
            Membership::Here { membership, .. } => {
                Box::new(membership.checkpoint().map(Record::Membership).chain(replica))
            }
            Membership::Elsewhere { .. } => Box::new(replica),
        }
    }
}

/// What the membership tells the replica.
#[derive(Default)]
struct Said {
    outputs: Vec<reliable::Output>,
}

impl<M: Modify> Embedding<ReliableMembership, Keys<M>> for Said {
    fn message(&mut self, to: NodeId, message: reliable::Message) -> (NodeId, Message) {
        (to, Message::Membership(message))
    }

    fn record(&mut self, record: reliable::Record) -> Record {
        Record::Membership(record)
    }

    fn timer(&mut self, timer: reliable::Timer) -> Timer {
        Timer::Membership(timer)
    }

    fn output(&mut self, output: reliable::Output, _: &mut Outbox<Keys<M>>) {
        self.outputs.push(output);
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

    fn record(&mut self, record: hermes::Record) -> Record {
        Record::Replica(record)
    }

    fn timer(&mut self, timer: hermes::Timer) -> Timer {
        Timer::Replica(timer)
    }

    fn output(&mut self, output: hermes::Output, out: &mut Outbox<Keys<M>>) {
        match output {
            hermes::Output::Answer { token, answer } => {
                out.output(Output::Answered { token, answer });
            }
            hermes::Output::Watching => out.output(Output::Watching),
            hermes::Output::Committed { key } => out.output(Output::Committed { key }),
            hermes::Output::Complete { epoch } => self.epoch = Some(epoch),
        }
    }
}
