//! Stability: which messages are delivered for good, and what of `T` nobody needs any more.
//!
//! A process says up to which rank it has delivered and applied all messages durably, and names
//! those before it that it has not: the *exceptions* ([`Stable`]). So one message that waits for a
//! group which cannot be reached is named, and all others count. A message is dropped from `T` once
//! all processes of all its destinations have said so of it.
//!
//! When `T` is long, which is when somebody has been away for long, more is done: a quorum of each
//! destination is enough, if there are disks (the others get a snapshot from that quorum), and what
//! even then has to stay is retained as a gap as a retained gap (see [`crate::state::log`]), so
//! that the rest can be dropped.
//!
//! Why a rank with exceptions tells all: let it be `(t, _)`. A message was delivered here with that
//! rank, so the clock of our epoch's primary and quorum-clock were `t` or more (lines 28 and 29).
//! By the first, all that was proposed up to `t` in this epoch and those before it is in our `T`;
//! by the second, nothing up to `t` is proposed in a later one (C2). A message's final timestamp is
//! no less than the one that our group decided for it, so each message that has, or will have, a
//! final rank up to this one is in our `T` or was there. It is delivered, or it waits under a bound
//! that is no greater than its final rank; then it is among the exceptions. The same holds of a
//! state that came in a snapshot, as it does where that was made.
//!
//! So no message ever comes to the exceptions up to a rank that was told: what was said stays true,
//! and the rank goes up only.

use crate::message::{Entry, Output, Rank, StabilityMessage, Stable};
use crate::options::Limits;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::clocks::quorum;
use crate::state::log::Slot;
use crate::state::retransmission::{RETRY, STUCK_AT_ONCE};
use crate::state::stability::{Common, Report, before};
use crate::state::transfer::RETAINED_FOR_TRANSFER;
use meridian_core::{GroupId, MessageId, Outbox, Position, ProcessId, Time};
use std::collections::BTreeSet;

impl PrimCast {
    /// The same process, with other limits.
    pub fn with_limits(mut self, limits: Limits) -> PrimCast {
        self.stability.limits = limits;
        self
    }

    /// The owner has handled all deliveries up to this one: later ones do not count as stable,
    /// though they are durable. Without a call all count.
    pub fn handled(&mut self, position: Position) {
        self.stability.handled = Some(position);
    }

    /// A delivery, which the owner has not called handled yet, does not count as stable until
    /// [`PrimCast::release`]: the owner still needs something of its other groups to apply it,
    /// which those must keep. To be said again when it has installed a state.
    pub fn hold(&mut self, rank: Rank) {
        self.stability.held.insert(rank);
    }

