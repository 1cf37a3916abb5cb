//! The node has blocks freed that no file names: see [`crate::space`].

use super::{Node, Output, Timer};
use crate::api::{NAMES_MAX, Refusal, Reply, ReplyBody};
use crate::drain;
use crate::replica::Waiter;
use crate::space::{self, Space, Tick};
use meridian_core::{BlockId, Event, Outbox, Time};

impl Node {
    /// What frees the blocks that no file names.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The same with other times, or a bug.
    #[doc(hidden)]
    pub fn with_space(self, space: Space) -> Node {
        Node { space, ..self }
    }

    pub(super) fn on_space_tick(&mut self, now: Time, tick: Tick, out: &mut Outbox<Self>) {
        for output in self.space.on_tick(now, &mut self.replicas) {
            out.output(Output::Space(output));
        }
        out.timer(now + self.space.options().tick, Timer::Space(tick));
    }

    /// A client says that no update will ever name these blocks.
    pub(super) fn on_discard(&mut self, by: Waiter, blocks: Vec<BlockId>, out: &mut Outbox<Self>) {
        let body = if blocks.len() > NAMES_MAX {
            ReplyBody::Refused(Refusal::Bad(format!("more than {NAMES_MAX} blocks at a time")))
        } else {
            let output = self.space.on_discard(&blocks, &self.replicas);
            output.into_iter().for_each(|output| out.output(Output::Space(output)));
            ReplyBody::Discarded
        };
        let reply = Reply { id: by.request, body };
        out.output(Output::Reply { connection: by.connection, reply });
    }

    pub(super) fn on_space(&mut self, now: Time, command: space::Command, out: &mut Outbox<Self>) {
        if let space::Command::Room(Some(room)) = command {
            self.step_drain(now, Event::Command(drain::Command::Room(room)), out);
        }
        let output = self.space.on_command(command, &self.replicas);
        output.into_iter().for_each(|output| out.output(Output::Space(output)));
    }
}
