//! Reads that do not go through the log (not in the report).
//!
//! A read sees all that was answered before it was asked if it is answered by state that contains
//! all that was proposed until then, and if no other replica led at that time. The leader knows the
//! first: its *index* is above what it has proposed, and above what those have accepted who have
//! promised its view. (What was proposed, not what it knows to be decided: a follower may have
//! decided and answered before it.) For the second each of its messages carries its own time, which
//! followers give back. A majority of the members of the instance of that index must have given
//! back a time since the read was asked. For reads that wait the leader asks all at once, once for
//! all that came together.
//!
//! With leases followers promise not to follow another leader for some time after they have heard
//! this one: a read asked before that has passed, counted from when the leader spoke, is confirmed
//! already.
//!
//! A follower asks the leader for the index, and answers from its own state.

use crate::configuration::ALPHA;
use crate::message::{Answer, Consistency, Message, Output};
use crate::mutation::Mutation;
use crate::options::{Leases, Routing};
use crate::process::Paxos;
use crate::service::Service;
use crate::state::reads::{Question, Unconfirmed, Who};
use crate::view::Instance;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Time};

/// So many reads wait in a replica at most.
const READS_MAX: usize = 100_000;

impl<S: Service> Paxos<S> {
    /// A client asks for a read.
    pub(crate) fn on_read(
        &mut self,
        now: Time,
        token: u64,
        question: Bytes,
        consistency: Consistency,
        out: &mut Outbox<Self>,
    ) {
        let answer = if !self.is_active() || self.reads.waiting >= READS_MAX {
            Some(Answer::Busy)
        } else if consistency == Consistency::Stale {
            Some(Answer::Done(self.service().query(&question)))
        } else if !self.is_leading() && self.options.routing == Routing::Redirect {
            let leader = self.view.leader().filter(|leader| *leader != self.me);
            Some(Answer::Redirect(leader))
        } else {
            None
        };
        if let Some(answer) = answer {
            return out.output(Output::Read { token, answer });
        }
        self.reads.waiting += 1;
        let question = Question { token, question };
        if self.is_leading() {
            return self.on_index_wanted(now, Who::Own(question), out);
        }
        self.reads.next_id += 1;
        let id = self.reads.next_id;
        self.reads.asked.insert(id, (question, now));
        self.ask_index(id, out);
    }

    fn ask_index(&self, id: u64, out: &mut Outbox<Self>) {
        if let Some(leader) = self.view.leader().filter(|leader| *leader != self.me) {
            self.send(leader, Message::ReadIndex { id }, out);
        }
    }

