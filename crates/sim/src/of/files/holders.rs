//! The blocks that nodes hold: what a server does with them beside its process.
//!
//! A block is durable, and acknowledged, some time after it has arrived; one that a crash finds
//! before that is gone. The disk of one node may rot: it gives some blocks damaged.

use crate::world::Random;
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{BlockId, GroupId, NodeId, RegionId, mix};
use meridian_host::api::{Refusal, ReplyBody, Request, RequestBody};
use meridian_host::drain;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is to happen to a request for a block, at a time of its own.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// It arrives.
    Arrive { client: usize, to: NodeId, request: Request },
    /// What arrived is durable, if the node has not crashed meanwhile.
    Durable { client: usize, at: NodeId, request: u64, incarnation: u64 },
    /// The answer arrives; none if the connection broke.
    Answer { client: usize, from: NodeId, request: u64, body: Option<ReplyBody> },
}

/// The blocks of one node.
#[derive(Clone, Debug, Default)]
struct Machine {
    up: bool,
    incarnation: u64,
    sealed: bool,
    /// What is not durable yet, by client and request.
    queue: BTreeMap<(usize, u64), (BlockId, Bytes)>,
    durable: BTreeMap<BlockId, Bytes>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    machines: BTreeMap<NodeId, Machine>,
    plans: BTreeMap<u64, Plan>,
    planned: u64,
    /// The node whose disk rots.
    pub rotten: Option<NodeId>,
}

impl Holders {
    /// Notes what is to happen; the number to be given back then.
    pub fn plan(&mut self, plan: Plan) -> u64 {
        self.planned += 1;
        self.plans.insert(self.planned, plan);
        self.planned
    }

    /// What was to happen now.
    pub fn planned(&mut self, number: u64) -> Plan {
        self.plans.remove(&number).expect("planned once")
    }

    pub fn started(&mut self, at: NodeId) {
        self.machines.entry(at).or_default().up = true;
    }

    pub fn crashed(&mut self, at: NodeId) {
        let machine = self.machines.entry(at).or_default();
        (machine.up, machine.incarnation) = (false, machine.incarnation + 1);
        machine.queue.clear();
    }

    /// Whether the process of the node lets it take blocks.
    pub fn takes_blocks(&mut self, at: NodeId, takes: bool) {
        self.machines.entry(at).or_default().sealed = !takes;
    }

    /// A request arrives: what follows from it, and when.
    pub fn on_arrived(
        &mut self,
        client: usize,
        at: NodeId,
        request: Request,
        random: &mut Random,
    ) -> (Plan, Duration) {
        let soon = Duration::from_micros(random.random_range(50..3_000));
        let machine = self.machines.entry(at).or_default();
        let body = match request.body {
            _ if !machine.up => None,
            RequestBody::PutBlock { .. } if machine.sealed => {
                Some(ReplyBody::Refused(Refusal::Draining))
            }
            RequestBody::PutBlock { block, data } => {
                machine.queue.insert((client, request.id), (block, data));
                let incarnation = machine.incarnation;
                let most = if random.random_ratio(1, 20) { 4_000 } else { 20 };
                let after = Duration::from_millis(random.random_range(1..most));
                return (Plan::Durable { client, at, request: request.id, incarnation }, after);
            }
            RequestBody::GetBlock { block, offset, len } => Some(self.read(at, block, offset, len)),
            other => panic!("{other:?} is not for blocks"),
        };
        (Plan::Answer { client, from: at, request: request.id, body }, soon)
    }

    fn read(&self, at: NodeId, block: BlockId, offset: u32, len: u32) -> ReplyBody {
        let (from, to) = (offset as usize, offset as usize + len as usize);
        let whole = self.machines[&at].durable.get(&block).filter(|whole| to <= whole.len());
        let Some(whole) = whole else { return ReplyBody::Refused(Refusal::NoBlock(block)) };
        let rots = mix(block.0 as u64) % 4;
        match rots {
            0 if self.rotten == Some(at) => ReplyBody::Refused(Refusal::Damaged(block)),
            1 if self.rotten == Some(at) => ReplyBody::Block(whole.slice(from..to - 1)),
            _ => ReplyBody::Block(whole.slice(from..to)),
        }
    }

    /// What was written is durable: whether that is acknowledged.
    pub fn on_durable(&mut self, at: NodeId, written: (usize, u64), incarnation: u64) -> bool {
        let machine = self.machines.get_mut(&at).expect("it took a block");
        if let Some((block, data)) = machine.queue.remove(&written) {
            machine.durable.insert(block, data);
        }
        machine.incarnation == incarnation
    }

    /// A node that is drained, or helps to, asks something of its blocks.
    pub fn on_drain(&mut self, at: NodeId, output: drain::Output) -> Option<drain::Command> {
        let machine = self.machines.get_mut(&at)?;
        Some(match output {
            drain::Output::List { number, after } => {
                let later =
                    machine.durable.keys().filter(|block| after.is_none_or(|of| **block > of));
                let blocks = later.take(drain::PAGE).copied().collect();
                drain::Command::Names { number, blocks }
            }
            drain::Output::Which { by, number, mut blocks } => {
                blocks.retain(|block| machine.durable.contains_key(block));
                drain::Command::Held { by, number, blocks }
            }
            drain::Output::Read { block, to } => {
                let data = machine.durable.get(&block).cloned();
                drain::Command::Data { block, to, data }
            }
            drain::Output::Store { from, block, data } => {
                machine.durable.insert(block, data);
                drain::Command::Stored { from, block, stored: true }
            }
            drain::Output::Seal => {
                let taken = std::mem::take(&mut machine.queue);
                machine.durable.extend(taken.into_values());
                drain::Command::Sealed
            }
            drain::Output::Drained { .. } => return None,
        })
    }

    /// Whether a block of a file in `partition` is, durably, where an acknowledged one must be: in
    /// more than half of the regions, in each on as many nodes as should hold it.
    pub fn is_stored(&self, topology: &Topology, partition: GroupId, block: BlockId) -> bool {
        let all: BTreeSet<RegionId> = match topology.group(partition).region {
            Some(region) => [region].into(),
            None => topology.nodes.iter().map(|node| node.region).collect(),
        };
        let of = |region: &&RegionId| {
            let held = |node: &NodeId| {
                let machine = self.machines.get(node);
                machine.is_some_and(|machine| machine.durable.contains_key(&block))
            };
            let there = topology.node_ids().filter(|node| topology.node(*node).region == **region);
            there.filter(held).count() >= REPLICAS.min(topology.nodes_in(**region).count())
        };
        all.iter().filter(of).count() * 2 > all.len()
    }

    /// The block, from a node that is up and whose disk does not rot.
    pub fn surviving(&self, block: BlockId) -> Option<&Bytes> {
        let sound = |(node, _): &(&NodeId, &Machine)| self.rotten != Some(**node);
        let mut up = self.machines.iter().filter(sound).filter(|(_, machine)| machine.up);
        up.find_map(|(_, machine)| machine.durable.get(&block))
    }
}
