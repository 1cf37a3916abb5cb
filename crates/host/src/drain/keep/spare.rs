//! What others should hold in this node's place is given up when they do.

use super::{Drain, Numbers, Place};
use crate::drain::{Message, Mutation, Output, PAGE, PATIENCE};
use meridian_core::{BlockId, NodeId, Outbox};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sparing {
    /// Up to which block all were looked at in this pass.
    after: Option<BlockId>,
    stage: Stage,
    /// The newest configuration under which another node has asked for copies here.
    promised: u64,
    given_up: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Resting,
    Listing(u64),
    Asking {
        number: u64,
        /// Who should hold each, and has not said so.
        lacking: BTreeMap<BlockId, BTreeSet<NodeId>>,
        waiting: BTreeSet<NodeId>,
        /// How many ticks there were since the question.
        idle: u8,
    },
}

impl Sparing {
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Others are to hold them now than when that was asked.
    pub fn reset(&mut self) {
        (self.after, self.stage) = (None, Stage::Resting);
    }

    /// Another node counts the copies that are here, under that configuration.
    pub fn on_asked(&mut self, version: u64) {
        self.promised = self.promised.max(version);
    }

    /// Whether copies may be given up (C3).
    fn may_give_up(&self, place: &Place) -> bool {
        let careless = place.mutation.is(Mutation::GivesUpPromised);
        let drained = place.topology.draining_in(place.region).next().is_some();
        (self.promised <= place.topology.version && !drained) || careless
    }

    pub fn on_tick(&mut self, place: &Place, numbers: &mut Numbers, out: &mut Outbox<Drain>) {
        if let Stage::Asking { idle, .. } = &mut self.stage {
            *idle = idle.saturating_add(1);
            if *idle > PATIENCE {
                self.stage = Stage::Resting; // In a later pass again.
            }
        }
        if self.stage == Stage::Resting && self.may_give_up(place) {
            let number = numbers.next();
            self.stage = Stage::Listing(number);
            out.output(Output::List { number, after: self.after });
        }
    }

    /// These are here: who should hold those in its place that are not for this node is asked.
    pub fn on_names(
        &mut self,
        place: &Place,
        numbers: &mut Numbers,
        number: u64,
        blocks: &[BlockId],
        out: &mut Outbox<Drain>,
    ) {
        if self.stage != Stage::Listing(number) {
            return;
        }
        self.stage = Stage::Resting;
        self.after = blocks.last().copied().filter(|_| blocks.len() == PAGE);
        let spare = blocks.iter().filter(|block| !place.is_own(**block));
        let holders = |block: &BlockId| place.ring().holders(*block).into_iter().collect();
        let lacking: BTreeMap<_, BTreeSet<_>> =
            spare.map(|block| (*block, holders(block))).collect();
        if lacking.is_empty() {
            return;
        }
        let (number, version) = (numbers.next(), place.topology.version);
        let waiting: BTreeSet<NodeId> = lacking.values().flatten().copied().collect();
        for node in &waiting {
            let of = lacking.iter().filter(|(_, holders)| holders.contains(node));
            let blocks = of.map(|(block, _)| *block).collect();
            out.send(*node, Message::Which { number, version, blocks });
        }
        self.stage = Stage::Asking { number, lacking, waiting, idle: 0 };
        if place.mutation.is(Mutation::GivesUpUnheard) {
            self.give_up(place, out);
        }
    }

    /// Another node holds these, as it says under that configuration (C2).
    pub fn on_held(
        &mut self,
        place: &Place,
        from: NodeId,
        (of, version): (u64, u64),
        blocks: &[BlockId],
        out: &mut Outbox<Drain>,
    ) {
        let Stage::Asking { number, lacking, waiting, .. } = &mut self.stage else { return };
        let careless = place.mutation.is(Mutation::GivesUpPromised);
        if *number != of || !waiting.remove(&from) {
            return;
        }
        if version == place.topology.version || careless {
            for block in blocks {
                if let Some(holders) = lacking.get_mut(block) {
                    holders.remove(&from);
                }
            }
        }
        if waiting.is_empty() {
            self.give_up(place, out);
        }
    }

    /// All have answered: gives up what all hold who should.
    fn give_up(&mut self, place: &Place, out: &mut Outbox<Drain>) {
        let Stage::Asking { lacking, .. } = std::mem::take(&mut self.stage) else { return };
        let unheard = place.mutation.is(Mutation::GivesUpUnheard);
        let held = lacking.into_iter().filter(|(_, holders)| holders.is_empty() || unheard);
        let blocks: Vec<_> = held.map(|(block, _)| block).collect();
        if !blocks.is_empty() && self.may_give_up(place) {
            self.given_up += blocks.len() as u64;
            out.output(Output::GiveUp(blocks));
        }
    }
}
