//! What a process does when no more input is ready: what came since the last time is acted on in
//! one go, so that what it causes travels together.
//!
//! The duties follow each other in one order, because each uses what the ones before it found:
//! learn, propose, advertise, acknowledge, deliver, notify, maintain.

use crate::message::{Message, NormalMessage, Timestamp};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::clocks::quorum;
use crate::state::epochs::{Epochs, Role};
use meridian_core::{NodeId, Outbox, Time};

impl PrimCast {
    /// All duties, in order.
    pub(crate) fn on_idle(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.recovery.memory.lost {
            return;
        }
        self.learn(now, out);
        self.propose_all(now, out);
        self.advertise_all(now, out);
        let clock = self.deliver_all(out);
        self.notify_delivered(now, out);
        self.maintain(now, clock, out);
    }

    /// What other groups have decided is known now, and the clock follows the time.
    fn learn(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.decide_heard();
        self.follow_time(now, out);
    }

    /// Lines 35-39. A primary proposes what was to be proposed, and sends it to its followers and
    /// to other groups before it is durable here; a follower passes on what only its primary may
    /// propose.
    fn propose_all(&mut self, now: Time, out: &mut Outbox<Self>) {
        match self.epochs.role {
            Role::Primary => {
                self.tell_config_to_all(out);
                // All of it: to hold some back could make groups wait for each other.
                while let Some(start) = self.starts.pop() {
                    self.propose(now, start, out);
                }
                if self.planted.is(Mutation::BumpOvertakes) {
                    self.advertise(out);
                }
                self.stream(out);
                self.stream_to_others(out);
                if self.options.order.relays_what_was_heard() {
                    self.relay_heard(out);
                }
                self.record_proposals(out);
            }
            Role::Follower => self.pass_on_starts(now),
            Role::Promised | Role::Candidate => {}
        }
        self.send_starts(out);
    }

    /// As primary: our proposals become durable. They were sent before: elsewhere they count as our
    /// vote only with our ACK, which follows.
    pub(crate) fn record_proposals(&mut self, out: &mut Outbox<Self>) {
        let mut from = self.replication.recorded.min(self.log.len());
        while from < self.log.len() {
            let entries = self.log.batch(from);
            let next = from + entries.len() as u64;
            out.persist(Record::Append { from, entries });
            from = next;
        }
        self.replication.recorded = from;
    }

    /// STARTs for one process travel together.
    fn send_starts(&mut self, out: &mut Outbox<Self>) {
        for (to, mut starts) in std::mem::take(&mut self.starts.outgoing) {
            let message = match starts.pop() {
                Some(start) if starts.is_empty() => Message::from(start),
                last => NormalMessage::Starts(starts.into_iter().chain(last).collect()).into(),
            };
            out.send(to, message);
        }
    }

    /// Length and clock are advertised to the group, ACKs to other groups; then our own vote
    /// counts.
    fn advertise_all(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.stands() {
            let Epochs { cur, .. } = self.epochs;
            self.clock.members.note(self.me.node, cur, self.clock.now, cur);
        }
        self.acknowledge_with_next(now, out);
        self.advertise(out);
        self.acknowledge_to_others(now, out);
        self.count();
        self.tell_decided(out);
    }

    /// Who waits for word of what was delivered is told: followers, and in the linearizable order
    /// other groups.
    fn notify_delivered(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.options.order.relays_what_was_delivered() && self.epochs.role == Role::Primary {
            self.relay_heard(out);
            self.tell_horizons(now, out);
        }
    }

    /// `T` is truncated when much was delivered, SAFE-TS follows the deliveries up to `clock`, and
    /// a change of members goes on.
    fn maintain(&mut self, now: Time, clock: Timestamp, out: &mut Outbox<Self>) {
        let unreported = self.deliveries.unreported.len();
        if unreported >= self.retransmission.report_at {
            self.truncate_delivered(now, out);
            // What the owner holds back stays.
            let kept = self.deliveries.unreported.len();
            self.retransmission.report_at = kept + self.options.dissemination.report_after();
        }
        self.raise_safe_ts(clock);
        self.catch_up();
        self.reconfigure(now, out);
    }

    /// What was delivered anywhere before we started, say at `ts` in an epoch `E`, has a timestamp
    /// up to the clock of our primary, and is in our `T`. For a quorum has acknowledged in `E_cur`
    /// since we started: none of it had promised to a later epoch, so `E` is not later. If it is
    /// `E_cur`, the primary had shown `ts` (line 28) and shows no less now; if it is an earlier
    /// one, `E_cur` started no lower (line 29; C2). And we count the clock of our primary with what
    /// it then held, which is all that was decided (Lemma 3).
    fn catch_up(&mut self) {
        if self.deliveries.floor.is_none() && self.stands() {
            let acked = |node: &NodeId| self.acked_here(*node).is_some();
            let here = self.voters().iter().filter(|node| acked(node)).count();
            if here >= quorum(self.voters().len()) && acked(&self.epochs.cur.leader) {
                self.deliveries.floor = Some(self.clock.members.min_clock(self.epochs.cur.leader));
            }
        }
    }
}
