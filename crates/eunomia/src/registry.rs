//! Who decides which regions there are (decision 88): one value, as part of a replicated
//! configuration. It tells each process of each epoch until that has answered, and hears its words.
//! Which processes there are it is told, as they may come and go. Where one node has all parts of
//! what a region has, it is one of them, and speaks for all its parts.
//!
//! Invariants:
//! - A region copies only when all processes that are there count it: so what is missing in the
//!   copy is kept for it.
//! - All that stay apply the same of a region that was lost; one that is lost before they have done
//!   so is asked nothing, and all others are asked again.

use crate::message::{Peer, Role};
use crate::mutation::Mutation;
use crate::regions::{Kept, Regions, Report, Standing, Word};
use crate::timestamp::Timestamp;
use meridian_core::RegionId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why regions are not changed as somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Numbers of regions are used once.
    #[error("region {} was there before: a region that joins takes a number not used yet", .0.0)]
    Known(RegionId),
    /// Only who serves can be copied, or leave.
    #[error("region {} does not serve", .0.0)]
    NotServing(RegionId),
    /// Nobody else has all keys.
    #[error("region {} is the last that serves", .0.0)]
    Last(RegionId),
    /// What is kept of a lost one is not agreed on yet.
    #[error("a lost region is being removed: wait until it is gone")]
    Removing,
}

/// Which regions there are, and what is known of how far they are. It can be written down as text
/// in which the keys of maps are words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Registry {
    /// All processes.
    peers: BTreeSet<Peer>,
    regions: Arc<Regions>,
    /// Who goes by which epoch.
    #[serde(with = "pairs")]
    heard: BTreeMap<Peer, u64>,
    /// Regions that join and have everything.
    copied: BTreeSet<RegionId>,
    /// Shards of regions that leave.
    drained: BTreeSet<Peer>,
    /// What is said of a lost region in its round, and by whom.
    #[serde(with = "pairs")]
    reports: BTreeMap<(RegionId, RegionId), Report>,
    settled: BTreeSet<(RegionId, RegionId)>,
    /// Each process speaks of lost regions for itself, and not one for its region.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    each_speaks: bool,
    /// Where each does: who applies nothing more of a lost region, and who has all that is kept.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    sealed: BTreeSet<(RegionId, Peer)>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    ended: BTreeSet<(RegionId, Peer)>,
    #[serde(skip)]
    mutation: Mutation,
}

/// A map as a list of pairs.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs: Vec<(K, V)> = Vec::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

impl Registry {
    /// These processes and regions are there first.
    pub fn new(peers: impl IntoIterator<Item = Peer>, regions: Regions) -> Registry {
        Registry {
            peers: peers.into_iter().collect(),
            regions: Arc::new(regions),
            heard: BTreeMap::new(),
            copied: BTreeSet::new(),
            drained: BTreeSet::new(),
            reports: BTreeMap::new(),
            settled: BTreeSet::new(),
            each_speaks: false,
            sealed: BTreeSet::new(),
            ended: BTreeSet::new(),
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Registry {
        Registry { mutation, ..self }
    }

    /// From now on each process has to say of a lost region that it applies nothing more of it,
    /// and that its own region has all that is kept: what one has begun another may end.
    pub fn each_speaks(&mut self) {
        self.each_speaks = true;
    }

    /// The regions in the last epoch.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// There are these processes now. What one that is there no more has left the others of its
    /// region have, so those must say anew that nothing is left, or begun of a lost region.
    pub fn follow(&mut self, peers: BTreeSet<Peer>) {
        let gone: BTreeSet<_> = self.peers.difference(&peers).map(|peer| peer.region).collect();
        self.drained.retain(|peer| !gone.contains(&peer.region));
        self.sealed.retain(|(_, peer)| !gone.contains(&peer.region));
        self.heard.retain(|peer, _| peers.contains(peer));
        self.peers = peers;
        self.decide();
    }

    /// Whether it has heard this of a process, or needs not to.
    pub fn knows(&self, from: Peer, word: &Word) -> bool {
        let known = match word {
            Word::Heard(epoch) => self.heard.get(&from).is_some_and(|heard| heard >= epoch),
            Word::Copied => self.copied.contains(&from.region),
            Word::Drained => self.drained.contains(&from),
            Word::Sealed { lost, .. } if self.each_speaks => self.sealed.contains(&(*lost, from)),
            Word::Sealed { lost, .. } => self.reports.contains_key(&(*lost, from.region)),
            Word::Settled { lost, .. } if self.each_speaks => self.ended.contains(&(*lost, from)),
            Word::Settled { lost, .. } => self.settled.contains(&(*lost, from.region)),
        };
        known || !self.peers.contains(&from)
    }

    /// Where each process speaks of lost regions: those that have not said what they have to before
    /// it goes on with this one.
    pub fn silent(&self, lost: RegionId) -> impl Iterator<Item = Peer> + '_ {
        let said = match self.regions.standing(lost) {
            Standing::Lost { .. } => Some(&self.sealed),
            Standing::Settles { .. } => Some(&self.ended),
            _ => None,
        };
        let there = self.peers.iter().filter(|peer| self.regions.is_there(peer.region));
        let each = there.filter(|_| self.each_speaks).copied();
        each.filter(move |peer| said.is_some_and(|said| !said.contains(&(lost, *peer))))
    }

    /// Those that have not said that they go by the last epoch, of the regions that are there.
    pub fn behind(&self) -> impl Iterator<Item = Peer> + '_ {
        let there = self.peers.iter().filter(|peer| self.regions.is_there(peer.region));
        there.filter(|peer| !self.has_heard(peer)).copied()
    }

