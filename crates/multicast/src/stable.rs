//! The linearizable order: when a message may be delivered beside Algorithm 1's conditions.
//!
//! Atomic global order (thesis, section 5.2.2) asks that nothing multicast after a delivery is ordered before it,
//! not even by a chain of messages of which each shares a destination with the next. So a message is
//! delivered once no group can propose a timestamp any more that would put a new message before it *or before any
//! message that is before it*, through whatever groups that chain goes:
//!
//! - a group is *stable* up to `s` when its primary and a quorum of its clocks have reached `s`: whatever it
//!   proposes from now on is greater, in this epoch and in later ones (the argument of `quorum-clock`);
//! - its *links* are the groups to which messages go that its primary has not delivered, each with the
//!   lowest timestamp of such a message;
//! - a message with final timestamp `ts` may be delivered when each of its destinations is *closed* up to `ts`: that
//!   group, and all that it is linked with at or below `ts`, directly or through others, are stable up to `ts`.
//!
//! Why that is enough: call a message settled once all groups of all messages that precede it, in
//! the order of deliveries followed back through all groups, are stable past those messages. Being
//! settled lasts for ever. What is delivered is settled: of each group the messages up to `ts`
//! are known, each is delivered at its primary, hence settled before, or leads to a group that is
//! stable up to `ts` itself. A message settled at `t` precedes none that is multicast after `t`, and if `x` precedes
//! `y` then `x` is settled no later than `y`. So settling times never go down along the order of deliveries
//! and go up in real time: there is no cycle.
//!
//! The design (section 4.4) has a group say which is its first message that is not settled. That is right too, but each
//! message then waits for word of the one before it, one step per link of the chain: with many messages between
//! changing groups, a chain grows faster than it is worked off. What is shown here is cumulative: it tells of any
//! number of messages at once, and only as far as groups share messages (all other groups take no step).
//! See `docs/decisions/0008-stability-instead-of-first-open-messages.md`.
//!
//! A message that passes others with which it does not conflict (section 4.4.3) may not wait for what those are linked
//! with. For such a one the primary says that it is *ready*: that all that conflicts with it and precedes it in the
//! group is delivered there. Ready at a group is as good as closed.
//!
//! Without concurrent messages all this comes with the third step: the clocks and links that the second step
//! causes.

use crate::clocks::Clocks;
use crate::message::{Dest, Epoch, Message, Rank, Shown, Timestamp};
use crate::process::{Mutation, Order, PrimCast, Role};
use meridian_core::{GroupId, MessageId, Outbox, ProcessId, Table};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A list of shared entries up to this length is not looked through.
const SHARED_LEAST: usize = 1024;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stable {
    /// By other group, the entries of our `T` that go to it too, from the first not delivered on; with
    /// timestamps.
    shared: BTreeMap<GroupId, VecDeque<(u64, Timestamp)>>,
    /// How long each of these lists may become before it is looked through for entries that were delivered though
    /// an earlier one was not.
    shared_max: BTreeMap<GroupId, usize>,
    /// What primaries of other groups said last of their own group.
    direct: BTreeMap<GroupId, Shown>,
    /// The best that is known of each other group.
    best: BTreeMap<GroupId, Shown>,
    /// Up to where groups that we share messages with are closed.
    closed: BTreeMap<GroupId, Timestamp>,
    dirty: bool,
    /// As primary: what was told last, to whom, and how often something was.
    told: Vec<Shown>,
    told_to: BTreeSet<GroupId>,
    version: u64,
    /// The greatest timestamp of messages delivered here that go to a group too: it may wait for word of
    /// what we are linked with, though we need it no more.
    owed: BTreeMap<GroupId, Timestamp>,
    /// The clock that each group was shown last.
    clock_shown: BTreeMap<GroupId, Timestamp>,
    /// Which groups are ready for a message.
    ready: Table<MessageId, Dest>,
    /// Messages that wait for nothing else.
    awaiting: BTreeSet<Rank>,
}

impl Stable {
    /// An entry of `T` goes to another group too.
    pub fn share(&mut self, group: GroupId, index: u64, ts: Timestamp) {
        self.shared.entry(group).or_default().push_back((index, ts));
        self.dirty |= !self.closed.contains_key(&group);
    }

