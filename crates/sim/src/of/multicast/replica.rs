//! A process of the multicast with the simplest application on top: the list of all that it
//! delivered. As a server does it, the list is rebuilt from the log at a restart, is part of
//! checkpoints, and travels in snapshots.

use bytes::Bytes;
use meridian_core::{
    ClientId, Embedding, Event, MessageId, NodeId, Outbox, Position, Process, ProcessId, Time,
};
use meridian_multicast::{Command, Message, Output, PrimCast, Rank, Record, Timer, Timestamp};
use std::collections::BTreeSet;

/// What a replica makes durable.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The protocol's record.
    Protocol(Record),
    /// In a checkpoint: what was delivered.
    Application(Vec<Rank>),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The protocol.
    pub multicast: PrimCast,
    /// The application: all that was delivered, in this order.
    pub delivered: Vec<Rank>,
    /// What the last step delivered, or took over.
    pub news: Vec<Rank>,
}

impl Replica {
    /// On top of `multicast`, which has delivered nothing.
    pub fn new(multicast: PrimCast) -> Self {
        Replica { multicast, delivered: Vec::new(), news: Vec::new() }
    }

    /// The application's state in bytes.
    fn encode(&self) -> Bytes {
        let numbers = |(ts, id): &Rank| [ts.0, id.client.0, id.sequence];
        self.delivered.iter().flat_map(numbers).flat_map(u64::to_le_bytes).collect()
    }

    /// The state that [`Replica::encode`] gave.
    pub fn decode(application: &[u8]) -> Vec<Rank> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let rank = |bytes: &[u8]| {
            let (client, sequence) = (ClientId(number(&bytes[8..16])), number(&bytes[16..]));
            (Timestamp(number(&bytes[..8])), MessageId { client, sequence })
        };
        application.chunks_exact(24).map(rank).collect()
    }

    fn install(&mut self, position: Position, application: &[u8]) {
        let state = Self::decode(application);
        assert_eq!(state.len() as u64, position.0, "a snapshot of another position");
        let mut new: BTreeSet<_> = state.iter().copied().collect();
        let kept = self.delivered.iter().all(|rank| new.remove(rank));
        assert!(kept, "a snapshot takes deliveries back");
        self.news.extend(new);
        self.delivered = state;
    }

    /// Applies what the protocol says; answers what the owner of the protocol asks of it then.
    fn apply(&mut self, output: &Output) -> Option<Command> {
        match output {
            Output::Deliver(delivery) => {
                let rank = (delivery.ts, delivery.start.id);
                self.delivered.push(rank);
                self.news.push(rank);
                assert_eq!(delivery.position.0, self.delivered.len() as u64, "a position skipped");
                None
            }
            Output::Install { position, application } => {
                self.install(*position, application);
                None
            }
            Output::SnapshotWanted { to } => Some(Command::Snapshot {
                to: *to,
                position: Position(self.delivered.len() as u64),
                application: self.encode(),
            }),
            Output::Duplicate(_)
            | Output::Settled(_)
            | Output::Ended { .. }
            | Output::Refused { .. } => None,
        }
    }

    fn pass_on(&mut self, now: Time, inner: &mut Outbox<PrimCast>, out: &mut Outbox<Self>) {
        let mut owner = ListOwner { replica: self, commands: Vec::new() };
        out.absorb(inner, &mut owner);
        for command in owner.commands {
            self.multicast.step(now, Event::Command(command), inner);
            self.pass_on(now, inner, out);
        }
    }
}

/// Applies what the protocol tells, and gathers what the list asks of it then.
struct ListOwner<'a> {
    replica: &'a mut Replica,
    commands: Vec<Command>,
}

impl Embedding<PrimCast, Replica> for ListOwner<'_> {
    fn message(&mut self, to: ProcessId, message: Message) -> (ProcessId, Message) {
        (to, message)
    }

    fn record(&mut self, record: Record) -> Kept {
        Kept::Protocol(record)
    }

    fn timer(&mut self, timer: Timer) -> Timer {
        timer
    }

    fn output(&mut self, output: Output, out: &mut Outbox<Replica>) {
        self.commands.extend(self.replica.apply(&output));
        out.output(output);
    }
}

impl Process for Replica {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Kept;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let Some(event) = event.inward(Some) else { return };
        self.news.clear();
        let mut inner = Outbox::new();
        self.multicast.step(now, event, &mut inner);
        self.pass_on(now, &mut inner, out);
    }

    fn replay(&mut self, record: Kept) {
        match record {
            Kept::Application(delivered) => self.delivered = delivered,
            Kept::Protocol(record) => {
                if let Some(output) = self.multicast.recover(record) {
                    self.apply(&output);
                }
            }
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Kept> + Send> {
        let application = Kept::Application(self.delivered.clone());
        let protocol = self.multicast.checkpoint().map(Kept::Protocol);
        Box::new(std::iter::once(application).chain(protocol))
    }
}

/// Groups 0, 1, .. with as many members as `sizes` says; the nodes of group g are 100 g, 100 g + 1,
/// ..
pub fn groups_of(sizes: &[u16]) -> std::collections::BTreeMap<meridian_core::GroupId, Vec<NodeId>> {
    let of = |(group, size): (u16, &u16)| {
        let nodes = (0..*size).map(|node| NodeId(group * 100 + node)).collect();
        (meridian_core::GroupId(group), nodes)
    };
    (0..).zip(sizes).map(of).collect()
}
