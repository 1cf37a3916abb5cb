//! The process of one client.
//!
//! Its owner asks for updates and reads, each under a [`CallId`] and with a deadline; nodes answer
//! its requests; a connection that breaks is [`Event::Restarted`]. An update that has no answer by
//! its deadline keeps its name: it may be sent again ([`Command::Again`]), or is given up for good
//! ([`Command::Release`]). It has no peers of its own kind, nothing on disk, and no randomness but
//! the seed that it starts with.

use crate::blocks::Blocks;
use crate::calls::{CallId, Command, Due, Failure, Message, Output};
use crate::inquiries::{Inquiries, InquiryId, Verdict};
use crate::mutation::Mutation;
use crate::names::Names;
use crate::nodes::Nodes;
use crate::update::{Stage, Update};
use meridian_cluster::Topology;
use meridian_core::{Event, NodeId, Outbox, Process, RegionId, Stamp, Time, mix};
use meridian_fs::{Done, FsError, Query, Vector};
use meridian_host::api::{Reply, ReplyBody, RequestBody};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// How often an update is named anew because the groups had forgotten its session: after the first
/// time its name is younger than what they have forgotten.
const RENAMED_MAX: u32 = 4;

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
    nodes: Nodes,
    inquiries: Inquiries,
    blocks: Blocks,
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
            nodes: Nodes::new(topology, region),
            inquiries: Inquiries::default(),
            blocks: Blocks::default(),
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
        (self.mutation, self.nodes.mutation) = (mutation, mutation);
        self.names.mutation = mutation;
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
            Command::Store { call, partition, block, deadline } => {
                let what = (partition, block, deadline);
                self.blocks.store(now, call, what, &mut self.nodes, out);
            }
            Command::Fetch { call, partition, part, deadline } => {
                let what = (partition, part, deadline);
                self.blocks.fetch(now, call, what, &mut self.nodes, out);
            }
            Command::Again { call, deadline } => self.on_again(now, call, deadline, out),
            Command::Release(call) => self.on_release(call),
            Command::Configured(topology) => self.nodes.configured(topology),
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
        let inquiries = vec![self.inquiries.begin(now, id, group, body, &mut self.nodes, out)];
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
        self.blocks.end(id);
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
            call.inquiries.push(self.inquiries.begin(now, id, group, body, &mut self.nodes, out));
        }
        self.deadlines.insert((call.deadline, id));
        self.calls.insert(id, call);
    }

    fn on_reply(&mut self, now: Time, from: NodeId, reply: Reply, out: &mut Outbox<Session>) {
        let nodes = &mut self.nodes;
        if self.blocks.knows(reply.id) {
            return self.blocks.on_reply(now, from, reply, nodes, out);
        }
        let verdict = self.inquiries.on_reply(now, from, reply, nodes, out);
        let Some((id, inquiry, verdict)) = verdict else { return };
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
        self.inquiries.on_due(now, &mut self.nodes, out);
        self.blocks.on_due(now, &mut self.nodes, out);
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
        let others = [self.inquiries.next_due(), self.blocks.next_due()];
        let Some(at) = others.into_iter().flatten().chain(deadline).min() else { return };
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
        self.blocks.check_invariants();
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
            Event::Restarted(node) => {
                self.inquiries.on_lost(now, node, &mut self.nodes, out);
                self.blocks.on_lost(now, node, &mut self.nodes, out);
            }
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
pub(crate) mod tests;
