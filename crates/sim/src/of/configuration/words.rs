//! What the nodes that keep the configuration say and write, in words: those of the report, which
//! its replication has.

use crate::of::paxos::words as paxos;
use crate::trace::Teller;
use crate::words::{of_node, of_nodes};
use crate::world::{Happened, Way, What};
use meridian_core::NodeId;
use meridian_host::configuration::{Command, ConfigurationReplica, Message, Record, Timer};
use meridian_paxos::Output;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words;

impl Teller<ConfigurationReplica> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, _way: Way<NodeId>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Configured(topology) => {
                format!("hears of configuration {}", topology.version)
            }
            Command::Service(command) => paxos::of_command(command),
        }
    }

    fn record(&self, record: &Record) -> String {
        of_record(record)
    }

    fn output(&self, output: &Output) -> String {
        paxos::of_output(output)
    }

    fn timer(&self, timer: Timer) -> String {
        of_timer(timer)
    }

    fn about(&mut self, event: &Happened<'_, ConfigurationReplica>) -> Vec<String> {
        match (event.said(), event.asked(), event.what) {
            (Some((_, _, message)), ..) => said(message),
            (_, Some(Command::Service(command)), _) => paxos::asked(command),
            (.., What::Record(record)) => recorded(record),
            (.., What::Output(output)) => paxos::told(output),
            _ => Vec::new(),
        }
    }
}

/// The instances and requests that a message names.
pub fn said(message: &Message) -> Vec<String> {
    match message {
        Message::Paxos(message) => paxos::said(message),
        Message::Began => Vec::new(),
    }
}

/// Those that a record names.
pub fn recorded(record: &Record) -> Vec<String> {
    match record {
        Record::Paxos(record) => paxos::recorded(record),
        Record::Began { .. } | Record::Ended => Vec::new(),
    }
}

/// What one replica says to another.
pub fn of_message(message: &Message) -> String {
    match message {
        Message::Paxos(message) => paxos::of_message(message),
        Message::Began => "Began".into(),
    }
}

/// What a replica writes to its log.
pub fn of_record(record: &Record) -> String {
    match record {
        Record::Began { since, members } => {
            format!("keeps the configuration since version {since}, with {}", of_nodes(members))
        }
        Record::Paxos(record) => paxos::of_record(record),
        Record::Ended => "keeps the configuration no more".into(),
    }
}

/// What a timer is for.
pub fn of_timer(timer: Timer) -> String {
    match timer {
        Timer::Paxos(timer) => format!("{timer:?} of the replication"),
        Timer::Tick => "Tick".into(),
    }
}
