//! The leader: Phase 1 for all open instances at once, then Phase 2 for one after the other
//! (report, sections 3.2 and 6.3).
//!
//! Invariants:
//! - P1: in a view its leader proposes one value for an instance.
//! - P2: it proposes for an instance only after a majority of that instance's members has promised
//!   the view, and then the value that any of them had accepted in the highest view, if there is
//!   one.

use crate::batch::Batch;
use crate::message::{Alive, Message, Output, Prepare, PrepareOk, Propose, Record, Vote};
use crate::mutation::Mutation;
use crate::options::Recovery;
use crate::process::Paxos;
use crate::service::Service;
use crate::state::proposer::Proposer;
use crate::view::Instance;
use meridian_core::{NodeId, Outbox, Time};

impl<S: Service> Paxos<S> {
    /// Begins a view of its own, later than all that it knows.
    pub(crate) fn start_view(&mut self, now: Time, out: &mut Outbox<Self>) {
        let view = self.view.next(self.me);
        self.advance_view(now, view, out);
        let next = self.machine.next();
        let mut proposer = Proposer { next, since: now, asked: now, ..Proposer::default() };
        proposer.oks.insert(self.me, self.epoch);
        for vote in self.votes_since(next) {
            proposer.find(vote, self.mutation);
        }
        self.proposer = Some(proposer);
        self.broadcast(&Message::Prepare(Prepare { view, from: next }), out);
        self.try_lead(now, out);
    }

