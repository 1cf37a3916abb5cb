//! A process of the multicast as a part of its node.

use super::{Message, Node, Record, Timer};
use meridian_core::{Embedding, GroupId, NodeId, Outbox, ProcessId, Time};
use meridian_multicast::{self as multicast, PrimCast};

/// A process of the multicast, as its node embeds it.
pub(super) struct Member<'a> {
    pub node: &'a mut Node,
    pub now: Time,
    pub group: GroupId,
    /// What the node asks of it in return.
    pub commands: Vec<multicast::Command>,
}

impl Embedding<PrimCast, Node> for Member<'_> {
    fn message(&mut self, to: ProcessId, message: multicast::Message) -> (NodeId, Message) {
        (to.node, Message::Multicast { from: self.group, to: to.group, message })
    }

    fn record(&mut self, record: multicast::Record) -> Record {
        self.node.note_appended(self.now, self.group, &record);
        Record::Multicast { group: self.group, record }
    }

    fn timer(&mut self, timer: multicast::Timer) -> Timer {
        Timer::Multicast(self.group, timer)
    }

    fn output(&mut self, output: multicast::Output, out: &mut Outbox<Node>) {
        let command = self.node.on_output(self.now, self.group, output, Some(out));
        self.commands.extend(command);
    }
}