    /// `T` is cut to `len`.
    pub fn cut(&mut self, len: u64) {
        for shared in self.shared.values_mut() {
            while shared.pop_back_if(|(index, _)| *index >= len).is_some() {}
        }
    }

    /// A message was delivered.
    pub fn delivered(&mut self, id: MessageId, rank: Rank, others: impl Iterator<Item = GroupId>) {
        self.ready.remove(&id);
        self.awaiting.remove(&rank);
        for group in others {
            let owed = self.owed.entry(group).or_default();
            *owed = rank.0.max(*owed);
        }
    }

    /// A new epoch: all is to be told again.
    pub fn start_epoch(&mut self) {
        self.told.clear();
        self.told_to.clear();
        self.version = 0;
        self.clock_shown.clear();
    }

    /// The first entry shared with `group` that is not delivered: the lowest timestamp of such.
    fn link(&mut self, group: GroupId, is_open: impl Fn(u64) -> bool) -> Option<Timestamp> {
        let shared = self.shared.get_mut(&group)?;
        while shared.pop_front_if(|(index, _)| !is_open(*index)).is_some() {}
        let most = self.shared_max.entry(group).or_insert(SHARED_LEAST);
        if shared.len() > *most {
            shared.retain(|(index, _)| is_open(*index));
            *most = SHARED_LEAST.max(2 * shared.len());
        }
        shared.front().map(|(_, ts)| *ts)
    }

    /// Puts together what is known of a group: how far it is stable, by whomever that was learned, and its
    /// latest links. What was stable before is known to its primary since, so those links tell of it.
    fn learn(&mut self, shown: Shown) {
        let Some(known) = self.best.get_mut(&shown.group) else {
            self.best.insert(shown.group, shown);
            self.dirty = true;
            return;
        };
        if shown.stable > known.stable {
            known.stable = shown.stable;
            self.dirty = true;
        }
        if shown.version > known.version {
            (known.version, known.links) = (shown.version, shown.links);
            self.dirty = true;
        }
    }

    /// What is stable of `group` by what its primary said and the clocks of its members.
    fn evaluate(
        &mut self,
        group: GroupId,
        followed: Option<Epoch>,
        clocks: &Clocks,
        members: &[meridian_core::NodeId],
    ) {
        let Some(direct) = self.direct.get(&group) else { return };
        if Some(direct.version.0) == followed {
            let stable = direct.stable.min(clocks.quorum_clock(members));
            let shown = Shown { stable, ..direct.clone() };
            self.learn(shown);
        }
    }

    /// Up to where a group is closed, seen from `me`: what precedes there in that group is delivered before.
    fn close(&self, first: Option<&Shown>, me: GroupId) -> Timestamp {
        let Some(first) = first else { return Timestamp(0) };
        let mut cap = Timestamp(u64::MAX);
        let mut linked_at = BTreeMap::from([(first.group, Timestamp(0))]);
        let mut done = BTreeSet::from([me]);
        loop {
            let next = linked_at.iter().filter(|(group, _)| !done.contains(*group));
            let Some((next, at)) = next.min_by_key(|(group, at)| (**at, **group)) else {
                return cap;
            };
            let (next, at) = (*next, *at);
            if at > cap {
                return cap;
            }
            done.insert(next);
            let known = if next == first.group { Some(first) } else { self.best.get(&next) };
            let stable = known.map(|shown| shown.stable).unwrap_or_default();
            if stable < at {
                return cap.min(Timestamp(at.0 - 1));
            }
            cap = cap.min(stable);
            for (other, ts) in known.into_iter().flat_map(|shown| &shown.links) {
                let place = linked_at.entry(*other).or_insert(Timestamp(u64::MAX));
                *place = at.max(*ts).min(*place);
            }
        }
    }

