//! Questions to groups: the nodes of each are asked, the best first, until one answers.
//!
//! A node that refuses, is slow or cannot be reached is asked only after the others for a while
//! ([`Routes`]). A slow one may still answer: its answer counts as long as the inquiry goes on.
//!
//! Invariants:
//! - I1: a request belongs to an inquiry that goes on.
//! - I2: an inquiry is due at exactly one time: when its request has waited long enough, or when
//!   its pause ends.

use crate::calls::{CallId, Failure};
use crate::cuts::LOOK;
use crate::nodes::Nodes;
use crate::routes::Service;
use crate::session::Session;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId, Outbox, Time};
use meridian_fs::Query;
use meridian_host::api::{Refusal, Reply, ReplyBody, RequestBody};
use meridian_host::replica::PARKED_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long one node may take before the same is sent to another: a healthy one answers in
/// milliseconds and some round trips, which are added.
const PATIENCE: Duration = Duration::from_secs(1);
/// What patience grows to while nobody answers, so that an overloaded group is not asked ever more.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// How many ways to the farthest region one node may take longer.
const PATIENCE_WAYS: u32 = 6;
/// How long to wait when all nodes of a group failed at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The name of an inquiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InquiryId(u64);

/// How an inquiry ended.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // It is taken apart at once.
pub(crate) enum Verdict {
    /// A node has answered.
    Answered(ReplyBody),
    /// It is of no use to ask another node.
    Failed(Failure),
}

/// One question to one group.
#[derive(Clone, Debug)]
struct Inquiry {
    call: CallId,
    group: GroupId,
    body: RequestBody,
    /// The nodes that are still to be asked in this round, the best first.
    round: VecDeque<NodeId>,
    /// The request that is waited for; none during a pause.
    current: Option<u64>,
    /// The requests that may still be answered, the current one too.
    open: Vec<u64>,
    /// When it goes on without an answer.
    due: Time,
    patience: Duration,
    /// For so long a node may keep the question, and be well.
    kept: Duration,
    /// How many requests were sent.
    sent: u32,
    /// The nodes that have said that their disks are full.
    full: BTreeSet<NodeId>,
    /// Whether a node has refused or was slow: then not all are out of reach.
    anyone_there: bool,
    /// The group that cannot be reached from here, as a node has said.
    cannot_reach: Option<GroupId>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inquiries {
    all: BTreeMap<InquiryId, Inquiry>,
    /// By number: for which inquiry, and which node was asked.
    requests: BTreeMap<u64, (InquiryId, NodeId)>,
    due: BTreeSet<(Time, InquiryId)>,
    last: u64,
}

impl Inquiry {
    /// One more node has a full disk; whether that are so many of the group that the others have
    /// no quorum.
    fn is_full(&mut self, node: NodeId, topology: &Topology) -> bool {
        self.full.insert(node);
        let known = topology.groups.get(usize::from(self.group.0));
        known.is_some_and(|group| self.full.len() * 2 >= group.members.len())
    }
}

impl Inquiries {
    /// When the first inquiry is due.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Asks a node of `group`, for `call`.
    pub fn begin(
        &mut self,
        now: Time,
        call: CallId,
        group: GroupId,
        body: RequestBody,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) -> InquiryId {
        self.last += 1;
        let id = InquiryId(self.last);
        let kept = kept(&body);
        let inquiry = Inquiry {
            call,
            group,
            body,
            round: nodes.routes.candidates(&nodes.topology, group, now).into(),
            current: None,
            open: Vec::new(),
            due: now,
            patience: patience(&nodes.topology) + kept,
            kept,
            sent: 0,
            full: BTreeSet::new(),
            anyone_there: false,
            cannot_reach: None,
        };
        self.all.insert(id, inquiry);
        if kept.is_zero() {
            nodes.cuts.asked(group, now);
        }
        self.ask_next(now, id, nodes, out);
        id
    }

    /// Nobody waits for the inquiry any more.
    pub fn end(&mut self, id: InquiryId, nodes: &mut Nodes) {
        if let Some(inquiry) = self.all.remove(&id) {
            if inquiry.kept.is_zero() {
                nodes.cuts.ended(inquiry.group);
            }
            self.due.remove(&(inquiry.due, id));
            for request in inquiry.open {
                self.requests.remove(&request);
            }
        }
    }

    /// Which group is asked.
    pub fn group(&self, id: InquiryId) -> Option<GroupId> {
        self.all.get(&id).map(|inquiry| inquiry.group)
    }

    /// Whether one node was asked, and once: then there is one copy of what was sent.
    pub fn asked_once(&self, id: InquiryId) -> bool {
        self.all.get(&id).is_some_and(|inquiry| inquiry.sent <= 1)
    }

    /// Its group cannot decide without another that is out of reach: it is asked again later.
    pub fn wait_for(&mut self, now: Time, id: InquiryId, group: GroupId) {
        let inquiry = self.all.get_mut(&id).expect("the caller has it");
        self.due.remove(&(inquiry.due, id));
        (inquiry.anyone_there, inquiry.cannot_reach) = (true, Some(group));
        (inquiry.current, inquiry.due) = (None, now + LOOK);
        self.due.insert((inquiry.due, id));
    }

    /// Why these have no answer by now: one that knows which group cannot be reached at all says
    /// more than the others.
    pub fn out_of_time(&self, ids: &[InquiryId]) -> Option<Failure> {
        let all = || ids.iter().filter_map(|id| self.all.get(id));
        if let Some(group) = all().find_map(|one| one.cannot_reach) {
            return Some(Failure::OutOfReach { group });
        }
        let silent = all().find(|one| !one.anyone_there && one.current.is_none());
        let unreachable = silent.map(|one| Failure::Unreachable { group: one.group });
        unreachable.or_else(|| all().next().map(|one| Failure::Timeout { group: one.group }))
    }

