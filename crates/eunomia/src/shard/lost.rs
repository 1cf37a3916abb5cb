//! What a shard does with updates of other regions that were applied, as long as one that is lost
//! may leave others without them; and what it says of itself when regions change (decision 88).
//!
//! Invariants:
//! - Who has said what it has applied of a lost region applies nothing more of it but what is
//!   agreed on in that round, or a later one.
//! - What was applied is kept until all other regions have applied it, or it is known to all that
//!   stay what is kept.

use super::{Output, Record, Shard};
use crate::inbox::Name;
use crate::message::{Label, Message, Peer, Role};
use crate::mutation::Mutation;
use crate::regions::{Regions, Standing, Word};
use crate::timestamp::Timestamp;
use meridian_core::{Outbox, RegionId, Time};
use std::sync::Arc;

/// Who is asked for data: its source, or a region that stays where it was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Source(Peer),
    Region { origin: RegionId, holder: RegionId },
}

impl Shard {
    /// Whether something is to be applied that was asked for in this round.
    pub(super) fn passes(&self, origin: RegionId, round: u64) -> bool {
        let fence = self.fences.get(&origin).copied().unwrap_or_default();
        round >= fence || self.mutation.is(Mutation::AppliesOfTheGone)
    }

    /// Nothing more of a lost region is applied from now on, and this is what was.
    pub(super) fn on_seal(
        &mut self,
        receiver: Peer,
        lost: RegionId,
        round: u64,
        out: &mut Outbox<Self>,
    ) {
        let fence = self.fences.entry(lost).or_default();
        if round < *fence {
            return; // It was sent before a later round.
        }
        if round > *fence {
            *fence = round;
            out.persist(Record::Fenced(lost, round));
            if !self.mutation.is(Mutation::AppliesOfTheGone) {
                self.inbox.withdraw(lost);
            }
        }
        let all = self.retained.range((lost, Timestamp::ZERO)..=(lost, Timestamp::NEVER));
        let labels: Vec<Label> = all.map(|(_, update)| update.label).collect();
        out.send(receiver, Message::Sealed { lost, round, labels });
    }

    /// All other regions have applied what was made there up to here.
    pub(super) fn forget(&mut self, origin: RegionId, upto: Timestamp, out: &mut Outbox<Self>) {
        let first = self.retained.range((origin, Timestamp::ZERO)..=(origin, upto)).next();
        if first.is_some() {
            out.note(Record::Forgotten(origin, upto));
            self.drop_retained(origin, upto);
        }
    }

    pub(super) fn drop_retained(&mut self, origin: RegionId, upto: Timestamp) {
        let old = (origin, Timestamp::ZERO)..=(origin, upto);
        self.retained.extract_if(old, |_, _| true).for_each(drop);
        let before = self.forgotten.entry(origin).or_default();
        *before = upto.max(*before);
    }

    /// Asks for data that has not come. What is wanted for the first time may be on its way. Who
    /// is lost is not asked: those that stay are, by turns, until one has it.
    pub(super) fn pull(&mut self, now: Time, out: &mut Outbox<Self>) {
        let stay: Vec<_> =
            self.regions.there().filter(|region| *region != self.me.region).collect();
        let holder = |(origin, ts): Name, times: usize| {
            if self.regions.is_there(origin) || stay.is_empty() {
                return Holder::Source(Peer { region: origin, role: Role::Shard(ts.source()) });
            }
            Holder::Region { origin, holder: stay[times % stay.len()] }
        };
        for (holder, stamps) in self.inbox.missing(now, &self.options, holder) {
            match holder {
                Holder::Source(source) => out.send(source, Message::Pull(stamps)),
                // Keys have other homes there; each shard sends what it has.
                Holder::Region { origin, holder } => {
                    for shard in self.topology.shards(holder) {
                        let stamps = stamps.clone();
                        out.send(shard, Message::Fetch { origin, stamps });
                    }
                }
            }
        }
    }

    /// Another region asks for what was applied here of a lost one.
    pub(super) fn on_fetch(
        &self,
        from: Peer,
        origin: RegionId,
        stamps: &[Timestamp],
        out: &mut Outbox<Self>,
    ) {
        let found: Vec<_> =
            stamps.iter().filter_map(|ts| self.retained.get(&(origin, *ts))).cloned().collect();
        if !found.is_empty() {
            out.send(from, Message::Data(found));
        }
        // Only one that has joined since asks for that: nobody else is left who could tell it.
        let upto = self.forgotten.get(&origin).copied().unwrap_or_default();
        let gone = |ts: &&Timestamp| **ts <= upto && !self.retained.contains_key(&(origin, **ts));
        let stamps: Vec<_> = stamps.iter().filter(gone).copied().collect();
        if !stamps.is_empty() {
            out.send(from, Message::Forgotten { origin, stamps });
        }
    }

    /// These are the regions now.
    pub(super) fn on_regions(&mut self, regions: Arc<Regions>, out: &mut Outbox<Self>) {
        if regions.epoch() > self.regions.epoch() {
            out.persist(Record::Regions((*regions).clone()));
            self.regions = regions;
            self.go_by_regions(out);
        }
        out.output(Output::Regions(Word::Heard(self.regions.epoch())));
        let leaves = *self.regions.standing(self.me.region) == Standing::Leaves;
        if leaves && self.outstanding() == 0 {
            out.output(Output::Regions(Word::Drained));
        }
    }

    /// Nothing is kept of regions that are gone, and nothing copied for one that does not join.
    pub(super) fn go_by_regions(&mut self, out: &mut Outbox<Self>) {
        let regions = self.regions.clone();
        for (number, standing) in (0..).zip(regions.standings()) {
            if matches!(standing, Standing::Gone { .. }) {
                self.inbox.raise_floor(RegionId(number), Timestamp::NEVER);
                self.forget(RegionId(number), Timestamp::NEVER, out);
            }
        }
        if !regions.joins(self.me.region) {
            self.copying = None;
        }
    }

    /// With a planted bug: before it has everything.
    pub(super) fn serves_early(&self) -> bool {
        self.mutation.is(Mutation::ServesBeforeCopy) && self.regions.joins(self.me.region)
    }
}
