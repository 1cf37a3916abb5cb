//! What happens in worlds of whole nodes, in words: what clients ask and are answered, and between
//! nodes the words of the multicast, of the votes of partitions, of copies of blocks, and of the
//! configuration. An update has the name of the message that carries it.

mod clients;
mod tree;

use crate::of::configuration::words as configuration;
use crate::of::drain::words as drain;
use crate::of::multicast::words as multicast;
use crate::of::paxos::words as paxos;
use crate::trace::Teller;
use crate::words::{of_bytes, of_node};
use crate::world::{Happened, Way, What};
use meridian_core::{GroupId, NodeId};
use meridian_host::node::Inheritance;
use meridian_host::{Command, Message, Node, Output, Record, Timer, space};

/// What names of messages are, for the subjects whose processes are nodes.
pub const MESSAGES: &str = "an update by its message, as 7b2f.12, or a block";

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Words {
    multicast: multicast::Words,
}

impl Teller<Node> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, _way: Way<NodeId>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Request { connection, request } => clients::of_request(*connection, request),
            Command::Known { connection, client } => {
                format!("{} is called \"{client}\"", clients::of_client(*connection))
            }
            Command::Closed(connection) => format!("{} is gone", clients::of_client(*connection)),
            Command::Configured(topology) => {
                format!("hears of configuration {}", topology.version)
            }
            Command::Drain(command) => format!("blocks: {}", drain::of_command(command)),
            Command::Space(command) => format!("space: {}", of_answered(command)),
            Command::Configuration(command) => {
                format!("configuration: {}", paxos::of_command(command))
            }
        }
    }

    fn record(&self, record: &Record) -> String {
        of_record(record)
    }

    fn output(&self, output: &Output) -> String {
        match output {
            Output::Reply { connection, reply } => clients::of_reply(*connection, reply),
            Output::InForce { group, number } => {
                format!("configuration {number} of {} is in force", of_group(*group))
            }
            Output::Drain(output) => format!("blocks: {}", drain::of_output(output)),
            Output::Space(output) => format!("space: {}", of_wanted(output)),
            Output::Configuration(output) => {
                format!("configuration: {}", paxos::of_output(output))
            }
        }
    }

    fn timer(&self, timer: Timer) -> String {
        match timer {
            Timer::Multicast(group, timer) => format!("{timer:?} of {}", of_group(group)),
            Timer::Replica(group) => format!("Tick of the replica of {}", of_group(group)),
            Timer::Drain(tick) => format!("{tick:?} of the blocks"),
            Timer::Space(space::Tick) => "Tick of the space".into(),
            Timer::Configuration(timer) => {
                format!("{} of the configuration", configuration::of_timer(timer))
            }
        }
    }

    fn about(&mut self, event: &Happened<'_, Node>) -> Vec<String> {
        if let Some((sent, way, message)) = event.said() {
            return self.said(sent, way, message);
        }
        match (event.asked(), event.what) {
            (Some(command), _) => asked(command),
            (None, What::Record(record)) => recorded(record),
            (None, What::Output(output)) => told(output),
            _ => Vec::new(),
        }
    }
}

impl Words {
    /// The updates and blocks that a message is about.
    fn said(&mut self, sent: bool, way: Way<NodeId>, message: &Message) -> Vec<String> {
        match message {
            Message::Multicast { from, to, message } => {
                let way = Way { from: from.of(way.from), to: to.of(way.to) };
                names(self.multicast.said(sent, way, message))
            }
            Message::Vote { id, .. }
            | Message::VoteSettled { id, .. }
            | Message::VoteWanted { id, .. } => vec![id.to_string()],
            Message::Drain(message) => names(drain::said(message)),
            Message::Configuration(message) => configuration::said(message),
            Message::Begins(_) | Message::VotesWanted { .. } | Message::VotesPart(_) => Vec::new(),
        }
    }
}

fn names<T: ToString>(all: Vec<T>) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn asked(command: &Command) -> Vec<String> {
    match command {
        Command::Request { request, .. } => clients::asked(request),
        Command::Drain(command) => names(drain::asked(command)),
        Command::Space(space::Command::Names { blocks, .. }) => names(blocks.clone()),
        Command::Configuration(command) => paxos::asked(command),
        Command::Space(space::Command::Room(_))
        | Command::Known { .. }
        | Command::Closed(_)
        | Command::Configured(_) => Vec::new(),
    }
}

