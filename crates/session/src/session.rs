//! The process of one client.
//!
//! Its owner asks for updates and reads, each under a [`CallId`] and with a deadline; nodes answer
//! its requests; a connection that breaks is [`Event::Restarted`]. An update that has no answer by
//! its deadline keeps its name: it may be sent again ([`Command::Again`]), or is given up for good
//! ([`Command::Release`]). It has no peers of its own kind, nothing on disk, and no randomness but
//! the seed that it starts with.

use crate::blocks::{self, Blocks};
use crate::calls::{CallId, Command, Due, Failure, Message, Output};
use crate::caps::{Caps, Errand};
use crate::following::Following;
use crate::inquiries::{Inquiries, InquiryId, Verdict};
use crate::mutation::Mutation;
use crate::names::Names;
use crate::nodes::Nodes;
use crate::parked::ParkedCalls;
use crate::random::Random;
use crate::update::{Stage, Update};
use meridian_cluster::Topology;
use meridian_core::{
    ClientId, Event, GroupId, MessageId, NodeId, Outbox, Process, RegionId, Stamp, Time, mix,
};
use meridian_fs::{Answer, Done, FsError, Query, Vector};
use meridian_host::api::{Reply, ReplyBody, RequestBody};
use meridian_host::steps::{Report, Step, What};
use meridian_host::update::NOBODY;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// Makes of a session's seed the name under which it holds capabilities.
const HOLDER: u64 = 0x686f_6c64_6572;

/// How often an update is named anew because the groups had forgotten its session: after the first
/// time its name is younger than what they have forgotten.
const RENAMED_MAX: u32 = 4;

/// Something that the owner waits for.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) deadline: Time,
    /// What is being asked for it; none while an update is held.
    pub(crate) inquiries: Vec<InquiryId>,
    pub(crate) work: Work,
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// When it began, as capabilities count.
    Read {
        seen: Stamp,
        query: Query,
        begun: u64,
    },
    Update(Box<Update>),
    /// The questions whether groups have what another has seen.
    Follow(Following),
    /// The question what is recalled.
    Poll,
    /// The question whether a group can be reached again.
    Look,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) nodes: Nodes,
    pub(crate) inquiries: Inquiries,
    blocks: Blocks,
    pub(crate) names: Names,
    pub(crate) vector: Vector,
    pub(crate) random: Random,
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// Of the calls for which something is being asked.
    pub(crate) deadlines: BTreeSet<(Time, CallId)>,
    pub(crate) caps: Caps,
    /// What is sent for capabilities, for which group, and since when.
    pub(crate) errands: BTreeMap<CallId, (GroupId, Errand, Time)>,
    pub(crate) last_errand: u64,
    pub(crate) parked: ParkedCalls,
    /// When the next timer comes, if one is set.
    armed: Option<Time>,
    pub(crate) mutation: Mutation,
}

