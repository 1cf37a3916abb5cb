//! Recovery of a replica that lost its memory (report, sections 7.5 and 7.6, Algorithms 4 and 5).
//!
//! It votes for nothing until it knows all that it may have promised or accepted before: from a
//! majority of others the latest view that any of them is in, and from the leader of that view what
//! was decided, and what may have been accepted.
//!
//! What the algorithms leave open:
//! - The leader answers only when it has finished Phase 1. Before, it may not know what the asker
//!   has accepted in an earlier view, and would count the asker's next promise as one of a replica
//!   that has accepted nothing.
//! - With its answer the leader tells what it found in Phase 1 and has not proposed again yet: the
//!   asker may have been one of those who accepted it.
//! - Each start has a number of its own, so that an answer to an earlier one is not taken for one
//!   to this.

use crate::message::{Epochs, Message, RecoveryAnswer, RecoveryQuery, Told, Vote};
use crate::mutation::Mutation;
use crate::options::Recovery;
use crate::process::Paxos;
use crate::service::Service;
use crate::state::recovery::Recovering;
use crate::status::Phase;
use meridian_core::{NodeId, Outbox, Time};

impl<S: Service> Paxos<S> {
    pub(crate) fn merge_epochs(&mut self, epochs: &Epochs) {
        for (node, epoch) in epochs {
            let known = self.epochs.entry(*node).or_default();
            *known = (*known).max(*epoch);
        }
    }

    /// Asks all, again and again.
    pub(crate) fn ask_for_memory(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        let asked = recovering.asked.is_some_and(|at| now.since(at) < self.options.retransmit);
        if asked || recovering.found.is_some() {
            return;
        }
        recovering.asked = Some(now);
        let (epoch, view, nonce) = (self.epoch, self.view, self.seed);
        self.broadcast(&Message::Recovery(RecoveryQuery { epoch, view, nonce }), out);
    }

    /// Another has lost its memory.
    pub(crate) fn on_recovery(
        &mut self,
        now: Time,
        from: NodeId,
        query: &RecoveryQuery,
        out: &mut Outbox<Self>,
    ) {
        let RecoveryQuery { epoch, view, nonce } = *query;
        if !self.is_active() {
            return; // Its own memory is not whole.
        }
        if self.machine.configurations().is_gone(from) {
            return self.send(from, Message::Gone, out);
        }
        if self.options.recovery == Recovery::EpochSs {
            self.merge_epochs(&Epochs::from([(from, epoch)]));
            if let Some(proposer) = &mut self.proposer
                && !self.mutation.is(Mutation::CountsOldEpochs)
            {
                proposer.drop_promises(&self.epochs);
            }
        }
        if self.options.recovery == Recovery::ViewSs && view > self.view {
            self.advance_view(now, view, out);
        }
        if self.view.leader() == Some(from) {
            // It leads no more, and must not be asked what it promised: there must be another
            // leader first.
            self.detector.suspect();
            return self.watch(now, out);
        }
        let candid = self.mutation.is(Mutation::RecoversFromCandidate);
        let leader = self.proposer.as_ref().filter(|proposer| proposer.prepared || candid);
        let leader = leader.map(|proposer| {
            let next = self.machine.next();
            (next, self.votes_since(next).chain(proposer.found()).collect())
        });
        let members = self.machine.configurations().since(self.machine.next()).cloned().collect();
        let (epochs, told) = (self.epochs.clone(), Told { view: self.view, members, leader });
        self.send(from, Message::RecoveryAnswer(RecoveryAnswer { nonce, epochs, told }), out);
    }

    /// Another tells what it knows.
    pub(crate) fn on_recovery_answer(
        &mut self,
        now: Time,
        from: NodeId,
        answer: RecoveryAnswer,
        out: &mut Outbox<Self>,
    ) {
        let RecoveryAnswer { nonce, epochs, told } = answer;
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        if nonce != self.seed || recovering.found.is_some() {
            return;
        }
        recovering.answers.insert(from, told);
        let result = recovering.result(self.me, self.view);
        self.merge_epochs(&epochs);
        let Some((view, target, votes)) = result else { return };
        if view > self.view {
            self.advance_view(now, view, out);
        }
        if let Phase::Recovering(recovering) = &mut self.phase {
            recovering.found = Some((target, votes));
        }
        self.catch_up.hear(target, target);
        self.end_recovery(out);
        self.catch_up_on_tick(now, out);
    }

    /// Takes part, once all is executed that was decided.
    pub(crate) fn end_recovery(&mut self, out: &mut Outbox<Self>) {
        let next = self.machine.next();
        let Phase::Recovering(Recovering { found: Some((target, votes)), .. }) = &mut self.phase
        else {
            return;
        };
        if next < *target || self.machine.is_blank() {
            return;
        }
        let votes = std::mem::take(votes);
        for Vote { instance, view, batch, decided } in votes {
            if instance >= next && !self.log.entry(instance).decided {
                self.log.vote(instance, view, batch);
                self.log.entry(instance).decided = decided;
            }
        }
        self.take_part(out);
    }
}
