//! What nodes say of copies of blocks, in words. A block is named as everywhere.

use crate::trace::Teller;
use crate::words::{first, of_bytes, of_node};
use crate::world::{Happened, Way, What};
use meridian_core::{BlockId, NodeId};
use meridian_host::drain::{Command, Drain, Message, Output, Record, Tick};

/// The names of blocks are long.
const BLOCKS_MAX: usize = 2;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words;

impl Teller<Drain> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, _way: Way<NodeId>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        of_command(command)
    }

    fn record(&self, record: &Record) -> String {
        of_record(record)
    }

    fn output(&self, output: &Output) -> String {
        of_output(output)
    }

    fn timer(&self, timer: Tick) -> String {
        format!("{timer:?}")
    }

    fn about(&mut self, event: &Happened<'_, Drain>) -> Vec<String> {
        let blocks = match (event.said(), event.asked(), event.what) {
            (Some((_, _, message)), ..) => said(message),
            (_, Some(command), _) => asked(command),
            (.., What::Output(output)) => told(output),
            _ => Vec::new(),
        };
        blocks.iter().map(ToString::to_string).collect()
    }
}

/// The first of them, and how many more there are.
pub fn of_blocks(blocks: &[BlockId]) -> String {
    first(BLOCKS_MAX, blocks)
}

/// The blocks that a message is about.
pub fn said(message: &Message) -> Vec<BlockId> {
    match message {
        Message::Which { blocks, .. } | Message::Held { blocks, .. } => blocks.clone(),
        Message::Copy { block, .. }
        | Message::Copied { block, .. }
        | Message::Pass { block, .. }
        | Message::Unread { block } => vec![*block],
    }
}

/// Those that the owner speaks of.
pub fn asked(command: &Command) -> Vec<BlockId> {
    match command {
        Command::Held { blocks, damaged, .. } => [&**blocks, &**damaged].concat(),
        Command::Names { blocks, .. }
        | Command::Live { blocks, .. }
        | Command::Lacking { blocks, .. }
        | Command::Scrubbed { damaged: blocks, .. } => blocks.clone(),
        Command::Damaged(block) | Command::Data { block, .. } | Command::Stored { block, .. } => {
            vec![*block]
        }
        Command::Configured(_)
        | Command::Scrub
        | Command::Room(_)
        | Command::Applied(_)
        | Command::Sealed => Vec::new(),
    }
}

/// Those that the owner is to do something with.
pub fn told(output: &Output) -> Vec<BlockId> {
    match output {
        Output::Which { blocks, .. }
        | Output::Look { blocks, .. }
        | Output::Scrub { blocks, .. }
        | Output::GiveUp(blocks) => blocks.clone(),
        Output::Read { block, .. } | Output::Store { block, .. } => vec![*block],
        Output::List { .. } | Output::Live { .. } | Output::Seal | Output::Drained { .. } => {
            Vec::new()
        }
    }
}

/// What one node says to another.
pub fn of_message(message: &Message) -> String {
    match message {
        Message::Which { number, version, blocks } => {
            format!("Which {number} of version {version}: {}", of_blocks(blocks))
        }
        Message::Held { number, version, blocks } => {
            format!("Held {number} of version {version}: {}", of_blocks(blocks))
        }
        Message::Copy { block, data } => format!("Copy {block}, {}", of_bytes(data.len())),
        Message::Copied { block, stored } => {
            format!("Copied {block}, {}", if *stored { "stored" } else { "not stored" })
        }
        Message::Pass { block, to } => format!("Pass {block} to {}", of_node(*to)),
        Message::Unread { block } => format!("Unread {block}"),
    }
}

/// What the owner, who has the blocks, asks or answers.
pub fn of_command(command: &Command) -> String {
    match command {
        Command::Configured(topology) => format!("hears of configuration {}", topology.version),
        Command::Names { number, blocks } => format!("has, for {number}: {}", of_blocks(blocks)),
        Command::Held { by, number, blocks, damaged, .. } => {
            let (by, damaged) = (of_node(*by), of_blocks(damaged));
            format!("holds, for {number} of {by}: {}; damaged {damaged}", of_blocks(blocks))
        }
        Command::Live { number, blocks } => {
            format!("files lie in, for {number}: {}", of_blocks(blocks))
        }
        Command::Lacking { number, blocks } => {
            format!("does not have, for {number}: {}", of_blocks(blocks))
        }
        Command::Scrubbed { number, bytes, damaged } => {
            format!("has read {bytes} bytes for {number}, damaged {}", of_blocks(damaged))
        }
        Command::Damaged(block) => format!("{block} is damaged"),
        Command::Scrub => "is to read all blocks".into(),
        Command::Room(room) => format!("has {} bytes of room", room.free),
        Command::Applied(updates) => format!("has applied {updates} updates"),
        Command::Data { block, to, data } => {
            let to = to.map(|to| format!(" for {}", of_node(to))).unwrap_or_default();
            let read = data.as_ref().map_or("cannot be read".into(), |data| of_bytes(data.len()));
            format!("{block}{to}: {read}")
        }
        Command::Stored { from, block, stored } => {
            let how = if *stored { "stored" } else { "not stored" };
            format!("{block} of {}: {how}", of_node(*from))
        }
        Command::Sealed => "all that was taken is durable".into(),
    }
}

/// What is written to the log.
pub fn of_record(record: &Record) -> String {
    match record {
        Record::Sealed { since } => format!("sealed for the drain of version {since}"),
        Record::Unsealed => "takes blocks again".into(),
        Record::Scrubbed(None) => "has read all blocks".into(),
        Record::Scrubbed(Some(block)) => format!("has read all blocks up to {block}"),
    }
}

/// What the owner is to do.
pub fn of_output(output: &Output) -> String {
    match output {
        Output::List { number, after } => format!("List {number}{}", of_after(*after)),
        Output::Which { by, number, version, blocks } => {
            let by = of_node(*by);
            format!("Which {number} of {by}, version {version}: {}", of_blocks(blocks))
        }
        Output::Live { number, after, limit } => {
            format!("Live {number}{}, at most {limit}", of_after(*after))
        }
        Output::Look { number, blocks } => format!("Look {number}: {}", of_blocks(blocks)),
        Output::Scrub { number, blocks } => format!("Scrub {number}: {}", of_blocks(blocks)),
        Output::GiveUp(blocks) => format!("GiveUp {}", of_blocks(blocks)),
        Output::Read { block, to } => {
            let to = to.map(|to| format!(" for {}", of_node(to))).unwrap_or_default();
            format!("Read {block}{to}")
        }
        Output::Store { from, block, data } => {
            format!("Store {block} of {}, {}", of_node(*from), of_bytes(data.len()))
        }
        Output::Seal => "Seal".into(),
        Output::Drained { since } => format!("Drained, of version {since}"),
    }
}

/// Where a list of blocks goes on.
pub fn of_after(after: Option<BlockId>) -> String {
    after.map(|block| format!(" after {block}")).unwrap_or_default()
}
