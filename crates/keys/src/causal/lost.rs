//! A region is lost (decisions 88 and 111): those that stay agree on what of its updates is kept.
//!
//! What was applied of another region the group keeps, under the name of the update, until all
//! regions have applied it, as it keeps its own (see `merge`). When a region is lost, each node
//! stops applying what it made, and says so when it knows what has become of all that it has begun.
//! Once all nodes of all regions that stay have said so, nothing of the lost region is under way.
//! Then each group takes what the others have, and what somebody has applied all apply, in causal
//! order.
//!
//! Invariants:
//! - L1: a node that has said that it applies nothing more of a lost region begins nothing of it
//!   but what is gathered in that round, or a later one.
//! - L2: a page is of a node with a lease whose group has settled since all have said so: what was
//!   applied in its region is in it.
//! - L3: what was applied is kept until all other regions have applied it, or have all that is
//!   kept.

use super::change::{noted, noted_origin};
use super::make::merge_name;
use super::message::{Message, Output};
use super::mutation::Mutation;
use super::node::{Asked, Causal};
use meridian_core::{Event, NodeId, Outbox, RegionId, Time};
use meridian_eunomia::{
    self as eunomia, Label, Peer, REGIONS_MAX, Role, Standing, Timestamp, Word, receiver,
};
use meridian_hermes::{self as hermes, Completion, Modify};
use std::collections::BTreeMap;

/// A page has no more when it has so many bytes of values.
const PAGE_BYTES: usize = 1 << 20;

/// What is gathered of a lost region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gathering {
    round: u64,
    /// The other regions that stay and have not shown all.
    open: BTreeMap<RegionId, Asking>,
    labels: BTreeMap<Timestamp, Label>,
}

/// How far another region is with what it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asking {
    /// Where the last page ended.
    after: Timestamp,
    /// Its nodes are asked by turns, if they do not answer.
    turn: usize,
    /// When it was asked last.
    asked: Option<Time>,
}

impl<M: Modify> Causal<M> {
    /// The round in which is agreed on what is kept of a region, once nothing of it is under way.
    fn settles_in(&self, lost: RegionId) -> Option<u64> {
        match self.receiver.regions().standing(lost) {
            Standing::Settles { round, .. } => Some(*round),
            _ => None,
        }
    }

    /// What the group knows of the updates of another region that others may lack.
    fn noted_of(
        &self,
        origin: RegionId,
        after: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, &Completion)> {
        let is_of = move |known: &Completion| noted_origin(&known.answer) == Some(origin);
        self.noted_after(after).filter(move |(_, known)| is_of(known))
    }

    /// Nothing more of a lost region is begun (L1), and the receiver is told when that has come to
    /// an end which was.
    pub(super) fn seal(&mut self, now: Time, lost: RegionId, round: u64, out: &mut Outbox<Self>) {
        self.inbox.withdraw(lost);
        let deferred = std::mem::take(&mut self.deferred);
        let (dropped, deferred): (Vec<_>, Vec<_>) =
            deferred.into_iter().partition(|update| update.origin == lost);
        self.deferred = deferred;
        dropped.into_iter().for_each(|update| self.inbox.failed(update));
        if self.is_sealed(lost) || self.mutation.is(Mutation::SealsEarly) {
            let from = Peer { region: self.region, role: Role::Shard(0) };
            let message = eunomia::Message::Sealed { lost, round, labels: Vec::new() };
            self.step_receiver(now, Event::Message { from, message }, out);
        }
    }

    /// Whether nothing of a region is under way that this node has begun, or knows of.
    fn is_sealed(&self, lost: RegionId) -> bool {
        let is_open = |asked: &Asked<M>| match asked {
            Asked::Merge(update) => update.origin == lost,
            _ => false,
        };
        let is_decided = |known: &Completion| {
            let update = noted(&known.answer);
            update.is_none_or(|update| self.replica.happened(&update.key, known).is_some())
        };
        self.replica.is_settled()
            && !self.asked.values().any(is_open)
            && self.noted_of(lost, Timestamp::ZERO).all(|(_, known)| is_decided(known))
    }

