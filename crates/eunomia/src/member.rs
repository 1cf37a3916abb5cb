//! Any of the three processes, as one: for whoever runs a whole region, or all of them.

use crate::message::{Message, Peer, Role, Timer, Topology};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::receiver::{self, Receiver};
use crate::regions::{Regions, Word};
use crate::replica::{self, Replica};
use crate::shard::{self, Shard};
use meridian_core::compose::Same;
use meridian_core::{Embedding, Event, Outbox, Process, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A process of some role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant)] // There is one of it for a process.
pub enum Member {
    /// See [`Shard`].
    Shard(Shard),
    /// See [`Replica`].
    Replica(Replica),
    /// See [`Receiver`].
    Receiver(Receiver),
}

/// What one of them is asked; what is for another role is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// For a shard.
    Shard(shard::Command),
    /// For a receiver.
    Receiver(receiver::Command),
    /// For any: these are the regions now; it answers with [`Output::Regions`].
    Regions(Arc<Regions>),
}

/// What one of them tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// A shard.
    Shard(shard::Output),
    /// A receiver.
    Receiver(receiver::Output),
    /// Any: how far it is with the regions.
    Regions(Word),
}

/// What one of them makes durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// A shard.
    Shard(shard::Record),
    /// A receiver.
    Receiver(receiver::Record),
}

impl Member {
    /// The process that has this name; it has nothing.
    pub fn new(me: Peer, topology: Arc<Topology>, options: Options) -> Member {
        match me.role {
            Role::Shard(number) => Member::Shard(Shard::new(me.region, number, topology, options)),
            Role::Replica(number) => {
                Member::Replica(Replica::new(me.region, number, topology, options))
            }
            Role::Receiver => Member::Receiver(Receiver::new(me.region, topology, options)),
        }
    }

    /// The same where regions change, and these are there at first.
    pub fn with_regions(self, regions: &Arc<Regions>) -> Member {
        match self {
            Member::Shard(shard) => Member::Shard(shard.with_regions(regions.clone())),
            Member::Replica(replica) => Member::Replica(replica.without_regions()),
            Member::Receiver(receiver) => Member::Receiver(receiver.with_regions(regions.clone())),
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Member {
        match self {
            Member::Shard(shard) => Member::Shard(shard.with_mutation(mutation)),
            Member::Replica(replica) => Member::Replica(replica.with_mutation(mutation)),
            Member::Receiver(receiver) => Member::Receiver(receiver.with_mutation(mutation)),
        }
    }
}

/// The event for a process of some role; `None` if it is a command for another.
fn inward<P>(event: Event<Member>, own: fn(Command) -> Option<P::Command>) -> Option<Event<P>>
where
    P: Process<Peer = Peer, Message = Message, Timer = Timer>,
{
    Some(match event {
        Event::Started => Event::Started,
        Event::Message { from, message } => Event::Message { from, message },
        Event::Command(command) => Event::Command(own(command)?),
        Event::Timer(timer) => Event::Timer(timer),
        Event::Restarted(peer) => Event::Restarted(peer),
        Event::Idle => Event::Idle,
    })
}

/// How a process of some role is embedded where a member is.
struct Within<'a, E, R, O> {
    record: fn(R) -> Record,
    output: fn(O) -> Output,
    member: &'a mut E,
}

impl<P, Outer, E> Embedding<P, Outer> for Within<'_, E, P::Record, P::Output>
where
    P: Process<Peer = Peer, Message = Message, Timer = Timer>,
    Outer: Process,
    E: Embedding<Member, Outer>,
{
    fn message(&mut self, to: Peer, message: Message) -> (Outer::Peer, Outer::Message) {
        self.member.message(to, message)
    }

    fn record(&mut self, record: P::Record) -> Outer::Record {
        self.member.record((self.record)(record))
    }

    fn timer(&mut self, timer: Timer) -> Outer::Timer {
        self.member.timer(timer)
    }

    fn output(&mut self, output: P::Output, out: &mut Outbox<Outer>) {
        self.member.output((self.output)(output), out);
    }
}

impl Member {
    /// Steps it as a part of another process, which takes over what it asks for in one go.
    pub fn step_within<Outer: Process>(
        &mut self,
        now: Time,
        event: Event<Member>,
        member: &mut impl Embedding<Member, Outer>,
        out: &mut Outbox<Outer>,
    ) {
        match self {
            Member::Shard(shard) => {
                let own = |command| match command {
                    Command::Shard(command) => Some(command),
                    Command::Regions(regions) => Some(shard::Command::Regions(regions)),
                    Command::Receiver(_) => None,
                };
                let Some(event) = inward(event, own) else { return };
                let mut inner = Outbox::new();
                shard.step(now, event, &mut inner);
                let record = Record::Shard as fn(_) -> _;
                let output: fn(shard::Output) -> Output = |output| match output {
                    shard::Output::Regions(word) => Output::Regions(word),
                    output => Output::Shard(output),
                };
                out.absorb(&mut inner, &mut Within { record, output, member });
            }
            Member::Replica(replica) => {
                let own = |command| match command {
                    Command::Regions(regions) => Some(replica::Command::Regions(regions)),
                    Command::Shard(_) | Command::Receiver(_) => None,
                };
                let Some(event) = inward(event, own) else { return };
                let mut inner = Outbox::new();
                replica.step(now, event, &mut inner);
                let record: fn(replica::Record) -> Record = |record| match record {};
                let output: fn(replica::Output) -> Output =
                    |replica::Output::Regions(word)| Output::Regions(word);
                out.absorb(&mut inner, &mut Within { record, output, member });
            }
            Member::Receiver(receiver) => {
                let own = |command| match command {
                    Command::Receiver(command) => Some(command),
                    Command::Regions(regions) => Some(receiver::Command::Regions(regions)),
                    Command::Shard(_) => None,
                };
                let Some(event) = inward(event, own) else { return };
                let mut inner = Outbox::new();
                receiver.step(now, event, &mut inner);
                let record = Record::Receiver as fn(_) -> _;
                let output: fn(receiver::Output) -> Output = |output| match output {
                    receiver::Output::Regions(word) => Output::Regions(word),
                    output => Output::Receiver(output),
                };
                out.absorb(&mut inner, &mut Within { record, output, member });
            }
        }
    }
}

impl Process for Member {
    type Peer = Peer;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        self.step_within(now, event, &mut Same, out);
    }

    fn replay(&mut self, record: Record) {
        match (self, record) {
            (Member::Shard(shard), Record::Shard(record)) => shard.replay(record),
            (Member::Receiver(receiver), Record::Receiver(record)) => receiver.replay(record),
            (_, record) => panic!("{record:?} is of another role"),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        match self {
            Member::Shard(shard) => Box::new(shard.checkpoint().map(Record::Shard)),
            Member::Replica(_) => Box::new(std::iter::empty()),
            Member::Receiver(receiver) => Box::new(receiver.checkpoint().map(Record::Receiver)),
        }
    }
}