    /// A node has answered a request: the inquiry that ends with it.
    pub fn on_reply(
        &mut self,
        now: Time,
        from: NodeId,
        reply: Reply,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) -> Option<(CallId, InquiryId, Verdict)> {
        let (id, node) = *self.requests.get(&reply.id)?;
        if node != from {
            return None;
        }
        let inquiry = self.all.get_mut(&id).expect("I1: requests belong to inquiries");
        let (call, group) = (inquiry.call, inquiry.group);
        let verdict = match reply.body {
            ReplyBody::Refused(Refusal::OutOfReach(group)) => {
                Verdict::Failed(Failure::OutOfReach { group })
            }
            ReplyBody::Refused(refusal @ Refusal::Bad(_)) => {
                Verdict::Failed(Failure::Refused(refusal))
            }
            ReplyBody::Refused(Refusal::Full) if inquiry.is_full(node, &nodes.topology) => {
                Verdict::Failed(Failure::Refused(Refusal::Full))
            }
            ReplyBody::Refused(_) => {
                inquiry.anyone_there = true;
                self.on_failed(now, reply.id, nodes, out);
                return None;
            }
            body => {
                nodes.routes.answered(group, node);
                nodes.cuts.answered(group, now, inquiry.kept.is_zero());
                Verdict::Answered(body)
            }
        };
        self.close(reply.id);
        Some((call, id, verdict))
    }

    /// The connection to `node` is lost, or cannot be opened, and with it what was asked there.
    pub fn on_lost(
        &mut self,
        now: Time,
        node: NodeId,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let asked = self.requests.iter().filter(|(_, (_, of))| *of == node);
        let lost: Vec<_> = asked.map(|(request, _)| *request).collect();
        lost.into_iter().for_each(|request| self.on_failed(now, request, nodes, out));
    }

    /// Inquiries go on whose time has come: another node is asked.
    pub fn on_due(&mut self, now: Time, nodes: &mut Nodes, out: &mut Outbox<Session>) {
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let inquiry = self.all.get_mut(&id).expect("I2: who is due goes on");
            match inquiry.current.take() {
                Some(request) => {
                    inquiry.anyone_there = true;
                    let longer = inquiry.patience * 3 / 2;
                    let most = PATIENCE_MAX.max(patience(&nodes.topology));
                    inquiry.patience = longer.min(most + inquiry.kept);
                    let node = self.requests.get(&request).expect("I1: it is open").1;
                    nodes.routes.failed(Service::Group(inquiry.group), node, now);
                }
                None => {
                    let group = inquiry.group;
                    inquiry.round = nodes.routes.candidates(&nodes.topology, group, now).into();
                }
            }
            self.ask_next(now, id, nodes, out);
        }
    }

    /// A request has failed; another node is asked if this one was waited for.
    fn on_failed(&mut self, now: Time, request: u64, nodes: &mut Nodes, out: &mut Outbox<Session>) {
        let Some((id, node)) = self.close(request) else { return };
        let inquiry = self.all.get_mut(&id).expect("I1: requests belong to inquiries");
        nodes.routes.failed(Service::Group(inquiry.group), node, now);
        if inquiry.current == Some(request) {
            self.ask_next(now, id, nodes, out);
        }
    }

    /// Nothing is to be heard of the request any more.
    fn close(&mut self, request: u64) -> Option<(InquiryId, NodeId)> {
        let (id, node) = self.requests.remove(&request)?;
        let inquiry = self.all.get_mut(&id).expect("I1: requests belong to inquiries");
        inquiry.open.retain(|open| *open != request);
        Some((id, node))
    }

    /// Asks the next node of the round; after the last there is a pause.
    fn ask_next(&mut self, now: Time, id: InquiryId, nodes: &mut Nodes, out: &mut Outbox<Session>) {
        let inquiry = self.all.get_mut(&id).expect("the caller has it");
        self.due.remove(&(inquiry.due, id));
        match inquiry.round.pop_front() {
            Some(node) => {
                let number = nodes.ask(now, node, inquiry.body.clone(), out);
                inquiry.current = Some(number);
                inquiry.open.push(number);
                inquiry.sent += 1;
                inquiry.due = now + inquiry.patience;
                self.requests.insert(number, (id, node));
            }
            None => {
                inquiry.current = None;
                inquiry.due = now + PAUSE;
            }
        }
        self.due.insert((inquiry.due, id));
    }

    /// Checks what must hold between steps.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        for (request, (id, _)) in &self.requests {
            let of = self.all.get(id);
            assert!(of.is_some_and(|of| of.open.contains(request)), "I1: request {request}");
        }
        let open: usize = self.all.values().map(|inquiry| inquiry.open.len()).sum();
        assert_eq!(open, self.requests.len(), "I1: open requests");
        let due = self.all.iter().map(|(id, inquiry)| (inquiry.due, *id));
        assert_eq!(due.collect::<BTreeSet<_>>(), self.due, "I2");
    }
}

/// How long a node keeps a question.
fn kept(body: &RequestBody) -> Duration {
    match body {
        RequestBody::Read { query: Query::Awaited { .. }, .. } => PARKED_MAX,
        _ => Duration::ZERO,
    }
}

fn patience(topology: &Topology) -> Duration {
    let farthest = topology.one_way.values().max().copied().unwrap_or_default();
    PATIENCE + farthest * PATIENCE_WAYS
}
