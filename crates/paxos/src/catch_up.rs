//! Catch-up: what was decided without this replica is had from another (report, section 5.3,
//! Algorithm 1).
//!
//! Begins when something is known to be decided, or must be since a later instance was started than
//! the window allows, and nothing moves; and now and then to be sure. Asks the follower that
//! answered best, or the leader. If the log of that one does not reach back as far, it gets the
//! snapshot, part after part.

use crate::configuration::ALPHA;
use crate::message::{
    CatchUpQuery, CatchUpResponse, CatchUpSnapshot, Message, Missing, Part, Record,
};
use crate::options::Recovery;
use crate::process::Paxos;
use crate::service::Service;
use crate::state::catch_up::{Download, RATINGS};
use crate::status::Phase;
use crate::view::Instance;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Time};

/// So many bytes of decisions are sent at once, unless one is longer.
const RESPONSE_LEN: usize = 1 << 20;
/// So many bytes of a snapshot are sent at once.
const PART_LEN: usize = 256 << 10;
/// After so many questions without an answer the snapshot is had from another.
const TRIES: u32 = 5;

impl<S: Service> Paxos<S> {
    /// Whether something is missing for sure.
    fn is_behind(&self) -> bool {
        let next = self.machine.next();
        let wanted = match &self.phase {
            Phase::Recovering(recovering) => recovering.target(),
            _ => self.proposer.as_ref().map_or(Instance(0), |proposer| proposer.decided),
        };
        self.machine.is_blank()
            || next < wanted
            || next < self.catch_up.decided
            || next.0 + self.options.window < self.catch_up.highest.0
    }

