//! The node embeds what copies blocks to others and from them: see [`crate::drain`].

use super::{Message, Node, Output, Record, Timer};
use crate::drain::keep::Options;
use crate::drain::{self, Command, Drain, Tick};
use meridian_core::{BlockId, Embedding, Event, NodeId, Outbox, Process, Time};

impl Node {
    /// The same, which copies blocks in another way.
    #[doc(hidden)]
    pub fn with_drain(self, drain: Drain) -> Node {
        Node { drain, ..self }
    }

    /// The same, which looks after copies that fast.
    pub fn with_copy_options(self, options: Options) -> Node {
        Node { drain: self.drain.with_options(options), ..self }
    }

    pub(super) fn step_drain(&mut self, now: Time, event: Event<Drain>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.drain.step(now, event, &mut inner);
        let mut copying = Copying { asked: Vec::new() };
        out.absorb(&mut inner, &mut copying);
        for (number, after, limit) in copying.asked {
            let blocks = self.live_blocks(after, limit);
            self.step_drain(now, Event::Command(Command::Live { number, blocks }), out);
        }
    }

    /// Time has passed; before, what copies blocks is told how many updates clients have made.
    pub(super) fn on_drain_tick(&mut self, now: Time, tick: Tick, out: &mut Outbox<Self>) {
        if tick == Tick::Look {
            let applied = self.replicas.values().map(|replica| replica.partition().applied().0);
            self.step_drain(now, Event::Command(Command::Applied(applied.sum())), out);
        }
        self.step_drain(now, Event::Timer(tick), out);
    }

    /// The blocks after `after` that files lie in of the partitions that are here. The name of a
    /// block begins with its partition.
    fn live_blocks(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        let first = after.map(BlockId::partition);
        for (group, replica) in &self.replicas {
            if first.is_none_or(|first| *group >= first) && blocks.len() < limit {
                blocks.extend(replica.partition().named_after(after, limit - blocks.len()));
            }
        }
        blocks
    }
}

/// What comes of a step, and which names of blocks were asked for.
struct Copying {
    asked: Vec<(u64, Option<BlockId>, usize)>,
}

impl Embedding<Drain, Node> for Copying {
    fn message(&mut self, to: NodeId, message: drain::Message) -> (NodeId, Message) {
        (to, Message::Drain(message))
    }

    fn record(&mut self, record: drain::Record) -> Record {
        Record::Drain(record)
    }

    fn timer(&mut self, tick: drain::Tick) -> Timer {
        Timer::Drain(tick)
    }

    fn output(&mut self, output: drain::Output, out: &mut Outbox<Node>) {
        match output {
            drain::Output::Live { number, after, limit } => self.asked.push((number, after, limit)),
            output => out.output(Output::Drain(output)),
        }
    }
}
