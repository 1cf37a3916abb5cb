//! One block on its way to all regions that hold its file.
//!
//! Invariant B5: a block counts as stored only when more than half of its regions have stored it,
//! each on as many nodes as should hold it; the others are given up only after a while, unless they
//! were so a moment ago.

use super::placing::{Placing, Progress};
use super::{Block, NODE_LIMIT, Outcome, PAUSE};
use crate::calls::Failure;
use crate::mutation::Mutation;
use crate::nodes::Nodes;
use crate::routes::Service;
use meridian_core::{GroupId, NodeId, RegionId, Time};
use meridian_host::api::{Refusal, ReplyBody, RequestBody};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a region out of reach may hold up a write to all regions when most have stored it.
/// Reads of that region find the block in another. For so long again nobody waits for it.
const REGION_GRACE: Duration = Duration::from_secs(5);
/// How long the next one waits for it after that: who can be reached again answers by then.
const REGION_AGAIN: Duration = Duration::from_millis(800);

/// The block on its way to one region.
#[derive(Clone, Debug)]
struct Region {
    region: RegionId,
    placing: Placing,
    /// Until when those may take who were asked.
    asked: BTreeMap<NodeId, Time>,
    /// When its nodes are tried once more, since all of them failed.
    again: Option<Time>,
    /// When it is given up, if most have stored it.
    grace: Time,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Storing {
    block: Block,
    regions: Vec<Region>,
    deadline: Time,
    mutation: Mutation,
}

impl Storing {
    /// Nobody is asked yet.
    pub fn new(
        now: Time,
        partition: GroupId,
        block: Block,
        deadline: Time,
        nodes: &Nodes,
    ) -> Storing {
        let mutation = nodes.mutation;
        let region = |region| {
            let order = nodes.placement(region, block.name, now);
            let placing = Placing::new(order).with_mutation(mutation);
            let grace = match nodes.lacking.get(&region) {
                None => now + REGION_GRACE,
                Some(until) if *until > now => now,
                Some(_) => now + REGION_AGAIN,
            };
            Region { region, placing, asked: BTreeMap::new(), again: None, grace }
        };
        let regions = nodes.regions_of(partition).into_iter().map(region).collect();
        Storing { block, regions, deadline, mutation }
    }

    /// What it has ended with tells for which regions the next ones need not wait.
    pub fn note_missing(missing: &[RegionId], now: Time, nodes: &mut Nodes) {
        nodes.lacking.extend(missing.iter().map(|region| (*region, now + REGION_GRACE)));
    }

    pub fn body(&self) -> RequestBody {
        RequestBody::PutBlock { block: self.block.name, data: self.block.data.clone() }
    }

    /// The nodes that are to be asked now.
    pub fn ask(&mut self, now: Time) -> Vec<NodeId> {
        let mut all = Vec::new();
        for region in &mut self.regions {
            let nodes = region.placing.ask();
            region.asked.extend(nodes.iter().map(|node| (*node, now + NODE_LIMIT)));
            all.extend(nodes);
            if region.placing.progress() == Progress::Stuck && region.again.is_none() {
                region.again = Some(now + PAUSE);
            }
        }
        all
    }

    /// A node has answered; nothing, if the connection to it was lost.
    pub fn on_answer(
        &mut self,
        now: Time,
        from: NodeId,
        reply: Option<ReplyBody>,
        nodes: &mut Nodes,
    ) {
        let of = nodes.topology.node(from).region;
        let Some(region) = self.regions.iter_mut().find(|region| region.region == of) else {
            return;
        };
        region.asked.remove(&from);
        match reply {
            Some(ReplyBody::Stored) => {
                nodes.lacking.remove(&of);
                region.placing.on_stored(from);
            }
            Some(ReplyBody::Refused(Refusal::Full | Refusal::Disk(_))) => {
                region.placing.on_full(from)
            }
            _ => {
                nodes.routes.failed(Service::Blocks, from, now);
                region.placing.on_failed(from);
            }
        }
    }

    /// Nodes have taken too long, or a pause is over.
    pub fn on_due(&mut self, now: Time, nodes: &mut Nodes) {
        for region in &mut self.regions {
            let late = region.asked.iter().filter(|(_, until)| **until <= now);
            for node in late.map(|(node, _)| *node).collect::<Vec<_>>() {
                region.asked.remove(&node);
                nodes.routes.failed(Service::Blocks, node, now);
                region.placing.on_failed(node);
            }
            if region.again.take_if(|at| *at <= now).is_some() {
                region.placing.again(nodes.placement(region.region, self.block.name, now));
            }
        }
    }

    /// When it goes on without an answer.
    pub fn due(&self) -> Time {
        let of = |region: &Region| region.asked.values().copied().chain(region.again).min();
        let first = self.regions.iter().filter_map(of).min();
        let patience =
            if self.is_in_most() { self.deadline.min(self.grace()) } else { self.deadline };
        first.unwrap_or(patience).min(patience)
    }

    /// How it ended.
    pub fn outcome(&self, now: Time) -> Option<Outcome> {
        let all = self.regions.len();
        let (stored, full) = (self.count(Progress::Stored), self.count(Progress::Full));
        let first = self.regions.first().map(|region| &region.placing);
        let one_is_enough = self.mutation.is(Mutation::CountsOneNode);
        let missing = || self.regions.iter().filter(|region| !region.is_stored());
        let patience_ends = self.deadline.min(self.grace()) <= now || stored + full == all;
        if stored == all
            || (self.is_in_most() && patience_ends)
            || (one_is_enough && first.is_some_and(Placing::is_anywhere))
        {
            return Some(Outcome::Stored { missing: missing().map(|of| of.region).collect() });
        }
        if (all - full) * 2 <= all {
            return Some(Outcome::Failed(Failure::NoSpace));
        }
        let late = self.deadline <= now;
        let region = missing().next().filter(|_| late)?.region;
        Some(Outcome::Failed(Failure::TooFewNodes { region }))
    }

    /// When all regions that have not stored it are given up, if most have.
    fn grace(&self) -> Time {
        let missing = self.regions.iter().filter(|region| !region.is_stored());
        missing.map(|region| region.grace).max().unwrap_or(self.deadline)
    }

    fn is_in_most(&self) -> bool {
        self.count(Progress::Stored) * 2 > self.regions.len()
    }

    fn count(&self, progress: Progress) -> usize {
        self.regions.iter().filter(|region| region.placing.progress() == progress).count()
    }
}

impl Region {
    fn is_stored(&self) -> bool {
        self.placing.progress() == Progress::Stored
    }
}
