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
//! A process does not look at its own group where a chain comes back to it: what it delivers comes after all that is before
//! it there; but see [`crate::passing`].
//!
//! Primaries tell what they know in these pieces ([`Message::Stability`]):
//!
//! - each other group that a message links them with is told how far they are stable, and their links: at the latest
//!   after [`TELL_DELAY`] (or as often as it is shown the clock, if that is the time: see [`crate::hybrid`]), and with anything
//!   else that is said to it before;
//! - it is told at once up to where it may take the teller's group for closed, when that passes a timestamp that a message
//!   for both was given;
//! - what the teller knows of third groups is passed on to those who are not told by these themselves; not more often than
//!   after [`TELL_DELAY`].
//!
//! So without concurrent messages all comes with the third step: the clocks and links that the second step causes.

use crate::clocks::Clocks;
use crate::closure::Closure;
use crate::message::{Dest, Epoch, Message, Rank, Shown, Timestamp, Touches};
use crate::process::{ClockSource, Mutation, Order, PrimCast, Role, Speakers};
use meridian_core::{GroupId, MessageId, NodeId, Outbox, ProcessId, Table, Time, Token};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// A list of shared entries up to this length is not looked through.
const SHARED_LEAST: usize = 1024;

/// So many timestamps are kept of those that a group is to be told of at once: the lowest, and the greatest.
const OWED_MAX: usize = 1024;

/// What nobody is known to wait for is told after this time: many round trips between near groups, and little of one
/// between far ones.
pub(crate) const TELL_DELAY: Duration = Duration::from_millis(5);
const TELL_TOKEN: Token = Token(2);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stable {
    /// By other group, the entries of our `T` that go to it too, from the first not delivered on; with
    /// timestamps.
    shared: BTreeMap<GroupId, VecDeque<(u64, Timestamp)>>,
    /// How long each of these lists may become before it is looked through for entries that were delivered though
    /// an earlier one was not.
    shared_max: BTreeMap<GroupId, usize>,
    /// What primaries of other groups said last of their own group, and up to where that is closed for us.
    direct: BTreeMap<GroupId, (Shown, Timestamp)>,
    /// What is known of other groups.
    pub(crate) closure: Closure,
    /// For which of them it was looked up to where they are closed since anything new was learned.
    looked_at: SmallVec<[GroupId; 8]>,
    pub(crate) dirty: bool,
    /// As primary: what we showed last of our group, to anybody.
    own: Option<Shown>,
    /// What groups were told that we are linked with, or that wait for word of us.
    told: BTreeMap<GroupId, Told>,
    /// Timestamps given to messages that go to a group too, which was not told yet that we are closed up to them.
    owed: BTreeMap<GroupId, BTreeSet<Timestamp>>,
    /// The greatest timestamps given to messages, by their indexes, of which nobody was told yet that ours are decided.
    given: VecDeque<(u64, Timestamp)>,
    /// To whom something was said since we were idle last.
    spoken_to: SmallVec<[GroupId; 8]>,
    /// When those are told that nobody has spoken to.
    later: Later,
    /// The clock that each group was shown last.
    clock_shown: BTreeMap<GroupId, Timestamp>,
    /// Which groups are ready for a message.
    pub(crate) ready: Table<MessageId, Dest>,
    /// Of which messages we said so.
    pub(crate) said: BTreeSet<MessageId>,
    /// Messages that wait for nothing else.
    awaiting: BTreeSet<Rank>,
}

/// When what nobody waits for is said at the latest. None if nothing is to be said, but not the other way round: it does no more
/// then. So for states that are the same but for this, all goes on in the same way until the time comes.
#[derive(Clone, Copy, Debug, Default, Eq)]
struct Later(Option<Time>);

impl PartialEq for Later {
    fn eq(&self, _other: &Later) -> bool {
        true
    }
}

impl Hash for Later {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

/// What a group was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Told {
    version: u64,
    closed: Timestamp,
    /// Of third groups: version and stability.
    relayed: BTreeMap<GroupId, ((Epoch, u64), Timestamp)>,
    /// Whether anything was learned of third groups since they were passed on, and when that was.
    stale: bool,
    relayed_at: Time,
}

