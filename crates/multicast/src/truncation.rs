//! Truncation: which messages are delivered for good, and what of `T` nobody needs any more.
//!
//! A process says up to which rank it has delivered and applied all messages durably, and names those before it
//! that it has not: the *exceptions* ([`Message::Stable`]). So one message that waits for a group which cannot be
//! reached is named, and all others count. A message is dropped from `T` once all processes of all its
//! destinations have said so of it.
//!
//! When `T` is long, which is when somebody has been away for long, more is done: a quorum of each destination is
//! enough, if there are disks (the others get a snapshot from that quorum), and what even then has to stay is set aside as a
//! straggler (see [`crate::log`]), so that the rest can be dropped.
//!
//! Why a rank with exceptions tells all: let it be `(t, _)`. A message was delivered here with that rank, so the
//! clock of our epoch's primary and quorum-clock were `t` or more (lines 28 and 29). By the first, all that was
//! proposed up to `t` in this epoch and those before it is in our `T`; by the second, nothing up to `t` is proposed
//! in a later one (C2). A message's final timestamp is no less than the one that our group decided for it, so each
//! message that has, or will have, a final rank up to this one is in our `T` or was there. It is delivered, or it
//! waits under a bound that is no greater than its final rank; then it is among the exceptions. The same holds
//! of a state that came in a snapshot, as it does where that was made.
//!
//! So no message ever comes to the exceptions up to a rank that was told: what was said stays true, and the rank
//! goes up only.

use crate::log::Slot;
use crate::message::{Entry, Message, Output, Rank, Record};
use crate::process::{Of, PrimCast};
use crate::upkeep::{RETRY, STUCK_AT_ONCE};
use meridian_core::{ClientId, GroupId, MessageId, Outbox, Position, ProcessId, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How much a process keeps and names. The same at all processes of a group, or nearly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How many bytes of `T` are kept for a member that is away, beside what came in the last second, and how many of
    /// stragglers until all have them; after that it is brought up by a snapshot.
    pub bytes: usize,
    /// The same in entries.
    pub entries: usize,
    /// How many exceptions are named: so many that what goes to a group until that is found to be cut off finds
    /// room, and so few that they take some kilobytes.
    pub exceptions: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: 24 << 20, entries: 50_000, exceptions: 1024 }
    }
}

impl Limits {
    fn are_exceeded(self, (entries, bytes): (usize, usize)) -> bool {
        entries > self.entries || bytes > self.bytes
    }
}

/// What a process has said of its deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Told {
    delivered: Rank,
    except: BTreeSet<MessageId>,
}

impl Told {
    /// Whether a message with this final rank is durably delivered and applied there.
    pub fn covers(&self, rank: Rank) -> bool {
        rank <= self.delivered && !self.except.contains(&rank.1)
    }

    /// Rank and exceptions.
    fn parts(&self) -> (Rank, Arc<[MessageId]>) {
        (self.delivered, self.except.iter().copied().collect())
    }

    fn message(&self) -> Message {
        let (delivered, except) = self.parts();
        Message::Stable { delivered, except }
    }
}

/// Up to where all processes of each group have delivered all, looked up once: it answers for most messages.
#[derive(Debug, Default)]
struct Common(SmallVec<[(GroupId, Option<Rank>); 4]>);

impl Common {
    fn up_to(&mut self, group: GroupId, look: impl FnOnce() -> Option<Rank>) -> Option<Rank> {
        if let Some((_, rank)) = self.0.iter().find(|(of, _)| *of == group) {
            return *rank;
        }
        let rank = look();
        self.0.push((group, rank));
        rank
    }
}

/// Who has delivered what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Truncation {
    /// What we said last, and each other process.
    told: Option<Told>,
    stable: BTreeMap<ProcessId, Told>,
    /// The other groups that messages delivered since they were told of all went to, with the last such delivery.
    kept_for: BTreeMap<GroupId, Position>,
    /// The greatest rank among the deliveries that the owner has handled.
    settled: Option<Rank>,
    /// See [`PrimCast::handled`].
    handled: Option<Position>,
    /// See [`PrimCast::hold`].
    held: BTreeSet<Rank>,
    /// When stragglers were last looked through.
    looked: Time,
}

impl Truncation {
    /// Whether `process` has durably delivered the message with this final rank.
    pub fn has(&self, process: ProcessId, rank: Rank) -> bool {
        self.stable.get(&process).is_some_and(|told| told.covers(rank))
    }

    /// What `process` has said last, or we, who are `me`: rank and exceptions.
    pub fn said_by(&self, process: ProcessId, me: ProcessId) -> Option<(Rank, Arc<[MessageId]>)> {
        let told = if process == me { self.told.as_ref() } else { self.stable.get(&process) };
        told.map(Told::parts)
    }

    /// A message was delivered that went to this other group, too.
    pub fn keep_for(&mut self, group: GroupId, position: Position) {
        self.kept_for.insert(group, position);
    }

