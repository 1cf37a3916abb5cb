//! A part of a block, which nodes are asked for one after the other.
//!
//! Invariant B6: a reading fails before its deadline only when each node that may hold the block
//! has answered in one round: that it does not have the block, or damaged, or that the block ends
//! before the part does. So the answer of one node makes no sound copy of another unread.

use super::{NODE_LIMIT, Outcome, PAUSE, Part};
use crate::calls::Failure;
use crate::mutation::Mutation;
use crate::nodes::Nodes;
use crate::routes::Service;
use meridian_core::{GroupId, NodeId, Time};
use meridian_host::api::{Refusal, ReplyBody, RequestBody};
use std::collections::VecDeque;

/// What a node has of the part. Of what several nodes have the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// It does not have the block.
    Nothing,
    /// It has a sound block that ends before the part does: what the file says is wrong.
    Short,
    /// It has the block, damaged, so nobody knows how long that was.
    Damaged,
    /// It did not answer, and may have it.
    Unknown,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Fetching {
    partition: GroupId,
    part: Part,
    deadline: Time,
    /// The nodes that are still to be asked in this round, the best first.
    round: VecDeque<NodeId>,
    /// The node that is waited for; none during a pause.
    asked: Option<NodeId>,
    /// When it goes on without an answer.
    due: Time,
    /// What the nodes of this round have of it.
    found: Found,
    end: Option<Outcome>,
    mutation: Mutation,
}

impl Fetching {
    /// Nobody is asked yet.
    pub fn new(
        now: Time,
        partition: GroupId,
        part: Part,
        deadline: Time,
        nodes: &Nodes,
    ) -> Fetching {
        Fetching {
            partition,
            part,
            deadline,
            round: nodes.holders(partition, part.block, now).into(),
            asked: None,
            due: now,
            found: Found::Nothing,
            end: None,
            mutation: nodes.mutation,
        }
    }

    pub fn body(&self) -> RequestBody {
        let Part { block, start, len } = self.part;
        RequestBody::GetBlock { block, offset: start, len }
    }

    /// The node that is to be asked now. After the last there is a pause, or no hope.
    pub fn ask(&mut self, now: Time, nodes: &Nodes) -> Option<NodeId> {
        if self.asked.is_some() || self.due > now {
            return None;
        }
        if self.round.is_empty() {
            self.found = Found::Nothing;
            self.round = nodes.holders(self.partition, self.part.block, now).into();
        }
        self.asked = self.round.pop_front();
        match self.asked {
            Some(_) => self.due = now + NODE_LIMIT,
            None => self.end_round(now), // Nobody may hold it.
        }
        self.asked
    }

    /// A node has answered; nothing, if the connection to it was lost.
    pub fn on_answer(
        &mut self,
        now: Time,
        from: NodeId,
        reply: Option<ReplyBody>,
        nodes: &mut Nodes,
    ) {
        let wanted = self.part.len as usize;
        let found = match reply {
            Some(ReplyBody::Block(data))
                if data.len() == wanted || self.mutation.is(Mutation::TakesDamaged) =>
            {
                self.end = Some(Outcome::Fetched(data));
                return;
            }
            Some(ReplyBody::Block(data)) if data.len() < wanted => Found::Short,
            Some(ReplyBody::Refused(Refusal::NoBlock(_) | Refusal::Bad(_))) => Found::Nothing,
            Some(ReplyBody::Refused(Refusal::Damaged(_))) => Found::Damaged,
            _ => {
                nodes.routes.failed(Service::Blocks, from, now);
                Found::Unknown
            }
        };
        self.found = self.found.max(found);
        if self.mutation.is(Mutation::AsksOneHolder) {
            let block = self.part.block;
            self.end = Some(Outcome::Failed(Failure::Lost { block }));
        }
        if self.asked == Some(from) {
            self.next(now);
        }
    }

    /// The node that is waited for is slow, or a pause is over.
    pub fn on_due(&mut self, now: Time, nodes: &mut Nodes) {
        if self.due <= now
            && let Some(node) = self.asked
        {
            nodes.routes.failed(Service::Blocks, node, now);
            self.found = Found::Unknown;
            self.next(now);
        }
    }

    /// Another is asked at once, or all after a pause.
    fn next(&mut self, now: Time) {
        self.asked = None;
        match self.round.is_empty() {
            true => self.end_round(now),
            false => self.due = now,
        }
    }

    fn end_round(&mut self, now: Time) {
        self.due = now + PAUSE;
        let part = self.part;
        let failure = match self.found {
            Found::Nothing | Found::Damaged => Failure::Lost { block: part.block },
            Found::Short => Failure::Beyond { part },
            Found::Unknown => return,
        };
        self.end = Some(Outcome::Failed(failure));
    }

    /// When it goes on without an answer.
    pub fn due(&self) -> Time {
        self.due.min(self.deadline)
    }

    /// How it ended.
    pub fn outcome(&self, now: Time) -> Option<Outcome> {
        let late = self.deadline <= now;
        let too_late = || Outcome::Failed(Failure::Timeout { group: self.partition });
        self.end.clone().or_else(|| late.then(too_late))
    }
}