    pub(crate) fn catch_up_on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        let next = self.machine.next();
        let moved = std::mem::replace(&mut self.catch_up.seen, next) != next;
        let patience = self.options.retransmit * 2;
        if let Some((node, at)) = self.catch_up.asked {
            if now.since(at) < patience {
                return;
            }
            self.catch_up.asked = None;
            self.catch_up.rate(node, -1);
            if let Some(download) = &mut self.catch_up.download {
                download.tries += 1;
                if download.tries >= TRIES {
                    self.catch_up.download = None;
                }
            }
        }
        let newcomer = self.is_active() && !self.is_member();
        if (self.is_behind() && !moved) || newcomer || self.catch_up.download.is_some() {
            self.query(now, false, out);
        } else if !self.is_leading()
            && now.since(self.catch_up.checked) >= self.options.suspect_after * 2
        {
            self.catch_up.checked = now;
            self.query(now, true, out);
        }
    }

    /// The follower with the best rating above all others' none, or the leader.
    fn best_replica(&mut self) -> Option<NodeId> {
        // Maybe none of the members that are known here: of these all may be gone.
        let leader = self.view.leader().filter(|leader| *leader != self.me);
        if std::mem::take(&mut self.catch_up.ask_leader) && leader.is_some() {
            return leader;
        }
        let rating = |node: &NodeId| self.catch_up.ratings.get(node).copied().unwrap_or(1);
        let followers = self.sources().into_iter().filter(|peer| Some(*peer) != leader);
        let best = followers.max_by_key(rating).filter(|node| rating(node) > 0);
        // A leader who never answers is none; where all are bad, each has his turn.
        let leader = leader.filter(|leader| rating(leader) > RATINGS.0);
        best.or(leader).or_else(|| self.next_in_turn())
    }

    /// Whoever is well rated may know no more than this one.
    fn next_in_turn(&mut self) -> Option<NodeId> {
        self.catch_up.turn += 1;
        let sources = self.sources();
        sources.get(self.catch_up.turn % sources.len().max(1)).copied()
    }

    /// Whom it may ask.
    fn sources(&self) -> Vec<NodeId> {
        let mut all = self.peers.clone();
        if !self.is_member() {
            let guides = self.catch_up.guides.iter().filter(|guide| !self.peers.contains(guide));
            all.extend(guides);
        }
        all
    }

    fn query(&mut self, now: Time, periodic: bool, out: &mut Outbox<Self>) {
        if self.machine.is_blank()
            && self.catch_up.download.is_none()
            && let Some(from) = self.best_replica()
        {
            self.catch_up.download = Some(Download::of(from));
        }
        let snapshot =
            self.catch_up.download.as_ref().map(|download| (download.from, download.part));
        let to = match snapshot {
            Some((from, _)) => Some(from),
            None if periodic => self.next_in_turn(),
            None => self.best_replica(),
        };
        let Some(to) = to else { return };
        let missing = match snapshot {
            Some(_) => Missing::default(),
            None => self.missing(),
        };
        self.catch_up.asked = Some((to, now));
        let snapshot = snapshot.map(|(_, part)| part);
        self.send(to, Message::CatchUpQuery(CatchUpQuery { missing, periodic, snapshot }), out);
    }

    fn missing(&self) -> Missing {
        let end = self.log.end().max(self.machine.next());
        let mut missing = Missing { after: end, ..Missing::default() };
        let mut run: Option<(Instance, Instance)> = None;
        let mut close = |run: Option<(Instance, Instance)>| match run {
            Some((first, last)) if first == last => missing.singles.push(first),
            Some(range) => missing.ranges.push(range),
            None => {}
        };
        for (instance, entry) in self.log.since(self.machine.next()) {
            run = match (run, entry.decided) {
                (run, true) => {
                    close(run);
                    None
                }
                (Some((first, _)), false) => Some((first, instance)),
                (None, false) => Some((instance, instance)),
            };
        }
        close(run);
        missing
    }

    /// Another wants to know what was decided.
    pub(crate) fn on_query(&mut self, from: NodeId, query: &CatchUpQuery, out: &mut Outbox<Self>) {
        let CatchUpQuery { missing, periodic, snapshot } = query;
        if !self.is_active() && !self.is_removed() {
            return;
        }
        if let Some(part) = snapshot {
            return self.send_part(from, *part, out);
        }
        let ranges = missing.ranges.iter().map(|(first, _)| first);
        let first = ranges.chain(&missing.singles).fold(missing.after, |a, b| a.min(*b));
        let snapshot_only = first < self.log.base() && first < self.machine.next();
        let wanted = |instance: Instance| {
            instance >= missing.after
                || missing.singles.contains(&instance)
                || missing.ranges.iter().any(|(a, b)| (*a..=*b).contains(&instance))
        };
        let (mut decided, mut len) = (Vec::new(), 0);
        for (instance, entry) in self.log.since(first).take_while(|_| !snapshot_only) {
            if let Some((_, batch)) = entry.vote.as_ref().filter(|_| entry.decided)
                && wanted(instance)
            {
                if len > 0 && len + batch.len() > RESPONSE_LEN {
                    break;
                }
                len += batch.len() + 1;
                decided.push((instance, batch.clone()));
            }
        }
        let response = Message::CatchUpResponse(CatchUpResponse {
            decided,
            periodic: *periodic,
            snapshot_only,
        });
        self.send(from, response, out);
    }

    fn send_part(&mut self, to: NodeId, part: Part, out: &mut Outbox<Self>) {
        self.machine.keep_one();
        let snapshots = &self.machine.snapshots;
        let wanted = snapshots.iter().find(|snapshot| snapshot.position == part.position);
        let (snapshot, offset) = match (wanted, snapshots.back()) {
            (Some(wanted), _) => (wanted, part.offset),
            (None, Some(last)) => (last, 0),
            (None, None) => return,
        };
        let total = snapshot.bytes.len();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
        let bytes = snapshot.bytes.slice(from..total.min(from + PART_LEN));
        let part = Part { position: snapshot.position, offset: from as u64 };
        let total = total as u64;
        self.send(to, Message::CatchUpSnapshot(CatchUpSnapshot { part, total, bytes }), out);
    }

    /// What was asked for, or the beginning of it.
    pub(crate) fn on_response(
        &mut self,
        now: Time,
        from: NodeId,
        response: CatchUpResponse,
        out: &mut Outbox<Self>,
    ) {
        let CatchUpResponse { decided, periodic, snapshot_only } = response;
        if matches!(self.phase, Phase::New | Phase::Stopped(_)) {
            return;
        }
        if self.catch_up.asked.is_some_and(|(node, _)| node == from) {
            self.catch_up.asked = None;
        }
        if snapshot_only || self.machine.is_blank() {
            if self.catch_up.download.is_none() {
                self.catch_up.download = Some(Download::of(from));
            }
            return self.query(now, false, out);
        }
        if decided.is_empty() {
            self.catch_up.ask_leader = !periodic;
            self.catch_up.rate(from, -i32::from(!periodic));
            return;
        }
        self.catch_up.rate(from, 1);
        let before = self.machine.next();
        for (instance, batch) in decided {
            if instance.0 >= self.machine.next().0 + ALPHA {
                self.execute(now, out);
            }
            if self.is_near(instance) {
                self.learn(instance, batch, out);
            }
        }
        self.execute(now, out);
        if self.machine.next() > before && self.is_behind() {
            self.query(now, false, out);
        }
    }

    /// A part of a snapshot.
    pub(crate) fn on_snapshot(
        &mut self,
        now: Time,
        from: NodeId,
        snapshot: &CatchUpSnapshot,
        out: &mut Outbox<Self>,
    ) {
        let CatchUpSnapshot { part, total, bytes } = snapshot;
        let Some(download) = &mut self.catch_up.download else { return };
        if download.from != from {
            return;
        }
        if part.offset == 0 && part.position != download.part.position {
            download.bytes.clear();
            download.part = Part { position: part.position, offset: 0 };
        }
        if *part != download.part {
            return; // A copy.
        }
        download.bytes.extend_from_slice(bytes);
        download.part.offset += bytes.len() as u64;
        download.tries = 0;
        let whole = download.part.offset >= *total;
        let bytes = if whole { std::mem::take(&mut download.bytes) } else { Vec::new() };
        self.catch_up.asked = None;
        self.catch_up.rate(from, 1);
        if whole {
            self.catch_up.download = None;
            self.install(now, bytes.into(), out);
        }
        if self.catch_up.download.is_some() || self.is_behind() {
            self.query(now, false, out);
        }
    }

    /// Takes over a snapshot, if it is newer than what is here.
    fn install(&mut self, now: Time, bytes: Bytes, out: &mut Outbox<Self>) {
        match self.machine.install(&bytes) {
            Ok(true) => {
                self.log.truncate(self.machine.next());
                let joins = self.phase == Phase::Joining;
                match self.options.recovery {
                    // It says that it takes part: it must know then at all later starts who the
                    // members are.
                    Recovery::FullSs if joins => out.persist(Record::Snapshot(bytes)),
                    Recovery::FullSs => out.note(Record::Snapshot(bytes)),
                    Recovery::CrashStop | Recovery::EpochSs | Recovery::ViewSs => {}
                }
                if joins {
                    self.take_part(out);
                }
                self.after_execution(now, out);
                self.execute(now, out);
            }
            Ok(false) => {}
            Err(stopped) => self.stop(stopped, out),
        }
    }
}