impl Stable {
    /// An entry of `T` goes to another group too.
    pub fn share(&mut self, group: GroupId, index: u64, ts: Timestamp) {
        self.shared.entry(group).or_default().push_back((index, ts));
    }

    /// `T` is cut to `len`.
    pub fn cut(&mut self, len: u64) {
        for shared in self.shared.values_mut() {
            while shared.pop_back_if(|(index, _)| *index >= len).is_some() {}
        }
    }

    /// A message was delivered.
    pub fn delivered(&mut self, id: MessageId, rank: Rank) {
        self.ready.remove(&id);
        self.said.remove(&id);
        self.awaiting.remove(&rank);
        self.dirty |= !self.awaiting.is_empty(); // They may have waited for what it was linked with.
    }

    /// Whether those that wait are to be looked at again.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A message that goes to `group` too was given this timestamp.
    fn owe(&mut self, group: GroupId, ts: Timestamp) {
        if self.told.get(&group).is_none_or(|told| told.closed < ts) {
            let owed = self.owed.entry(group).or_default();
            if owed.len() < OWED_MAX {
                owed.insert(ts);
            } else if owed.last().is_some_and(|last| *last < ts) {
                owed.pop_last(); // A third group has been cut off for long: messages pass what waits for it.
                owed.insert(ts);
            }
        }
    }

    /// The message at `index` was given this timestamp.
    fn give(&mut self, index: u64, ts: Timestamp) {
        match self.given.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => self.given[at].1 = ts.max(self.given[at].1),
            Err(at) => self.given.insert(at, (index, ts)),
        }
    }

    /// Whoever waits for long may have missed what was said.
    pub fn say_again(&mut self) {
        self.said.clear();
        self.dirty = true;
    }

    /// Something is said to `group` in this turn.
    pub fn speaks_to(&mut self, group: GroupId) {
        if !self.spoken_to.contains(&group) {
            self.spoken_to.push(group);
        }
    }

    /// The first entry shared with `group` that is not delivered: the lowest timestamp of such.
    fn link(&mut self, group: GroupId, is_open: impl Fn(u64) -> bool) -> Option<Timestamp> {
        let shared = self.shared.get_mut(&group)?;
        while shared.pop_front_if(|(index, _)| !is_open(*index)).is_some() {}
        if shared.len() > SHARED_LEAST {
            let most = self.shared_max.entry(group).or_insert(SHARED_LEAST);
            if shared.len() > *most {
                shared.retain(|(index, _)| is_open(*index));
                *most = SHARED_LEAST.max(2 * shared.len());
            }
        }
        shared.front().map(|(_, ts)| *ts)
    }

    /// Puts together what is known of another group.
    fn learn(&mut self, shown: &Shown, stable: Timestamp) {
        if self.closure.learn(shown, stable) {
            self.dirty = true;
            self.told.values_mut().for_each(|told| told.stale = true);
        }
    }

    /// What is stable of `group` by what its primary said and the clocks of its members.
    fn evaluate(
        &mut self,
        group: GroupId,
        followed: Option<Epoch>,
        clocks: &Clocks,
        members: &[NodeId],
    ) {
        let Some((direct, closed)) = self.direct.get(&group).cloned() else { return };
        if Some(direct.version.0) == followed {
            let reached = clocks.quorum_clock(members);
            self.learn(&direct, direct.stable.min(reached));
            self.dirty |= self.closure.learn_closed(group, closed.min(reached));
        }
    }
}

impl PrimCast {
    pub(crate) fn is_linearizable(&self) -> bool {
        self.options.order == Order::Linearizable
    }

