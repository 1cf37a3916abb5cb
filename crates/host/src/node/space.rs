//! The node has blocks freed that no file names: see [`crate::space`].

use super::{Node, Output, Timer};
use crate::space::{self, Space, Tick};
use meridian_core::{Outbox, Time};

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

    pub(super) fn on_space(&mut self, command: space::Command, out: &mut Outbox<Self>) {
        let output = self.space.on_command(command, &self.replicas);
        output.into_iter().for_each(|output| out.output(Output::Space(output)));
    }
}
