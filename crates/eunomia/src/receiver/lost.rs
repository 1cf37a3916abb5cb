//! What a receiver does when a region is lost (decision 88): it has its shards apply nothing more,
//! says what they have, and has applied what is kept.
//!
//! Invariants:
//! - Between its report and what is agreed on in that round nothing of a lost region is applied.
//! - A session goes on only if all is kept that it may have seen of lost regions.

use super::{Output, Progress, Receiver, Record, Waiting, others_of};
use crate::message::{Label, Message};
use crate::mutation::Mutation;
use crate::regions::{Kept, Refusal, Regions, Report, Standing, Word};
use crate::timestamp::{Timestamp, Vector};
use meridian_core::{Outbox, RegionId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What shards have said of a lost region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sealing {
    round: u64,
    /// By shard, what it has applied and others may lack.
    answers: BTreeMap<u16, Vec<Label>>,
}

impl Receiver {
    /// The same that is told by its owner what is kept of a lost region
    /// ([`Command::Keep`](super::Command::Keep)): its reports name nothing that was applied.
    pub fn without_kept(self) -> Receiver {
        Receiver { told_kept: Some(BTreeMap::new()), ..self }
    }

    /// Up to where all other regions have applied all of a region, as far as it has heard.
    pub fn everywhere(&self, origin: RegionId) -> Timestamp {
        self.origins.get(&origin).map_or(Timestamp::ZERO, |origin| origin.everywhere)
    }

    /// Site times as a checkpoint has them. Those of a lost region are from before it was lost:
    /// after that what is dropped counts as applied, too.
    pub(super) fn recorded(&self) -> impl Iterator<Item = Record> + '_ {
        self.origins.iter().filter_map(|(region, known)| {
            let upto = match self.regions.standing(*region) {
                Standing::Absent | Standing::Gone { .. } => return None,
                Standing::Lost { .. } | Standing::Settles { .. } => known.durable,
                _ => self.site_time[*region],
            };
            Some(Record::SiteTime { origin: *region, upto })
        })
    }

    /// Whether nothing that a region sends counts any more.
    pub(super) fn is_sealed(&self, region: RegionId) -> bool {
        !self.regions.is_there(region) && !self.goes_on_with(region)
    }

    /// Whether nothing of a region is to be applied: it is lost, and what is kept is not known.
    pub fn is_silenced(&self, region: RegionId) -> bool {
        let is_lost = matches!(self.regions.standing(region), Standing::Lost { .. });
        (is_lost || self.awaits_kept(region)) && !self.goes_on_with(region)
    }

    /// Whether its owner has to say yet what is kept of a region.
    pub fn awaits_kept(&self, region: RegionId) -> bool {
        let Standing::Settles { round, .. } = self.regions.standing(region) else { return false };
        self.told_kept.as_ref().is_some_and(|told| told.get(&region) != Some(round))
    }

    /// With a planted bug.
    fn goes_on_with(&self, region: RegionId) -> bool {
        self.mutation.is(Mutation::AppliesOfTheGone) && self.sealing.contains_key(&region)
    }

    /// Whether it follows a region.
    pub(super) fn follows_region(&self, region: RegionId) -> bool {
        self.follows_others() && (self.regions.is_there(region) || self.goes_on_with(region))
    }

    /// With which round shards are asked to apply what a region has made; `None` if they are not.
    pub(super) fn round(&self, region: RegionId) -> Option<u64> {
        match self.regions.standing(region) {
            Standing::Lost { .. } => self.goes_on_with(region).then_some(0),
            Standing::Settles { .. } if self.awaits_kept(region) => None,
            Standing::Settles { round, .. } => Some(*round),
            Standing::Gone { .. } => Some(u64::MAX),
            Standing::Absent | Standing::Comes { .. } | Standing::Copies { .. } => Some(0),
            Standing::Serves | Standing::Leaves => Some(0),
        }
    }

    /// All that was made in another region up to here is applied in this one, for good: as its
    /// other receivers say, or the other region itself, which was told.
    pub(super) fn learn(
        &mut self,
        now: Time,
        from: RegionId,
        upto: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        if self.is_sealed(from) {
            return; // What is dropped counts as applied there, and nobody vouches for it.
        }
        let Some(origin) = self.origins.get_mut(&from) else { return };
        if upto <= self.site_time[from] {
            return;
        }
        origin.received = origin.received.max(upto);
        let known = origin.queue.partition_point(|(label, _)| label.ts <= upto);
        if let Some((last, _)) = origin.queue.drain(..known).next_back() {
            origin.made = origin.made.max(last.ts);
        }
        self.site_time[from] = upto;
        self.advance(from, now, out);
    }

    /// All other regions have applied all of a region up to here.
    pub(super) fn on_everywhere(&mut self, region: RegionId, everywhere: Timestamp) {
        if !self.regions.is_there(region) {
            return;
        }
        if let Some(origin) = self.origins.get_mut(&region) {
            origin.everywhere = origin.everywhere.max(everywhere);
        }
    }

    /// These are the regions now.
    pub(super) fn on_regions(&mut self, now: Time, regions: Arc<Regions>, out: &mut Outbox<Self>) {
        if regions.epoch() > self.regions.epoch() {
            out.persist(Record::Regions((*regions).clone()));
            self.regions = regions;
            self.go_by_regions(now, out);
        }
        out.output(Output::Regions(Word::Heard(self.regions.epoch())));
        self.tell_joined(out);
        self.tell_of_the_lost(out);
    }

    /// Does what the standing of each region asks for, if that was not done.
    pub(super) fn go_by_regions(&mut self, now: Time, out: &mut Outbox<Self>) {
        let regions = self.regions.clone();
        for region in self.topology.others(self.region) {
            match regions.standing(region) {
                Standing::Lost { round } => self.seal(region, *round, out),
                // What its owner has told is begun when it is told.
                Standing::Settles { .. } if self.told_kept.is_some() => {}
                Standing::Settles { round, kept } => self.settle(now, region, *round, kept, out),
                Standing::Gone { .. } => self.end(now, region, out),
                Standing::Absent | Standing::Comes { .. } | Standing::Copies { .. } => {}
                Standing::Serves | Standing::Leaves => {}
            }
        }
        let sessions: Vec<_> = self.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|token| self.go_on(token, out));
    }

    fn seal(&mut self, lost: RegionId, round: u64, out: &mut Outbox<Self>) {
        let sealing = self.sealing.entry(lost).or_default();
        if sealing.round < round {
            *sealing = Sealing { round, answers: BTreeMap::new() };
            self.seal_again(out);
        }
    }

    /// Tells shards that have not answered.
    pub(super) fn seal_again(&mut self, out: &mut Outbox<Self>) {
        for (lost, Sealing { round, answers }) in &self.sealing {
            if !matches!(self.regions.standing(*lost), Standing::Lost { .. }) {
                continue;
            }
            for (number, shard) in (0..).zip(self.topology.shards(self.region)) {
                if !answers.contains_key(&number) {
                    out.send(shard, Message::Seal { lost: *lost, round: *round });
                }
            }
        }
    }

    pub(super) fn on_sealed(
        &mut self,
        number: u16,
        lost: RegionId,
        round: u64,
        labels: Vec<Label>,
    ) {
        if let Some(sealing) = self.sealing.get_mut(&lost).filter(|known| known.round == round) {
            sealing.answers.insert(number, labels);
        }
    }

    /// Its owner knows what is kept of a lost region.
    pub(super) fn on_keep(
        &mut self,
        now: Time,
        (lost, round): (RegionId, u64),
        labels: Vec<Label>,
        out: &mut Outbox<Self>,
    ) {
        let Standing::Settles { round: asked, kept } = self.regions.standing(lost) else { return };
        if *asked != round || !self.awaits_kept(lost) {
            return; // Of a round that a further loss has ended, or told before.
        }
        let kept = Kept { upto: kept.upto, labels };
        if let Some(told) = &mut self.told_kept {
            told.insert(lost, round);
        }
        self.settle(now, lost, round, &kept, out);
    }

    /// All other updates of a lost region than these are dropped.
    fn settle(
        &mut self,
        now: Time,
        lost: RegionId,
        round: u64,
        kept: &Kept,
        out: &mut Outbox<Self>,
    ) {
        self.sealing.insert(lost, Sealing { round, answers: BTreeMap::new() });
        let site_time = self.site_time[lost];
        let new = kept.labels.iter().filter(|label| label.ts > site_time);
        let labels: Vec<_> = match self.mutation.is(Mutation::DropsTheGone) {
            true => Vec::new(),
            false => new.copied().collect(),
        };
        let Some(origin) = self.origins.get_mut(&lost) else { return };
        let last = labels.last().map_or(Timestamp::ZERO, |label| label.ts);
        origin.known = Some(kept.upto);
        origin.received = kept.upto.max(last).max(site_time);
        origin.queue = labels.iter().map(|label| (*label, Progress::Waits)).collect();
        self.drop_waiting(lost);
        labels.iter().for_each(|label| self.begin(lost, label, now));
        self.advance(lost, now, out);
    }

    /// A region is gone, and all that was kept of it is applied.
    fn end(&mut self, now: Time, gone: RegionId, out: &mut Outbox<Self>) {
        self.sealing.remove(&gone);
        let Some(origin) = self.origins.get_mut(&gone) else { return };
        origin.queue.clear();
        (origin.received, origin.everywhere) = (Timestamp::NEVER, Timestamp::NEVER);
        self.drop_waiting(gone);
        self.advance(gone, now, out);
    }

    /// Updates of that region do not wait any more.
    fn drop_waiting(&mut self, region: RegionId) {
        self.waiting.retain(|(_, _, waiting)| match waiting {
            Waiting::Update(origin, _) => *origin != region,
            Waiting::Session(_) => true,
        });
    }

    /// What its region has of lost ones, and whether it has all that is kept.
    fn tell_of_the_lost(&self, out: &mut Outbox<Self>) {
        for (lost, sealing) in &self.sealing {
            let (lost, round) = (*lost, sealing.round);
            let Some(origin) = self.origins.get(&lost) else { continue };
            match self.regions.standing(lost) {
                Standing::Lost { .. } if self.is_answered(sealing) => {
                    let report = self.report(lost, sealing);
                    out.output(Output::Regions(Word::Sealed { lost, round, report }));
                }
                Standing::Settles { .. } if origin.queue.is_empty() && !self.awaits_kept(lost) => {
                    out.output(Output::Regions(Word::Settled { lost, round }));
                }
                _ => {} // Not yet.
            }
        }
    }

    fn is_answered(&self, sealing: &Sealing) -> bool {
        sealing.answers.len() == usize::from(self.topology.shard_count(self.region))
    }

    fn report(&self, lost: RegionId, sealing: &Sealing) -> Report {
        let mut applied: Vec<_> = sealing.answers.values().flatten().copied().collect();
        applied.sort_unstable_by_key(|label| label.ts);
        let has = |ts: Timestamp| applied.binary_search_by_key(&ts, |label| label.ts).is_ok();
        let origin = &self.origins[&lost];
        let waits = |(label, progress): &(Label, Progress)| {
            (*progress != Progress::Done && !has(label.ts)).then_some(label.ts)
        };
        // The first one tells enough where it is not said what was applied.
        let most = if self.told_kept.is_some() { 1 } else { usize::MAX };
        let waiting = origin.queue.iter().filter_map(waits).take(most).collect();
        Report { known: origin.known.unwrap_or(origin.received), waiting, applied }
    }

    /// Why a session that has seen this cannot go on here, if so.
    pub(super) fn refusal(&self, seen: &Vector) -> Option<Refusal> {
        if !self.regions.reads(self.region) && !self.serves_early() {
            return Some(Refusal::NotServing);
        }
        let passes = self.mutation.is(Mutation::MovesPastTheDropped);
        let dropped = |other: &RegionId| match self.regions.standing(*other) {
            Standing::Gone { kept } => seen[*other] > *kept && !passes,
            _ => false,
        };
        others_of(self.region).find(dropped).map(Refusal::Dropped)
    }

    /// What a session has seen of a lost region of which not all is kept, before that is settled.
    pub(super) fn may_be_dropped(&self, seen: &Vector) -> Option<(RegionId, Timestamp)> {
        let open = |other: &RegionId| match self.regions.standing(*other) {
            Standing::Settles { kept, .. } => seen[*other] > kept.upto,
            _ => false,
        };
        others_of(self.region).find(open).map(|other| (other, seen[other]))
    }
}