fn recorded(record: &Record) -> Vec<String> {
    match record {
        Record::Multicast { record, .. } => names(multicast::recorded(record)),
        Record::Vote { id, .. } => vec![id.to_string()],
        Record::Configuration(record) => configuration::recorded(record),
        Record::Drain(_) | Record::VotesReport { .. } | Record::Inherited(_) => Vec::new(),
    }
}

fn told(output: &Output) -> Vec<String> {
    match output {
        Output::Reply { reply, .. } => {
            clients::answered(reply).map(|id| id.to_string()).into_iter().collect()
        }
        Output::Drain(output) => names(drain::told(output)),
        Output::Space(space::Output::Free(blocks)) => names(blocks.clone()),
        Output::Configuration(output) => paxos::told(output),
        Output::Space(space::Output::List { .. } | space::Output::Measure)
        | Output::InForce { .. } => Vec::new(),
    }
}

fn of_group(group: GroupId) -> String {
    format!("g{}", group.0)
}

fn of_message(message: &Message) -> String {
    match message {
        Message::Multicast { from, to, message } => {
            let (from, to) = (of_group(*from), of_group(*to));
            format!("{from} to {to}: {}", multicast::of_message(message))
        }
        Message::Vote { from, to, id, vote } => {
            let (from, to, vote) = (of_group(*from), of_group(*to), tree::of_vote(vote));
            format!("{from} to {to}: Vote for {id}: {vote}")
        }
        Message::VoteSettled { from, to, id } => {
            format!("{} to {}: VoteSettled for {id}", of_group(*from), of_group(*to))
        }
        Message::VoteWanted { by, of, id } => {
            format!("{} to {}: VoteWanted for {id}", of_group(*by), of_group(*of))
        }
        Message::Drain(message) => format!("blocks: {}", drain::of_message(message)),
        Message::Configuration(message) => {
            format!("configuration: {}", configuration::of_message(message))
        }
        Message::Begins(group) => format!("Begins as an heir of {}", of_group(*group)),
        Message::VotesWanted { of, number, by, offset } => {
            let (of, by) = (of_group(*of), of_group(*by));
            format!("VotesWanted of {of}, configuration {number}, by {by}, from byte {offset} on")
        }
        Message::VotesPart(part) => {
            let (of, from, len) = (of_group(part.of), of_group(part.from), part.bytes.len());
            let (offset, total) = (part.offset, part.total);
            format!("VotesPart of {of}, from {from}: byte {offset}, {len} of {total}")
        }
    }
}

fn of_record(record: &Record) -> String {
    match record {
        Record::Multicast { group, record } => {
            format!("{}: {}", of_group(*group), multicast::of_record(record))
        }
        Record::Vote { from, to, id, vote } => {
            let (from, to, vote) = (of_group(*from), of_group(*to), tree::of_vote(vote));
            format!("{to}: vote of {from} for {id}: {vote}")
        }
        Record::Drain(record) => format!("blocks: {}", drain::of_record(record)),
        Record::Configuration(record) => {
            format!("configuration: {}", configuration::of_record(record))
        }
        Record::VotesReport { of, number, by, votes } => {
            let (of, by, len) = (of_group(*of), of_group(*by), of_bytes(votes.len()));
            format!("{by}: report on votes of {of}, configuration {number}, {len}")
        }
        Record::Inherited(Inheritance { fence, votes }) => {
            let config = multicast::of_config(&fence.config);
            format!("begins as an heir with {} votes: {config}", votes.len())
        }
    }
}

/// What frees blocks hears of them.
fn of_answered(command: &space::Command) -> String {
    match command {
        space::Command::Room(None) => "the disk does not say".into(),
        space::Command::Room(Some(room)) => format!("{} bytes of room", room.free),
        space::Command::Names { number, blocks } => {
            format!("has, for {number}: {}", drain::of_blocks(blocks))
        }
    }
}

/// What frees blocks wants done.
fn of_wanted(output: &space::Output) -> String {
    match output {
        space::Output::List { number, after } => {
            format!("List {number}{}", drain::of_after(*after))
        }
        space::Output::Measure => "Measure".into(),
        space::Output::Free(blocks) => format!("Free {}", drain::of_blocks(blocks)),
    }
}
