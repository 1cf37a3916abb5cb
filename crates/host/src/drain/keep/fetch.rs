//! What is missing or damaged is asked of the nodes that may have it, one after the other.

use super::{Drain, Place};
use crate::drain::{Message, PATIENCE};
use meridian_core::{BlockId, NodeId, Outbox};
use std::collections::{BTreeMap, VecDeque};

/// So many blocks are remembered that are to be fetched. The others are found in a later pass.
const WANTED_MAX: usize = 4096;
/// After so many tries a block that nobody can give is asked for with each 64th pass only.
const TRIES_MAX: u32 = 6;

/// Why a block is to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    Missing,
    Damaged,
}

/// A block that is to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wanted {
    why: Why,
    /// The last pass in which a file lay in it.
    seen: u64,
    /// How often nobody could give it.
    tries: u32,
}

/// A block that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    /// Who is asked next, in order.
    others: VecDeque<NodeId>,
    /// Who is asked; nobody while it is being stored.
    asked: Option<NodeId>,
    /// How many ticks there were since something happened.
    idle: u8,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fetching {
    wanted: BTreeMap<BlockId, Wanted>,
    queue: VecDeque<BlockId>,
    ways: BTreeMap<BlockId, Way>,
    repaired: u64,
}

impl Fetching {
    /// How many are missing, at least so many, and how many are damaged.
    pub fn wanted(&self, missing: u64) -> (u64, u64) {
        let damaged = self.wanted.values().filter(|wanted| wanted.why == Why::Damaged).count();
        (missing.max((self.wanted.len() - damaged) as u64), damaged as u64)
    }

    pub fn under_way(&self) -> u64 {
        self.ways.len() as u64
    }

    pub fn unfound(&self) -> u64 {
        self.wanted.values().filter(|wanted| wanted.tries > 0).count() as u64
    }

    pub fn repaired(&self) -> u64 {
        self.repaired
    }

    /// The block is not here, or not whole. What was found in a pass stays until the end of the
    /// next.
    pub fn want(&mut self, block: BlockId, why: Why, pass: u64) {
        if let Some(wanted) = self.wanted.get_mut(&block) {
            (wanted.why, wanted.seen) = (why, pass + 1);
        } else if self.wanted.len() < WANTED_MAX {
            self.wanted.insert(block, Wanted { why, seen: pass + 1, tries: 0 });
            self.queue.push_back(block);
        }
    }

    /// Files lie in these.
    pub fn seen(&mut self, pass: u64, blocks: &[BlockId]) {
        if !self.wanted.is_empty() {
            for block in blocks {
                if let Some(wanted) = self.wanted.get_mut(block) {
                    wanted.seen = wanted.seen.max(pass + 1);
                }
            }
        }
    }

    /// So many passes have ended: what no file lies in any more is forgotten, and what nobody could
    /// give is asked for again.
    pub fn on_looked(&mut self, passes: u64) {
        self.wanted.retain(|_, wanted| wanted.seen >= passes);
        let is_due = |wanted: &Wanted| passes.is_multiple_of(1 << wanted.tries.min(TRIES_MAX));
        let is_idle = |block: &BlockId| !self.ways.contains_key(block);
        let due = self.wanted.iter().filter(|(block, wanted)| is_idle(block) && is_due(wanted));
        self.queue = due.map(|(block, _)| *block).collect();
    }

    /// The node is to go: it needs no copies.
    pub fn stop(&mut self) {
        (self.wanted, self.ways) = (BTreeMap::new(), BTreeMap::new());
        self.queue.clear();
    }

    /// Whether something is to be asked for, or on its way.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty() || !self.ways.is_empty()
    }

    /// Begins to ask for as many as may be under way.
    pub fn go_on(&mut self, place: &Place, most: usize, out: &mut Outbox<Drain>) {
        while self.ways.len() < most
            && let Some(block) = self.queue.pop_front()
        {
            if self.wanted.contains_key(&block) && !self.ways.contains_key(&block) {
                let way = Way { others: place.others(block), asked: None, idle: 0 };
                self.ways.insert(block, way);
                self.ask_next(place, block, out);
            }
        }
    }

    /// Asks the next node, or gives up for now.
    fn ask_next(&mut self, place: &Place, block: BlockId, out: &mut Outbox<Drain>) {
        let Some(way) = self.ways.get_mut(&block) else { return };
        (way.asked, way.idle) = (way.others.pop_front(), 0);
        match way.asked {
            Some(node) => out.send(node, Message::Pass { block, to: place.me }),
            None => {
                self.ways.remove(&block);
                if let Some(wanted) = self.wanted.get_mut(&block) {
                    wanted.tries += 1;
                }
            }
        }
    }

    pub fn on_unread(
        &mut self,
        place: &Place,
        from: NodeId,
        block: BlockId,
        out: &mut Outbox<Drain>,
    ) {
        if self.ways.get(&block).is_some_and(|way| way.asked == Some(from)) {
            self.ask_next(place, block, out);
        }
    }

    /// A node sends a block; whether it was asked for.
    pub fn on_copy(&mut self, block: BlockId) -> bool {
        let Some(way) = self.ways.get_mut(&block) else { return false };
        (way.asked, way.idle) = (None, 0);
        true
    }

    /// A block is here, or could not be stored; whether it was missing.
    pub fn on_stored(&mut self, block: BlockId, stored: bool) -> bool {
        self.ways.remove(&block);
        if !stored {
            return false; // It is asked for again with the next pass.
        }
        let Some(wanted) = self.wanted.remove(&block) else { return false };
        self.repaired += 1;
        wanted.why == Why::Missing
    }

    /// Who does not answer for too long is passed over, and so is a disk that does not store.
    pub fn on_tick(&mut self, place: &Place, out: &mut Outbox<Drain>) {
        let mut late = Vec::new();
        for (block, way) in &mut self.ways {
            way.idle = way.idle.saturating_add(1);
            if way.idle > PATIENCE {
                late.push(*block);
            }
        }
        late.into_iter().for_each(|block| self.ask_next(place, block, out));
    }

    /// What was asked of `peer` may be lost.
    pub fn on_restarted(&mut self, place: &Place, peer: NodeId, out: &mut Outbox<Drain>) {
        let asked = self.ways.iter().filter(|(_, way)| way.asked == Some(peer));
        let lost: Vec<_> = asked.map(|(block, _)| *block).collect();
        lost.into_iter().for_each(|block| self.ask_next(place, block, out));
    }
}
