//! The blocks of the nodes, as clients meet them: requests for blocks on their way to a node and
//! back. What the node does with them is in [`Stores`].

use super::{PLANNED, token};
use crate::stores::{Due, Effect, Stores};
use crate::world::{DiskFailure, Random, Stimulus};
use bytes::Bytes;
use meridian_blocks::desk::{self, Answer, Asker};
use meridian_blocks::store;
use meridian_cluster::Topology;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{BlockId, GroupId, NodeId, RegionId, mix};
use meridian_host::api::{Reply, ReplyBody, Request};
use meridian_host::{Command, ConnectionId, Node, drain, space};
use meridian_storage::SimDisk;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is to happen at a time of its own.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// A request for a block arrives.
    Arrive { client: usize, to: NodeId, request: Request },
    /// The answer arrives; none if the connection broke.
    Answer { client: usize, from: NodeId, reply: Option<Reply> },
    /// A node goes on.
    Blocks(Due),
}

/// See the module's documentation.
pub(super) struct Holders {
    stores: Stores,
    /// The nodes that are up, and whether they take blocks.
    up: BTreeMap<NodeId, bool>,
    plans: BTreeMap<u64, Plan>,
    planned: u64,
    random: Random,
    /// The node whose disk rots.
    pub rotten: Option<NodeId>,
}

impl Holders {
    pub fn new(seed: u64) -> Holders {
        Holders {
            stores: Stores::new(seed, store::Mutation::Correct),
            up: BTreeMap::new(),
            plans: BTreeMap::new(),
            planned: 0,
            random: Random::seed_from_u64(mix(seed) ^ 0x401d),
            rotten: None,
        }
    }

    pub fn mount(&mut self, at: NodeId, disk: &SimDisk, altered: bool) -> Result<(), DiskFailure> {
        self.stores.mount(at, disk, altered)
    }

    /// A node runs. Where logs are in lists nothing was mounted.
    pub fn started(&mut self, at: NodeId, takes_blocks: bool) {
        self.stores.mount_own(at);
        self.up.insert(at, takes_blocks);
    }

    pub fn crashed(&mut self, at: NodeId) {
        self.stores.crash(at);
        self.up.remove(&at);
    }

    /// Whether the process of the node lets it take blocks.
    pub fn takes_blocks(&mut self, at: NodeId, takes: bool) {
        self.up.insert(at, takes);
    }

    /// The nodes whose disks were damaged, or exchanged.
    pub fn altered(&self) -> &BTreeSet<NodeId> {
        self.stores.altered()
    }

    /// Notes what is to happen.
    pub fn plan(&mut self, after: Duration, plan: Plan) -> Stimulus<Node> {
        self.planned += 1;
        self.plans.insert(self.planned, plan);
        Stimulus::Wake { token: token(self.planned, PLANNED), after }
    }

    /// What was to happen now.
    pub fn planned(&mut self, number: u64) -> Plan {
        self.plans.remove(&number).expect("planned once")
    }

    /// A request of a client arrives.
    pub fn on_arrived(
        &mut self,
        client: usize,
        to: NodeId,
        request: Request,
    ) -> Vec<Stimulus<Node>> {
        let Some(takes_blocks) = self.up.get(&to).copied() else {
            return vec![self.answer(client, to, None)];
        };
        let by = Asker { connection: ConnectionId(client as u64), id: request.id };
        let effects = self.stores.on_client(to, takes_blocks, by, request.body);
        self.carry_out(effects.expect("it is about blocks"))
    }

    /// A node goes on.
    pub fn on_due(&mut self, due: Due) -> Vec<Stimulus<Node>> {
        let effects = self.stores.on_due(due);
        self.carry_out(effects)
    }

    /// A node that is drained, or helps to, asks something of its blocks.
    pub fn on_drain(&mut self, at: NodeId, output: drain::Output) -> Vec<Stimulus<Node>> {
        let effects = self.stores.on_drain(at, output).unwrap_or_default();
        self.carry_out(effects)
    }

    /// A node frees blocks, or asks which it holds.
    pub fn on_space(&mut self, at: NodeId, output: space::Output) -> Vec<Stimulus<Node>> {
        let effects = self.stores.on_space(at, output);
        self.carry_out(effects)
    }

