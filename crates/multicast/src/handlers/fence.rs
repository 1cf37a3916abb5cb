//! A group that is lost for good goes on as a group of heirs: a fence.
//!
//! Who decides is outside (docs/decisions/0100-a-lost-group-goes-on-as-a-group-of-heirs.md): the
//! owner names the group, its heirs, and the *reporters*, which are all members of all groups that
//! are not lost, and tells each of them ([`Command::Fence`]). Who hears of it seals itself:
//!
//! - F1: a sealed process hears the lost members no more. What it knew then of their timestamps is
//!   its report. That is durable before anything else is, and never changes.
//! - F2: it tells all others that it is sealed before it tells them anything else, and who hears
//!   that is sealed, too.
//! - F3: of others that are not known to be sealed it takes no timestamp of a message to the lost
//!   group: they may have it from the lost members, and forget it before they report.
//! - F4: what it knew of how far the lost group is stable, it forgets (`linearizable`).
//!
//! So whatever timestamp of the lost group anybody relies on from now on was in somebody's memory
//! when that one was sealed (F1, F3), hence is in a report. And what was delivered before is
//! durable where it was, if that is asked for
//! ([`Deliveries::Durable`](crate::Deliveries::Durable)): it is in a report, or has been dropped as
//! all have it.
//!
//! An heir begins with what all reports say together: it is the same at all heirs, as no report
//! changes. It makes itself a state of that, in an epoch that nobody led, takes it over as it would
//! take over a snapshot, and may stand for primary then. All is as ever from there on. An heir that
//! does not have all reports is a process that joins: it promises and hears, and gets a state of
//! the others.
//!
//! The clock of that state is no less than any that a reporter has reached. Up to there messages
//! were delivered by who relied on the lost group's being stable, or on a timestamp that was
//! forgotten since; what the heirs propose comes after them. (What is delivered at `ts`, or said to
//! be closed up to `ts`, needs a quorum of clocks of a group that is not lost at `ts`.)
//!
//! Members of the lost group that come back are told, and fall silent. So are members of other
//! groups that were lost beside it: until these have other members, they are as if they were down.
//!
//! Not without disks: who loses its memory loses what it alone has delivered. There a fence has no
//! effect, and its heirs wait for ever.

use crate::message::{Entry, Epoch, Fence, FenceMessage, ReportPart, ReportWanted, Timestamp};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::record::{Record, State};
use crate::state::clocks::quorum;
use crate::state::epochs::Role;
use crate::state::fences::{Estate, Inheritance, Parts, Report, Reported, Seal};
use crate::state::log::Log;
use crate::state::members::Config;
use crate::state::retransmission::RETRY;
use bytes::Bytes;
use meridian_core::{GroupId, Outbox, Position, ProcessId, Time};
use std::sync::Arc;

impl PrimCast {
    /// An heir of a group that was lost, with nothing delivered, and with the configurations of the
    /// other groups that its owner knows.
    ///
    /// # Panics
    /// If `me` is not among the heirs.
    pub fn inheriting(
        me: ProcessId,
        fence: Fence,
        configs: impl IntoIterator<Item = Config>,
    ) -> PrimCast {
        let configs = configs.into_iter().filter(|config| config.group != me.group);
        let mut heir = PrimCast::joining(me, configs.chain([fence.config.clone()]));
        heir.fenced_by(&Arc::new(fence), Bytes::new());
        heir.fences.inheritance = Some(Inheritance::default());
        heir
    }

    /// The configuration of the heirs of `group`, if this process knows that it was lost: it is
    /// sealed.
    pub fn fenced(&self, group: GroupId) -> Option<u64> {
        self.fences.number(group)
    }

    /// All groups that this process knows to be lost, each with the configuration of its heirs.
    pub fn fences(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.fences.seals.iter().map(|(group, seal)| (*group, seal.fence.config.number))
    }

    /// Whether it was a member of its group when that was lost, or was lost beside another group:
    /// it takes no step any more.
    pub fn is_lost(&self) -> bool {
        self.members.is_lost(self.me)
    }