    /// The receiver says how far it is with the regions.
    pub(super) fn say_word(&mut self, word: Word, out: &mut Outbox<Self>) {
        if let Word::Settled { lost, round } = word {
            self.settled.insert(lost, round);
        }
        out.output(Output::Word(word));
    }

    /// Another node of this region has seen to it that the region has all that is kept.
    pub(super) fn on_settled(&self, lost: RegionId, round: u64, out: &mut Outbox<Self>) {
        if self.settles_in(lost) == Some(round) {
            out.output(Output::Word(Word::Settled { lost, round }));
        }
    }

    /// Forgets what all regions have applied, and goes on with what is gathered of lost ones.
    pub(super) fn follow_others(&mut self, now: Time, out: &mut Outbox<Self>) {
        for origin in self.regions.topology().others(self.region) {
            let known = self.receiver.everywhere(origin);
            self.everywhere[origin] = self.everywhere[origin].max(known);
        }
        self.forget_noted(now, out);
        let count = self.receiver.regions().standings().len() as u16;
        let rounds: BTreeMap<_, _> = (0..count)
            .map(RegionId)
            .filter_map(|lost| Some((lost, self.settles_in(lost)?)))
            .collect();
        self.settled.retain(|lost, round| rounds.get(lost) == Some(round));
        self.gathering.retain(|lost, gathering| rounds.get(lost) == Some(&gathering.round));
        for (lost, round) in rounds {
            self.gather(now, lost, round, out);
        }
    }

    /// All other regions have applied these: nobody needs them (L3).
    fn forget_noted(&mut self, now: Time, out: &mut Outbox<Self>) {
        let regions = self.receiver.regions().clone();
        let upto = |origin: RegionId| match self.mutation.is(Mutation::ForgetsAtSiteTime) {
            true => self.receiver.site_time(origin),
            false => self.everywhere[origin],
        };
        // Of those that are gone nothing comes any more, but from who has not forgotten it.
        let sweeps = self.sweeps && self.replica.is_settled();
        let others = self.regions.topology().others(self.region);
        let followed = others.filter(|origin| sweeps || regions.is_there(*origin));
        let points: Vec<_> = followed.map(|origin| (origin, upto(origin))).collect();
        let windows = self.sweep.begin(points.into_iter(), sweeps);
        let everywhere = |(ts, known): (Timestamp, &Completion)| {
            let origin =
                noted_origin(&known.answer).filter(|origin| usize::from(origin.0) < REGIONS_MAX)?;
            (ts <= upto(origin)).then_some(merge_name(ts))
        };
        let (mut looked, mut forgotten) = (0, Vec::new());
        for (after, last) in windows {
            let noted = self.noted_after(after).take_while(|(ts, _)| *ts <= last);
            forgotten.extend(noted.inspect(|_| looked += 1).filter_map(everywhere));
        }
        self.sweep.end(looked);
        self.sweeps &= !sweeps;
        for name in forgotten {
            self.step_replica(now, Event::Command(hermes::Command::Forget(name)), out);
        }
    }

    /// The first live node takes what the other regions that stay have of a lost one.
    fn gather(&mut self, now: Time, lost: RegionId, round: u64, out: &mut Outbox<Self>) {
        let begins = self.leads() && self.regions.keeps() && self.receiver.awaits_kept(lost);
        if !begins {
            self.gathering.remove(&lost);
            return;
        }
        let (me, regions) = (self.region, self.receiver.regions().clone());
        let gathering = self.gathering.entry(lost).or_insert_with(|| {
            let begins = Asking { after: Timestamp::ZERO, turn: 0, asked: None };
            let open = regions.there().filter(|region| *region != me);
            let open = open.map(|region| (region, begins)).collect();
            Gathering { round, open, labels: BTreeMap::new() }
        });
        for (region, asking) in &mut gathering.open {
            if asking.asked.is_some_and(|asked| now.since(asked) < self.options.retry) {
                continue;
            }
            let nodes = self.regions.nodes(*region);
            if let Some(node) = asking.turn.checked_rem(nodes.len()).map(|turn| nodes[turn]) {
                let after = asking.after;
                out.send(node, Message::AskKept { lost, round, after });
            }
            (asking.asked, asking.turn) = (Some(now), asking.turn + 1);
        }
        self.end_gathering(now, lost, out);
    }

