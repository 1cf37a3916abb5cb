//! Algorithm 3: changing a group's primary.
//!
//! PROMISE and NEW-STATE carry what differs, not the whole `T`: a promise says how far its process
//! is and in which epochs its entries were proposed; the candidate fetches what it lacks from the
//! most advanced and sends each promiser what it lacks.

use crate::message::{
    Accept, Entry, Epoch, Fetch, Fetched, Message, NewEpoch, NewState, Part, Progress, Promise,
    RecoveryMessage, Resend, Suspect, Suspected, Timestamp,
};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::clocks::quorum;
use crate::state::epochs::{ELECTION_TIMEOUT, IncomingState, Role, STAGGER};
use crate::state::log::Locals;
use crate::state::stream::Stream;
use meridian_core::{NodeId, Outbox, Position, ProcessId, Time};
use std::collections::BTreeSet;
use std::time::Duration;

impl PrimCast {
    pub(crate) fn on_started(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.epochs.heard = now;
        self.epochs.role = Role::Promised;
        self.share_again(); // Entries came from records.
        self.tell_fences_to_all(out);
        if self.recovery.memory.lost {
            self.recover_memory(now, out);
            return;
        }
        if self.knows_nothing() {
            self.ask_for_configs(out);
        }
        if self.planted.is(Mutation::ResumesEpoch)
            && self.leads(self.epochs.cur)
            && self.epochs.cur.number > 0
        {
            self.epochs.role = Role::Primary;
        } else if self.leads(self.epochs.prom) {
            // Nobody else can lead this epoch, and we must not go on in it.
            self.suspect(now, out);
        } else if self.epochs.cur == self.epochs.prom {
            self.rejoin(out);
        } else {
            self.send_promise(out);
        }
    }

    /// After a restart of ours or of a link: shows where we are in an epoch that we had accepted.
    pub(crate) fn rejoin(&mut self, out: &mut Outbox<Self>) {
        let accept = Message::from(Accept { epoch: self.epochs.cur, clock: self.clock.now });
        self.peers().for_each(|peer| out.send(peer, accept.clone()));
        let resend = Message::from(Resend { epoch: self.epochs.cur, from: self.log.len() });
        let leader = self.leader_of(self.epochs.cur);
        // Who has lost its memory has not heard what the others said again: they answer with their
        // ACKs.
        let all = self.keeps_nothing();
        let to = self.peers().filter(|peer| all || *peer == leader);
        to.for_each(|peer| out.send(peer, resend.clone()));
    }