    /// Asks for an index again that did not come, or takes one as the leader.
    pub(crate) fn ask_index_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.is_leading() {
            for (_, (question, _)) in std::mem::take(&mut self.reads.asked) {
                self.on_index_wanted(now, Who::Own(question), out);
            }
            return;
        }
        let mut again = Vec::new();
        for (id, (_, at)) in &mut self.reads.asked {
            if now.since(*at) >= self.options.retransmit {
                *at = now;
                again.push(*id);
            }
        }
        again.into_iter().for_each(|id| self.ask_index(id, out));
    }

    /// A follower wants an index.
    pub(crate) fn on_read_index(
        &mut self,
        now: Time,
        from: NodeId,
        id: u64,
        out: &mut Outbox<Self>,
    ) {
        if self.is_leading() && self.reads.waiting < READS_MAX {
            self.reads.waiting += 1;
            self.on_index_wanted(now, Who::Follower { node: from, id }, out);
        }
    }

    fn on_index_wanted(&mut self, now: Time, who: Who, out: &mut Outbox<Self>) {
        let Some(proposer) = &self.proposer else { return };
        let early = self.mutation.is(Mutation::ReadsEarly);
        let index = if early { Instance(0) } else { proposer.read_index() };
        self.reads.unconfirmed.push_back(Unconfirmed { asked: now, index, who });
        self.confirm_reads(now, out);
    }

    /// Goes on with the reads that are confirmed, oldest first.
    pub(crate) fn confirm_reads(&mut self, now: Time, out: &mut Outbox<Self>) {
        while let Some(first) = self.reads.unconfirmed.front()
            && self.is_confirmed(now, first)
            && let Some(first) = self.reads.unconfirmed.pop_front()
        {
            self.on_confirmed(first.index, first.who, out);
        }
    }

    /// Whether the state after all instances below the read's index contains all that was answered
    /// before the read was asked.
    ///
    /// Otherwise another leader had the instance of that index decided, by a majority of *its*
    /// members, who may be none of those of the next instance. If his view was earlier, one of a
    /// majority that has promised this view has told of it, and the index is above it. If his view
    /// is later, one of a majority that has given back a time since the read was asked was not in
    /// it yet.
    fn is_confirmed(&self, now: Time, read: &Unconfirmed) -> bool {
        let Some(proposer) = &self.proposer else { return false };
        if self.mutation.is(Mutation::ReadsUnconfirmed) {
            return true;
        }
        let next = self.machine.next();
        if read.index.0 >= next.0 + ALPHA {
            return false; // Who its members are is not known yet.
        }
        // What is executed is in the state, whatever was asked for.
        let index = read.index.max(next);
        let former = self.mutation.is(Mutation::ConfirmsByFormerMembers);
        let members = self.members_of(if former { next } else { index });
        let unpromised = self.mutation.is(Mutation::ReadsUnpromised);
        (unpromised || self.has_promises(index))
            && members.has_quorum(|node| {
                let echo = proposer.echoes.get(&node).copied().unwrap_or_default();
                node == self.me || echo >= read.asked || self.lease_of(echo) > now
            })
    }

    /// Until when a follower that has given back this time follows no other leader. A tenth of the
    /// lease allows for clocks of other speed.
    fn lease_of(&self, echo: Time) -> Time {
        match self.options.leases {
            Leases::Off => Time(0),
            Leases::For(span) => echo + span * 9 / 10,
        }
    }

    /// It was the only leader when this was asked.
    fn on_confirmed(&mut self, index: Instance, who: Who, out: &mut Outbox<Self>) {
        match who {
            Who::Own(question) => {
                self.reads.indexed.entry(index).or_default().push(question);
                self.answer_reads(out);
            }
            Who::Follower { node, id } => {
                self.reads.waiting -= 1;
                self.send(node, Message::ReadIndexOk { id, index }, out);
            }
        }
    }

    /// The leader has told the index.
    pub(crate) fn on_read_index_ok(&mut self, id: u64, index: Instance, out: &mut Outbox<Self>) {
        if let Some((question, _)) = self.reads.asked.remove(&id) {
            self.reads.indexed.entry(index).or_default().push(question);
            self.answer_reads(out);
        }
    }

    /// Answers the reads whose index is reached.
    pub(crate) fn answer_reads(&mut self, out: &mut Outbox<Self>) {
        while let Some(entry) = self.reads.indexed.first_entry()
            && *entry.key() <= self.machine.next()
        {
            for Question { token, question } in entry.remove() {
                self.reads.waiting -= 1;
                let answer = Answer::Done(self.machine.service().query(&question));
                out.output(Output::Read { token, answer });
            }
        }
    }

    /// The last time at which it certainly led, if it does: as the members of the next instance
    /// have given it back.
    pub(crate) fn confirmed(&self, now: Time) -> Time {
        let Some(proposer) = &self.proposer else { return Time(0) };
        if self.mutation.is(Mutation::ReadsUnconfirmed) {
            return now;
        }
        let members = self.members();
        let mut times: Vec<Time> = members
            .members
            .keys()
            .map(|node| match proposer.echoes.get(node) {
                _ if *node == self.me => now,
                echo => echo.copied().unwrap_or_default(),
            })
            .collect();
        times.sort_unstable();
        times[times.len() - members.majority()]
    }

    /// A follower gives back a time at which this replica spoke.
    pub(crate) fn on_echo(&mut self, now: Time, from: NodeId, echo: Time, out: &mut Outbox<Self>) {
        let Some(proposer) = &mut self.proposer else { return };
        let last = proposer.echoes.entry(from).or_default();
        *last = (*last).max(echo);
        self.confirm_reads(now, out);
    }

    /// Asks all whether it still leads, for the reads of this batch of events.
    pub(crate) fn ask_whether_leader(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(last) = self.reads.unconfirmed.back() else { return };
        if !self.is_leading() || (self.reads.probed >= last.asked && self.reads.probed > Time(0)) {
            return;
        }
        self.reads.probed = now;
        if self.peers.is_empty() {
            return self.on_echo(now, self.me, now, out);
        }
        if self.detector.spoke < last.asked {
            let alive = self.alive(now);
            self.broadcast(&alive, out);
            self.detector.spoke = now;
        }
    }
}