    fn has_heard(&self, peer: &Peer) -> bool {
        self.heard.get(peer) == Some(&self.regions.epoch())
    }

    /// Whether nothing is under way, and all that are there go by the last epoch.
    pub fn is_settled(&self) -> bool {
        let moves = |region| {
            self.regions.joins(region) || *self.regions.standing(region) == Standing::Leaves
        };
        !self.regions.is_open() && !self.regions.there().any(moves) && self.all_have_heard()
    }

    /// A region joins, and copies the keys of another.
    ///
    /// # Errors
    /// It was there before, the other does not serve, or a lost region is being removed.
    pub fn join(&mut self, region: RegionId, from: RegionId) -> Result<(), Denied> {
        if *self.regions.standing(region) != Standing::Absent {
            return Err(Denied::Known(region));
        }
        self.must_serve(from)?;
        if self.regions.is_open() {
            return Err(Denied::Removing);
        }
        self.set([(region, Standing::Comes { from })]);
        Ok(())
    }

    /// A region leaves once all others have everything that it has made. One that copies its keys
    /// copies those of another: what it lacks all that serve have.
    ///
    /// # Errors
    /// It does not serve, or is the last one.
    pub fn leave(&mut self, region: RegionId) -> Result<(), Denied> {
        self.must_serve(region)?;
        self.must_not_be_last(region)?;
        let mut serving = self.regions.there().filter(|other| self.regions.writes(*other));
        let from = serving.find(|other| *other != region).ok_or(Denied::Last(region))?;
        drop(serving);
        let joiners: Vec<_> = self.copies_from(region).collect();
        let turned = joiners.into_iter().map(|joiner| match self.regions.standing(joiner) {
            Standing::Comes { .. } => (joiner, Standing::Comes { from }),
            _ => (joiner, Standing::Copies { from }),
        });
        let changes: Vec<_> = [(region, Standing::Leaves)].into_iter().chain(turned).collect();
        self.set(changes);
        Ok(())
    }

    /// A region is lost for good, with all that no other has applied. One that copies its keys goes
    /// as well: its copy has no end. What is being removed is agreed on anew, as the region may
    /// have had something that nobody else has.
    ///
    /// # Errors
    /// It is not there, or is the last that serves.
    pub fn lose(&mut self, region: RegionId) -> Result<(), Denied> {
        if !self.regions.is_there(region) {
            return Err(Denied::NotServing(region));
        }
        self.must_not_be_last(region)?;
        let round = self.regions.epoch() + 1;
        let gone = Standing::Gone { kept: Timestamp::NEVER };
        let joined = !self.regions.joins(region);
        let own = if joined { Standing::Lost { round } } else { gone.clone() };
        let mut changes = vec![(region, own)];
        changes.extend(self.copies_from(region).map(|joiner| (joiner, gone.clone())));
        if !self.mutation.is(Mutation::GoesOnWithoutTheSecond) {
            for (place, standing) in self.regions.standings().iter().enumerate() {
                if matches!(standing, Standing::Lost { .. } | Standing::Settles { .. }) {
                    changes.push((RegionId(place as u16), Standing::Lost { round }));
                }
            }
            self.reports.clear();
            self.settled.clear();
            self.sealed.clear();
            self.ended.clear();
        }
        self.set(changes);
        self.decide();
        Ok(())
    }

    fn must_serve(&self, region: RegionId) -> Result<(), Denied> {
        self.regions.writes(region).then_some(()).ok_or(Denied::NotServing(region))
    }