    /// A fence is known, by the owner or by another process: seals this process, if that is news.
    pub(crate) fn seal(&mut self, fence: &Arc<Fence>, out: &mut Outbox<Self>) {
        let group = fence.config.group;
        let news = self.fences.number(group) < Some(fence.config.number);
        if !news || fence.config.members.is_empty() || self.keeps_nothing() {
            return;
        }
        let before: Vec<_> = self.everybody().collect();
        let ours = group == self.me.group;
        let report = if ours { Bytes::new() } else { self.report_on(group) };
        self.fenced_by(fence, report.clone());
        out.persist(Record::Fence { fence: fence.clone(), report });
        self.replication.noted = None;
        let all: Vec<_> = self.everybody().filter(|process| !before.contains(process)).collect();
        for process in before.into_iter().chain(all) {
            out.send(process, FenceMessage::Sealed(fence.clone()).into());
        }
        if !ours {
            self.forget_lost(group);
            self.relay_again_to_all();
            if self.epochs.role == Role::Primary {
                self.config_known(group, out);
            }
        }
    }

    /// The fence is known, and this is what was known of its group: now, or by a record.
    pub(crate) fn fenced_by(&mut self, fence: &Arc<Fence>, report: Bytes) {
        if self.planted.is(Mutation::HearsTheLost) && fence.config.group != self.me.group {
            self.members.learn(&fence.config);
        } else {
            self.members.fence(&fence.config);
        }
        fence.lost.iter().for_each(|process| self.members.lose(*process));
        let seal = Seal { fence: fence.clone(), report };
        self.fences.seals.insert(fence.config.group, seal);
    }

    /// F1, after a restart: what was reported is known again. Else another timestamp of the group
    /// might be known from an earlier record than the one that heirs take from a final one.
    pub(crate) fn recall_report(&mut self, group: GroupId) {
        let report = self.fences.seals.get(&group).and_then(Seal::decode);
        for Reported { start, local, last } in report.into_iter().flat_map(|of| of.messages) {
            let waits = self.log.slot(start.id).is_some_and(|slot| !slot.delivered);
            match (self.log.find(start.id).filter(|_| waits), last, local) {
                (Some(index), Some(ts), _) => self.log.decide(index, ts),
                (Some(index), None, Some(ts)) => self.log.local_ts(index, group, ts),
                _ => {}
            }
        }
    }

    /// All processes of all groups, but this one.
    fn everybody(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let all = self.members.groups().flat_map(|group| self.processes(group));
        all.filter(|process| *process != self.me)
    }

    /// F1: what is known of the timestamps of `group`.
    fn report_on(&self, group: GroupId) -> Bytes {
        let to_group = |reported: &Reported| reported.start.dest.contains(&group);
        let delivered_too = !self.planted.is(Mutation::ReportsUndelivered);
        let slots = self.log.iter_from(0).map(|(_, slot)| slot);
        let slots = slots.filter(|slot| delivered_too || !slot.delivered).map(|slot| {
            let local = slot.locals.iter().find(|(of, _)| *of == group).map(|(_, ts)| *ts);
            Reported { start: slot.entry.start.clone(), local, last: slot.entry.final_ts }
        });
        let known = |reported: &Reported| reported.local.or(reported.last).is_some();
        let mut messages: Vec<_> = slots.filter(to_group).filter(known).collect();
        // What was reported on another group, or on earlier heirs of this one, may have been known
        // in memory only, and forgotten since.
        for (of, seal) in &self.fences.seals {
            let before = seal.decode().into_iter().flat_map(|report| report.messages);
            messages.extend(before.filter(to_group).filter_map(|reported| {
                let local = reported.local.filter(|_| *of == group);
                let reported = Reported { local, ..reported };
                known(&reported).then_some(reported)
            }));
        }
        let leader = self.clock.members.min_clock(self.epochs.cur.leader);
        let reached = leader.min(self.clock.members.quorum_clock(self.voters()));
        let last = self.deliveries.last.map(|(ts, _)| ts).unwrap_or_default();
        let clock = self.clock.now.max(reached).max(last);
        let report = Report { clock, messages, done: self.deliveries.done.clone() };
        postcard::to_allocvec(&report).expect("a report can be encoded").into()
    }