    /// The failure detector: called with each tick.
    pub(crate) fn watch_leader(&mut self, now: Time, out: &mut Outbox<Self>) {
        let silence = now.since(self.epochs.heard);
        match self.epochs.role {
            Role::Primary => {}
            Role::Candidate => {
                if now.since(self.epochs.since) > ELECTION_TIMEOUT + self.patience() {
                    self.stand(now, out);
                }
            }
            Role::Follower | Role::Promised => {
                if silence > ELECTION_TIMEOUT + self.patience()
                    || (self.leads(self.epochs.prom) && silence > STAGGER)
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
        let (me, leader, count) =
            (place(self.me.node), place(self.epochs.prom.leader), members.len());
        let after = (me + count - leader) % count.max(1);
        STAGGER * u32::try_from(after.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Asks the others whether they miss the primary too. Nothing changes before a quorum does, so
    /// a process that alone is cut off deposes nobody when it comes back.
    fn suspect(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.may_stand() {
            return;
        }
        let epoch = self.epochs.prom;
        match &self.epochs.suspects {
            Some((asked, at, _)) if *asked == epoch && now.since(*at) < STAGGER => return,
            _ => {}
        }
        self.epochs.suspects = Some((epoch, now, BTreeSet::from([self.me.node])));
        self.peers().for_each(|peer| out.send(peer, Message::from(Suspect { epoch })));
        self.stand_if_suspected(now, out);
    }

    pub(crate) fn on_suspect(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) {
        if epoch < self.epochs.prom {
            // Tells it of the epoch, and of us if we lead it.
            self.show_epoch(from, epoch, out);
            return;
        }
        let silent = now.since(self.epochs.heard) > ELECTION_TIMEOUT / 2;
        let leads = self.epochs.role == Role::Primary && epoch == self.epochs.prom;
        if leads {
            out.send(from, self.clock_message());
        } else if epoch > self.epochs.prom || epoch.leader == from.node || silent {
            out.send(from, Message::from(Suspected { epoch }));
        }
    }

    pub(crate) fn on_suspected(
        &mut self,
        now: Time,
        from: ProcessId,
        epoch: Epoch,
        out: &mut Outbox<Self>,
    ) {
        if let Some((asked, _, who)) = &mut self.epochs.suspects
            && *asked == epoch
            && epoch == self.epochs.prom
        {
            who.insert(from.node);
            self.stand_if_suspected(now, out);
        }
    }

    fn stand_if_suspected(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some((_, _, who)) = &self.epochs.suspects else { return };
        let members = self.members.of(self.me.group);
        let suspecting = members.iter().filter(|node| who.contains(*node)).count();
        if suspecting >= quorum(members.len()) {
            self.stand(now, out);
        }
    }

    /// Lines 57-60.
    pub(crate) fn stand(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.may_stand() {
            self.epochs.role = Role::Promised; // It has left meanwhile.
            return;
        }
        self.record_all(out);
        self.epochs.role = Role::Candidate;
        let config = self.members.number(self.me.group).max(self.epochs.prom.config);
        let number = self.epochs.prom.number + 1;
        self.epochs.prom = Epoch { config, number, leader: self.me.node };
        self.persist_promise(out);
        self.epochs.reset(now);
        self.epochs.since = now;
        let mine = (self.clock.now, self.progress());
        self.epochs.promises.insert(self.me.node, mine);
        let message = Message::from(NewEpoch { epoch: self.epochs.prom });
        for peer in self.peers() {
            self.tell_config(peer, out);
            out.send(peer, message.clone());
        }
        self.choose(now, out);
    }

    /// What a primary has proposed since it was last idle is in its `T`, and a promise counts all
    /// of that: it must be durable, too.
    fn record_all(&mut self, out: &mut Outbox<Self>) {
        if self.epochs.role == Role::Primary {
            self.record_proposals(out);
        }
    }

    fn persist_promise(&mut self, out: &mut Outbox<Self>) {
        if !self.planted.is(Mutation::ForgetsPromise) {
            out.persist(Record::Promised(self.epochs.prom));
            self.replication.noted = None;
        }
    }

    /// Lines 61-64, and the same for whoever learns of an epoch in another way.
    pub(crate) fn promise(&mut self, now: Time, epoch: Epoch, out: &mut Outbox<Self>) {
        assert!(epoch > self.epochs.prom, "promised to {:?}, now to {epoch:?}", self.epochs.prom);
        if self.leads(epoch) {
            return; // Of before a restart; we never act in it again.
        }
        if self.members.in_config(self.me.group, epoch.config).is_none() {
            // Who promised without knowing whose quorum counts could stand no more. The answer
            // tells us.
            out.send(self.leader_of(epoch), Message::from(Suspect { epoch: self.epochs.prom }));
            return;
        }
        self.record_all(out);
        self.epochs.prom = epoch;
        self.epochs.role = Role::Promised;
        self.epochs.reset(now);
        if self.planted.is(Mutation::PromisesFirst) {
            self.send_promise(out);
            self.persist_promise(out);
        } else {
            self.persist_promise(out);
            self.send_promise(out);
        }
    }

    pub(crate) fn send_promise(&mut self, out: &mut Outbox<Self>) {
        let (epoch, clock, progress) = (self.epochs.prom, self.clock.now, self.progress());
        out.send(self.leader_of(epoch), Message::from(Promise { epoch, clock, progress }));
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
        match epoch.cmp(&self.epochs.prom) {
            std::cmp::Ordering::Less => self.show_epoch(from, epoch, out),
            // Said again: answered again, and nothing changes.
            std::cmp::Ordering::Equal if self.epochs.cur < epoch => self.send_promise(out),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => self.promise(now, epoch, out),
        }
    }

    pub(crate) fn on_promise(
        &mut self,
        now: Time,
        from: ProcessId,
        Promise { epoch, clock, progress }: Promise,
        out: &mut Outbox<Self>,
    ) {
        if epoch < self.epochs.prom {
            self.show_epoch(from, epoch, out);
        } else if epoch == self.epochs.prom && self.leads(epoch) {
            match self.epochs.role {
                Role::Candidate => {
                    if self.epochs.chosen {
                        self.send_new_state(from.node, &progress, out);
                    } else {
                        self.epochs.promises.insert(from.node, (clock, progress));
                        self.choose(now, out);
                    }
                }
                Role::Primary => self.send_new_state(from.node, &progress, out),
                Role::Follower | Role::Promised => {}
            }
        }
    }

    /// Lines 65-69, once a quorum has promised: fetches the longest `T` of the highest epoch if it
    /// is not ours, then installs it here and sends it to the promisers.
    pub(crate) fn choose(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.epochs.role != Role::Candidate
            || self.epochs.chosen
            || self.epochs.fetching.is_some()
            || !self.has_promises()
        {
            return;
        }
        let mine = self.progress();
        self.epochs.promises.insert(self.me.node, (self.clock.now, mine.clone()));
        let rank = |progress: &Progress| (progress.e_cur, progress.len);
        let promises = self.epochs.promises.iter();
        let (best, (_, progress)) = promises
            .max_by_key(|(node, (_, progress))| (rank(progress), **node == self.me.node))
            .expect("our own promise is among them");
        let (best, common) = (*best, mine.runs.common(&progress.runs));
        if rank(progress) == rank(&mine) {
            self.finish_choice(now, self.log.len(), Vec::new(), out);
        } else if common < progress.base {
            self.request_snapshot(now, self.me.group.of(best), out);
        } else {
            let epoch = self.epochs.prom;
            self.epochs.fetching = Some((best, common));
            out.send(self.me.group.of(best), Message::from(Fetch { epoch, from: common }));
        }
    }

    pub(crate) fn on_fetch(&mut self, from: ProcessId, fetch: Fetch, out: &mut Outbox<Self>) {
        let Fetch { epoch, from: index } = fetch;
        if epoch != self.epochs.prom || epoch.leader != from.node {
            return;
        }
        if index < self.log.base() {
            out.send(from, Message::Recovery(RecoveryMessage::Behind));
            return;
        }
        for part in self.log.parts(index) {
            out.send(from, Message::from(Fetched { epoch, part }));
        }
    }

    pub(crate) fn on_fetched(
        &mut self,
        now: Time,
        from: ProcessId,
        Fetched { epoch, part }: Fetched,
        out: &mut Outbox<Self>,
    ) {
        // Not what was asked for before a snapshot: that would cut what the snapshot has decided.
        let asked = self.epochs.fetching == Some((from.node, part.start));
        let fetching = asked && !self.epochs.chosen;
        if self.epochs.role != Role::Candidate || epoch != self.epochs.prom || !fetching {
            return;
        }
        let start = part.start;
        if let Some(entries) = self.take_part(from, epoch, part) {
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
        (self.epochs.chosen, self.epochs.fetching) = (true, None);
        let promises = std::mem::take(&mut self.epochs.promises);
        let clock = promises.values().map(|(clock, _)| *clock).max().unwrap_or_default();
        self.replication.streams.clear();
        self.install(now, start, entries, clock, out);
        for (node, (_, progress)) in &promises {
            if *node != self.me.node {
                self.send_new_state(*node, progress, out);
            }
        }
    }

    /// Line 69, to one process: what it lacks of `T`.
    fn send_new_state(&mut self, node: NodeId, progress: &Progress, out: &mut Outbox<Self>) {
        let common = progress.runs.common(self.log.runs());
        let comes = progress.e_cur.number == 0 && self.epochs.cur.config > 0;
        let heir = self.fences.number(self.me.group).is_some(); // It lacks what is done, too.
        let without_state = comes && (heir || self.deliveries.count > Position(0));
        if without_state {
            // It gets the application's state, not the messages that led there: of what all members
            // before it have applied, other groups may not know any more what its owner would ask
            // them. What we have not applied they keep from now on for it, too: they hear of it
            // before they hear that we have.
            self.tell_config_to_all(out);
        }
        if without_state || common < self.log.base() {
            out.send(self.me.group.of(node), Message::Recovery(RecoveryMessage::Behind));
            return;
        }
        let len = self.log.len();
        self.replication.streams.insert(node, Stream::from(len));
        self.relay_again(self.me.group.of(node));
        self.tell_config(self.me.group.of(node), out);
        for part in self.log.parts(common) {
            let message =
                Message::from(NewState { epoch: self.epochs.prom, clock: self.clock.now, part });
            out.send(self.me.group.of(node), message);
        }
    }

    /// Lines 70-74.
    pub(crate) fn on_new_state(
        &mut self,
        now: Time,
        from: ProcessId,
        NewState { epoch, clock, part }: NewState,
        out: &mut Outbox<Self>,
    ) {
        if epoch.leader != from.node {
            return;
        }
        if epoch < self.epochs.prom {
            self.show_epoch(from, epoch, out);
            return;
        }
        if epoch > self.epochs.prom {
            self.promise(now, epoch, out);
            return;
        }
        self.epochs.heard = now;
        if self.epochs.cur == epoch || part.start < self.log.base().max(self.log.decided) {
            return; // Installed already; or of before a snapshot, after which we promised again.
        }
        let start = part.start;
        if let Some(entries) = self.take_part(from, epoch, part)
            && start <= self.log.len()
        {
            self.install(now, start, entries, clock, out);
        }
    }

    /// Collects parts; the whole once the last one is there.
    fn take_part(&mut self, from: ProcessId, epoch: Epoch, part: Part) -> Option<Vec<Entry>> {
        let entries = self.without_hearsay(from, part.entries).collect::<Vec<_>>();
        if part.from == part.start {
            let (start, entries) = (part.start, Vec::new());
            self.epochs.incoming = Some(IncomingState { epoch, start, entries });
        }
        let incoming = self.epochs.incoming.as_mut()?;
        let next = incoming.start + incoming.entries.len() as u64;
        if (incoming.epoch, incoming.start, next) != (epoch, part.start, part.from) {
            return None;
        }
        incoming.entries.extend(entries);
        if incoming.start + (incoming.entries.len() as u64) < part.end {
            return None;
        }
        self.epochs.incoming.take().map(|incoming| incoming.entries)
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
        assert!(
            start >= self.log.decided,
            "L2: {start} cuts what is decided, {}",
            self.log.decided
        );
        let highest = entries.iter().map(|entry| entry.ts).max().unwrap_or_default();
        self.raise_clock(clock.max(highest), out);
        for dropped in self.log.cut(start) {
            let id = dropped.entry.start.id;
            let others = dropped.locals.into_iter().filter(|(group, _)| *group != self.me.group);
            let others: Locals = others.collect();
            if let Some((by, _)) = others.first().copied() {
                self.remote.put_back(id, others, by, now);
            }
            self.starts.hold_always(dropped.entry.start);
        }
        self.linearizable.cut(start);
        self.keep_reached();
        self.epochs.cur = self.epochs.prom;
        self.replication.acked.retain(|_, (epoch, _)| *epoch >= self.epochs.cur);
        entries.iter().for_each(|entry| self.append(entry.clone(), now, out));
        out.persist(Record::NewState { epoch: self.epochs.cur, from: start, entries });
        self.replication.noted = None;
        self.clock.members.advance(self.epochs.cur);
        self.epochs.accepted(self.me.node, self.epochs.cur);
        let accept = Message::from(Accept { epoch: self.epochs.cur, clock: self.clock.now });
        self.peers().for_each(|peer| out.send(peer, accept.clone()));
        self.check_accepted();
    }

    pub(crate) fn on_accept(
        &mut self,
        now: Time,
        from: ProcessId,
        Accept { epoch, clock }: Accept,
        out: &mut Outbox<Self>,
    ) {
        self.epochs.accepted(from.node, epoch);
        self.epochs.alive.insert(from.node, now);
        if !self.planted.is(Mutation::HidesRaisedClock) {
            self.note_clock(from, epoch, clock);
        }
        if epoch > self.epochs.prom {
            self.promise(now, epoch, out);
        } else if epoch < self.epochs.prom {
            self.show_epoch(from, epoch, out);
        } else {
            self.check_accepted();
        }
    }

    /// Lines 75-78.
    fn check_accepted(&mut self) {
        let accepted = |node: &&NodeId| self.epochs.accepts.get(node) == Some(&self.epochs.cur);
        let accepts = self.voters().iter().filter(accepted).count();
        if self.epochs.cur == self.epochs.prom && accepts >= quorum(self.voters().len()) {
            self.enter();
        }
    }

    /// A process acts as primary or follower of our epoch: so a quorum has accepted it.
    pub(crate) fn on_standing(&mut self, _out: &mut Outbox<Self>) {
        if self.epochs.role == Role::Promised && self.epochs.cur == self.epochs.prom {
            self.enter();
        }
    }

    /// Lines 77-81: what was not acknowledged yet is, when idle.
    fn enter(&mut self) {
        match self.epochs.role {
            Role::Candidate => self.epochs.role = Role::Primary,
            Role::Promised if !self.leads(self.epochs.cur) => self.epochs.role = Role::Follower,
            Role::Promised | Role::Primary | Role::Follower => return,
        }
        let advertised = (self.epochs.prom, self.log.len(), self.clock.now);
        let hides = self.planted.is(Mutation::HidesRaisedClock);
        self.replication.advertised = hides.then_some(advertised);
        self.replication.recorded = self.log.len();
        self.outbound.start_epoch();
        self.start_relay();
        self.start_notices();
        self.starts.again(Time(u64::MAX));
        self.epochs.suspects = None;
    }
}
