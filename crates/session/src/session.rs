//! The process of one client.
//!
//! Its owner asks for updates and reads, each under a [`CallId`] and with a deadline; nodes answer
//! its requests; a connection that breaks is [`Event::Restarted`]. An update that has no answer by
//! its deadline keeps its name: it may be sent again ([`Command::Again`]), or is given up for good
//! ([`Command::Release`]). It has no peers of its own kind, nothing on disk, and no randomness but
//! the seed that it starts with.

use crate::inquiries::{Inquiries, InquiryId, Verdict};
use crate::mutation::Mutation;
use crate::names::Names;
use crate::routes::Service;
use crate::update::{Stage, Update};
use meridian_cluster::Topology;
use meridian_core::{Event, GroupId, NodeId, Outbox, Process, RegionId, Stamp, Time, mix};
use meridian_fs::{Answer, Done, FsError, Query, Vector};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::update::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// How often an update is named anew because the groups had forgotten its session: after the first
/// time its name is younger than what they have forgotten.
const RENAMED_MAX: u32 = 4;

/// The owner's name of a call: no two calls of a session have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What a session and a node say to each other.
#[derive(Clone, Debug)]
pub enum Message {
    /// The session asks.
    Request(Request),
    /// The node answers.
    Reply(Reply),
}

/// What the owner asks for.
#[derive(Clone, Debug)]
pub enum Command {
    /// Do this, and tell what comes of it.
    Update {
        /// The call.
        call: CallId,
        /// What to do.
        change: Change,
        /// When to give up.
        deadline: Time,
    },
    /// Ask this.
    Read {
        /// The call.
        call: CallId,
        /// The question.
        query: Query,
        /// When to give up.
        deadline: Time,
    },
    /// Send an update again that has no answer yet, or go on with it until later.
    Again {
        /// The call.
        call: CallId,
        /// When to give up.
        deadline: Time,
    },
    /// Nobody waits for the call any more. An update may still happen, but not after a later one
    /// that touches the same and was acknowledged.
    Release(CallId),
    /// The cluster is configured so now.
    Configured(Arc<Topology>),
    /// The node has failed to store or to give a block.
    AvoidBlocks(NodeId),
}

/// What the owner is told: each call has one output, and one more each time that it is asked for
/// again after [`Output::GaveUp`].
#[derive(Clone, Debug)]
pub enum Output {
    /// An update has been decided. The call is over.
    Updated {
        /// The call.
        call: CallId,
        /// Its timestamp.
        ts: Stamp,
        /// What came of it.
        result: Result<Done, FsError>,
    },
    /// A question has been answered. The call is over.
    Answered {
        /// The call.
        call: CallId,
        /// What the client had seen of the partition when it asked: the answer contains at least
        /// that.
        seen: Stamp,
        /// The answer.
        result: Result<Answer, FsError>,
    },
    /// There is no answer. A question is over; an update waits for [`Command::Again`] or
    /// [`Command::Release`].
    GaveUp {
        /// The call.
        call: CallId,
        /// Why.
        failure: Failure,
    },
}