impl Session {
    /// Of a client in `region`. The names of its updates are drawn from `seed`: no two clients may
    /// have the same.
    pub fn new(topology: Arc<Topology>, region: RegionId, seed: u64) -> Session {
        let nodes = Nodes::new(topology, region);
        let by = ClientId(mix(mix(seed) ^ HOLDER));
        Session {
            caps: Caps::new(by).with_all_made_held(nodes.let_hold_made()),
            nodes,
            inquiries: Inquiries::default(),
            blocks: Blocks::default(),
            names: Names::default(),
            vector: Vector::default(),
            errands: BTreeMap::new(),
            last_errand: 0,
            parked: ParkedCalls::default(),
            random: Random::new(seed),
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
        (self.names.mutation, self.caps.mutation) = (mutation, mutation);
        self.nodes.cuts.mutation = mutation;
        self
    }

    /// What the client has seen.
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// What it has noted of an update.
    pub fn report(&self, now: Time, id: MessageId) -> Report {
        self.nodes.steps.report(now, id)
    }

    /// Since when nobody has answered for a group, if it is cut off.
    pub fn cut_since(&self, group: GroupId) -> Option<Time> {
        self.nodes.cuts.cut_since(group)
    }

    /// How often a node has answered for a group.
    pub fn answers(&self, group: GroupId) -> u64 {
        self.nodes.cuts.heard(group)
    }

    /// How many updates that were given up may still happen.
    pub fn given_up(&self) -> usize {
        self.names.given_up()
    }

    pub(crate) fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Session>) {
        match command {
            Command::Update { call, change, deadline } => {
                if self.parks_update(call, &change, deadline) {
                    return;
                }
                let keeps = self.caps.begin_update(now, call, &change);
                let (holder, drawn) = (self.holder(keeps), (now, self.random.next()));
                let update = Update::named(change, holder, &self.vector, &mut self.names, drawn);
                let work = Work::Update(Box::new(update));
                self.go_on(now, call, Call { deadline, inquiries: Vec::new(), work }, out);
            }
            Command::Read { call, query, deadline } => {
                self.on_read(now, call, query, deadline, out);
            }
            Command::Store { call, partition, block, deadline } => {
                let what = (partition, block, self.nodes.cuts.deadline(partition, now, deadline));
                self.blocks.store(now, call, what, &mut self.nodes, out);
            }
            Command::Fetch { call, partition, part, deadline } => {
                let what = (partition, part, self.nodes.cuts.deadline(partition, now, deadline));
                self.blocks.fetch(now, call, what, &mut self.nodes, out);
            }
            Command::Discard { partition, blocks } => {
                blocks::discard(now, partition, &blocks, &mut self.nodes, out);
            }
            Command::Follow { call, seen, deadline } => {
                self.on_follow(now, call, (&seen, deadline), out);
            }
            Command::Again { call, deadline } => self.on_again(now, call, deadline, out),
            Command::Release(call) => self.on_release(call, out),
            Command::Keep => self.caps.turn_on(),
            Command::KeepBack(keeping) => {
                self.nodes.keeping = Some(keeping);
                self.keep_back_by_level();
            }
            Command::KeepOrder(is_kept) => self.caps.keep_order(is_kept),
            Command::Land => self.caps.call_all_to_land(),
            Command::KeepNothing => self.caps.turn_off(),
            Command::LetGo(gone) => self.on_let_go(&gone, out),
            Command::Configured(topology) => {
                self.nodes.configured(topology);
                self.caps.hold_all_that_is_made(self.nodes.let_hold_made());
                self.keep_back_by_level();
            }
            Command::OnCut(patience) => self.nodes.cuts.patience = Some(patience),
        }
    }

    pub(crate) fn on_read(
        &mut self,
        now: Time,
        id: CallId,
        query: Query,
        deadline: Time,
        out: &mut Outbox<Session>,
    ) {
        let seen = self.vector.get(query.partition());
        if let Some(result) = self.caps.answer(now, &query, &self.vector) {
            let whole = !matches!(result, Ok(Answer::Entry { attributes: None, .. }));
            self.caps.looked_up(now, &query, whole);
            return out.output(Output::Answered { call: id, seen, result });
        }
        if self.parks_read(id, &query, deadline) {
            return;
        }
        self.caps.look(now, &query);
        self.caps.looked_up(now, &query, false);
        self.ask(now, id, query, deadline, out);
    }

