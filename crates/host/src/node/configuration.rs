//! The node embeds its replica of the configuration, if it keeps that.

use super::{Message, Node, Output, Record, Timer};
use crate::configuration::{self, ConfigurationReplica};
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_paxos as paxos;

impl Node {
    pub(super) fn step_configuration(
        &mut self,
        now: Time,
        event: Event<ConfigurationReplica>,
        out: &mut Outbox<Self>,
    ) {
        let mut inner = Outbox::new();
        self.configuration.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Keeping);
    }
}

struct Keeping;

impl Embedding<ConfigurationReplica, Node> for Keeping {
    fn message(&mut self, to: NodeId, message: configuration::Message) -> (NodeId, Message) {
        (to, Message::Configuration(message))
    }

    fn record(&mut self, record: configuration::Record) -> Record {
        Record::Configuration(record)
    }

    fn timer(&mut self, timer: configuration::Timer) -> Timer {
        Timer::Configuration(timer)
    }

    fn output(&mut self, output: paxos::Output, out: &mut Outbox<Node>) {
        out.output(Output::Configuration(output));
    }
}
