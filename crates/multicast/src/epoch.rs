//! Algorithm 3: changing a group's primary.
//!
//! PROMISE and NEW-STATE carry what differs, not the whole `T`: a promise says how far its process is and
//! in which epochs its entries were proposed; the candidate fetches what it lacks from the most advanced
//! and sends each promiser what it lacks.

use crate::clocks::quorum;
use crate::log::common_prefix;
use crate::message::{Entry, Epoch, Message, Part, Progress, Record, Timestamp};
use crate::process::{Mutation, Of, PrimCast, Role};
use crate::stream::Stream;
use meridian_core::{NodeId, Outbox, Position, ProcessId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long without a word of the primary before a process stands for primary. Heartbeats come four
/// times a second; a busy machine or a slow link must not look like a dead one.
pub const ELECTION_TIMEOUT: Duration = Duration::from_millis(1500);

/// How much longer each next process waits, in the order of the group after the primary: so that one
/// stands at a time.
const STAGGER: Duration = Duration::from_millis(400);

/// The failure detector, and the state of an epoch change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Election {
    /// When the leader of `E_prom` was last heard of, acting as such.
    pub heard: Time,
    /// When each member was last heard of.
    pub alive: BTreeMap<NodeId, Time>,
    /// Who misses the leader of that epoch too, and when we asked.
    suspects: Option<(Epoch, Time, BTreeSet<NodeId>)>,
    /// The highest epoch that each member is known to have accepted.
    accepts: BTreeMap<NodeId, Epoch>,
    /// As candidate: since when, what was promised until a `T` is chosen, and whom we fetch from.
    pub since: Time,
    pub promises: BTreeMap<NodeId, (Timestamp, Progress)>,
    chosen: bool,
    /// From which index.
    pub fetching: Option<(NodeId, u64)>,
    /// The parts of a `T` that have arrived: from the most advanced promiser, or NEW-STATE.
    incoming: Option<Incoming>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Incoming {
    epoch: Epoch,
    start: u64,
    entries: Vec<Entry>,
}

impl Election {
    pub fn accepted(&mut self, node: NodeId, epoch: Epoch) {
        let known = self.accepts.entry(node).or_insert(epoch);
        *known = epoch.max(*known);
    }

    /// What `node` said does not count any more.
    pub fn forget(&mut self, node: NodeId) {
        self.accepts.remove(&node);
        self.promises.remove(&node);
        if let Some((_, _, who)) = &mut self.suspects {
            who.remove(&node);
        }
    }

    fn reset(&mut self, now: Time) {
        self.heard = now;
        self.suspects = None;
        self.promises.clear();
        self.chosen = false;
        self.fetching = None;
        self.incoming = None;
    }
}

impl PrimCast {
    pub(crate) fn on_started(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.election.heard = now;
        self.role = Role::Promised;
        self.share_again(); // Entries came from records.
        if self.memory.lost {
            self.recover_memory(now, out);
            return;
        }
        if self.knows_nothing() {
            self.ask_for_configs(out);
        }
        if self.mutation == Mutation::ResumesEpoch
            && self.leads(self.e_cur)
            && self.e_cur.number > 0
        {
            self.role = Role::Primary;
        } else if self.leads(self.e_prom) {
            // Nobody else can lead this epoch, and we must not go on in it.
            self.suspect(now, out);
        } else if self.e_cur == self.e_prom {
            self.rejoin(out);
        } else {
            self.send_promise(out);
        }
    }

    /// After a restart of ours or of a link: shows where we are in an epoch that we had accepted.
    pub(crate) fn rejoin(&mut self, out: &mut Outbox<Self>) {
        let accept = Message::Accept { epoch: self.e_cur, clock: self.clock };
        self.peers().for_each(|peer| out.send(peer, accept.clone()));
        let resend = Message::Resend { epoch: self.e_cur, from: self.log.len() };
        let leader = self.leader_of(self.e_cur);
        // Who has lost its memory has not heard what the others said again: they answer with their ACKs.
        let all = self.keeps_nothing();
        let to = self.peers().filter(|peer| all || *peer == leader);
        to.for_each(|peer| out.send(peer, resend.clone()));
    }

    /// The failure detector: called with each tick.
    pub(crate) fn watch_leader(&mut self, now: Time, out: &mut Outbox<Self>) {
        let silence = now.since(self.election.heard);
        match self.role {
            Role::Primary => {}
            Role::Candidate => {
                if now.since(self.election.since) > ELECTION_TIMEOUT + self.patience() {
                    self.stand(now, out);
                }
            }
            Role::Follower | Role::Promised => {
                if silence > ELECTION_TIMEOUT + self.patience()
                    || (self.leads(self.e_prom) && silence > STAGGER)
                {
                    self.suspect(now, out);
                }
            }
        }
    }

    /// The longer, the farther after the leader we stand in the group.
    fn patience(&self) -> Duration {
        let members = self.members.of(self.me.group);
        let place = |node| members.iter().position(|member| *member == node).unwrap_or(0);
        let (me, leader, count) = (place(self.me.node), place(self.e_prom.leader), members.len());
        let after = (me + count - leader) % count.max(1);
        STAGGER * u32::try_from(after.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Asks the others whether they miss the primary too. Nothing changes before a quorum does, so a
    /// process that alone is cut off deposes nobody when it comes back.
    fn suspect(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.may_stand() {
            return;
        }
        let epoch = self.e_prom;
        match &self.election.suspects {
            Some((asked, at, _)) if *asked == epoch && now.since(*at) < STAGGER => return,
            _ => {}
        }
        self.election.suspects = Some((epoch, now, BTreeSet::from([self.me.node])));
        self.peers().for_each(|peer| out.send(peer, Message::Suspect { epoch }));
        self.stand_if_suspected(now, out);
    }

    pub(crate) fn on_suspect(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) {
        if epoch < self.e_prom {
            // Tells it of the epoch, and of us if we lead it.
            self.show_epoch(from, epoch, out);
            return;
        }
        let silent = now.since(self.election.heard) > ELECTION_TIMEOUT / 2;
        let leads = self.role == Role::Primary && epoch == self.e_prom;
        if leads {
            out.send(from, self.clock_message());
        } else if epoch > self.e_prom || epoch.leader == from.node || silent {
            out.send(from, Message::Suspected { epoch });
        }
    }

    pub(crate) fn on_suspected(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) {
        if let Some((asked, _, who)) = &mut self.election.suspects
            && *asked == epoch
            && epoch == self.e_prom
        {
            who.insert(from.node);
            self.stand_if_suspected(now, out);
        }
    }

    fn stand_if_suspected(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some((_, _, who)) = &self.election.suspects else { return };
        let members = self.members.of(self.me.group);
        let suspecting = members.iter().filter(|node| who.contains(*node)).count();
        if suspecting >= quorum(members.len()) {
            self.stand(now, out);
        }
    }

    /// Lines 57-60.
    pub(crate) fn stand(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.may_stand() {
            self.role = Role::Promised; // It has left meanwhile.
            return;
        }
        self.role = Role::Candidate;
        let config = self.members.number(self.me.group).max(self.e_prom.config);
        let number = self.e_prom.number + 1;
        self.e_prom = Epoch { config, number, leader: self.me.node };
        self.persist_promise(out);
        self.election.reset(now);
        self.election.since = now;
        let mine = (self.clock, self.progress());
        self.election.promises.insert(self.me.node, mine);
        let message = Message::NewEpoch { epoch: self.e_prom };
        for peer in self.peers() {
            self.tell_config(peer, out);
            out.send(peer, message.clone());
        }
        self.choose(now, out);
    }

    fn persist_promise(&self, out: &mut Outbox<Self>) {
        if self.mutation != Mutation::ForgetsPromise {
            out.persist(Record::Promised(self.e_prom));
        }
    }

    /// Lines 61-64, and the same for whoever learns of an epoch in another way.
    pub(crate) fn promise(&mut self, now: Time, epoch: Epoch, out: &mut Outbox<Self>) {
        assert!(epoch > self.e_prom, "promised to {:?}, now to {epoch:?}", self.e_prom);
        if self.leads(epoch) {
            return; // Of before a restart; we never act in it again.
        }
        if self.members.in_config(self.me.group, epoch.config).is_none() {
            // Who promised without knowing whose quorum counts could stand no more. The answer tells us.
            out.send(self.leader_of(epoch), Message::Suspect { epoch: self.e_prom });
            return;
        }
        self.e_prom = epoch;
        self.role = Role::Promised;
        self.election.reset(now);
        if self.mutation == Mutation::PromisesFirst {
            self.send_promise(out);
            self.persist_promise(out);
        } else {
            self.persist_promise(out);
            self.send_promise(out);
        }
    }

    pub(crate) fn send_promise(&mut self, out: &mut Outbox<Self>) {
        let (epoch, clock, progress) = (self.e_prom, self.clock, self.progress());
        out.send(self.leader_of(epoch), Message::Promise { epoch, clock, progress });
    }

    pub(crate) fn on_new_epoch(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) {
        if epoch.leader != from.node {
            return;
        }
        match epoch.cmp(&self.e_prom) {
            std::cmp::Ordering::Less => self.show_epoch(from, epoch, out),
            // Said again: answered again, and nothing changes.
            std::cmp::Ordering::Equal if self.e_cur < epoch => self.send_promise(out),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => self.promise(now, epoch, out),
        }
    }

    pub(crate) fn on_promise(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        clock: Timestamp,
        progress: Progress,
        out: &mut Outbox<Self>,
    ) {
        if epoch < self.e_prom {
            self.show_epoch(from, epoch, out);
        } else if epoch == self.e_prom && self.leads(epoch) {
            match self.role {
                Role::Candidate => {
                    if self.election.chosen {
                        self.send_new_state(from.node, &progress, out);
                    } else {
                        self.election.promises.insert(from.node, (clock, progress));
                        self.choose(now, out);
                    }
                }
                Role::Primary => self.send_new_state(from.node, &progress, out),
                Role::Follower | Role::Promised => {}
            }
        }
    }

    /// Lines 65-69, once a quorum has promised: fetches the longest `T` of the highest epoch if it is
    /// not ours, then installs it here and sends it to the promisers.
    pub(crate) fn choose(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.role != Role::Candidate
            || self.election.chosen
            || self.election.fetching.is_some()
            || !self.has_promises()
        {
            return;
        }
        let mine = self.progress();
        self.election.promises.insert(self.me.node, (self.clock, mine.clone()));
        let rank = |progress: &Progress| (progress.e_cur, progress.len);
        let promises = self.election.promises.iter();
        let (best, (_, progress)) = promises
            .max_by_key(|(node, (_, progress))| (rank(progress), **node == self.me.node))
            .expect("our own promise is among them");
        let (best, common) = (*best, common_prefix(&mine.runs, &progress.runs));
        if rank(progress) == rank(&mine) {
            self.finish_choice(now, self.log.len(), Vec::new(), out);
        } else if common < progress.base {
            self.request_snapshot(now, self.me.group.of(best), out);
        } else {
            let epoch = self.e_prom;
            self.election.fetching = Some((best, common));
            out.send(self.me.group.of(best), Message::Fetch { epoch, from: common });
        }
    }

    pub(crate) fn on_fetch(
        &mut self,
        from: ProcessId,
        epoch: Epoch,
        index: u64,
        out: &mut Outbox<Self>,
    ) {
        if epoch != self.e_prom || epoch.leader != from.node {
            return;
        }
        if index < self.log.base() {
            out.send(from, Message::Behind);
            return;
        }
        for part in self.log.parts(index) {
            out.send(from, Message::Fetched { epoch, part });
        }
    }

    pub(crate) fn on_fetched(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        part: Part,
        out: &mut Outbox<Self>,
    ) {
        // Not what was asked for before a snapshot: that would cut what the snapshot has decided.
        let asked = self.election.fetching == Some((from.node, part.start));
        let fetching = asked && !self.election.chosen;
        if self.role != Role::Candidate || epoch != self.e_prom || !fetching {
            return;
        }
        let start = part.start;
        if let Some(entries) = self.take_part(epoch, part) {
            self.finish_choice(now, start, entries, out);
        }
    }

    fn finish_choice(
        &mut self,
        now: Time,
        start: u64,
        entries: Vec<Entry>,
        out: &mut Outbox<Self>,
    ) {
        (self.election.chosen, self.election.fetching) = (true, None);
        let promises = std::mem::take(&mut self.election.promises);
        let clock = promises.values().map(|(clock, _)| *clock).max().unwrap_or_default();
        self.streams.clear();
        self.install(now, start, entries, clock, out);
        for (node, (_, progress)) in &promises {
            if *node != self.me.node {
                self.send_new_state(*node, progress, out);
            }
        }
    }

    /// Line 69, to one process: what it lacks of `T`.
    fn send_new_state(&mut self, node: NodeId, progress: &Progress, out: &mut Outbox<Self>) {
        let common = common_prefix(&progress.runs, self.log.runs());
        let comes = progress.e_cur.number == 0 && self.e_cur.config > 0;
        let without_state = comes && self.delivered > Position(0);
        if without_state {
            // It gets the application's state, not the messages that led there: of what all members before it have
            // applied, other groups may not know any more what its owner would ask them. What we have not applied
            // they keep from now on for it, too: they hear of it before they hear that we have.
            self.tell_config_to_all(out);
        }
        if without_state || common < self.log.base() {
            out.send(self.me.group.of(node), Message::Behind);
            return;
        }
        let len = self.log.len();
        self.streams.insert(node, Stream::from(len));
        self.relay_again(self.me.group.of(node));
        self.tell_config(self.me.group.of(node), out);
        for part in self.log.parts(common) {
            let message = Message::NewState { epoch: self.e_prom, clock: self.clock, part };
            out.send(self.me.group.of(node), message);
        }
    }

    /// Lines 70-74.
    pub(crate) fn on_new_state(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        clock: Timestamp,
        part: Part,
        out: &mut Outbox<Self>,
    ) {
        if epoch.leader != from.node {
            return;
        }
        if epoch < self.e_prom {
            self.show_epoch(from, epoch, out);
            return;
        }
        if epoch > self.e_prom {
            self.promise(now, epoch, out);
            return;
        }
        self.election.heard = now;
        if self.e_cur == epoch || part.start < self.log.base().max(self.decided) {
            return; // Installed already; or of before a snapshot, after which we promised again.
        }
        let start = part.start;
        if let Some(entries) = self.take_part(epoch, part)
            && start <= self.log.len()
        {
            self.install(now, start, entries, clock, out);
        }
    }

    /// Collects parts; the whole once the last one is there.
    fn take_part(&mut self, epoch: Epoch, part: Part) -> Option<Vec<Entry>> {
        if part.from == part.start {
            let (start, entries) = (part.start, Vec::new());
            self.election.incoming = Some(Incoming { epoch, start, entries });
        }
        let incoming = self.election.incoming.as_mut()?;
        let next = incoming.start + incoming.entries.len() as u64;
        if (incoming.epoch, incoming.start, next) != (epoch, part.start, part.from) {
            return None;
        }
        incoming.entries.extend(part.entries);
        if incoming.start + (incoming.entries.len() as u64) < part.end {
            return None;
        }
        self.election.incoming.take().map(|incoming| incoming.entries)
    }

    /// `T` is now what it was up to `start`, and then `entries`; `E_cur` is `E_prom`.
    fn install(
        &mut self,
        now: Time,
        start: u64,
        entries: Vec<Entry>,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        assert!(start >= self.decided, "L2: {start} cuts what is decided, {}", self.decided);
        let highest = entries.iter().map(|entry| entry.ts).max().unwrap_or_default();
        self.raise_clock(clock.max(highest), out);
        for dropped in self.log.cut(start) {
            let id = dropped.entry.start.id;
            let others = dropped.locals.into_iter().filter(|(group, _)| *group != self.me.group);
            let others: crate::log::Locals = others.collect();
            if let Some((by, _)) = others.first().copied() {
                self.remote.put_back(id, others, by, now);
            }
            self.starts.hold_always(dropped.entry.start);
        }
        self.stable.cut(start);
        self.keep_reached();
        self.e_cur = self.e_prom;
        self.acked.retain(|_, (epoch, _)| *epoch >= self.e_cur);
        entries.iter().for_each(|entry| self.append(entry.clone(), now, out));
        out.persist(Record::NewState { epoch: self.e_cur, from: start, entries });
        self.clocks.advance(self.e_cur);
        self.election.accepted(self.me.node, self.e_cur);
        let accept = Message::Accept { epoch: self.e_cur, clock: self.clock };
        self.peers().for_each(|peer| out.send(peer, accept.clone()));
        self.check_accepted();
    }

    pub(crate) fn on_accept(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        clock: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        self.election.accepted(from.node, epoch);
        self.election.alive.insert(from.node, now);
        if self.mutation != Mutation::HidesRaisedClock {
            self.note_clock(from, epoch, clock);
        }
        if epoch > self.e_prom {
            self.promise(now, epoch, out);
        } else if epoch < self.e_prom {
            self.show_epoch(from, epoch, out);
        } else {
            self.check_accepted();
        }
    }

    /// Lines 75-78.
    fn check_accepted(&mut self) {
        let accepted = |node: &&NodeId| self.election.accepts.get(node) == Some(&self.e_cur);
        let accepts = self.voters().iter().filter(accepted).count();
        if self.e_cur == self.e_prom && accepts >= quorum(self.voters().len()) {
            self.enter();
        }
    }

    /// A process acts as primary or follower of our epoch: so a quorum has accepted it.
    pub(crate) fn on_standing(&mut self, _out: &mut Outbox<Self>) {
        if self.role == Role::Promised && self.e_cur == self.e_prom {
            self.enter();
        }
    }

    /// Lines 77-81: what was not acknowledged yet is, when idle.
    fn enter(&mut self) {
        match self.role {
            Role::Candidate => self.role = Role::Primary,
            Role::Promised if !self.leads(self.e_cur) => self.role = Role::Follower,
            Role::Promised | Role::Primary | Role::Follower => return,
        }
        self.shown = match self.mutation {
            Mutation::HidesRaisedClock => Some((self.e_prom, self.log.len(), self.clock)),
            _ => None,
        };
        self.remote_acked = 0; // Of stragglers, too.
        self.remote_streamed = 0;
        self.recorded = self.log.len();
        self.followers.clear();
        self.start_relay();
        self.reach.start_epoch();
        self.start_stable();
        self.starts.again(Time(u64::MAX));
        self.election.suspects = None;
    }
}