    /// F1 and F4: what the lost members said counts no more, but for what is in `T`. Nor does what
    /// others said of timestamps of messages that `T` does not hold: they say it again.
    fn forget_lost(&mut self, group: GroupId) {
        if self.planted.is(Mutation::HearsTheLost) {
            return;
        }
        self.remote.forget(group);
        self.relay.early = Default::default();
        self.linearizable.forget(group);
        self.outbound.forget(group);
        self.starts.outgoing.retain(|process, _| process.group != group);
    }

    pub(crate) fn on_fence_message(
        &mut self,
        now: Time,
        from: ProcessId,
        message: FenceMessage,
        out: &mut Outbox<Self>,
    ) {
        match message {
            FenceMessage::Sealed(fence) => {
                self.seal(&fence, out);
                self.fences.mark(from, &fence);
                if self.fences.inheritance.is_some() && fence.config.group == self.me.group {
                    self.want_report(from, out);
                }
            }
            FenceMessage::ReportWanted(wanted) => self.on_report_wanted(from, &wanted, out),
            FenceMessage::ReportPart(part) => self.on_report_part(now, from, &part, out),
        }
    }

    fn on_report_wanted(
        &mut self,
        from: ProcessId,
        ReportWanted { fence, offset }: &ReportWanted,
        out: &mut Outbox<Self>,
    ) {
        let Config { group, number, members } = &fence.config;
        if from.group != *group || !members.contains(&from.node) {
            return;
        }
        self.seal(fence, out);
        let seal = self.fences.seals.get(group);
        let seal = seal.filter(|seal| seal.fence.config.number == *number);
        if let Some((seal, bytes)) =
            seal.and_then(|seal| Some((seal, Parts::part(&seal.report, *offset)?)))
        {
            let (group, number, offset) = (*group, *number, *offset);
            let total = seal.report.len() as u64;
            let part = ReportPart { group, number, offset, bytes, total };
            out.send(from, FenceMessage::ReportPart(part).into());
        }
    }

    fn on_report_part(
        &mut self,
        now: Time,
        from: ProcessId,
        part: &ReportPart,
        out: &mut Outbox<Self>,
    ) {
        let ReportPart { group, number, offset, bytes, total } = part;
        let ours = *group == self.me.group && self.fences.number(*group) == Some(*number);
        let Some(inheritance) = self.fences.inheritance.as_mut().filter(|_| ours) else { return };
        if inheritance.parts.add(from, *offset, bytes, *total) {
            self.want_report(from, out);
            self.inherit(now, out);
        }
    }

    /// As an heir: asks a reporter for what is missing of its report.
    fn want_report(&self, from: ProcessId, out: &mut Outbox<Self>) {
        let Some(seal) = self.fences.seals.get(&self.me.group) else { return };
        let offset = self.fences.inheritance.as_ref().and_then(|all| all.parts.offset(from));
        if let Some(offset) = offset.filter(|_| seal.fence.reporters.contains(&from)) {
            let wanted = ReportWanted { fence: seal.fence.clone(), offset };
            out.send(from, FenceMessage::ReportWanted(wanted).into());
        }
    }

    /// As an heir without a state: asks for all that is missing, now and again.
    pub(crate) fn want_reports(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(seal) = self.fences.seals.get(&self.me.group) else { return };
        let reporters = seal.fence.reporters.clone();
        let Some(inheritance) = &mut self.fences.inheritance else { return };
        if inheritance.asked.is_none_or(|at| now.since(at) >= RETRY) {
            inheritance.asked = Some(now);
            reporters.into_iter().for_each(|reporter| self.want_report(reporter, out));
            self.inherit(now, out); // Where there is nobody to ask.
        }
    }