    /// A primary of another group says how far it is, and others; `closed` for us if so many of its clocks are there, and
    /// that they have reached `clock`, if it speaks for them.
    pub(crate) fn on_stability(
        &mut self,
        from: ProcessId,
        shown: &[Shown],
        closed: Timestamp,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        let Some((own, relayed)) = shown.split_first() else { return };
        let epoch = own.version.0;
        if own.group != from.group || epoch.leader != from.node {
            return;
        }
        match self.stable.direct.get_mut(&from.group) {
            Some((known, _)) if own.version < known.version => {}
            Some((known, for_us)) if own.version == known.version => *for_us = closed.max(*for_us),
            _ => {
                self.stable.direct.insert(from.group, (own.clone(), closed));
            }
        }
        let learner = self.remote.group(from.group);
        if learner.epoch >= Some(epoch) {
            learner.clocks.raise_floor(clock);
        }
        if self.stands() {
            self.raise_clock(own.stable, out); // Others wait for whichever clock is last.
        }
        for shown in relayed.iter().filter(|shown| shown.group != self.me.group) {
            self.stable.learn(shown, shown.stable);
        }
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

    /// Looks at those again that wait for other groups, if those may have got on.
    pub(crate) fn close_groups(&mut self) {
        if !std::mem::take(&mut self.stable.dirty) {
            return;
        }
        self.stable.looked_at.clear();
        for rank in std::mem::take(&mut self.stable.awaiting) {
            self.log.look_at_again(rank);
        }
    }

    /// Whether another group is closed up to `ts`, ours left out.
    fn is_group_closed(&mut self, group: GroupId, ts: Timestamp) -> bool {
        let stable = &mut self.stable;
        let closed = stable.closure.closed(group);
        if ts <= closed {
            return true;
        }
        let Some(best) = stable.closure.best(group).filter(|best| ts <= best.stable) else {
            return false;
        };
        if self.mutation == Mutation::IgnoresLinks {
            return true;
        }
        if stable.looked_at.contains(&group) {
            return false;
        }
        stable.looked_at.push(group);
        let closed = stable.closure.close(best, Some(self.me.group)).max(closed);
        stable.closure.learn_closed(group, closed);
        ts <= closed
    }

    /// Whether all other destinations of the entry at `index`, final at `ts`, are closed or ready; notes that
    /// it waits if not.
    pub(crate) fn is_settled(&mut self, index: u64, ts: Timestamp) -> bool {
        let Some(slot) = self.log.get(index) else { return false };
        if slot.settled {
            return true;
        }
        let start = slot.entry.start.clone();
        let settled = self.shares()
            && start.dest.iter().all(|group| {
                *group == self.me.group
                    || self.is_group_closed(*group, ts)
                    || self.is_ready(start.id, *group)
            });
        if !settled {
            self.await_others((ts, start.id), &start.touches);
        }
        settled
    }

    /// A message waits for other groups only. Who may pass others is looked at again; who may not, when it is the first.
    pub(crate) fn await_others(&mut self, rank: Rank, touches: &Touches) {
        if matches!(touches, Touches::Keys(_)) {
            self.stable.awaiting.insert(rank);
        }
    }

    /// The groups that messages which are not delivered here go to, and that have not been shown so high a clock; without
    /// those that are told it with something else.
    ///
    /// A clock up to the time has time: partners are shown it soon.
    pub(crate) fn groups_to_show(
        &mut self,
        now: Time,
        clock: Timestamp,
        told: &[GroupId],
    ) -> SmallVec<[GroupId; 16]> {
        if clock <= self.time(now) && !self.partners.are_shown() {
            return SmallVec::new();
        }
        let mut groups: SmallVec<[GroupId; 16]> =
            self.links().iter().map(|(group, _)| *group).collect();
        groups.extend(told.iter().copied().chain(self.partners.groups()));
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|group| {
            let shown = self.stable.clock_shown.entry(*group).or_default();
            let before = std::mem::replace(shown, clock.max(*shown));
            before < clock && !told.contains(group)
        });
        groups
    }

    /// The groups that messages which are not delivered here go to, each with a lower bound of their timestamps.
    pub(crate) fn links(&mut self) -> SmallVec<[(GroupId, Timestamp); 16]> {
        let open = |index| self.log.get(index).is_some_and(|slot| !slot.delivered);
        let groups: SmallVec<[GroupId; 16]> = self.stable.shared.keys().copied().collect();
        let link = |group| self.stable.link(group, open).map(|ts| (group, ts));
        groups.into_iter().filter_map(link).collect()
    }

