//! The linearizable order: when a message may be delivered beside Algorithm 1's conditions.
//!
//! Atomic global order (thesis, section 5.2.2) asks that nothing multicast after a delivery is
//! ordered before it, not even by a chain of messages of which each shares a destination with the
//! next. So a message is delivered once no group can propose a timestamp any more that would put a
//! new message before it *or before any message that is before it*, through whatever groups that
//! chain goes:
//!
//! - a group is *stable* up to `s` when its primary and a quorum of its clocks have reached `s`:
//!   whatever it proposes from now on is greater, in this epoch and in later ones (the argument of
//!   `quorum-clock`);
//! - its *links* are the groups to which messages go that its primary has not delivered, each with
//!   the lowest timestamp of such a message;
//! - a message with final timestamp `ts` may be delivered when each of its destinations is *closed*
//!   up to `ts`: that group, and all that it is linked with at or below `ts`, directly or through
//!   others, are stable up to `ts`.
//!
//! Why that is enough: call a message settled once all groups of all messages that precede it, in
//! the order of deliveries followed back through all groups, are stable past those messages. Being
//! settled lasts for ever. What is delivered is settled: of each group the messages up to `ts` are
//! known, each is delivered at its primary, hence settled before, or leads to a group that is
//! stable up to `ts` itself. A message settled at `t` precedes none that is multicast after `t`,
//! and if `x` precedes `y` then `x` is settled no later than `y`. So settling times never go down
//! along the order of deliveries and go up in real time: there is no cycle.
//!
//! A simpler way has a group say which is its first message that is not settled. That is
//! right too, but each message then waits for word of the one before it, one step per link of the
//! chain: with many messages between changing groups, a chain grows faster than it is worked off.
//! What is shown here is cumulative: it tells of any number of messages at once, and only as far as
//! groups share messages (all other groups take no step). See
//! `docs/decisions/0008-stability-instead-of-first-open-messages.md`.
//!
//! A process does not look at its own group where a chain comes back to it: what it delivers comes
//! after all that is before it there; but see `passing`.
//!
//! Primaries tell what they know in these pieces ([`Horizons`]):
//!
//! - each other group that a message links them with is told how far they are stable, and their
//!   links: at the latest after [`TELL_DELAY`] (or as often as it is shown the clock, if that is
//!   the time: see `hybrid`), and with anything else that is said to it before;
//! - it is told at once up to where it may take the teller's group for closed, when that passes a
//!   timestamp that a message for both was given;
//! - what the teller knows of third groups is passed on to those who are not told by these
//!   themselves; not more often than after [`TELL_DELAY`].
//!
//! So without concurrent messages all comes with the third step: the clocks and links that the
//! second step causes.

use crate::message::{Horizon, Horizons, Message, Rank, Timestamp, Touches};
use crate::mutation::Mutation;
use crate::options::ClockSource;
use crate::process::PrimCast;
use crate::state::epochs::Role;
use crate::state::linearizable::TELL_DELAY;
use crate::state::retransmission::Timer;
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use smallvec::SmallVec;

/// What a group is told of us.
struct Notice<'a> {
    /// How far our group is.
    own: &'a Horizon,
    /// Up to where the other group may take ours for closed.
    closed: Timestamp,
    /// If we relay: what a quorum of clocks has reached.
    clock: Timestamp,
    /// Whether what is known of third groups is passed on, too.
    passes_on: bool,
}

impl PrimCast {
    /// A primary of another group says how far it is, and others; `closed` for us if so many of its
    /// clocks are there, and that they have reached `clock`, if it relays for them.
    pub(crate) fn on_horizons(
        &mut self,
        from: ProcessId,
        horizons: &Horizons,
        out: &mut Outbox<Self>,
    ) {
        let Horizons { shown, closed, clock } = horizons;
        let (closed, clock) = (*closed, *clock);
        let Some((own, relayed)) = shown.split_first() else { return };
        let epoch = own.version.0;
        if own.group != from.group || epoch.leader != from.node {
            return;
        }
        match self.linearizable.direct.get_mut(&from.group) {
            Some((known, _)) if own.version < known.version => {}
            Some((known, for_us)) if own.version == known.version => *for_us = closed.max(*for_us),
            _ => {
                self.linearizable.direct.insert(from.group, (own.clone(), closed));
            }
        }
        let learner = self.remote.group(from.group);
        if learner.epoch >= Some(epoch) {
            learner.clocks.raise_floor(clock);
        }
        if self.stands() {
            self.raise_clock(own.stable, out); // Others wait for whichever clock is last.
        }
        // How far a lost group was, others may have forgotten since.
        let counts = |shown: &&Horizon| {
            let first = self.fences.number(shown.group).unwrap_or(0);
            shown.group != self.me.group && shown.version.0.config >= first
        };
        for shown in relayed.iter().filter(counts).collect::<Vec<_>>() {
            self.linearizable.learn(shown, shown.stable);
        }
        self.evaluate_stable(from.group);
    }

