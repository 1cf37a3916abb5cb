//! What a session knows of the nodes: the configuration, the order in which each region's nodes
//! come for a block, and which of them failed lately. All requests are numbered here.
//!
//! Invariant R1: no two requests of a session have one number.

use crate::calls::{Keeping, Message};
use crate::cuts::Cuts;
use crate::mutation::Mutation;
use crate::routes::{Routes, Service};
use crate::session::Session;
use meridian_cluster::{Ring, Topology};
use meridian_core::level::Level;
use meridian_core::{BlockId, GroupId, NodeId, Outbox, RegionId, Time};
use meridian_host::api::{Request, RequestBody};
use meridian_host::steps::{Step, Steps, What};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub topology: Arc<Topology>,
    pub routes: Routes,
    pub cuts: Cuts,
    /// The regions that lacked the last block which they should store, and until when the next ones
    /// do not wait for them.
    pub lacking: BTreeMap<RegionId, Time>,
    region: RegionId,
    /// By region: of the nodes that stay.
    rings: Vec<Ring>,
    last_request: u64,
    pub mutation: Mutation,
    /// Which updates were asked for, where and when.
    pub steps: Steps,
    /// What the owner has kept back, once it has said so.
    pub keeping: Option<Keeping>,
}

impl Nodes {
    /// Those of `topology`, for a client in `region`.
    pub fn new(topology: Arc<Topology>, region: RegionId) -> Nodes {
        Nodes {
            rings: rings(&topology),
            topology,
            routes: Routes::new(region),
            cuts: Cuts::default(),
            lacking: BTreeMap::new(),
            region,
            last_request: 0,
            mutation: Mutation::Correct,
            steps: Steps::default(),
            keeping: None,
        }
    }

    /// The cluster is configured so now.
    pub fn configured(&mut self, topology: Arc<Topology>) {
        self.rings = rings(&topology);
        self.topology = topology;
    }

    /// Asks `to`; the number of the request.
    pub fn ask(
        &mut self,
        now: Time,
        to: NodeId,
        body: RequestBody,
        out: &mut Outbox<Session>,
    ) -> u64 {
        if let RequestBody::Update { group, start }
        | RequestBody::UpdateAlong { group, start, .. } = &body
        {
            self.steps.note(start.id, Step::of(now, What::Asked, *group).with(*group, to));
        }
        self.last_request += 1;
        let id = self.last_request;
        out.send(to, Message::Request(Request { id, body }));
        id
    }

    /// Whether the cluster goes by that level.
    fn speaks(&self, level: Level) -> bool {
        self.topology.levels.now >= level
    }

    /// Whether they let a client hold all that it makes.
    pub fn let_hold_made(&self) -> bool {
        self.speaks(Level::MADE)
    }

    /// How much of that they let a client keep back, by what they know of.
    pub fn let_keep_back(&self) -> Option<Keeping> {
        match (self.speaks(Level::EXCLUSIVE), self.speaks(Level::BATCHES)) {
            (false, _) => None,
            (true, false) if self.keeping == Some(Keeping::InOrder) => Some(Keeping::Files),
            (true, _) => self.keeping,
        }
    }

    /// Whether they take what was written to a file in a batch.
    pub fn let_keep_written(&self) -> bool {
        self.speaks(Level::WRITTEN)
    }

    /// Whether a group is in another region, and its nodes know of what comes along with an answer.
    pub fn brings_along(&self, group: GroupId) -> bool {
        let of = self.topology.groups.get(usize::from(group.0));
        let elsewhere = of.and_then(|of| of.region).is_some_and(|region| region != self.region);
        elsewhere && self.speaks(Level::ALONG)
    }

    /// The regions that hold the blocks of files in `partition`: a region's partition keeps them in
    /// that region, `global` in all. The nearest comes first.
    pub fn regions_of(&self, partition: GroupId) -> Vec<RegionId> {
        // Of a region that is not known yet nothing is known to be there.
        let group = self.topology.groups.get(usize::from(partition.0));
        let Some(group) = group else { return Vec::new() };
        if let Some(region) = group.region {
            return vec![region];
        }
        let mut regions: Vec<_> = self.topology.staying_regions().collect();
        let distance = |region| self.topology.delay(self.region, region);
        regions.sort_by_key(|region| (*region != self.region, distance(*region)));
        regions
    }

    /// The nodes of `region` in the order in which they come for `block`, those that failed lately
    /// at the end.
    pub fn placement(&self, region: RegionId, block: BlockId, now: Time) -> Vec<NodeId> {
        let mut nodes = self.rings[usize::from(region.0)].placement(block);
        if self.mutation.is(Mutation::PlacesOnDraining) {
            let draining = self.topology.draining_in(region).map(|(node, _)| node);
            nodes.splice(0..0, draining.collect::<Vec<_>>());
        }
        nodes.sort_by_key(|node| self.routes.is_avoided(Service::Blocks, *node, now));
        nodes
    }

    /// The nodes that may hold `block`, of a file in `partition`, in the order in which they are
    /// asked: of each region those that will hold it, then those that are drained.
    pub fn holders(&self, partition: GroupId, block: BlockId, now: Time) -> Vec<NodeId> {
        let of = |region| {
            let mut nodes = self.placement(region, block, now);
            nodes.extend(self.topology.draining_in(region).map(|(node, _)| node));
            nodes
        };
        self.regions_of(partition).into_iter().flat_map(of).collect()
    }
}

fn region_ids(topology: &Topology) -> impl Iterator<Item = RegionId> + use<> {
    (0..u16::try_from(topology.regions.len()).unwrap_or(u16::MAX)).map(RegionId)
}

fn rings(topology: &Topology) -> Vec<Ring> {
    let nodes_in = |region| topology.nodes_in(region).collect::<Vec<_>>();
    region_ids(topology).map(|region| Ring::new(&nodes_in(region))).collect()
}