    /// As primary: how far our group is now; and up to where a quorum of clocks is, if others hear of them from us only.
    fn own_shown(&mut self) -> (Shown, Timestamp) {
        let (group, links) = (self.me.group, self.links());
        let links = links.as_slice();
        let (stable, clock) = match self.speaks() {
            true => {
                let reached = self.clock.min(self.clocks.quorum_clock(self.voters()));
                (reached, reached)
            }
            false => (self.clock, Timestamp(0)),
        };
        // Only what is new of ourselves makes a version: else each would answer the other's for ever.
        let number = match &self.stable.own {
            Some(own) if own.stable == stable && *own.links == *links => {
                return (own.clone(), clock);
            }
            Some(own) => own.version.1 + 1,
            None => 1,
        };
        let own = Shown { group, version: (self.e_cur, number), stable, links: links.into() };
        self.stable.own = Some(own.clone());
        (own, clock)
    }

    /// As primary: tells others what they wait for, and the rest with what is said to them anyway, or soon.
    pub(crate) fn tell_stability(&mut self, now: Time, out: &mut Outbox<Self>) {
        let due = self.stable.later.0.take_if(|at| now >= *at).is_some();
        let due = due || self.partners.are_shown();
        let spoken_to = std::mem::take(&mut self.stable.spoken_to);
        let (own, clock) = self.own_shown();
        let mut groups: SmallVec<[GroupId; 16]> =
            own.links.iter().map(|(group, _)| *group).collect();
        for group in self.stable.owed.keys().copied().chain(self.partners.groups()) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        self.stable.told.retain(|group, _| groups.contains(group));
        let mut lacking = false;
        for group in groups {
            let stable = &self.stable;
            let told = stable.told.get(&group);
            let waits_for = stable.owed.get(&group).and_then(|owed| owed.first());
            let mut closed = told.map(|told| told.closed).unwrap_or_default();
            if waits_for.is_some_and(|ts| stable.closure.is_closed(&own, Some(group), *ts).is_ok())
            {
                closed = closed.max(stable.closure.close(&own, Some(group)));
            }
            let waits = waits_for.is_some_and(|ts| *ts <= closed);
            let lacks = told.is_none_or(|told| told.version != own.version.1);
            let passes_on =
                told.is_none_or(|told| told.stale && now.since(told.relayed_at) >= TELL_DELAY);
            if waits || ((lacks || passes_on) && (due || spoken_to.contains(&group))) {
                self.tell_group(now, group, (&own, closed, clock), passes_on, out);
            } else {
                lacking |= lacks;
            }
            lacking |= self.stable.told.get(&group).is_some_and(|told| told.stale);
        }
        // (Hybrid clocks are shown to partners in a while anyway.)
        if lacking && self.stable.later.0.is_none() && self.options.clock == ClockSource::Logical {
            let at = now + TELL_DELAY;
            self.stable.later = Later(Some(at));
            out.timer(at, TELL_TOKEN);
        }
    }

    fn tell_group(
        &mut self,
        now: Time,
        group: GroupId,
        (own, closed, clock): (&Shown, Timestamp, Timestamp),
        passes_on: bool,
        out: &mut Outbox<Self>,
    ) {
        let mut told = self.stable.told.remove(&group).unwrap_or_default();
        let mut shown = vec![own.clone()];
        if passes_on {
            for third in self.stable.closure.reached_from(&own.links, group) {
                let news = (third.version, third.stable);
                if told.relayed.insert(third.group, news) != Some(news) {
                    shown.push(third.clone());
                }
            }
            (told.stale, told.relayed_at) = (false, now);
        }
        if told.version != own.version.1 || told.closed < closed || shown.len() > 1 {
            let message = Message::Stability { shown: shown.into(), closed, clock };
            self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
        }
        (told.version, told.closed) = (own.version.1, closed);
        self.stable.told.insert(group, told);
        if let Some(owed) = self.stable.owed.get_mut(&group) {
            *owed = owed.split_off(&Timestamp(closed.0 + 1));
            if owed.is_empty() {
                self.stable.owed.remove(&group);
            }
        }
    }