    /// Looks again how far another group is stable: its clocks or its primary's word changed.
    pub(crate) fn evaluate_stable(&mut self, group: GroupId) {
        let Some(learner) = self.remote.known(group) else { return };
        let Some(epoch) = learner.epoch else { return };
        if let Some(members) = self.members.in_config(group, epoch.config) {
            self.linearizable.evaluate(group, Some(epoch), &learner.clocks, members);
        }
    }

    /// Looks at those again that wait for other groups, if those may have got on.
    pub(crate) fn close_groups(&mut self) {
        if !std::mem::take(&mut self.linearizable.dirty) {
            return;
        }
        self.linearizable.looked_at.clear();
        for rank in std::mem::take(&mut self.linearizable.awaiting) {
            self.log.look_at_again(rank);
        }
    }

    /// Whether another group is closed up to `ts`, ours left out.
    fn is_group_closed(&mut self, group: GroupId, ts: Timestamp) -> bool {
        let stable = &mut self.linearizable;
        let closed = stable.closure.closed(group);
        if ts <= closed {
            return true;
        }
        let Some(best) = stable.closure.best(group).filter(|best| ts <= best.stable) else {
            return false;
        };
        if self.planted.is(Mutation::IgnoresLinks) {
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

    /// Whether all other destinations of the entry at `index`, final at `ts`, are closed or ready;
    /// notes that it waits if not.
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

    /// A message waits for other groups only. Who may pass others is looked at again; who may not,
    /// when it is the first.
    pub(crate) fn await_others(&mut self, rank: Rank, touches: &Touches) {
        if matches!(touches, Touches::Keys(_)) {
            self.linearizable.awaiting.insert(rank);
        }
    }

    /// The groups that messages which are not delivered here go to, and that have not been shown so
    /// high a clock; without those that are told it with something else.
    ///
    /// A clock up to the time has time: partners are shown it soon.
    pub(crate) fn groups_to_show(
        &mut self,
        now: Time,
        clock: Timestamp,
        told: &[GroupId],
    ) -> SmallVec<[GroupId; 16]> {
        if clock <= self.time(now) && !self.clock.partners.are_shown() {
            return SmallVec::new();
        }
        let mut groups: SmallVec<[GroupId; 16]> =
            self.links().iter().map(|(group, _)| *group).collect();
        groups.extend(told.iter().copied().chain(self.clock.partners.groups()));
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|group| {
            let shown = self.linearizable.clock_shown.entry(*group).or_default();
            let before = std::mem::replace(shown, clock.max(*shown));
            before < clock && !told.contains(group)
        });
        groups
    }

    /// The groups that messages which are not delivered here go to, each with a lower bound of
    /// their timestamps.
    pub(crate) fn links(&mut self) -> SmallVec<[(GroupId, Timestamp); 16]> {
        let open = |index| self.log.get(index).is_some_and(|slot| !slot.delivered);
        let groups: SmallVec<[GroupId; 16]> = self.linearizable.shared.keys().copied().collect();
        let link = |group| self.linearizable.link(group, open).map(|ts| (group, ts));
        groups.into_iter().filter_map(link).collect()
    }

    /// As primary: how far our group is now; and up to where a quorum of clocks is, if others hear
    /// of them from us only.
    fn own_shown(&mut self) -> (Horizon, Timestamp) {
        let (group, links) = (self.me.group, self.links());
        let links = links.as_slice();
        let (stable, clock) = match self.relays() {
            true => {
                let reached = self.clock.now.min(self.clock.members.quorum_clock(self.voters()));
                (reached, reached)
            }
            false => (self.clock.now, Timestamp(0)),
        };
        // Only what is new of ourselves makes a version: else each would answer the other's for
        // ever.
        let number = match &self.linearizable.own {
            Some(own) if own.stable == stable && *own.links == *links => {
                return (own.clone(), clock);
            }
            Some(own) => own.version.1 + 1,
            None => 1,
        };
        let own =
            Horizon { group, version: (self.epochs.cur, number), stable, links: links.into() };
        self.linearizable.own = Some(own.clone());
        (own, clock)
    }

    /// As primary: tells others what they wait for, and the rest with what is said to them anyway,
    /// or soon.
    pub(crate) fn tell_horizons(&mut self, now: Time, out: &mut Outbox<Self>) {
        let due = self.linearizable.later.take_if(|at| now >= *at).is_some();
        let due = due || self.clock.partners.are_shown();
        let spoken_to = std::mem::take(&mut self.linearizable.spoken_to);
        let (own, clock) = self.own_shown();
        let mut groups: SmallVec<[GroupId; 16]> =
            own.links.iter().map(|(group, _)| *group).collect();
        for group in self.linearizable.pending.keys().copied().chain(self.clock.partners.groups()) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        self.linearizable.told.retain(|group, _| groups.contains(group));
        let mut lacking = false;
        for group in groups {
            let stable = &self.linearizable;
            let told = stable.told.get(&group);
            let waits_for = stable.pending.get(&group).and_then(|pending| pending.first());
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
                self.tell_group(now, group, Notice { own: &own, closed, clock, passes_on }, out);
            } else {
                lacking |= lacks;
            }
            lacking |= self.linearizable.told.get(&group).is_some_and(|told| told.stale);
        }
        // (Hybrid clocks are shown to partners in a while anyway.)
        if lacking
            && self.linearizable.later.is_none()
            && self.options.clock == ClockSource::Logical
        {
            let at = now + TELL_DELAY;
            self.linearizable.later = Some(at);
            out.timer(at, Timer::Stability);
        }
    }

