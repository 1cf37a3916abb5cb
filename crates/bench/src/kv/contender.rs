//! The protocols that are compared: Hermes, CRAQ and ZAB, as the bench sees them.

use bytes::Bytes;
use meridian_baselines::keys;
use meridian_baselines::{Craq, Zab};
use meridian_core::{Key, NodeId, Time, Value};
use meridian_hermes::{
    Acks, Action, Answer, Command, Epoch, Hermes, Membership, Modified, Modify, Options, Output,
    Request,
};
use meridian_runtime::Networked;
use serde::Serialize;

/// A protocol that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Hermes, as servers run it
    Hermes,
    /// Hermes with ACKs to all (O3)
    HermesO3,
    /// CRAQ: a chain
    Craq,
    /// ZAB: a leader; its reads may be old
    Zab,
}

impl Protocol {
    /// Those of the paper's figures.
    pub const OF_THE_PAPER: [Protocol; 3] = [Protocol::Hermes, Protocol::Craq, Protocol::Zab];

    /// What it is called in figures.
    pub fn title(self) -> &'static str {
        match self {
            Protocol::Hermes => "Hermes",
            Protocol::HermesO3 => "Hermes, O3",
            Protocol::Craq => "CRAQ",
            Protocol::Zab => "ZAB",
        }
    }
}

/// How the bench asks a protocol.
pub trait Contender: Networked<Peer = NodeId> + Send {
    /// What it must be told first.
    fn begin(nodes: &[NodeId]) -> Vec<Self::Command>;

    /// Reads from local memory, if that answers; the length of the value.
    fn read_here(&self, now: Time, key: &Bytes) -> Option<usize>;

    /// To read through the protocol.
    fn read(token: u64, key: Bytes) -> Self::Command;

    /// To write.
    fn write(token: u64, key: Bytes, value: Bytes) -> Self::Command;

    /// Which question is answered; an error tells why there is no answer.
    fn answered(output: Self::Output) -> Option<Result<u64, String>>;

    /// What is held, in any order.
    fn held(&self) -> impl Iterator<Item = (&Key, Option<&Value>)>;
}

/// There are no RMWs in this bench: the baselines have none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NoRmw {}

impl Modify for NoRmw {
    fn modify(&self, _: Option<&Bytes>) -> Modified {
        match *self {}
    }
}

/// A replica of Hermes.
pub type Replica = Hermes<NoRmw>;

/// Hermes, of a node with a number that no other has.
pub fn hermes(me: NodeId, acks: Acks) -> Replica {
    Replica::new(me, Options { acks, ..Options::default() }, u64::from(me.0) + 1)
}

impl Contender for Replica {
    /// All are members, with leases that do not end: the baselines have no membership either.
    fn begin(nodes: &[NodeId]) -> Vec<Command<NoRmw>> {
        let live = nodes.iter().copied().collect();
        let membership = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
        vec![Command::Install(membership), Command::Lease { until: Time(u64::MAX) }]
    }

    fn read_here(&self, now: Time, key: &Bytes) -> Option<usize> {
        self.read(now, key).map(|value| value.map_or(0, |value| value.len()))
    }

    fn read(token: u64, key: Bytes) -> Command<NoRmw> {
        Command::Read { token, key }
    }

    fn write(token: u64, key: Bytes, value: Bytes) -> Command<NoRmw> {
        Command::Update(Request { token, key, id: None, action: Action::Write(Some(value)) })
    }

    fn answered(output: Output) -> Option<Result<u64, String>> {
        match output {
            Output::Answer { token, answer: Answer::Value { .. } | Answer::Written } => {
                Some(Ok(token))
            }
            Output::Answer { answer, .. } => Some(Err(format!("Hermes answers {answer:?}"))),
            Output::Complete { .. } | Output::Watching | Output::Committed { .. } => None,
        }
    }

    fn held(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.entries().map(|(key, _, value, _)| (key, value))
    }
}

impl Contender for Craq {
    fn begin(_: &[NodeId]) -> Vec<keys::Command> {
        Vec::new()
    }

    fn read_here(&self, _: Time, key: &Bytes) -> Option<usize> {
        self.read(key).map(|value| value.map_or(0, |value| value.len()))
    }

    fn read(token: u64, key: Bytes) -> keys::Command {
        keys::Command::Read { token, key }
    }

    fn write(token: u64, key: Bytes, value: Bytes) -> keys::Command {
        keys::Command::Write { token, key, value }
    }

    fn answered(output: keys::Answered) -> Option<Result<u64, String>> {
        Some(Ok(output.token))
    }

    fn held(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.entries().map(|(key, _, value)| (key, value))
    }
}

impl Contender for Zab {
    fn begin(_: &[NodeId]) -> Vec<keys::Command> {
        Vec::new()
    }

    fn read_here(&self, _: Time, key: &Bytes) -> Option<usize> {
        Some(self.read(key).map_or(0, |value| value.len()))
    }

    fn read(token: u64, key: Bytes) -> keys::Command {
        keys::Command::Read { token, key }
    }

    fn write(token: u64, key: Bytes, value: Bytes) -> keys::Command {
        keys::Command::Write { token, key, value }
    }

    fn answered(output: keys::Answered) -> Option<Result<u64, String>> {
        Some(Ok(output.token))
    }

    fn held(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.entries().map(|(key, _, value)| (key, value))
    }
}