    /// Asks a replica.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        id: CallId,
        query: Query,
        deadline: Time,
        out: &mut Outbox<Session>,
    ) {
        let group = query.partition();
        let seen = self.vector.get(group);
        let (begun, by) = (self.caps.begin_read(), self.holder(false).0);
        let (vector, asked) = (self.vector.clone(), query.clone());
        let body = match self.caps.wants_along(now, id, &query, &self.nodes) {
            true => RequestBody::ReadAlong { vector, by, query: asked },
            false => RequestBody::Read { vector, by, query: asked },
        };
        let deadline = self.nodes.cuts.deadline(group, now, deadline);
        let inquiries = vec![self.inquiries.begin(now, id, group, body, &mut self.nodes, out)];
        self.deadlines.insert((deadline, id));
        let work = Work::Read { seen, query, begun };
        self.calls.insert(id, Call { deadline, inquiries, work });
    }

    /// Under which name the client holds capabilities, and whether it wants what it makes.
    pub(crate) fn holder(&self, keeps: bool) -> (ClientId, bool) {
        (if self.caps.is_on() { self.caps.by } else { NOBODY }, keeps)
    }

    /// An update is sent again; one that is under way is waited for until later. One that was
    /// decided meanwhile is not known any more: its owner has been told.
    fn on_again(&mut self, now: Time, id: CallId, deadline: Time, out: &mut Outbox<Session>) {
        if self.waits_on(id, deadline) {
            return;
        }
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

    fn on_release(&mut self, id: CallId, out: &mut Outbox<Session>) {
        self.blocks.end(id);
        let lost = self.caps.lose_update(id);
        let lost = self.caps.drop_held(lost);
        self.tell_dropped(lost, out);
        self.parked.release(id);
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
    pub(crate) fn go_on(
        &mut self,
        now: Time,
        id: CallId,
        mut call: Call,
        out: &mut Outbox<Session>,
    ) {
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
        for group in dest.iter().chain(&update.dest) {
            call.deadline = self.nodes.cuts.deadline(*group, now, call.deadline);
        }
        for group in dest {
            let body = update.body(group, start.clone());
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
        let (body, along) = reply.body.apart();
        let reply = Reply { body, ..reply };
        let verdict = self.inquiries.on_reply(now, from, reply, nodes, out);
        let Some((id, inquiry, verdict)) = verdict else { return };
        let group = self.inquiries.group(inquiry).expect("it has just been answered");
        self.note_answer(now, (group, from), &verdict);
        match &verdict {
            // Before anything of it is shown.
            Verdict::Answered(body) => self.heard(now, group, body, out),
            Verdict::Failed(failure) if self.waits(now, (id, inquiry), failure) => return,
            Verdict::Failed(_) => {}
        }
        let mut call = self.calls.remove(&id).expect("an inquiry belongs to a call");
        let failure = match (verdict, &mut call.work) {
            (
                Verdict::Answered(ReplyBody::Answer { vector, whole, result, .. }),
                Work::Read { query, begun, .. },
            ) => {
                self.vector.merge(&vector);
                self.caps.fill(now, query, (*begun, whole), &result);
                self.caps.on_entries(now, &result, &along);
                return self.on_answered(now, (id, call), result, out);
            }
            (Verdict::Answered(ReplyBody::Answer { vector, .. }), Work::Follow(_)) => {
                return self.on_caught_up(id, call, (inquiry, group), &vector, out);
            }
            (Verdict::Answered(_), Work::Look) => {
                self.stop_asking(id, &mut call);
                self.nodes.cuts.looks.remove(&id);
                return;
            }
            (Verdict::Answered(ReplyBody::Recalled { vector, .. }), Work::Poll) => {
                return self.on_polled(now, (id, call), &vector, out);
            }
            (
                Verdict::Answered(ReplyBody::Updated { id: of, ts, vector, and, result, .. }),
                Work::Update(update),
            ) if update.waits_for(of) => {
                if update.stage == Stage::Sent {
                    self.note_along(id, along);
                    if update.is_acknowledged(group, and, self.mutation) {
                        return self.on_updated(now, id, call, (ts, vector, result), out);
                    }
                    self.stop_inquiry(&mut call, inquiry);
                    return match call.inquiries.is_empty() {
                        true => self.give_up(now, id, call, Failure::Timeout { group }, out),
                        false => drop(self.calls.insert(id, call)),
                    };
                }
                self.stop_inquiry(&mut call, inquiry);
                return self.on_cancelled(now, id, call, out);
            }
            (Verdict::Answered(other), _) => Failure::Strange(Box::new(other)),
            (Verdict::Failed(failure), _) => failure,
        };
        self.stop_inquiry(&mut call, inquiry);
        // Another group may still answer for an update: but none can decide it without one that is
        // out of reach, and all must answer what cancels.
        let last = call.inquiries.is_empty() || matches!(failure, Failure::OutOfReach { .. });
        match last || matches!(&call.work, Work::Update(update) if update.stage != Stage::Sent) {
            true => self.give_up(now, id, call, failure, out),
            false => drop(self.calls.insert(id, call)),
        }
    }

    /// A node has answered for a group.
    fn note_answer(&mut self, now: Time, (group, from): (GroupId, NodeId), verdict: &Verdict) {
        if let Verdict::Answered(ReplyBody::Updated { id, .. }) = verdict {
            let step = Step::of(now, What::Answered, group).with(group, from);
            self.nodes.steps.note(*id, step);
        }
    }

    /// An update was decided. One answer is enough, since each group has the votes of all, unless
    /// others hold what it changed: see [`Update::is_acknowledged`].
    fn on_updated(
        &mut self,
        now: Time,
        id: CallId,
        mut call: Call,
        (ts, vector, mut result): (Stamp, Vector, Result<Done, FsError>),
        out: &mut Outbox<Session>,
    ) {
        let once = call.inquiries.iter().all(|inquiry| self.inquiries.asked_once(*inquiry));
        self.stop_asking(id, &mut call);
        let Work::Update(update) = &mut call.work else { return };
        let message = update.name.id;
        if result != Err(FsError::Expired) {
            if !self.mutation.is(Mutation::KeepsVector) {
                self.vector.merge(&vector);
            }
            self.names.end(&update.dest, &update.name);
            if matches!(result, Err(FsError::Held)) && !id.is_own() {
                return self.recall_for_update(now, id, call, out);
            }
            return self.tell_updated(now, id, (message, ts, &mut result), out);
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
            self.tell_updated(now, id, (message, ts, &mut result), out);
        }
    }

    /// An update has ended: the owner is told, or what is kept is changed.
    fn tell_updated(
        &mut self,
        now: Time,
        id: CallId,
        (message, ts, result): (MessageId, Stamp, &mut Result<Done, FsError>),
        out: &mut Outbox<Session>,
    ) {
        if id.is_own() {
            self.on_errand_done(now, id, result, out);
            return;
        }
        let odd = self.caps.end_update(now, id, ts, result);
        let gone = self.caps.drop_held(odd);
        self.tell_dropped(gone, out);
        out.output(Output::Updated { call: id, id: message, ts, result: result.clone() });
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
            self.give_up(now, id, call, failure.expect("something is being asked"), out);
        }
        self.give_up_parked(now, out);
        self.inquiries.on_due(now, &mut self.nodes, out);
        self.blocks.on_due(now, &mut self.nodes, out);
        self.on_cuts(now, out);
    }

    /// The call has no answer: a question is over, an update is held.
    fn give_up(
        &mut self,
        now: Time,
        id: CallId,
        mut call: Call,
        failure: Failure,
        out: &mut Outbox<Session>,
    ) {
        self.stop_asking(id, &mut call);
        if self.nodes.cuts.looks.remove(&id).is_some() {
            return;
        }
        if id.is_own() {
            self.calls.insert(id, call);
            self.on_release(id, out);
            self.end_errand(now, id, None, out);
            return;
        }
        let failure = match &call.work {
            Work::Follow(following) => following.failure(),
            _ => failure,
        };
        if matches!(call.work, Work::Update(_)) {
            self.calls.insert(id, call);
        }
        out.output(Output::GaveUp { call: id, failure });
    }

    pub(crate) fn stop_inquiry(&mut self, call: &mut Call, inquiry: InquiryId) {
        self.inquiries.end(inquiry, &mut self.nodes);
        call.inquiries.retain(|other| *other != inquiry);
    }

    /// Nothing is asked for the call any more.
    pub(crate) fn stop_asking(&mut self, id: CallId, call: &mut Call) {
        let (inquiries, nodes) = (&mut self.inquiries, &mut self.nodes);
        call.inquiries.drain(..).for_each(|inquiry| inquiries.end(inquiry, nodes));
        self.deadlines.remove(&(call.deadline, id));
        if let Work::Update(update) = &mut call.work {
            update.stage = Stage::Held;
        }
    }

    /// Sets the timer for what is due first, unless one comes that early anyhow.
    fn arm(&mut self, out: &mut Outbox<Session>) {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let cuts = self.nodes.cuts.next_due();
        let parked = self.parked.next_due();
        let others = [self.inquiries.next_due(), self.blocks.next_due(), cuts, parked];
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
        self.caps.check_invariants();
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
        self.resume(now, out);
        self.run_errands(now, out);
        let all = self.caps.take_to_land();
        if !all.is_empty() {
            out.output(Output::Land { all });
        }
        self.nodes.cuts.take_news().into_iter().for_each(|news| out.output(news));
        self.arm(out);
    }

    fn replay(&mut self, record: Infallible) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Infallible> + Send> {
        Box::new(std::iter::empty())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
pub(crate) mod tests;