    /// A node of another region that stays asks what this one has applied of a lost one (L2).
    pub(super) fn on_ask_kept(
        &mut self,
        now: Time,
        to: NodeId,
        (lost, round, after): (RegionId, u64, Timestamp),
        out: &mut Outbox<Self>,
    ) {
        if self.settles_in(lost) != Some(round) || !self.replica.is_settled() {
            return; // It will be asked again.
        }
        if !self.replica.serves(now) {
            self.wants_lease = true;
            return;
        }
        let (mut updates, mut bytes, mut next) = (Vec::new(), 0, None);
        for (ts, known) in self.noted_of(lost, after) {
            if updates.len() >= self.options.labels_max.max(1) || bytes >= PAGE_BYTES {
                next = updates.last().map(|last: &eunomia::Update| last.label.ts);
                break;
            }
            let Some(update) = noted(&known.answer).filter(|update| update.label.ts == ts) else {
                continue;
            };
            // What is open is taken again, as another region has it.
            if self.replica.happened(&update.key, known) != Some(false) {
                bytes += known.answer.len();
                updates.push(update);
            }
        }
        out.send(to, Message::Kept { lost, round, after, updates, next });
    }

    pub(super) fn on_kept(
        &mut self,
        now: Time,
        from: NodeId,
        (lost, round, after): (RegionId, u64, Timestamp),
        (updates, next): (Vec<eunomia::Update>, Option<Timestamp>),
        out: &mut Outbox<Self>,
    ) {
        let Some(region) = self.region_of(from) else { return };
        let gathering = self.gathering.get_mut(&lost).filter(|gathering| gathering.round == round);
        let Some(gathering) = gathering else { return };
        let Some(asking) = gathering.open.get_mut(&region).filter(|of| of.after == after) else {
            return; // It came before.
        };
        if next.is_some_and(|next| next <= after) {
            return;
        }
        let updates: Vec<_> = updates.into_iter().filter(|update| update.origin == lost).collect();
        gathering.labels.extend(updates.iter().map(|update| (update.label.ts, update.label)));
        match next {
            Some(next) => {
                (asking.after, asking.asked) = (next, Some(now));
                out.send(from, Message::AskKept { lost, round, after: next });
            }
            None => drop(gathering.open.remove(&region)),
        }
        self.take_kept(now, updates, out);
        self.end_gathering(now, lost, out);
    }

    /// All data that is kept is taken, however much; nothing of it is applied before it is asked
    /// for.
    fn take_kept(&mut self, now: Time, updates: Vec<eunomia::Update>, out: &mut Outbox<Self>) {
        let next = self.inbox.take(updates, usize::MAX);
        self.merge(now, next, out);
    }

    /// When all have shown what they have, this region has all that is applied, as soon as its
    /// dependencies are.
    fn end_gathering(&mut self, now: Time, lost: RegionId, out: &mut Outbox<Self>) {
        let all = |gathering: &Gathering| gathering.open.is_empty();
        if !self.gathering.get(&lost).is_some_and(all) || !self.replica.is_settled() {
            return;
        }
        let Some(Gathering { round, mut labels, .. }) = self.gathering.remove(&lost) else {
            return;
        };
        let own = self.noted_of(lost, Timestamp::ZERO);
        let own: Vec<_> = own.filter_map(|(_, known)| noted(&known.answer)).collect();
        labels.extend(own.iter().map(|update| (update.label.ts, update.label)));
        self.take_kept(now, own, out);
        let labels = labels.into_values().collect();
        let keep = receiver::Command::Keep { lost, round, labels };
        self.step_receiver(now, Event::Command(keep), out);
    }
}
