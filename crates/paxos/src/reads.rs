//! Reads that do not go through the log (not in the report).
//!
//! A read sees all that was answered before it was asked if it is answered by state that contains all that was
//! proposed until then, and if no other replica led at that time. The leader knows the first; for the second each of its
//! messages carries its own time, which followers give back: the latest time that a majority gave back is one at which it
//! led. For reads that wait it asks all at once, once for all that came together. (What was proposed, not what it
//! knows to be decided: a follower may have decided and answered before it.)
//!
//! With leases followers promise not to follow another leader for some time after they have heard this one: a read
//! asked before that has passed, counted from when the leader spoke, is confirmed already.
//!
//! A follower asks the leader for the index, and answers from its own state.

use crate::message::{Answer, Consistency, Message, Output};
use crate::mutation::Mutation;
use crate::options::{Leases, Routing};
use crate::process::Paxos;
use crate::service::Service;
use crate::view::Instance;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Time};
use std::collections::{BTreeMap, VecDeque};

/// So many reads wait in a replica at most.
const READS_MAX: usize = 100_000;

/// A question of an own client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    token: u64,
    question: Bytes,
}

/// Who wants to know an index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Own(Question),
    Follower { node: NodeId, id: u64 },
}

/// A read whose leader must show that it led when it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unconfirmed {
    asked: Time,
    index: Instance,
    who: Who,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reads {
    /// At the leader, in the order in which they were asked.
    unconfirmed: VecDeque<Unconfirmed>,
    /// At a follower: the leader is asked for the index of these; when that was done last.
    asked: BTreeMap<u64, (Question, Time)>,
    next_id: u64,
    /// Answered when all below the index is executed.
    indexed: BTreeMap<Instance, Vec<Question>>,
    waiting: usize,
    /// When all were asked last whether this replica leads.
    probed: Time,
}

impl Reads {
    /// The replica leads no more: who asked it asks `leader`.
    pub fn lose_leadership<S: Service>(
        &mut self,
        leader: Option<NodeId>,
        out: &mut Outbox<Paxos<S>>,
    ) {
        for unconfirmed in self.unconfirmed.drain(..) {
            self.waiting -= 1;
            if let Who::Own(Question { token, .. }) = unconfirmed.who {
                out.output(Output::Read { token, answer: Answer::Redirect(leader) });
            }
        }
    }
}

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
        let index = match self.mutation {
            Mutation::ReadsEarly => Instance(0),
            _ => proposer.read_index(),
        };
        if self.leads_until(now) > now {
            return self.on_confirmed(index, who, out);
        }
        self.reads.unconfirmed.push_back(Unconfirmed { asked: now, index, who });
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

    /// The last time at which it certainly led, if it does.
    pub(crate) fn confirmed(&self, now: Time) -> Time {
        let Some(proposer) = &self.proposer else { return Time(0) };
        if self.mutation == Mutation::ReadsUnconfirmed {
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

    /// Until when nobody else can lead. A tenth of the lease allows for clocks of other speed.
    fn leads_until(&self, now: Time) -> Time {
        match self.options.leases {
            _ if self.mutation == Mutation::ReadsUnconfirmed => Time(u64::MAX),
            Leases::Off => Time(0),
            Leases::For(span) => self.confirmed(now) + span * 9 / 10,
        }
    }

    /// A follower gives back a time at which this replica spoke.
    pub(crate) fn on_echo(&mut self, now: Time, from: NodeId, echo: Time, out: &mut Outbox<Self>) {
        let Some(proposer) = &mut self.proposer else { return };
        let last = proposer.echoes.entry(from).or_default();
        *last = (*last).max(echo);
        if self.reads.unconfirmed.is_empty() {
            return;
        }
        let confirmed = self.confirmed(now);
        while let Some(first) = self.reads.unconfirmed.pop_front_if(|one| one.asked <= confirmed) {
            self.on_confirmed(first.index, first.who, out);
        }
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