    /// What `process` said counts no more: it has lost its memory.
    pub fn forget(&mut self, process: ProcessId) {
        self.stable.remove(&process);
    }

    /// The owner's state is replaced: it says again what it holds.
    pub fn let_go(&mut self) {
        self.held.clear();
    }
}

/// The rank just before.
fn before((ts, id): Rank) -> Rank {
    let MessageId { client, sequence } = id;
    if let Some(sequence) = sequence.checked_sub(1) {
        return (ts, MessageId { client, sequence });
    }
    let (ts, client) = match client.0.checked_sub(1) {
        Some(client) => (ts, ClientId(client)),
        None => (crate::Timestamp(ts.0.saturating_sub(1)), ClientId(u64::MAX)),
    };
    (ts, MessageId { client, sequence: u64::MAX })
}

impl PrimCast {
    /// The same process, with other limits.
    pub fn with_limits(mut self, limits: Limits) -> PrimCast {
        self.limits = limits;
        self
    }

    /// The owner has handled all deliveries up to this one: later ones do not count as stable, though they are
    /// durable. Without a call all count.
    pub fn handled(&mut self, position: Position) {
        self.truncation.handled = Some(position);
    }

    /// A delivery, which the owner has not called handled yet, does not count as stable until [`PrimCast::release`]:
    /// the owner still needs something of its other groups to apply it, which those must keep. To be said again
    /// when it has installed a state.
    pub fn hold(&mut self, rank: Rank) {
        self.truncation.held.insert(rank);
    }

    /// The owner has applied the message of that rank.
    pub fn release(&mut self, rank: Rank) {
        if self.truncation.held.remove(&rank)
            && let Some(slot) = self.log.slot(rank.1)
        {
            for group in slot.entry.start.dest.iter().filter(|group| **group != self.me.group) {
                self.truncation.kept_for.entry(*group).or_insert(Position(0));
            }
        }
    }

