//! Clients that store blocks as the library's own do: on the first nodes of the ring that take them.

use super::{Blocks, MS, Plan};
use crate::world::{Random, Stimulus};
use meridian_cluster::Topology;
use meridian_cluster::ring::{REPLICAS, Ring};
use meridian_core::{BlockId, NodeId, RegionId, Time};
use meridian_host::drain::Drain;
use rand::RngExt;
use std::collections::BTreeSet;
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
    wanted: usize,
    /// The nodes that were not asked yet, in reverse.
    untried: Vec<NodeId>,
    asked: BTreeSet<NodeId>,
    stored: BTreeSet<NodeId>,
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

    /// Asks the nodes of the ring from the first, for a new block or once more.
    fn begin(&mut self, now: Time) {
        let again = self.putting.take();
        let block = again.as_ref().map(|putting| putting.block).unwrap_or_else(|| {
            self.begun += 1;
            // The names are spread over the ring by its own hash.
            BlockId((self.number as u128) << 32 | self.begun)
        });
        let nodes: Vec<_> = self.topology.nodes_in(RegionId(0)).collect();
        let mut untried = Ring::new(&nodes).placement(block);
        untried.reverse();
        let stored = again.map(|putting| putting.stored).unwrap_or_default();
        let (wanted, asked) = (REPLICAS.min(nodes.len()), BTreeSet::new());
        self.putting = Some(Putting { block, wanted, untried, asked, stored, last: now });
    }

    /// The nodes to ask now.
    fn next(&mut self, now: Time) -> Vec<(BlockId, NodeId)> {
        let mut next = Vec::new();
        let Some(putting) = &mut self.putting else { return next };
        while putting.stored.len() + putting.asked.len() < putting.wanted
            && let Some(node) = putting.untried.pop()
        {
            if !putting.stored.contains(&node) {
                putting.asked.insert(node);
                putting.last = now;
                next.push((putting.block, node));
            }
        }
        next
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
            Some(putting) if now.since(putting.last) > TIMEOUT => putting.asked.clear(),
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
        if of.putting.as_ref().is_some_and(|of| of.asked.is_empty() && of.untried.is_empty()) {
            if knows {
                of.topology = newest;
            }
            of.begin(now);
            stimuli.extend(self.ask(client, now));
        }
        stimuli.push(self.plan(after, Plan::Act(client)));
        stimuli
    }

    fn ask(&mut self, client: usize, now: Time) -> Vec<Stimulus<Drain>> {
        let mut stimuli = Vec::new();
        for (block, to) in self.clients[client].next(now) {
            let after = self.a_while();
            stimuli.push(self.plan(after, Plan::Arrive { client, block, to }));
        }
        stimuli
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
        putting.asked.remove(&from);
        if stored {
            putting.stored.insert(from);
        }
        if putting.stored.len() >= putting.wanted {
            of.putting = None;
            self.stored.insert(block);
            return Vec::new();
        }
        self.ask(client, now)
    }
}
