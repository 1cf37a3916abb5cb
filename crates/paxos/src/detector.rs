//! The failure detector, and who becomes the next leader (report, section 5.2.1).
//!
//! Whoever has not heard of the leader for some time first asks the others whether they would
//! follow him: a replica that only it cannot hear the leader, or that comes back, so deposes nobody
//! ("pre-vote", not in the report). A leader that hears no majority steps down: its clients then
//! look for another.
//!
//! Leases: a follower that has heard the leader promises no other for some time. See `reads`.

use crate::message::{Message, PreVote};
use crate::mutation::Mutation;
use crate::options::Leases;
use crate::process::Paxos;
use crate::service::Service;
use crate::view::View;
use meridian_core::{NodeId, Outbox, Time};
use std::collections::BTreeSet;
use std::time::Duration;

impl<S: Service> Paxos<S> {
    /// Does what time demands of the leader, of a candidate, and of a follower.
    pub(crate) fn watch(&mut self, now: Time, out: &mut Outbox<Self>) {
        let suspect_after = self.options.suspect_after;
        let Some(proposer) = &self.proposer else { return self.watch_leader(now, out) };
        if !proposer.prepared {
            if now.since(proposer.since) >= suspect_after * 2 {
                self.step_down(now, out);
            }
        } else if now.since(self.confirmed(now).max(proposer.since)) >= suspect_after * 2 {
            self.step_down(now, out);
            self.detector.heard = None;
        } else if now.since(self.detector.spoke) >= self.options.heartbeat {
            let alive = self.alive(now);
            self.broadcast(&alive, out);
            self.detector.spoke = now;
        }
    }

    /// Its owner has withheld its timers for a while: that silence is nobody's fault.
    pub fn resume(&mut self, now: Time) {
        self.detector.waits_since(now);
        if let Some(proposer) = &mut self.proposer {
            proposer.since = now;
        }
    }

    fn watch_leader(&mut self, now: Time, out: &mut Outbox<Self>) {
        let asked = self.detector.asked.is_some_and(|at| now.since(at) < self.options.retransmit);
        if !self.is_member() || asked {
            return;
        }
        // Those after the leader one after the other, so that not all ask at once.
        let rank = self.members().members.range(..self.me).count();
        let count = self.members().members.len();
        let leader = self
            .view
            .leader()
            .map_or(count, |leader| self.members().members.range(..=leader).count());
        let rank = u32::try_from((rank + count - leader.min(count)) % count).unwrap_or(u32::MAX);
        let first = self.view == View::NONE && rank == 0;
        let patience =
            self.options.suspect_after + self.options.heartbeat * rank / 2 + self.jitter();
        if first || now.since(self.detector.since) >= patience {
            self.ask_for_votes(now, out);
        }
    }

    /// Some time up to half a heartbeat, another one each time.
    fn jitter(&self) -> Duration {
        let mut x = self.seed ^ self.detector.round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.options.heartbeat / 2 * u32::try_from((x >> 32) % 64).unwrap_or(0) / 64
    }

    /// Asks who would follow.
    pub(crate) fn ask_for_votes(&mut self, now: Time, out: &mut Outbox<Self>) {
        let detector = &mut self.detector;
        detector.round += 1;
        detector.asked = Some(now);
        detector.votes = BTreeSet::from([self.me]);
        let round = detector.round;
        self.broadcast(&Message::PreVote(PreVote { view: self.view, round }), out);
        self.count_votes(now, out);
    }

    fn count_votes(&mut self, now: Time, out: &mut Outbox<Self>) {
        let votes = &self.detector.votes;
        let elected = self.members().has_quorum(|node| votes.contains(&node));
        if elected && !self.has_promised_lease(now) {
            self.start_view(now, out);
        }
    }

    /// Whether it has promised another leader lately not to promise anyone else.
    pub(crate) fn has_promised_lease(&self, now: Time) -> bool {
        now < self.detector.lease_until && !self.mutation.is(Mutation::BreaksLease)
    }

    /// Promises the leader just heard that there will be no other for some time.
    pub(crate) fn promise_lease(&mut self, now: Time) {
        if let Leases::For(span) = self.options.leases {
            self.detector.lease_until = self.detector.lease_until.max(now + span);
        }
    }

    /// Would this replica follow another?
    pub(crate) fn on_pre_vote(
        &mut self,
        now: Time,
        from: NodeId,
        question: &PreVote,
        out: &mut Outbox<Self>,
    ) {
        let PreVote { view, round } = *question;
        if !self.is_active() {
            return;
        }
        if self.machine.configurations().is_gone(from) {
            return self.send(from, Message::Gone, out);
        }
        if view < self.view {
            return self.send(from, Message::Higher { view: self.view }, out);
        }
        if self.is_leading() {
            let alive = self.alive(now);
            return self.send(from, alive, out);
        }
        let heard = self.detector.heard;
        let lately = heard.is_some_and(|heard| now.since(heard) < self.options.suspect_after);
        if !lately && !self.has_promised_lease(now) {
            self.send(from, Message::PreVoteOk { round }, out);
        }
    }

    /// Another would follow.
    pub(crate) fn on_pre_vote_ok(
        &mut self,
        now: Time,
        from: NodeId,
        round: u64,
        out: &mut Outbox<Self>,
    ) {
        let asked = round == self.detector.round && !self.detector.votes.is_empty();
        if self.is_active() && asked && self.proposer.is_none() {
            self.detector.votes.insert(from);
            self.count_votes(now, out);
        }
    }
}
