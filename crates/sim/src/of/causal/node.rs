//! A node: the membership of its region's group, and its part of the keys.

use crate::of::eunomia::parts::Parts;
use bytes::Bytes;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, RegionId, Time};
use meridian_eunomia::{self as eunomia, Inbox, Receiver, Replica, Source, Timestamp};
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Epoch, Modified, Modify};
use meridian_keys::causal::{self, Causal, Regions};
use meridian_keys::node::told;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An RMW of this test; it answers what it has found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rmw {
    /// Replaces the value.
    Swap(Bytes),
    /// Sets the value if there is none.
    Create(Bytes),
}

impl Modify for Rmw {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        let answer = found.cloned().unwrap_or_default();
        match self {
            Rmw::Create(_) if found.is_some() => Modified::Keep { answer },
            Rmw::Create(value) | Rmw::Swap(value) => {
                Modified::Change { value: Some(value.clone()), answer }
            }
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Node {
    /// Who is a member of the group.
    pub membership: ReliableMembership,
    /// The keys.
    pub keys: Causal<Rmw>,
    /// The configuration that the keys know.
    version: u64,
}

/// What comes from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A session asks.
    Keys(Box<causal::Command<Rmw>>),
    /// The node hears who should hold keys.
    Configure {
        /// In which version of the cluster's configuration.
        version: u64,
        /// Who in its region.
        nodes: BTreeSet<NodeId>,
        /// Who takes part in all regions.
        regions: Arc<Regions>,
    },
}

/// What nodes say to each other.
#[derive(Clone, Debug)]
pub enum Message {
    /// Of the membership.
    Membership(reliable::Message),
    /// Of the keys.
    Keys(causal::Message),
}

/// What is kept on disk.
#[derive(Clone, Debug)]
pub enum Record {
    /// Of the membership.
    Membership(reliable::Record),
    /// Of the keys.
    Keys(causal::Record),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the membership.
    Membership(reliable::Timer),
    /// Of the keys.
    Keys(causal::Timer),
}

/// What the membership says.
#[derive(Default)]
struct Said(Vec<reliable::Output>);

impl Embedding<ReliableMembership, Node> for Said {
    fn message(&mut self, to: NodeId, message: reliable::Message) -> (NodeId, Message) {
        (to, Message::Membership(message))
    }

    fn record(&mut self, record: reliable::Record) -> Record {
        Record::Membership(record)
    }

    fn timer(&mut self, timer: reliable::Timer) -> Timer {
        Timer::Membership(timer)
    }

    fn output(&mut self, output: reliable::Output, _: &mut Outbox<Node>) {
        self.0.push(output);
    }
}

/// In which epoch the keys have become whole.
#[derive(Default)]
struct Complete(Option<Epoch>);

impl Embedding<Causal<Rmw>, Node> for Complete {
    fn message(&mut self, to: NodeId, message: causal::Message) -> (NodeId, Message) {
        (to, Message::Keys(message))
    }

    fn record(&mut self, record: causal::Record) -> Record {
        Record::Keys(record)
    }

    fn timer(&mut self, timer: causal::Timer) -> Timer {
        Timer::Keys(timer)
    }

    fn output(&mut self, output: causal::Output, out: &mut Outbox<Node>) {
        match output {
            causal::Output::Replica(hermes::Output::Complete { epoch }) => self.0 = Some(epoch),
            output => out.output(output),
        }
    }
}

impl Node {
    /// Of these.
    pub fn new(membership: ReliableMembership, keys: Causal<Rmw>) -> Node {
        Node { membership, keys, version: 0 }
    }

    /// The configuration that the keys know.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Self>) {
        match command {
            Command::Keys(command) => self.step_keys(now, Event::Command(*command), out),
            Command::Configure { version, nodes, regions } => {
                if version > self.version {
                    self.version = version;
                    let configure = causal::Command::Configure(regions);
                    self.step_keys(now, Event::Command(configure), out);
                }
                let may_return = BTreeSet::new();
                let configured = reliable::Configured { version, nodes, may_return };
                let configure = reliable::Command::Configure(configured);
                self.step_membership(now, Event::Command(configure), out);
            }
        }
    }

    fn step_membership(
        &mut self,
        now: Time,
        event: Event<ReliableMembership>,
        out: &mut Outbox<Self>,
    ) {
        let (mut inner, mut said) = (Outbox::new(), Said::default());
        self.membership.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut said);
        for output in said.0 {
            let command = causal::Command::Replica(told(output));
            self.step_keys(now, Event::Command(command), out);
        }
    }

    fn step_keys(&mut self, now: Time, event: Event<Causal<Rmw>>, out: &mut Outbox<Self>) {
        let (mut inner, mut complete) = (Outbox::new(), Complete::default());
        self.keys.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut complete);
        if let Some(epoch) = complete.0 {
            let command = reliable::Command::Complete { epoch };
            self.step_membership(now, Event::Command(command), out);
        }
    }
}

impl Process for Node {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = causal::Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.membership.set_holds(self.keys.replica().holds());
                self.step_keys(now, Event::Started, out);
                self.step_membership(now, Event::Started, out);
            }
            Event::Message { from, message: Message::Membership(message) } => {
                self.step_membership(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Keys(message) } => {
                self.step_keys(now, Event::Message { from, message }, out);
            }
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Timer::Membership(timer)) => {
                self.step_membership(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Keys(timer)) => self.step_keys(now, Event::Timer(timer), out),
            Event::Restarted(peer) => {
                self.step_membership(now, Event::Restarted(peer), out);
                self.step_keys(now, Event::Restarted(peer), out);
            }
            Event::Idle => {
                self.step_membership(now, Event::Idle, out);
                self.step_keys(now, Event::Idle, out);
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Membership(record) => self.membership.replay(record),
            Record::Keys(record) => self.keys.replay(record),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let membership = self.membership.checkpoint().map(Record::Membership);
        Box::new(membership.chain(self.keys.checkpoint().map(Record::Keys)))
    }
}

impl Parts for Node {
    fn at_source(_region: RegionId, number: u16) -> NodeId {
        NodeId(number)
    }

    fn said(message: &Message) -> Option<&eunomia::Message> {
        match message {
            Message::Keys(causal::Message::Eunomia { message, .. }) => Some(message),
            Message::Keys(_) | Message::Membership(_) => None,
        }
    }

    fn applied(output: &causal::Output) -> Option<(RegionId, Timestamp, bool)> {
        match output {
            causal::Output::Applied { origin, ts, changed } => Some((*origin, *ts, *changed)),
            _ => None,
        }
    }

    fn region(&self, _me: NodeId) -> RegionId {
        self.keys.region()
    }

    fn source(&self) -> Option<&Source> {
        Some(self.keys.source())
    }

    fn service(&self) -> Option<&Replica> {
        Some(self.keys.service())
    }

    fn receiver(&self) -> Option<&Receiver> {
        Some(self.keys.receiver())
    }

    fn inbox(&self) -> Option<&Inbox> {
        Some(self.keys.inbox())
    }
}
