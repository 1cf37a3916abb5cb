//! Which blocks should be here and are not: the names of all that the ring gives to this node are
//! looked up, again and again. Nothing is read.

use super::{Drain, Numbers, Place};
use crate::drain::{Mutation, Output};
use meridian_core::{BlockId, Outbox};

/// So many names are looked at with each tick: some milliseconds' work, and a million blocks in
/// twenty minutes.
const NAMES: usize = 1024;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Looking {
    /// Up to which block all were looked at in this pass.
    after: Option<BlockId>,
    asked: Option<u64>,
    /// No names come after those that are looked at.
    is_last: bool,
    /// So many passes have ended.
    pass: u64,
    /// In this pass.
    counted: Counted,
    /// In the last pass, less what was repaired since.
    last: Counted,
    /// A pass has ended, and nobody was told.
    has_ended: bool,
}

/// How many names there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Counted {
    /// Of blocks that files of this node's partitions lie in.
    pub live: u64,
    /// Of those that the ring gives to this node.
    pub own: u64,
    /// Of those of them that are not here.
    pub missing: u64,
}

impl Looking {
    pub fn counted(&self) -> Counted {
        let Counted { live, own, missing } = self.last;
        Counted { live: live.max(self.counted.live), own: own.max(self.counted.own), missing }
    }

    pub fn pass(&self) -> u64 {
        self.pass
    }

    pub fn has_asked(&self, number: u64) -> bool {
        self.asked == Some(number)
    }

    pub fn on_tick(&mut self, place: &Place, numbers: &mut Numbers, out: &mut Outbox<Drain>) {
        if self.asked.is_none() && !place.mutation.is(Mutation::NeverLooks) {
            let number = numbers.next();
            self.asked = Some(number);
            out.output(Output::Live { number, after: self.after, limit: NAMES });
        }
    }

    /// These files lie in: whether those of this node are here is asked of the owner.
    pub fn on_live(&mut self, place: &Place, mut blocks: Vec<BlockId>, out: &mut Outbox<Drain>) {
        let Some(number) = self.asked else { return };
        self.is_last = blocks.len() < NAMES;
        self.after = blocks.last().copied();
        self.counted.live += blocks.len() as u64;
        blocks.retain(|block| place.is_own(*block));
        self.counted.own += blocks.len() as u64;
        match blocks.is_empty() {
            true => self.end_page(),
            false => out.output(Output::Look { number, blocks }),
        }
    }

    /// These are not here.
    pub fn on_lacking(&mut self, blocks: Vec<BlockId>) -> Vec<BlockId> {
        self.counted.missing += blocks.len() as u64;
        self.last.missing = self.last.missing.max(self.counted.missing);
        self.end_page();
        blocks
    }

    fn end_page(&mut self) {
        self.asked = None;
        if self.is_last {
            self.last = std::mem::take(&mut self.counted);
            (self.after, self.pass, self.has_ended) = (None, self.pass + 1, true);
        }
    }

    /// Whether a pass has ended since this was asked.
    pub fn take_end(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    /// A block that was missing is here.
    pub fn on_repaired(&mut self) {
        self.last.missing = self.last.missing.saturating_sub(1);
        self.counted.missing = self.counted.missing.min(self.last.missing);
    }
}
