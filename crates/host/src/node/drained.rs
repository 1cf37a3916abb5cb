//! The node embeds what gives its blocks to others.

use super::{Message, Node, Output, Record, Timer};
use crate::drain::{self, Drain};
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};

impl Node {
    pub(super) fn step_drain(&mut self, now: Time, event: Event<Drain>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.drain.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Draining);
    }
}

struct Draining;

impl Embedding<Drain, Node> for Draining {
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
        out.output(Output::Drain(output));
    }
}