    /// What was accepted here from `from` on.
    pub(crate) fn votes_since(&self, from: Instance) -> impl Iterator<Item = Vote> + '_ {
        self.log.since(from).filter_map(|(instance, entry)| {
            let (view, batch) = entry.vote.clone()?;
            Some(Vote { instance, view, batch, decided: entry.decided })
        })
    }

    /// Phase 1b has come.
    pub(crate) fn on_prepare_ok(
        &mut self,
        now: Time,
        from: NodeId,
        ok: PrepareOk,
        out: &mut Outbox<Self>,
    ) {
        let PrepareOk { view, epochs, decided, votes } = ok;
        if view != self.view || self.proposer.is_none() || !self.is_active() {
            return;
        }
        let epoch = epochs.get(&from).copied().unwrap_or_default();
        self.merge_epochs(&epochs);
        let Some(proposer) = &mut self.proposer else { return };
        proposer.oks.insert(from, epoch);
        if !self.mutation.is(Mutation::CountsOldEpochs) {
            proposer.drop_promises(&self.epochs);
        }
        proposer.decided = proposer.decided.max(decided);
        let mut known = Vec::new();
        for vote in votes {
            if vote.decided {
                known.push((vote.instance, vote.batch.clone()));
            }
            proposer.find(vote, self.mutation);
        }
        self.reads.raise_indexes(proposer.read_index());
        for (instance, batch) in known {
            if self.is_near(instance) {
                self.learn(instance, batch, out);
            }
        }
        self.execute(now, out);
        self.try_lead(now, out);
        self.confirm_reads(now, out);
    }

    /// Finishes Phase 1 if that can be.
    pub(crate) fn try_lead(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(proposer) = &self.proposer else { return };
        let next = self.machine.next();
        if proposer.prepared || next < proposer.decided || !self.has_promises(next) {
            return;
        }
        let Some(proposer) = &mut self.proposer else { return };
        proposer.prepared = true;
        out.output(Output::View { view: self.view, leading: true });
        let Paxos { requests, options, .. } = self;
        requests.lead(now, options);
        self.propose_ready(now, out);
        let alive = self.alive(now);
        self.broadcast(&alive, out);
        self.detector.spoke = now;
    }

    /// Whether a majority of an instance's members has promised this view.
    pub(crate) fn has_promises(&self, instance: Instance) -> bool {
        let Some(proposer) = &self.proposer else { return false };
        let members = self.members_of(instance);
        let promised = members.members.keys().filter(|node| proposer.oks.contains_key(*node));
        promised.count() >= self.quorum(members.majority())
    }

    fn quorum(&self, majority: usize) -> usize {
        majority - usize::from(self.mutation.is(Mutation::SmallQuorum) && majority > 1)
    }

    /// The first instance that must not be under way yet, and the first that may be proposed.
    fn window(&self) -> Option<(Instance, Instance)> {
        let proposer = self.proposer.as_ref()?;
        let next = self.machine.next();
        let open = proposer.prepared && next >= proposer.decided;
        open.then(|| (proposer.next.max(next), Instance(next.0 + self.options.window)))
    }

    /// Proposes what there is, as far as the window has room (Algorithm 2).
    pub(crate) fn propose_ready(&mut self, now: Time, out: &mut Outbox<Self>) {
        while let Some((instance, end)) = self.window() {
            let Some(proposer) = &mut self.proposer else { return };
            proposer.next = instance;
            proposer.found = proposer.found.split_off(&instance);
            if instance >= end || !self.has_promises(instance) {
                return;
            }
            if self.log.get(instance).is_some_and(|entry| entry.decided) {
                self.proposer.iter_mut().for_each(|proposer| proposer.next = instance.next());
                continue;
            }
            let Some(batch) = self.value_for(now, instance, out) else { return };
            self.propose(now, instance, batch, out);
        }
    }

    /// What is to be proposed for an instance.
    fn value_for(
        &mut self,
        now: Time,
        instance: Instance,
        out: &mut Outbox<Self>,
    ) -> Option<Batch> {
        let proposer = self.proposer.as_mut()?;
        let found = proposer.found.remove(&instance).map(|vote| vote.batch);
        let later = !proposer.found.is_empty();
        if let Some(batch) = found.filter(|_| !self.mutation.is(Mutation::IgnoresVotes)) {
            return Some(batch);
        }
        if later && !self.mutation.is(Mutation::IgnoresVotes) {
            return Some(Batch::default()); // Nobody can have decided anything here.
        }
        let batch = self.requests.next_batch(now, &self.options, out);
        // So that new members come into force though nobody asks for anything.
        let coming = instance < self.machine.configurations().last_from();
        batch.or(coming.then(Batch::default))
    }

    fn propose(&mut self, now: Time, instance: Instance, batch: Batch, out: &mut Outbox<Self>) {
        let (view, beat) = (self.view, self.beat(now));
        self.accept_here(instance, &batch, out);
        let entry = self.log.entry(instance);
        entry.accepts.add(view, self.me);
        entry.sent = now;
        self.broadcast(&Message::Propose(Propose { view, instance, batch, beat }), out);
        self.detector.spoke = now;
        if let Some(proposer) = &mut self.proposer {
            proposer.next = instance.next();
        }
        self.try_decide(now, instance, out);
    }

    /// Votes for a value in the present view.
    pub(crate) fn accept_here(
        &mut self,
        instance: Instance,
        batch: &Batch,
        out: &mut Outbox<Self>,
    ) {
        let (view, batch) = (self.view, batch.clone());
        if self.options.recovery == Recovery::FullSs && !self.mutation.is(Mutation::ForgetsAccepted)
        {
            let batch = batch.clone();
            out.persist(Record::Accepted(Vote { instance, view, batch, decided: false }));
        }
        self.log.vote(instance, view, batch);
    }

    /// Phase 2b has come, or counts here.
    pub(crate) fn try_decide(&mut self, now: Time, instance: Instance, out: &mut Outbox<Self>) {
        let Some(entry) = self.log.get(instance) else { return };
        if entry.decided || entry.vote.as_ref().is_none_or(|(view, _)| *view != self.view) {
            return;
        }
        let members = self.members_of(instance);
        let accepted =
            members.members.keys().filter(|node| entry.accepts.contains(self.view, **node));
        if accepted.count() >= self.quorum(members.majority()) {
            self.decide(instance);
            self.execute(now, out);
        }
    }

    /// Sends again what was not answered in time.
    pub(crate) fn propose_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(proposer) = &self.proposer else { return };
        let (view, after) = (self.view, self.options.retransmit);
        let (next, end) = (self.machine.next(), proposer.next);
        let mut open = self.machine.configurations().since(next);
        let lacks =
            open.any(|members| !members.has_quorum(|node| proposer.oks.contains_key(&node)));
        let wanting = !proposer.prepared || lacks;
        if wanting && now.since(proposer.asked) >= after {
            for peer in self.peers.iter().filter(|peer| !proposer.oks.contains_key(*peer)) {
                self.send(*peer, Message::Prepare(Prepare { view, from: next }), out);
            }
            self.proposer.iter_mut().for_each(|proposer| proposer.asked = now);
        }
        let mut again = Vec::new();
        for (instance, entry) in self.log.since(next).take_while(|(at, _)| *at < end) {
            let ours = entry.vote.as_ref().filter(|(at, _)| *at == view && !entry.decided);
            if let Some((_, batch)) = ours.filter(|_| now.since(entry.sent) >= after) {
                let silent = |node: &&NodeId| !entry.accepts.contains(view, **node);
                for peer in self.peers.iter().filter(silent) {
                    let (batch, beat) = (batch.clone(), self.beat(now));
                    self.send(
                        *peer,
                        Message::Propose(Propose { view, instance, batch, beat }),
                        out,
                    );
                }
                again.push(instance);
            }
        }
        again.into_iter().for_each(|instance| self.log.entry(instance).sent = now);
    }

    /// What was on its way may be lost: all that is open counts as sent long ago.
    pub(crate) fn send_all_again(&mut self) {
        let Some(proposer) = &mut self.proposer else { return };
        proposer.asked = Time(0);
        let (next, end) = (self.machine.next(), proposer.next);
        for instance in (next.0..end.0).map(Instance) {
            if self.log.get(instance).is_some() {
                self.log.entry(instance).sent = Time(0);
            }
        }
    }

    /// ALIVE, as the leader would say it now.
    pub(crate) fn alive(&self, now: Time) -> Message {
        let highest = self.proposer.as_ref().map_or(Instance(0), |proposer| proposer.next);
        Message::Alive(Alive { view: self.view, highest, beat: self.beat(now) })
    }
}