    /// What we know of all groups that can be reached from `links`.
    fn reached_from(&self, links: &[(GroupId, Timestamp)], me: GroupId) -> Vec<Shown> {
        let mut known = Vec::new();
        let mut done = BTreeSet::from([me]);
        let mut todo: Vec<_> = links.iter().map(|(group, _)| *group).collect();
        while let Some(group) = todo.pop() {
            if done.insert(group)
                && let Some(shown) = self.best.get(&group)
            {
                todo.extend(shown.links.iter().map(|(group, _)| *group));
                known.push(shown.clone());
            }
        }
        known.sort_unstable_by_key(|shown| shown.group);
        known
    }
}

impl PrimCast {
    pub(crate) fn is_linearizable(&self) -> bool {
        self.options.order == Order::Linearizable
    }

    /// A primary of another group says how far it and others are.
    pub(crate) fn on_stability(&mut self, from: ProcessId, shown: &[Shown]) {
        let Some((own, relayed)) = shown.split_first() else { return };
        if own.group != from.group || own.version.0.leader != from.node {
            return;
        }
        let known = self.stable.direct.get(&from.group);
        if known.is_none_or(|known| known.version < own.version) {
            self.stable.direct.insert(from.group, own.clone());
        }
        let groups = relayed.iter().filter(|shown| shown.group != self.me.group);
        groups.for_each(|shown| self.stable.learn(shown.clone()));
        self.evaluate_stable(from.group);
    }

    /// Looks again how far another group is stable: its clocks or its primary's word changed.
    pub(crate) fn evaluate_stable(&mut self, group: GroupId) {
        let Some(learner) = self.remote.known(group) else { return };
        let Some(epoch) = learner.epoch else { return };
        if let Some(members) = self.members.in_config(group, epoch.config) {
            self.stable.evaluate(group, Some(epoch), &learner.clocks, members);
        }
    }

    /// At these groups nothing that conflicts with the messages is before them.
    pub(crate) fn on_ready(&mut self, from: ProcessId, ids: &[MessageId]) {
        for id in ids {
            if self.known(*id) != crate::done::Known::No {
                continue;
            }
            let groups = self.stable.ready.or_insert_with(*id, Dest::new);
            if !groups.contains(&from.group) {
                groups.push(from.group);
                self.stable.dirty = true;
            }
        }
    }

    /// Looks at those again that wait for other groups, if those may have got on.
    pub(crate) fn close_groups(&mut self) {
        if !std::mem::take(&mut self.stable.dirty) {
            return;
        }
        let groups: Vec<_> = self.stable.shared.keys().copied().collect();
        for group in groups {
            let best = self.stable.best.get(&group);
            let closed = match self.mutation {
                Mutation::IgnoresLinks => best.map(|shown| shown.stable).unwrap_or_default(),
                _ => self.stable.close(best, self.me.group),
            };
            self.stable.closed.insert(group, closed);
        }
        for rank in std::mem::take(&mut self.stable.awaiting) {
            self.log.look_at_again(rank);
        }
    }

    /// Whether all other destinations of the entry at `index`, final at `ts`, are closed or ready; notes that
    /// it waits if not.
    pub(crate) fn is_settled(&mut self, index: u64, ts: Timestamp) -> bool {
        let Some(slot) = self.log.get(index) else { return false };
        let (id, dest) = (slot.entry.start.id, &slot.entry.start.dest);
        let ready = self.stable.ready.get(&id);
        let mut others = dest.iter().filter(|group| **group != self.me.group);
        let settled = others.all(|group| {
            self.stable.closed.get(group).is_some_and(|closed| ts <= *closed)
                || ready.is_some_and(|ready| ready.contains(group))
        });
        if !settled {
            self.stable.awaiting.insert((ts, id));
        }
        settled
    }

