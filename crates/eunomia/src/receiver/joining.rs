//! How a region joins (decision 88): its shards copy the keys of another region. Then it follows
//! all others, from the first label that they have kept for it. It serves when all has come on
//! which something depends that was copied.

use super::{Output, Receiver};
use crate::message::Message;
use crate::mutation::Mutation;
use crate::regions::{Standing, Word};
use crate::timestamp::Vector;
use meridian_core::{Outbox, RegionId};

impl Receiver {
    /// Whose keys are to be copied now, if any.
    fn source(&self) -> Option<RegionId> {
        match self.regions.standing(self.region) {
            Standing::Copies { from } => Some(*from),
            Standing::Comes { from } if self.mutation.is(Mutation::CopiesTooEarly) => Some(*from),
            _ => None,
        }
    }

    /// Whether sessions may read here, and begin updates.
    pub fn serves(&self) -> (bool, bool) {
        let early = self.serves_early();
        (self.regions.reads(self.region) || early, self.regions.writes(self.region) || early)
    }

    /// What all depends on that was copied, if its region joins and has copied it.
    pub fn copied(&self) -> Option<Vector> {
        let all = |mut all: Vector, seen| {
            all.join(seen);
            all
        };
        let joins = self.regions.joins(self.region) && self.has_copied();
        joins.then(|| self.copied.values().fold(Vector::default(), all))
    }

    /// Whether all shards have copied what is theirs.
    fn has_copied(&self) -> bool {
        self.copied.len() == usize::from(self.topology.shard_count(self.region))
    }

    /// Whether it follows other regions: not before it has copied.
    pub(super) fn follows_others(&self) -> bool {
        match self.regions.standing(self.region) {
            Standing::Serves | Standing::Leaves => self.follows,
            Standing::Comes { .. } | Standing::Copies { .. } => self.follows && self.has_copied(),
            Standing::Absent | Standing::Lost { .. } => false,
            Standing::Settles { .. } | Standing::Gone { .. } => false,
        }
    }

    /// With a planted bug: before it has everything.
    pub(super) fn serves_early(&self) -> bool {
        self.mutation.is(Mutation::ServesBeforeCopy) && self.regions.joins(self.region)
    }

    /// Goes on with the copy.
    pub(super) fn join(&mut self, out: &mut Outbox<Self>) {
        let Some(from) = self.source() else { return };
        for (number, shard) in (0..).zip(self.topology.shards(self.region)) {
            if !self.copied.contains_key(&number) {
                out.send(shard, Message::Copy { from });
            }
        }
    }

    /// Says so when all is here on which something depends that was copied.
    pub(super) fn tell_joined(&self, out: &mut Outbox<Self>) {
        let Some(needed) = self.copied().filter(|_| self.source().is_some()) else { return };
        if self.lacks(&needed, self.region).is_none() {
            out.output(Output::Regions(Word::Copied));
        }
    }
}