    /// What is held, for checks.
    pub fn held(&self) -> impl Iterator<Item = Rank> + '_ {
        self.truncation.held.iter().copied()
    }

    /// Tells what is delivered for good, and drops what all others have told so of.
    pub(crate) fn truncate_delivered(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.tell_stable(out);
        self.truncate(now, out);
    }

    /// Says what is durably delivered here, to those who keep entries because of it.
    fn tell_stable(&mut self, out: &mut Outbox<Self>) {
        let handled = self.truncation.handled.unwrap_or(self.delivered);
        let count = self.untold.partition_point(|(position, _)| *position <= handled);
        let last = self.untold.drain(..count).map(|(_, rank)| rank).max();
        self.truncation.settled = self.truncation.settled.max(last);
        let Some(settled) = self.truncation.settled else { return };
        let told = self.settled_up_to(settled);
        if let Some(known) = &self.truncation.told
            && (told.delivered < known.delivered || told == *known)
        {
            return;
        }
        out.persist(Record::Mark); // Durable with it: the deliveries noted before.
        let kept_for = &mut self.truncation.kept_for;
        let groups: Vec<_> = kept_for.keys().copied().chain([self.me.group]).collect();
        if told.delivered == settled {
            kept_for.retain(|_, position| *position > handled); // Else they are told again, of the rest.
        }
        let (delivered, except) = told.parts();
        self.truncation.told = Some(told);
        if self.tells_through_primary((delivered, &except), &groups, out) {
            return;
        }
        for process in groups.into_iter().flat_map(|group| self.processes(group)) {
            if process != self.me {
                out.send(process, Message::Stable { delivered, except: except.clone() });
            }
        }
    }

    /// What there is to tell up to a rank. One more exception than may be named holds back the rank.
    fn settled_up_to(&self, settled: Rank) -> Told {
        let most = self.limits.exceptions;
        let waiting = self.log.waiting().map(|(_, slot)| (slot.bound, slot.entry.start.id));
        let waiting = waiting.take_while(|rank| *rank <= settled).take(most + 1);
        let held = self.truncation.held.range(..=settled).take(most + 1).copied();
        let unhandled = self.untold.iter().map(|(_, rank)| *rank);
        let unhandled = unhandled.filter(|rank| *rank <= settled);
        let all: BTreeSet<Rank> = waiting.chain(held).chain(unhandled).collect();
        let delivered = all.iter().nth(most).map_or(settled, |rank| before(*rank));
        let except = all.range(..=delivered).map(|(_, id)| *id).collect();
        Told { delivered, except }
    }

    pub(crate) fn on_stable(&mut self, from: ProcessId, delivered: Rank, except: &[MessageId]) {
        let known = self.truncation.stable.get(&from);
        if known.is_none_or(|known| known.delivered <= delivered) {
            let except = except.iter().copied().collect();
            self.truncation.stable.insert(from, Told { delivered, except });
        }
    }

    pub(crate) fn on_stable_wanted(&mut self, from: ProcessId, out: &mut Outbox<Self>) {
        if let Some(told) = &self.truncation.told {
            out.send(from, told.message());
        }
    }

    /// Asks those who hold up truncation for long: they say by themselves only what concerns entries
    /// that they hold, and a snapshot may have brought them past the first one that we keep.
    pub(crate) fn ask_stable(&mut self, now: Time, out: &mut Outbox<Self>) {
        let stragglers = self.log.stragglers().map(|(_, slot)| slot);
        let first = self.log.get(self.log.base());
        let late = stragglers.chain(first).filter(|slot| slot.delivered);
        let late = late.filter(|slot| now.since(slot.since) >= RETRY * 5);
        let mut behind = BTreeSet::new();
        for slot in late.take(STUCK_AT_ONCE) {
            let rank = (slot.bound, slot.entry.start.id);
            let processes = slot.entry.start.dest.iter().flat_map(|group| self.processes(*group));
            behind.extend(processes.filter(|process| !self.truncation.has(*process, rank)));
        }
        behind.remove(&self.me);
        behind.into_iter().for_each(|process| out.send(process, Message::StableWanted));
    }

    /// Drops from `T` what nobody needs any more, and sets aside what holds up too much.
    fn truncate(&mut self, now: Time, out: &mut Outbox<Self>) {
        let mut settled = Vec::new();
        let mut common = Common::default();
        if now.since(self.truncation.looked) >= RETRY {
            self.truncation.looked = now; // Stragglers may be many, and have time.
            self.drop_stragglers(&mut common, &mut settled);
        }
        let mut loaded = 0;
        while let Some(slot) = self.log.get(self.log.base()) {
            loaded = self.log.load_to_drop(loaded);
            // Not what is merely under way, here or to a member that was slow for a moment.
            let late = now.since(slot.since) >= RETRY;
            let long = late && self.limits.are_exceeded(self.log.in_line());
            if self.is_dispensable(slot, long, &mut common) {
                let entry = self.log.truncate_first();
                self.dropped(entry, &mut settled);
            } else if long && (slot.delivered || self.log.base() < self.decided) {
                self.log.set_aside();
            } else {
                break;
            }
        }
        if !settled.is_empty() {
            out.output(Output::Settled(settled));
        }
    }

    fn drop_stragglers(&mut self, common: &mut Common, settled: &mut Vec<MessageId>) {
        let many = self.limits.are_exceeded(self.log.aside());
        let stragglers = self.log.stragglers();
        let gone = stragglers.filter(|(_, slot)| self.is_dispensable(slot, many, common));
        let gone: Vec<_> = gone.map(|(index, _)| index).collect();
        for index in gone {
            let entry = self.log.drop_straggler(index);
            self.dropped(entry, settled);
        }
    }

    fn dropped(&mut self, entry: Option<Entry>, settled: &mut Vec<MessageId>) {
        let Some(entry) = entry else { return };
        if let Some(ts) = entry.final_ts {
            self.done.truncated(entry.start.id, ts);
        }
        if entry.start.dest.len() > 1 {
            settled.push(entry.start.id);
        }
    }

    /// Whether it is durably delivered here, and by all destinations' processes, or a quorum of each.
    fn is_dispensable(&self, slot: &Slot, quorum_is_enough: bool, common: &mut Common) -> bool {
        let rank = (slot.bound, slot.entry.start.id);
        let here = || self.truncation.told.as_ref().is_some_and(|told| told.covers(rank));
        let mut groups = slot.entry.start.dest.iter();
        slot.delivered
            && here()
            && groups.all(|group| {
                common.up_to(*group, || self.delivered_by_all(*group)) >= Some(rank)
                    || self.delivered_by(*group, rank, quorum_is_enough)
            })
    }

    /// Up to where all processes of `group` have delivered all, if all have said so without exceptions.
    fn delivered_by_all(&self, group: GroupId) -> Option<Rank> {
        let others = self.processes(group).filter(|process| *process != self.me);
        let told = others.map(|process| {
            let told = self.truncation.stable.get(&process);
            told.filter(|told| told.except.is_empty()).map(|told| told.delivered)
        });
        let own = self.truncation.told.as_ref().map(|told| told.delivered);
        told.fold(own, std::cmp::min)
    }

    /// A quorum is not enough without disks: its members may forget one after the other, and be brought up each
    /// time by a primary that was not among them.
    fn delivered_by(&self, group: GroupId, rank: Rank, quorum_is_enough: bool) -> bool {
        let quorum_is_enough = quorum_is_enough && !self.keeps_nothing();
        let members = self.members.of(group);
        let delivered = members.iter().filter(|node| {
            let process = group.of(**node);
            process == self.me || self.truncation.has(process, rank)
        });
        let needed =
            if quorum_is_enough { crate::clocks::quorum(members.len()) } else { members.len() };
        delivered.count() >= needed
    }
}