impl Output {
    /// The call.
    pub fn call(&self) -> CallId {
        match self {
            Output::Updated { call, .. }
            | Output::Answered { call, .. }
            | Output::GaveUp { call, .. } => *call,
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer in time.
    Timeout {
        /// From this group.
        group: GroupId,
    },
    /// No node could be reached.
    Unreachable {
        /// Of this group.
        group: GroupId,
    },
    /// A node told that a group which the update is for cannot be reached.
    OutOfReach {
        /// That group.
        group: GroupId,
    },
    /// A node told that the request makes no sense.
    Refused(Refusal),
    /// A node answered something else than what was asked.
    Strange(ReplyBody),
}

/// What a session's timer is for: something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Due;

/// Something that the owner waits for.
#[derive(Clone, Debug)]
struct Call {
    deadline: Time,
    /// What is being asked for it; none while an update is held.
    inquiries: Vec<InquiryId>,
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    Read { seen: Stamp },
    Update(Box<Update>),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Session {
    inquiries: Inquiries,
    names: Names,
    vector: Vector,
    random: Random,
    calls: BTreeMap<CallId, Call>,
    /// Of the calls for which something is being asked.
    deadlines: BTreeSet<(Time, CallId)>,
    /// When the next timer comes, if one is set.
    armed: Option<Time>,
    mutation: Mutation,
}

impl Session {
    /// Of a client in `region`. The names of its updates are drawn from `seed`: no two clients may
    /// have the same.
    pub fn new(topology: Arc<Topology>, region: RegionId, seed: u64) -> Session {
        Session {
            inquiries: Inquiries::new(topology, region),
            names: Names::default(),
            vector: Vector::default(),
            random: Random { seed, drawn: 0 },
            calls: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            armed: None,
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Session {
        self.mutation = mutation;
        self
    }

    /// What the client has seen.
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// How many updates that were given up may still happen.
    pub fn given_up(&self) -> usize {
        self.names.given_up()
    }

    /// Whether `node` failed lately to store or to give a block.
    pub fn avoids_blocks(&self, node: NodeId, now: Time) -> bool {
        self.inquiries.routes().is_avoided(Service::Blocks, node, now)
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Session>) {
        match command {
            Command::Update { call, change, deadline } => {
                let update =
                    Update::named(change, &self.vector, &mut self.names, (now, self.random.next()));
                let work = Work::Update(Box::new(update));
                self.go_on(now, call, Call { deadline, inquiries: Vec::new(), work }, out);
            }
            Command::Read { call, query, deadline } => {
                self.on_read(now, call, query, deadline, out);
            }
            Command::Again { call, deadline } => self.on_again(now, call, deadline, out),
            Command::Release(call) => self.on_release(call),
            Command::Configured(topology) => self.inquiries.configured(topology),
            Command::AvoidBlocks(node) => self.inquiries.avoid(Service::Blocks, node, now),
        }
    }

    fn on_read(
        &mut self,
        now: Time,
        id: CallId,
        query: Query,
        deadline: Time,
        out: &mut Outbox<Session>,
    ) {
        let group = query.partition();
        let seen = self.vector.get(group);
        let body = RequestBody::Read { vector: self.vector.clone(), query };
        let inquiries = vec![self.inquiries.begin(now, id, group, body, out)];
        self.deadlines.insert((deadline, id));
        self.calls.insert(id, Call { deadline, inquiries, work: Work::Read { seen } });
    }

    /// An update is sent again; one that is under way is waited for until later. One that was
    /// decided meanwhile is not known any more: its owner has been told.
    fn on_again(&mut self, now: Time, id: CallId, deadline: Time, out: &mut Outbox<Session>) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        self.deadlines.remove(&(call.deadline, id));
        call.deadline = deadline;
        if call.inquiries.is_empty() {
            if let Work::Update(update) = &mut call.work
                && self.mutation.is(Mutation::NamesRepeatsAnew)
            {
                update.rename(&self.vector, &mut self.names, (now, self.random.next()));
            }
            self.go_on(now, id, call, out);
        } else {
            self.deadlines.insert((deadline, id));
            self.calls.insert(id, call);
        }
    }

    fn on_release(&mut self, id: CallId) {
        let Some(mut call) = self.calls.remove(&id) else { return };
        self.stop_asking(id, &mut call);
        let Work::Update(update) = call.work else { return };
        let (dest, message) = (&update.dest, update.name.id);
        if !update.was_sent {
            self.names.forget(dest, message);
        } else if self.mutation.is(Mutation::ForgetsGivenUp) {
            self.names.renew(dest, self.random.next());
        } else {
            self.names.give_up(dest, message, update.keys, self.random.next());
        }
    }

    /// Sends an update, or first what must be answered before.
    fn go_on(&mut self, now: Time, id: CallId, mut call: Call, out: &mut Outbox<Session>) {
        let Work::Update(update) = &mut call.work else { return };
        let before = match update.was_sent || self.mutation.is(Mutation::SkipsCancelling) {
            true => None,
            false => self.names.to_cancel_before(&update.dest, update.name.id, &update.keys),
        };
        let (dest, start) = match before {
            Some(shard) => {
                let random = self.random.next();
                let start = update.cancel(&shard, &self.vector, &self.names, random);
                (shard.dest, start)
            }
            None => (update.dest.clone(), update.send()),
        };
        for group in dest {
            let body = RequestBody::Update { group, start: start.clone() };
            call.inquiries.push(self.inquiries.begin(now, id, group, body, out));
        }
        self.deadlines.insert((call.deadline, id));
        self.calls.insert(id, call);
    }

    fn on_reply(&mut self, now: Time, from: NodeId, reply: Reply, out: &mut Outbox<Session>) {
        let Some((id, inquiry, verdict)) = self.inquiries.on_reply(now, from, reply, out) else {
            return;
        };
        let mut call = self.calls.remove(&id).expect("an inquiry belongs to a call");
        let failure = match (verdict, &mut call.work) {
            (Verdict::Answered(ReplyBody::Answer { vector, result }), Work::Read { seen }) => {
                self.vector.merge(&vector);
                out.output(Output::Answered { call: id, seen: *seen, result });
                return self.stop_asking(id, &mut call);
            }
            (
                Verdict::Answered(ReplyBody::Updated { id: of, ts, vector, result }),
                Work::Update(update),
            ) if update.waits_for(of) => {
                if update.stage == Stage::Sent {
                    return self.on_updated(now, id, call, (ts, vector, result), out);
                }
                self.stop_inquiry(&mut call, inquiry);
                return self.on_cancelled(now, id, call, out);
            }
            (Verdict::Answered(other), _) => Failure::Strange(other),
            (Verdict::Failed(failure), _) => failure,
        };
        self.stop_inquiry(&mut call, inquiry);
        // Another group may still answer for an update: but none can decide it without one that is
        // out of reach, and all must answer what cancels.
        let last = call.inquiries.is_empty() || matches!(failure, Failure::OutOfReach { .. });
        match last || matches!(&call.work, Work::Update(update) if update.stage != Stage::Sent) {
            true => self.give_up(id, call, failure, out),
            false => drop(self.calls.insert(id, call)),
        }
    }

    /// An update was decided. One answer is enough, since each group has the votes of all.
    fn on_updated(
        &mut self,
        now: Time,
        id: CallId,
        mut call: Call,
        (ts, vector, result): (Stamp, Vector, Result<Done, FsError>),
        out: &mut Outbox<Session>,
    ) {
        let once = call.inquiries.iter().all(|inquiry| self.inquiries.asked_once(*inquiry));
        self.stop_asking(id, &mut call);
        let Work::Update(update) = &mut call.work else { return };
        if result != Err(FsError::Expired) {
            if !self.mutation.is(Mutation::KeepsVector) {
                self.vector.merge(&vector);
            }
            self.names.end(&update.dest, &update.name);
            return out.output(Output::Updated { call: id, ts, result });
        }
        if !self.mutation.is(Mutation::ForgetsHorizon) {
            // What is named from now on is younger than what any of the groups has forgotten.
            self.vector.merge(&vector);
            update.dest.iter().for_each(|group| self.vector.raise(*group, ts));
        }
        self.names.renew(&update.dest, self.random.next());
        if once && !update.was_repeated && update.renamed < RENAMED_MAX {
            // Its one copy is refused, and there is no other.
            update.rename(&self.vector, &mut self.names, (now, self.random.next()));
            self.go_on(now, id, call, out);
        } else {
            out.output(Output::Updated { call: id, ts, result });
        }
    }

    /// A group has answered a message that does nothing but cancel.
    fn on_cancelled(&mut self, now: Time, id: CallId, mut call: Call, out: &mut Outbox<Session>) {
        if !call.inquiries.is_empty() {
            self.calls.insert(id, call);
            return;
        }
        self.deadlines.remove(&(call.deadline, id));
        if let Work::Update(update) = &mut call.work
            && let Stage::Cancelling { dest, name } = std::mem::take(&mut update.stage)
        {
            self.names.end(&dest, &name);
        }
        self.go_on(now, id, call, out);
    }

    fn on_due(&mut self, now: Time, out: &mut Outbox<Session>) {
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            let call = self.calls.remove(&id).expect("deadlines are those of calls");
            let failure = self.inquiries.out_of_time(&call.inquiries);
            self.give_up(id, call, failure.expect("something is being asked"), out);
        }
        self.inquiries.on_due(now, out);
    }

    /// The call has no answer: a question is over, an update is held.
    fn give_up(&mut self, id: CallId, mut call: Call, failure: Failure, out: &mut Outbox<Session>) {
        self.stop_asking(id, &mut call);
        if matches!(call.work, Work::Update(_)) {
            self.calls.insert(id, call);
        }
        out.output(Output::GaveUp { call: id, failure });
    }

    fn stop_inquiry(&mut self, call: &mut Call, inquiry: InquiryId) {
        self.inquiries.end(inquiry);
        call.inquiries.retain(|other| *other != inquiry);
    }

    /// Nothing is asked for the call any more.
    fn stop_asking(&mut self, id: CallId, call: &mut Call) {
        call.inquiries.drain(..).for_each(|inquiry| self.inquiries.end(inquiry));
        self.deadlines.remove(&(call.deadline, id));
        if let Work::Update(update) = &mut call.work {
            update.stage = Stage::Held;
        }
    }

    /// Sets the timer for what is due first, unless one comes that early anyhow.
    fn arm(&mut self, out: &mut Outbox<Session>) {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let Some(at) = deadline.into_iter().chain(self.inquiries.next_due()).min() else { return };
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            out.timer(at, Due);
        }
    }

    /// Checks what must hold between steps, walking all of it.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        self.inquiries.check_invariants();
        let asking = self.calls.iter().filter(|(_, call)| !call.inquiries.is_empty());
        let deadlines = asking.map(|(id, call)| (call.deadline, *id));
        assert_eq!(deadlines.collect::<BTreeSet<_>>(), self.deadlines, "the deadlines of calls");
    }
}

impl Process for Session {
    type Peer = NodeId;
    type Message = Message;
    type Record = Infallible;
    type Command = Command;
    type Output = Output;
    type Timer = Due;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Message { from, message: Message::Reply(reply) } => {
                self.on_reply(now, from, reply, out);
            }
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Due) => {
                self.armed = None;
                self.on_due(now, out);
            }
            Event::Restarted(node) => self.inquiries.on_lost(now, node, out),
            // Nodes ask nothing of clients.
            Event::Message { message: Message::Request(_), .. } | Event::Started | Event::Idle => {}
        }
        self.arm(out);
    }

    fn replay(&mut self, record: Infallible) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Infallible> + Send> {
        Box::new(std::iter::empty())
    }
}

/// Numbers for names, from a seed.
#[derive(Clone, Debug)]
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    /// Another number; no two of one seed are equal.
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        // The inner call spreads the seeds of two clients, so that their numbers do not overlap.
        mix(mix(self.seed) ^ self.drawn)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
