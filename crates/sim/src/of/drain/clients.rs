//! Clients that store blocks as the library's own do: where they lie is decided by the same value.

use super::{Blocks, MS, Plan, data_of};
use crate::world::{Random, Stimulus};
use meridian_cluster::Topology;
use meridian_cluster::ring::placement;
use meridian_core::{BlockId, NodeId, RegionId, Time};
use meridian_host::api::RequestBody;
use meridian_host::drain::Drain;
use meridian_session::{Placing, Progress};
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::sync::Arc;
use std::time::Duration;

/// How many blocks a client stores.
const BLOCKS: u128 = 60;
/// After so long without an answer another node is tried.
const TIMEOUT: Duration = Duration::from_millis(700);

/// Stores one block after the other.
#[derive(Debug)]
pub(super) struct Client {
    number: usize,
    /// The cluster as it knows it.
    topology: Arc<Topology>,
    /// How late it learns of a change.
    lag: Duration,
    begun: u128,
    putting: Option<Putting>,
}

/// A block that is to be stored.
#[derive(Debug)]
struct Putting {
    block: BlockId,
    placing: Placing,
    last: Time,
}

impl Client {
    pub fn new(number: usize, topology: Arc<Topology>, random: &mut Random) -> Client {
        let lag = MS * random.random_range(0..4000);
        Client { number, topology, lag, begun: 0, putting: None }
    }

    /// Whether it has stored all that it had to.
    pub fn is_done(&self) -> bool {
        self.begun == BLOCKS && self.putting.is_none()
    }

    /// Begins with a new block, or tries the nodes once more.
    fn begin(&mut self, now: Time) {
        let nodes: Vec<_> = self.topology.nodes_in(RegionId(0)).collect();
        if let Some(putting) = &mut self.putting {
            putting.placing.again(placement(&nodes, putting.block));
            return;
        }
        self.begun += 1;
        // The names are spread over the ring by its own hash.
        let block = BlockId((self.number as u128) << 32 | self.begun);
        let placing = Placing::new(placement(&nodes, block));
        self.putting = Some(Putting { block, placing, last: now });
    }

    /// The nodes to ask now.
    fn next(&mut self, now: Time) -> Vec<(BlockId, NodeId)> {
        let Some(putting) = &mut self.putting else { return Vec::new() };
        let nodes = putting.placing.ask();
        if !nodes.is_empty() {
            putting.last = now;
        }
        nodes.into_iter().map(|node| (putting.block, node)).collect()
    }
}

impl Blocks {
    /// A client goes on: with a new block, or to other nodes if some do not answer.
    pub(super) fn act(&mut self, client: usize, now: Time) -> Vec<Stimulus<Drain>> {
        let after = MS * self.random.random_range(5..150);
        let knows = now.since(self.since) > self.clients[client].lag;
        let newest = self.topology.clone();
        let of = &mut self.clients[client];
        if of.is_done() {
            return Vec::new();
        }
        let mut stimuli = Vec::new();
        match &mut of.putting {
            Some(putting) if now.since(putting.last) > TIMEOUT => putting.placing.on_silence(),
            Some(_) => {}
            None => {
                if knows {
                    of.topology = newest.clone();
                }
                of.begin(now);
            }
        }
        stimuli.extend(self.ask(client, now));
        let of = &mut self.clients[client];
        let stuck = |of: &Putting| of.placing.progress() == Progress::Stuck;
        if of.putting.as_ref().is_some_and(stuck) {
            if knows {
                of.topology = newest;
            }
            of.begin(now);
            stimuli.extend(self.ask(client, now));
        }
        stimuli.extend(self.read(client));
        stimuli.push(self.plan(after, Plan::Act(client)));
        stimuli
    }

    fn ask(&mut self, client: usize, now: Time) -> Vec<Stimulus<Drain>> {
        let mut stimuli = Vec::new();
        for (block, to) in self.clients[client].next(now) {
            let after = self.a_while();
            let body = RequestBody::PutBlock { block, data: data_of(block) };
            stimuli.push(self.plan(after, Plan::Arrive { client, id: number(block), body, to }));
        }
        stimuli
    }

    /// A client reads a part of a block that is stored, at any node.
    fn read(&mut self, client: usize) -> Option<Stimulus<Drain>> {
        let stored = self.stored.iter().copied();
        let block = stored.choose(&mut self.random)?;
        let to = self.servers.keys().copied().choose(&mut self.random)?;
        let (offset, len) = (self.random.random_range(0..1000), self.random.random_range(1..2000));
        let body = RequestBody::GetBlock { block, offset, len };
        let after = self.a_while();
        Some(self.plan(after, Plan::Arrive { client, id: number(block), body, to }))
    }

    pub(super) fn on_answer(
        &mut self,
        client: usize,
        block: BlockId,
        (from, stored): (NodeId, bool),
        now: Time,
    ) -> Vec<Stimulus<Drain>> {
        let of = &mut self.clients[client];
        let Some(putting) = of.putting.as_mut().filter(|putting| putting.block == block) else {
            return Vec::new();
        };
        match stored {
            true => putting.placing.on_stored(from),
            false => putting.placing.on_failed(from),
        }
        if putting.placing.progress() == Progress::Stored {
            of.putting = None;
            self.stored.insert(block);
            return Vec::new();
        }
        self.ask(client, now)
    }
}

/// The number of all requests for a block: their answers say no other name.
fn number(block: BlockId) -> u64 {
    u64::try_from(block.0).expect("names are small")
}
