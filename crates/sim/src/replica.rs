//! A process of the multicast with the simplest application on top: the list of all that it
//! delivered. As a server does it, the list is rebuilt from the log at a restart, is part of
//! checkpoints, and travels in snapshots.

use bytes::Bytes;
use meridian_core::{
    ClientId, Effect, Event, MessageId, NodeId, Outbox, Position, Process, ProcessId, Time,
};
use meridian_multicast::{Command, Message, Output, PrimCast, Rank, Record, Timestamp};
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
        let mut commands = Vec::new();
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => out.send(to, message),
                Effect::Persist(record) => out.persist(Kept::Protocol(record)),
                Effect::Note(record) => out.note(Kept::Protocol(record)),
                Effect::Timer { at, token } => out.timer(at, token),
                Effect::Output(output) => {
                    commands.extend(self.apply(&output));
                    out.output(output);
                }
            }
        }
        for command in commands {
            self.multicast.step(now, Event::Command(command), inner);
            self.pass_on(now, inner, out);
        }
    }
}

impl Process for Replica {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Kept;
    type Command = Command;
    type Output = Output;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let event = match event {
            Event::Started => Event::Started,
            Event::Message { from, message } => Event::Message { from, message },
            Event::Command(command) => Event::Command(command),
            Event::Timer(token) => Event::Timer(token),
            Event::Restarted(peer) => Event::Restarted(peer),
            Event::Idle => Event::Idle,
        };
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

/// The messages that a message of the protocol is about.
pub fn subjects(message: &Message) -> Vec<MessageId> {
    match message {
        Message::Start(start) => vec![start.id],
        Message::Append { entries, .. } => entries.iter().map(|entry| entry.start.id).collect(),
        Message::Starts(starts) => starts.iter().map(|start| start.id).collect(),
        Message::RemoteAppend { entries, .. } => entries.iter().map(|entry| entry.id).collect(),
        Message::Ready(ids) => ids.clone(),
        Message::Final { id, .. } | Message::Pull(id) => vec![*id],
        Message::Fetched { part, .. } | Message::NewState { part, .. } => {
            part.entries.iter().map(|entry| entry.start.id).collect()
        }
        // These name no message, or (a snapshot) all of the group's past.
        _ => Vec::new(),
    }
}

/// Whether it is of what groups say to each other (some of it also inside a group).
pub fn is_between_groups(message: &Message) -> bool {
    matches!(
        message,
        Message::Start(_)
            | Message::Starts(_)
            | Message::RemoteAppend { .. }
            | Message::RemoteAck { .. }
            | Message::RemoteWanted
            | Message::Stability { .. }
            | Message::Ready(_)
            | Message::Final { .. }
            | Message::Pull(_)
    )
}

/// Groups 0, 1, .. with as many members as `sizes` says; the nodes of group g are 100 g, 100 g + 1, ..
pub fn groups_of(sizes: &[u16]) -> std::collections::BTreeMap<meridian_core::GroupId, Vec<NodeId>> {
    let of = |(group, size): (u16, &u16)| {
        let nodes = (0..*size).map(|node| NodeId(group * 100 + node)).collect();
        (meridian_core::GroupId(group), nodes)
    };
    (0..).zip(sizes).map(of).collect()
}