    /// As an heir that has all reports: takes over what they say.
    fn inherit(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(seal) = self.fences.seals.get(&self.me.group) else { return };
        let Some(inheritance) = &self.fences.inheritance else { return };
        let reporters = seal.fence.reporters.iter();
        let missing =
            reporters.filter(|process| inheritance.parts.offset(**process).is_some()).count();
        let all = seal.fence.reporters.len();
        let majority = self.planted.is(Mutation::InheritsFromMajority);
        if missing > if majority { all - quorum(all) } else { 0 } {
            return;
        }
        if let Some(reports) = inheritance.reports() {
            let config = seal.fence.config.clone();
            let state = self.inherited(now, &config, Estate::new(reports));
            self.install_snapshot(now, self.me, state, out);
        }
    }

    /// The state that heirs begin with.
    fn inherited(&self, now: Time, config: &Config, estate: Estate) -> State {
        // Nobody leads it: who would is as one that has restarted.
        let epoch = Epoch { config: config.number, number: 1, leader: config.members[0] };
        let mut clock = estate.clock;
        if self.planted.is(Mutation::ForgetsReportedClock) {
            clock = Timestamp(0);
        }
        let mut log = Log::default();
        for (index, (ts, final_ts, start)) in (0..).zip(estate.messages()) {
            clock = clock.max(ts).max(final_ts.unwrap_or_default());
            log.append(Entry { epoch, ts, start, final_ts }, now);
            log.local_ts(index, config.group, ts);
        }
        log.decided = log.len();
        State {
            e_cur: epoch,
            e_prom: epoch,
            log,
            delivered: Position(0),
            last: None,
            done: estate.done,
            clock,
            ceiling: clock,
            members: self.members.clone(),
            application: None,
            fences: self.fences.seals.clone(),
            lost: self.members.lost.clone(),
        }
    }

    /// F2: `peer` may not know what we are sealed by.
    pub(crate) fn tell_fences(&self, peer: ProcessId, out: &mut Outbox<Self>) {
        for seal in self.fences.seals.values() {
            out.send(peer, FenceMessage::Sealed(seal.fence.clone()).into());
        }
    }

    /// The same, of all, when this process starts.
    pub(crate) fn tell_fences_to_all(&self, out: &mut Outbox<Self>) {
        self.everybody().for_each(|peer| self.tell_fences(peer, out));
    }

    /// One that was a member when its group was lost still speaks: it is told, now and again.
    pub(crate) fn tell_lost(&mut self, now: Time, from: ProcessId, out: &mut Outbox<Self>) {
        if self.fences.told.get(&from).is_none_or(|at| now.since(*at) >= RETRY) {
            self.fences.told.insert(from, now);
            let mut seals = self.fences.seals.values();
            let beside = seals.find(|seal| seal.fence.lost.contains(&from));
            if let Some(seal) = beside.or_else(|| self.fences.seals.get(&from.group)) {
                out.send(from, FenceMessage::Sealed(seal.fence.clone()).into());
            }
        }
    }

    /// F3: whether what `from` says of timestamps of a message to these groups counts.
    pub(crate) fn may_tell(&self, from: ProcessId, dest: &[GroupId]) -> bool {
        self.fences.may_tell(from, dest) || self.planted.is(Mutation::TrustsUnsealed)
    }

    /// The same of the message at an index of `T`.
    pub(crate) fn may_tell_of(&self, from: ProcessId, index: u64) -> bool {
        self.log.get(index).is_none_or(|slot| self.may_tell(from, &slot.entry.start.dest))
    }

    /// F3: entries that came from another, without the final timestamps that do not count.
    pub(crate) fn without_hearsay(
        &self,
        from: ProcessId,
        entries: impl IntoIterator<Item = Entry>,
    ) -> impl Iterator<Item = Entry> {
        entries.into_iter().map(move |entry| match self.may_tell(from, &entry.start.dest) {
            true => entry,
            false => Entry { final_ts: None, ..entry },
        })
    }
}