    fn tell_group(
        &mut self,
        now: Time,
        group: GroupId,
        notice: Notice<'_>,
        out: &mut Outbox<Self>,
    ) {
        let Notice { own, closed, clock, passes_on } = notice;
        let mut told = self.linearizable.told.remove(&group).unwrap_or_default();
        let mut shown = vec![own.clone()];
        if passes_on {
            for third in self.linearizable.closure.reached_from(&own.links, group) {
                let news = (third.version, third.stable);
                if told.relayed.insert(third.group, news) != Some(news) {
                    shown.push(third.clone());
                }
            }
            (told.stale, told.relayed_at) = (false, now);
        }
        if told.version != own.version.1 || told.closed < closed || shown.len() > 1 {
            let message = Message::from(Horizons { shown: shown.into(), closed, clock });
            self.listeners(group).into_iter().for_each(|to| out.send(to, message.clone()));
        }
        (told.version, told.closed) = (own.version.1, closed);
        self.linearizable.told.insert(group, told);
        if let Some(pending) = self.linearizable.pending.get_mut(&group) {
            *pending = pending.split_off(&Timestamp(closed.0 + 1));
            if pending.is_empty() {
                self.linearizable.pending.remove(&group);
            }
        }
    }

    /// Says to a process that may have missed it all that its group was told.
    pub(crate) fn tell_horizons_again(&mut self, to: ProcessId, out: &mut Outbox<Self>) {
        if self.epochs.role != Role::Primary || !self.linearizable.shared.contains_key(&to.group) {
            return;
        }
        let (own, clock) = self.own_shown();
        let concerned = own.links.iter().any(|(group, _)| *group == to.group)
            || self.linearizable.pending.contains_key(&to.group);
        if concerned && !self.linearizable.told.contains_key(&to.group) {
            return; // Its group is told when we are idle.
        }
        let closed = self.linearizable.closure.close(&own, Some(to.group));
        let third =
            self.linearizable.closure.reached_from(&own.links, to.group).into_iter().cloned();
        let shown = std::iter::once(own.clone()).chain(third).collect();
        out.send(to, Message::from(Horizons { shown, closed, clock }));
    }

    /// A new epoch: all is to be told again.
    pub(crate) fn start_notices(&mut self) {
        self.linearizable.told.clear();
        self.linearizable.pending.clear();
        self.linearizable.given.clear();
        self.linearizable.own = None;
        self.linearizable.later = None;
        self.linearizable.said.clear();
        self.linearizable.clock_shown.clear();
        if self.options.order.waits_for_others() && self.epochs.role == Role::Primary {
            self.share_again();
            for (_, slot) in self.log.iter_from(0) {
                let dest = &slot.entry.start.dest;
                dest.iter()
                    .filter(|group| **group != self.me.group)
                    .for_each(|group| self.linearizable.add_notice(*group, slot.bound));
            }
        }
    }

    /// Whether others wait for us to say what we are closed up to.
    pub(crate) fn gives_notices(&self) -> bool {
        self.options.order.waits_for_others() && self.epochs.role == Role::Primary
    }

    /// A timestamp was given to the message at `index`, by our group or another one. If we speak
    /// for our group, nobody waits for word before ours is decided.
    pub(crate) fn notify_later(&mut self, index: u64, ts: Timestamp) {
        if !self.gives_notices() {
            return;
        }
        if self.relays() && !self.relay.is_told(index) {
            self.linearizable.give(index, ts);
        } else if let Some(slot) = self.log.get(index) {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.linearizable.add_notice(*group, ts);
            }
        }
    }

    /// Those before `len` are decided, and that is told.
    pub(crate) fn notify_decided(&mut self, len: u64) {
        while let Some((index, ts)) =
            self.linearizable.given.pop_front_if(|(index, _)| *index < len)
        {
            self.notify_later(index, ts);
        }
    }

    /// Takes up what a restored `T` shares with other groups.
    pub(crate) fn share_again(&mut self) {
        self.linearizable.shared.clear();
        self.share_from(0);
    }

    /// Whether we look at what is shared: a follower of a primary that relays for us is told what
    /// it may deliver.
    fn shares(&self) -> bool {
        self.options.dissemination.hears_others(self.epochs.role)
    }

    /// Notes which of the entries from `from` on go to other groups too.
    pub(crate) fn share_from(&mut self, from: u64) {
        if !self.options.order.waits_for_others() || !self.shares() {
            return;
        }
        let hybrid = self.options.clock == ClockSource::Hybrid;
        for (index, slot) in self.log.iter_from(from) {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.linearizable.share(*group, index, slot.entry.ts);
                if hybrid {
                    self.clock.partners.share(*group);
                }
            }
        }
    }
}