    /// As primary: the message passes others in this group, and waits for its other groups only. They are told.
    pub(crate) fn tell_ready(&mut self, index: u64, told: &mut BTreeMap<GroupId, Vec<MessageId>>) {
        let Some(slot) = self.log.get(index) else { return };
        if self.role == Role::Primary {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                told.entry(*group).or_default().push(slot.entry.start.id);
            }
        }
    }

    /// The groups that messages which are not delivered here go to, and that have not been shown so high a clock; without
    /// those that are told it with something else.
    pub(crate) fn groups_to_show(&mut self, clock: Timestamp, told: &[GroupId]) -> Vec<GroupId> {
        let mut groups: Vec<_> = self.stable.shared.keys().copied().collect();
        groups.retain(|group| {
            let open = |index| self.log.get(index).is_some_and(|slot| !slot.delivered);
            if self.stable.link(*group, open).is_none() && !told.contains(group) {
                return false;
            }
            let shown = self.stable.clock_shown.entry(*group).or_default();
            let before = std::mem::replace(shown, clock.max(*shown));
            before < clock && !told.contains(group)
        });
        groups
    }

    /// As primary: shows what changed to those whom it may concern.
    pub(crate) fn tell_stability(&mut self, out: &mut Outbox<Self>) {
        let groups: Vec<_> = self.stable.shared.keys().copied().collect();
        let mut links = Vec::new();
        for group in groups {
            let open = |index| self.log.get(index).is_some_and(|slot| !slot.delivered);
            links.extend(self.stable.link(group, open).map(|ts| (group, ts)));
        }
        let linked: BTreeSet<_> = links.iter().map(|(group, _)| *group).collect();
        let mut to: BTreeSet<_> = linked.union(&self.stable.told_to).copied().collect();
        to.extend(self.stable.owed.keys());
        if to.is_empty() {
            return;
        }
        let version = (self.e_cur, self.stable.version);
        let (group, stable) = (self.me.group, self.clock);
        let mut shown = vec![Shown { group, version, stable, links }];
        shown.extend(self.stable.reached_from(&shown[0].links, group));
        if shown == self.stable.told && to == self.stable.told_to {
            return;
        }
        // Only what is new of ourselves makes a version: else each would answer the other's for ever.
        if self.stable.told.first() != shown.first() {
            self.stable.version += 1;
            shown[0].version.1 = self.stable.version;
        }
        self.stable.told.clone_from(&shown);
        let quorum = self.clocks.quorum_clock(self.voters());
        let own = Shown { stable: stable.min(quorum), ..shown[0].clone() };
        let (best, owed) = (&self.stable, &self.stable.owed);
        let still = owed.iter().filter(|(group, ts)| best.close(Some(&own), **group) < **ts);
        self.stable.owed = still.map(|(group, ts)| (*group, *ts)).collect();
        self.stable.told_to =
            linked.union(&self.stable.owed.keys().copied().collect()).copied().collect();
        let message = Message::Stability(Arc::from(shown));
        for group in to {
            self.listeners(group)
                .into_iter()
                .for_each(|process| out.send(process, message.clone()));
        }
    }

    /// Says again to a process that may have missed it what was told last.
    pub(crate) fn tell_stability_again(&self, to: ProcessId, out: &mut Outbox<Self>) {
        if self.role == Role::Primary && self.is_linearizable() && !self.stable.told.is_empty() {
            out.send(to, Message::Stability(Arc::from(&self.stable.told[..])));
        }
    }

    /// Takes up what a restored `T` shares with other groups.
    pub(crate) fn share_again(&mut self) {
        self.stable.shared.clear();
        self.share_from(0);
        if self.is_linearizable() {
            for (_, slot) in self.log.iter_from(0).filter(|(_, slot)| slot.delivered) {
                let rank = (slot.bound, slot.entry.start.id);
                let dest = slot.entry.start.dest.iter().copied();
                let others = dest.filter(|group| *group != self.me.group);
                self.stable.delivered(rank.1, rank, others);
            }
        }
    }

    /// Another group has delivered the message: so all that precedes it is settled, here too.
    pub(crate) fn on_settled(&mut self, id: MessageId) {
        if let Some(slot) = self.log.slot(id).filter(|slot| !slot.delivered) {
            let dest = slot.entry.start.dest.iter().copied();
            self.stable.ready.insert(id, dest.collect());
            self.stable.dirty = true;
        }
    }

    /// Notes which of the entries from `from` on go to other groups too.
    pub(crate) fn share_from(&mut self, from: u64) {
        if !self.is_linearizable() {
            return;
        }
        for (index, slot) in self.log.iter_from(from) {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.stable.share(*group, index, slot.entry.ts);
            }
        }
    }
}