    /// Says to a process that may have missed it all that its group was told.
    pub(crate) fn tell_stability_again(&mut self, to: ProcessId, out: &mut Outbox<Self>) {
        if self.role != Role::Primary || !self.stable.shared.contains_key(&to.group) {
            return;
        }
        let (own, clock) = self.own_shown();
        let concerned = own.links.iter().any(|(group, _)| *group == to.group)
            || self.stable.owed.contains_key(&to.group);
        if concerned && !self.stable.told.contains_key(&to.group) {
            return; // Its group is told when we are idle.
        }
        let closed = self.stable.closure.close(&own, Some(to.group));
        let third = self.stable.closure.reached_from(&own.links, to.group).into_iter().cloned();
        let shown = std::iter::once(own.clone()).chain(third).collect();
        out.send(to, Message::Stability { shown, closed, clock });
    }

    /// A new epoch: all is to be told again.
    pub(crate) fn start_stable(&mut self) {
        self.stable.told.clear();
        self.stable.owed.clear();
        self.stable.given.clear();
        self.stable.own = None;
        self.stable.later = Later(None);
        self.stable.said.clear();
        self.stable.clock_shown.clear();
        if self.is_linearizable() && self.role == Role::Primary {
            self.share_again();
            for (_, slot) in self.log.iter_from(0) {
                let dest = &slot.entry.start.dest;
                dest.iter()
                    .filter(|group| **group != self.me.group)
                    .for_each(|group| self.stable.owe(*group, slot.bound));
            }
        }
    }

    /// Whether others wait for us to say what we are closed up to.
    pub(crate) fn owes(&self) -> bool {
        self.is_linearizable() && self.role == Role::Primary
    }

    /// A timestamp was given to the message at `index`, by our group or another one. If we speak for our group, nobody
    /// waits for word before ours is decided.
    pub(crate) fn owe_others(&mut self, index: u64, ts: Timestamp) {
        if !self.owes() {
            return;
        }
        if self.speaks() && !self.relay.is_told(index) {
            self.stable.give(index, ts);
        } else if let Some(slot) = self.log.get(index) {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.stable.owe(*group, ts);
            }
        }
    }

    /// Those before `len` are decided, and that is told.
    pub(crate) fn owe_decided(&mut self, len: u64) {
        while let Some((index, ts)) = self.stable.given.pop_front_if(|(index, _)| *index < len) {
            self.owe_others(index, ts);
        }
    }

    /// Takes up what a restored `T` shares with other groups.
    pub(crate) fn share_again(&mut self) {
        self.stable.shared.clear();
        self.share_from(0);
    }

    /// Whether we look at what is shared: a follower of a primary that speaks for us is told what it may deliver.
    fn shares(&self) -> bool {
        self.options.speakers == Speakers::All || self.role == Role::Primary
    }

    /// Notes which of the entries from `from` on go to other groups too.
    pub(crate) fn share_from(&mut self, from: u64) {
        if !self.is_linearizable() || !self.shares() {
            return;
        }
        let hybrid = self.options.clock == ClockSource::Hybrid;
        for (index, slot) in self.log.iter_from(from) {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.stable.share(*group, index, slot.entry.ts);
                if hybrid {
                    self.partners.share(*group);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region is cut off for hours: what is owed to others does not grow with what passes.
    #[test]
    fn what_is_owed_is_bounded() {
        let (mut stable, group) = (Stable::default(), GroupId(1));
        (1..=100_000).for_each(|ts| stable.owe(group, Timestamp(ts)));
        let owed = &stable.owed[&group];
        assert_eq!(owed.len(), OWED_MAX);
        let ends = (owed.first().copied(), owed.last().copied());
        assert_eq!(ends, (Some(Timestamp(1)), Some(Timestamp(100_000))));
    }
}