    /// The owner has applied the message of that rank.
    pub fn release(&mut self, rank: Rank) {
        if self.stability.held.remove(&rank)
            && let Some(slot) = self.log.slot(rank.1)
        {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.stability.kept_for.entry(*group).or_insert(Position(0));
            }
        }
    }

    /// What is held, for checks.
    pub fn held(&self) -> impl Iterator<Item = Rank> + '_ {
        self.stability.held.iter().copied()
    }

    /// Tells what is delivered for good, and drops what all others have told so of.
    pub(crate) fn truncate_delivered(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.tell_stable(out);
        self.truncate(now, out);
    }

    /// Says what is durably delivered here, to those who keep entries because of it.
    fn tell_stable(&mut self, out: &mut Outbox<Self>) {
        let handled = self.stability.handled.unwrap_or(self.deliveries.count);
        let count =
            self.deliveries.unreported.partition_point(|(position, _)| *position <= handled);
        let last = self.deliveries.unreported.drain(..count).map(|(_, rank)| rank).max();
        self.stability.settled = self.stability.settled.max(last);
        let Some(settled) = self.stability.settled else { return };
        let told = self.settled_up_to(settled);
        if let Some(known) = &self.stability.reported
            && (told.delivered < known.delivered || told == *known)
        {
            return;
        }
        out.persist(Record::Mark); // Durable with it: the deliveries noted before.
        let kept_for = &mut self.stability.kept_for;
        let groups: Vec<_> = kept_for.keys().copied().chain([self.me.group]).collect();
        if told.delivered == settled {
            // Else they are told again, of the rest.
            kept_for.retain(|_, position| *position > handled);
        }
        let stable = told.message();
        self.stability.reported = Some(told);
        if self.tells_through_primary(&stable, &groups, out) {
            return;
        }
        for process in groups.into_iter().flat_map(|group| self.processes(group)) {
            if process != self.me {
                out.send(process, stable.clone().into());
            }
        }
    }

    /// What there is to tell up to a rank. One more exception than may be named holds back the
    /// rank.
    fn settled_up_to(&self, settled: Rank) -> Report {
        let most = self.stability.limits.exceptions;
        let waiting = self.log.waiting().map(|(_, slot)| (slot.bound, slot.entry.start.id));
        let waiting = waiting.take_while(|rank| *rank <= settled).take(most + 1);
        let held = self.stability.held.range(..=settled).take(most + 1).copied();
        let unhandled = self.deliveries.unreported.iter().map(|(_, rank)| *rank);
        let unhandled = unhandled.filter(|rank| *rank <= settled);
        let all: BTreeSet<Rank> = waiting.chain(held).chain(unhandled).collect();
        let delivered = all.iter().nth(most).map_or(settled, |rank| before(*rank));
        let except = all.range(..=delivered).map(|(_, id)| *id).collect();
        Report { delivered, except }
    }

    pub(crate) fn on_stable(&mut self, from: ProcessId, stable: &Stable) {
        let Stable { delivered, except } = stable;
        let known = self.stability.reports.get(&from);
        if known.is_none_or(|known| known.delivered <= *delivered) {
            let except = except.iter().copied().collect();
            self.stability.reports.insert(from, Report { delivered: *delivered, except });
        }
    }

    pub(crate) fn on_stable_wanted(&mut self, from: ProcessId, out: &mut Outbox<Self>) {
        if let Some(told) = &self.stability.reported {
            out.send(from, told.message().into());
        }
    }

    /// Asks those who hold up truncation for long: they say by themselves only what concerns
    /// entries that they hold, and a snapshot may have brought them past the first one that we
    /// keep.
    pub(crate) fn ask_stable(&mut self, now: Time, out: &mut Outbox<Self>) {
        let gaps = self.log.gaps().map(|(_, slot)| slot);
        let first = self.log.get(self.log.base());
        let late = gaps.chain(first).filter(|slot| slot.delivered);
        let late = late.filter(|slot| now.since(slot.since) >= RETRY * 5);
        let mut behind = BTreeSet::new();
        for slot in late.take(STUCK_AT_ONCE) {
            let rank = (slot.bound, slot.entry.start.id);
            let processes = slot.entry.start.dest.iter().flat_map(|group| self.processes(*group));
            behind.extend(processes.filter(|process| !self.stability.has(*process, rank)));
        }
        behind.remove(&self.me);
        behind
            .into_iter()
            .for_each(|process| out.send(process, StabilityMessage::StableWanted.into()));
    }

    /// Drops from `T` what nobody needs any more, and sets aside what holds up too much.
    fn truncate(&mut self, now: Time, out: &mut Outbox<Self>) {
        let mut settled = Vec::new();
        let mut common = Common::default();
        if now.since(self.stability.looked) >= RETRY {
            self.stability.looked = now; // retained gaps may be many, and have time.
            self.drop_gaps(&mut common, &mut settled);
        }
        let mut loaded = 0;
        while let Some(slot) = self.log.get(self.log.base()) {
            loaded = self.log.prefetch_to_drop(loaded);
            // Not what is merely under way, here or to a member that was slow for a moment.
            let late = now.since(slot.since) >= RETRY;
            let needed = self.recovery.transfers.need(self.log.base());
            let times = if needed { RETAINED_FOR_TRANSFER } else { 1 };
            let long = late && self.stability.limits.are_exceeded(times, self.log.in_line());
            if self.is_dispensable(slot, long, &mut common) {
                let entry = self.log.truncate_first();
                self.dropped(entry, &mut settled);
            } else if long && (slot.delivered || self.log.base() < self.log.decided) {
                self.log.retain_first();
            } else {
                break;
            }
        }
        if !settled.is_empty() {
            out.output(Output::Settled(settled));
        }
    }

    fn drop_gaps(&mut self, common: &mut Common, settled: &mut Vec<MessageId>) {
        let many = self.stability.limits.are_exceeded(1, self.log.retained());
        let gaps = self.log.gaps();
        let gone = gaps.filter(|(_, slot)| self.is_dispensable(slot, many, common));
        let gone: Vec<_> = gone.map(|(index, _)| index).collect();
        for index in gone {
            let entry = self.log.drop_gap(index);
            self.dropped(entry, settled);
        }
    }

    fn dropped(&mut self, entry: Option<Entry>, settled: &mut Vec<MessageId>) {
        let Some(entry) = entry else { return };
        if let Some(ts) = entry.final_ts {
            self.deliveries.done.truncated(entry.start.id, ts);
        }
        if entry.start.dest.len() > 1 {
            settled.push(entry.start.id);
        }
    }

    /// Whether it is durably delivered here, and by all destinations' processes, or a quorum of
    /// each.
    fn is_dispensable(&self, slot: &Slot, quorum_is_enough: bool, common: &mut Common) -> bool {
        let rank = (slot.bound, slot.entry.start.id);
        let here = || self.stability.reported.as_ref().is_some_and(|told| told.covers(rank));
        let mut groups = slot.entry.start.dest.iter();
        slot.delivered
            && here()
            && groups.all(|group| {
                common.up_to(*group, || self.delivered_by_all(*group)) >= Some(rank)
                    || self.delivered_by(*group, rank, quorum_is_enough)
            })
    }

    /// Up to where all processes of `group` have delivered all, if all have said so without
    /// exceptions.
    fn delivered_by_all(&self, group: GroupId) -> Option<Rank> {
        let others = self.processes(group).filter(|process| *process != self.me);
        let told = others.map(|process| {
            let told = self.stability.reports.get(&process);
            told.filter(|told| told.except.is_empty()).map(|told| told.delivered)
        });
        let own = self.stability.reported.as_ref().map(|told| told.delivered);
        told.fold(own, std::cmp::min)
    }

    /// A quorum is not enough without disks: its members may forget one after the other, and be
    /// brought up each time by a primary that was not among them.
    fn delivered_by(&self, group: GroupId, rank: Rank, quorum_is_enough: bool) -> bool {
        let quorum_is_enough = quorum_is_enough && !self.keeps_nothing();
        let members = self.members.of(group);
        let delivered = members.iter().filter(|node| {
            let process = group.of(**node);
            process == self.me || self.stability.has(process, rank)
        });
        let needed = if quorum_is_enough { quorum(members.len()) } else { members.len() };
        delivered.count() >= needed
    }
}