    fn must_not_be_last(&self, region: RegionId) -> Result<(), Denied> {
        let mut others = self.regions.there().filter(|other| *other != region);
        let serves = others.any(|other| self.regions.writes(other));
        serves.then_some(()).ok_or(Denied::Last(region))
    }

    /// Those that join by copying this region.
    fn copies_from(&self, region: RegionId) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.there().filter(move |other| match self.regions.standing(*other) {
            Standing::Comes { from } | Standing::Copies { from } => *from == region,
            _ => false,
        })
    }

    fn set(&mut self, changes: impl IntoIterator<Item = (RegionId, Standing)>) {
        let mut standings = self.regions.standings().to_vec();
        for (region, standing) in changes {
            let place = usize::from(region.0);
            standings.resize(standings.len().max(place + 1), Standing::Absent);
            standings[place] = standing;
        }
        self.regions = Arc::new(self.regions.next(standings));
    }

    /// A process has said this. What one says that is none counts for nothing.
    pub fn hear(&mut self, from: Peer, word: Word) {
        let by = from.region;
        if !self.peers.contains(&from) {
            return;
        }
        match word {
            Word::Heard(epoch) => {
                let heard = self.heard.entry(from).or_default();
                *heard = epoch.max(*heard);
            }
            Word::Copied => drop(self.copied.insert(by)),
            Word::Drained => drop(self.drained.insert(from)),
            Word::Sealed { lost, round, report } => {
                if *self.regions.standing(lost) == (Standing::Lost { round }) {
                    self.on_sealed(from, lost, report);
                }
            }
            Word::Settled { lost, round } => match self.regions.standing(lost) {
                Standing::Settles { round: asked, .. } if *asked == round => {
                    self.settled.insert((lost, by));
                    if self.each_speaks {
                        self.ended.insert((lost, from));
                    }
                }
                _ => {} // Of a round that a further loss has ended.
            },
        }
        self.decide();
    }

    fn on_sealed(&mut self, from: Peer, lost: RegionId, report: Report) {
        if !self.each_speaks {
            self.reports.insert((lost, from.region), report);
            return;
        }
        self.reports.entry((lost, from.region)).or_default().join(report);
        self.sealed.insert((lost, from));
    }

    /// Whether nobody is left that has to speak of a lost region.
    fn all_have_said(&self, lost: RegionId) -> bool {
        self.silent(lost).next().is_none() || self.mutation.is(Mutation::HearsOneOfARegion)
    }

    /// Whether all processes of all regions that are there go by the last epoch.
    fn all_have_heard(&self) -> bool {
        self.behind().next().is_none()
    }

    /// Goes on with all that can.
    fn decide(&mut self) {
        loop {
            let all = (0..self.regions.standings().len() as u16).map(RegionId);
            let changes: Vec<_> =
                all.filter_map(|region| Some((region, self.next_of(region)?))).collect();
            if changes.is_empty() {
                break;
            }
            self.set(changes);
        }
        if !self.regions.is_open() {
            self.sealed.clear();
            self.ended.clear();
        }
    }

    /// What a region is next, if it is time for that.
    fn next_of(&self, region: RegionId) -> Option<Standing> {
        match self.regions.standing(region) {
            Standing::Comes { from } => {
                self.all_have_heard().then_some(Standing::Copies { from: *from })
            }
            Standing::Copies { .. } => self.copied.contains(&region).then_some(Standing::Serves),
            Standing::Leaves => {
                // It may be the only one that has something of a region that is being removed.
                let mut shards = self
                    .peers
                    .iter()
                    .filter(|peer| peer.region == region && matches!(peer.role, Role::Shard(_)));
                let drained = shards.all(|peer| self.drained.contains(peer));
                let goes = drained && !self.regions.is_open();
                goes.then_some(Standing::Gone { kept: Timestamp::NEVER })
            }
            Standing::Lost { .. } | Standing::Settles { .. } if !self.all_have_said(region) => None,
            Standing::Lost { round } => {
                let reports: Option<Vec<_>> =
                    self.regions.there().map(|by| self.reports.get(&(region, by))).collect();
                let kept = Kept::of(reports?.into_iter());
                Some(Standing::Settles { round: *round, kept })
            }
            Standing::Settles { kept, .. } => {
                let settled = |by| self.settled.contains(&(region, by));
                let kept = kept.upto;
                self.regions.there().all(settled).then_some(Standing::Gone { kept })
            }
            Standing::Absent | Standing::Serves | Standing::Gone { .. } => None,
        }
    }

    /// Who is to be told of the last epoch, and has not answered with all that it can say.
    pub fn awaited(&self) -> Vec<Peer> {
        let moves = !self.is_settled();
        let speaks = |peer: &Peer| {
            moves && self.regions.is_there(peer.region) && !matches!(peer.role, Role::Replica(_))
        };
        let awaited = |peer: &&Peer| !self.has_heard(peer) || speaks(peer);
        self.peers.iter().filter(awaited).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Site, Topology};

    const A: RegionId = RegionId(0);
    const B: RegionId = RegionId(1);
    const C: RegionId = RegionId(2);
    const D: RegionId = RegionId(3);

    fn registry(standings: [Standing; 4]) -> Registry {
        let topology = Topology::new(vec![Site { shards: 1, replicas: 1 }; 4]);
        Registry::new(topology.peers(), Regions::first(standings.to_vec()))
    }

    fn serving() -> Registry {
        registry([Standing::Serves, Standing::Serves, Standing::Serves, Standing::Absent])
    }

    fn receiver(region: RegionId) -> Peer {
        Peer { region, role: Role::Receiver }
    }

    fn all_hear(registry: &mut Registry, regions: &[RegionId]) {
        let epoch = registry.regions().epoch();
        for peer in registry.peers.clone() {
            if regions.contains(&peer.region) {
                registry.hear(peer, Word::Heard(epoch));
            }
        }
    }

    fn seal(registry: &mut Registry, lost: RegionId, by: RegionId, known: u64) {
        let Standing::Lost { round } = *registry.regions().standing(lost) else {
            panic!("{lost:?} is not lost")
        };
        let report = Report { known: Timestamp(known), ..Report::default() };
        registry.hear(receiver(by), Word::Sealed { lost, round, report });
    }

    #[test]
    fn a_region_copies_once_all_others_have_heard_that_it_comes() {
        let mut registry = serving();
        assert_eq!(registry.join(D, A), Ok(()));
        assert_eq!(registry.join(D, A), Err(Denied::Known(D)));
        all_hear(&mut registry, &[A, B, D]);
        assert_eq!(*registry.regions().standing(D), Standing::Comes { from: A });
        all_hear(&mut registry, &[C]);
        assert_eq!(*registry.regions().standing(D), Standing::Copies { from: A });
        registry.hear(receiver(D), Word::Copied);
        assert!(registry.regions().writes(D));
    }

    #[test]
    fn who_copies_a_region_that_leaves_copies_another() {
        let mut registry = serving();
        registry.join(D, A).unwrap();
        registry.leave(A).unwrap();
        assert_eq!(*registry.regions().standing(D), Standing::Comes { from: B });
        all_hear(&mut registry, &[A, B, C, D]);
        assert_eq!(registry.leave(B), Ok(()));
        assert_eq!(*registry.regions().standing(D), Standing::Copies { from: C });
        assert_eq!(registry.leave(C), Err(Denied::Last(C)));
    }

    /// A shard that goes for good has left to the other what it had under way.
    #[test]
    fn when_a_process_of_a_region_that_leaves_goes_the_others_say_anew_what_is_left() {
        let mut registry = serving();
        let shard = |number| Peer { region: A, role: Role::Shard(number) };
        let mut peers = registry.peers.clone();
        registry.follow(peers.iter().copied().chain([shard(1)]).collect());
        registry.leave(A).unwrap();
        registry.hear(shard(0), Word::Drained);
        registry.follow(peers.clone());
        assert_eq!(*registry.regions().standing(A), Standing::Leaves);
        registry.hear(shard(1), Word::Drained);
        assert_eq!(*registry.regions().standing(A), Standing::Leaves, "it is nobody");
        registry.hear(shard(0), Word::Drained);
        assert_eq!(*registry.regions().standing(A), Standing::Gone { kept: Timestamp::NEVER });
        peers.retain(|peer| peer.region != A);
        registry.follow(peers);
        assert!(registry.behind().all(|peer| peer.region != A));
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut registry = serving();
        all_hear(&mut registry, &[A, B, C]);
        registry.lose(A).unwrap();
        let Standing::Lost { round } = *registry.regions().standing(A) else {
            panic!("it is lost")
        };
        let vector = crate::Vector::default();
        let label = crate::Label { ts: Timestamp(9), dep: Timestamp(5), place: 3, vector };
        let report = Report { known: Timestamp(9), waiting: vec![], applied: vec![label] };
        registry.hear(receiver(B), Word::Sealed { lost: A, round, report });
        let text = serde_json::to_string(&registry).unwrap();
        assert_eq!(serde_json::from_str::<Registry>(&text).unwrap(), registry, "{text}");
        assert!(!text.contains("each_speaks") && !text.contains("sealed"), "{text}");
        registry.each_speaks();
        seal(&mut registry, A, C, 5);
        let text = serde_json::to_string(&registry).unwrap();
        assert_eq!(serde_json::from_str::<Registry>(&text).unwrap(), registry, "{text}");
    }

    /// What a process has begun another may end, and what one that went has left is theirs.
    #[test]
    fn where_each_process_speaks_a_lost_region_waits_for_all() {
        let mut registry = serving();
        let shard = |region, number| Peer { region, role: Role::Shard(number) };
        let all = [shard(A, 0), shard(B, 0), shard(B, 1), shard(B, 2), shard(C, 0)];
        registry.follow(all.into());
        registry.each_speaks();
        registry.lose(A).unwrap();
        let Standing::Lost { round } = *registry.regions().standing(A) else {
            panic!("it is lost")
        };
        let seals = |registry: &mut Registry, from, known| {
            let report = Report { known: Timestamp(known), ..Report::default() };
            let word = Word::Sealed { lost: A, round, report };
            assert!(!registry.knows(from, &word));
            registry.hear(from, word);
        };
        seals(&mut registry, shard(B, 0), 40);
        seals(&mut registry, shard(B, 1), 60);
        registry.follow([shard(A, 0), shard(B, 0), shard(B, 1), shard(C, 0)].into());
        seals(&mut registry, shard(C, 0), 0);
        let silent: Vec<_> = registry.silent(A).collect();
        assert_eq!(silent, [shard(B, 0), shard(B, 1)], "the third may have left them something");
        seals(&mut registry, shard(B, 0), 50);
        seals(&mut registry, shard(B, 1), 30);
        let Standing::Settles { kept, .. } = registry.regions().standing(A).clone() else {
            panic!("all have said so")
        };
        assert_eq!(kept.upto, Timestamp(60));
        for from in [shard(B, 0), shard(C, 0), shard(B, 1)] {
            assert!(registry.regions().is_open(), "{from} has not said that it has all");
            registry.hear(from, Word::Settled { lost: A, round });
        }
        assert_eq!(*registry.regions().standing(A), Standing::Gone { kept: Timestamp(60) });
    }

    #[test]
    fn who_copies_a_region_that_is_lost_goes_with_it() {
        let mut registry = serving();
        registry.join(D, A).unwrap();
        assert_eq!(registry.lose(A), Ok(()));
        assert_eq!(*registry.regions().standing(D), Standing::Gone { kept: Timestamp::NEVER });
        assert_eq!(registry.join(RegionId(3), B), Err(Denied::Known(D)));
    }

    /// The second one may have had something of the first that nobody else has.
    #[test]
    fn a_second_loss_begins_the_removal_of_the_first_anew() {
        let mut registry = serving();
        registry.lose(A).unwrap();
        seal(&mut registry, A, B, 50);
        seal(&mut registry, A, C, 70);
        let Standing::Settles { round, kept } = registry.regions().standing(A).clone() else {
            panic!("both have said what they have")
        };
        assert_eq!(kept.upto, Timestamp(70));
        assert_eq!(registry.lose(C), Ok(()));
        assert_eq!(registry.lose(B), Err(Denied::Last(B)));
        registry.hear(receiver(B), Word::Settled { lost: A, round });
        assert!(registry.regions().is_open(), "that was said of what is not kept any more");
        seal(&mut registry, A, B, 50);
        seal(&mut registry, C, B, 20);
        for (lost, upto) in [(A, 50), (C, 20)] {
            let Standing::Settles { round, .. } = *registry.regions().standing(lost) else {
                panic!("all that stay have said what they have of {lost:?}")
            };
            registry.hear(receiver(B), Word::Settled { lost, round });
            let kept = Timestamp(upto);
            assert_eq!(*registry.regions().standing(lost), Standing::Gone { kept });
        }
    }

    #[test]
    fn who_leaves_stays_until_it_is_drained_and_no_other_is_being_removed() {
        let mut registry = serving();
        registry.leave(A).unwrap();
        registry.lose(C).unwrap();
        registry.hear(Peer { region: A, role: Role::Shard(0) }, Word::Drained);
        assert_eq!(*registry.regions().standing(A), Standing::Leaves);
        for by in [A, B] {
            seal(&mut registry, C, by, 0);
        }
        let Standing::Settles { round, .. } = *registry.regions().standing(C) else {
            panic!("both have said what they have")
        };
        for by in [A, B] {
            registry.hear(receiver(by), Word::Settled { lost: C, round });
        }
        assert_eq!(*registry.regions().standing(A), Standing::Gone { kept: Timestamp::NEVER });
        assert_eq!(registry.leave(B), Err(Denied::Last(B)));
    }
}