    /// The blocks that some node has freed.
    pub fn freed(&self) -> &BTreeSet<BlockId> {
        self.stores.freed()
    }

    /// The blocks that a node holds, if it is up.
    pub fn held(&self, at: NodeId) -> Vec<BlockId> {
        let blocks = self.stores.blocks(at).filter(|_| self.up.contains_key(&at));
        blocks.map(|blocks| blocks.names(None, usize::MAX)).unwrap_or_default()
    }

    /// Whether a node that is up can read a block.
    pub fn is_sound(&self, at: NodeId, block: BlockId) -> bool {
        self.up.contains_key(&at) && self.stores.is_sound(at, block)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Stimulus<Node>> {
        let damage = |effect: &Effect| match effect {
            Effect::Tell(to, answer) => Some((*to, desk::damage(answer)?)),
            Effect::Later(..) | Effect::Stop(_) => None,
        };
        let damaged: Vec<_> = effects.iter().filter_map(damage).collect();
        let mut stimuli: Vec<_> = damaged
            .into_iter()
            .map(|(to, command)| {
                let command = Command::Drain(command);
                Stimulus::Command { to, command, after: Duration::ZERO }
            })
            .collect();
        let carry_out = |effect| match effect {
            Effect::Later(after, due) => self.plan(after, Plan::Blocks(due)),
            Effect::Stop(node) => Stimulus::Stop(node),
            Effect::Tell(to, Answer::Node(command)) => {
                Stimulus::Command { to, command: Command::Drain(command), after: Duration::ZERO }
            }
            Effect::Tell(to, Answer::Space(command)) => {
                Stimulus::Command { to, command: Command::Space(command), after: Duration::ZERO }
            }
            Effect::Tell(from, Answer::Client(connection, mut reply)) => {
                if self.rotten == Some(from) {
                    self.rot(from, &mut reply);
                }
                let client = usize::try_from(connection.0).expect("an index");
                self.answer(client, from, Some(reply))
            }
        };
        stimuli.extend(effects.into_iter().map(carry_out));
        stimuli
    }

    fn answer(&mut self, client: usize, from: NodeId, reply: Option<Reply>) -> Stimulus<Node> {
        let after = Duration::from_micros(self.random.random_range(50..3_000));
        self.plan(after, Plan::Answer { client, from, reply })
    }

    /// The disk of a node damages what it stores, at times; the node may also answer with too
    /// little: it is another's to notice.
    fn rot(&mut self, at: NodeId, reply: &mut Reply) {
        let chosen = self.random.random_ratio(1, 4);
        match &mut reply.body {
            ReplyBody::Stored if chosen => self.stores.rot(at),
            ReplyBody::Block(data) if chosen && !data.is_empty() => {
                data.truncate(data.len() - 1);
            }
            _ => {}
        }
    }

    /// Whether a block of a file in `partition` was stored where an acknowledged one must be: in
    /// more than half of the regions, in each on as many nodes as should hold it.
    pub fn is_stored(&self, topology: &Topology, partition: GroupId, block: BlockId) -> bool {
        let of = |region: &&RegionId| {
            let there = topology.node_ids().filter(|node| topology.node(*node).region == **region);
            let said = there.filter(|node| self.stores.has_said(*node, block)).count();
            said >= REPLICAS.min(topology.nodes_in(**region).count())
        };
        let most = |all: &[RegionId]| all.iter().filter(of).count() * 2 > all.len();
        if let Some(region) = topology.group(partition).region {
            return most(&[region]);
        }
        // Whoever has not heard of a region that came does without it.
        let all: Vec<RegionId> = topology.staying_regions().collect();
        let is_first = |id: &RegionId| topology.regions[usize::from(id.0)].added_ms.is_none();
        let first: Vec<_> = all.iter().copied().filter(is_first).collect();
        most(&all) || most(&first)
    }

    /// The block, from a node that is up and can read it.
    pub fn surviving(&self, block: BlockId) -> Option<Bytes> {
        let blocks = self.up.keys().filter_map(|node| self.stores.blocks(*node));
        blocks.into_iter().find_map(|blocks| blocks.get(block, 0, u32::MAX).ok())
    }
}
