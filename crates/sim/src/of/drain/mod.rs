//! Nodes of one region that hold blocks are removed while clients store more: what was stored is
//! never lost, and is on enough nodes at the end.
//!
//! The nodes run the real [`Drain`], and the real configuration decides. Simulated are the disks
//! with the blocks, the groups whose members change, and clients that learn late of a change.

mod clients;
mod machine;
pub mod trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use clients::Client;
use machine::{Machine, Queued};
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request};
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{BlockId, NodeId, Time};
use meridian_host::drain::{Command, Drain, Output, PAGE};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trial::Drawn;

/// `meridian sim drain`.
pub const NAMED: Named = Named {
    name: "drain",
    about: "Nodes that are removed while clients store blocks, with all kinds of faults",
    help: "\
Each seed is a run of four or five nodes in simulated time that hold blocks. Two of them are
removed, one after the other or both at once, while clients store blocks, some of whom learn late of
a change; links are cut and reset, nodes crash and start again with an old configuration, one node
may be gone for good before it is removed. Then all is mended. Checked are that a block which was
stored is never lost with the nodes that go, and at the end that it is on two nodes that stay.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim drain --seeds 10000
  meridian sim drain --seed 137 --trace",
    settings: &[Setting {
        name: "dead",
        values: &["true", "false"],
        help: "Whether the first node that is removed is gone for good before",
    }],
    pin,
    planted: names_of_planted::<trial::Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<trial::Trial>()?.unwrap_or_default();
    let dead = pins.get::<bool>("dead")?.or(trial.dead);
    Ok(Box::new(trial::Trial { dead, ..trial }))
}

const MS: Duration = Duration::from_millis(1);
/// Where all are.
const REGION: &str = "us";

/// What happens to blocks and the configuration, at a time of its own.
enum Plan {
    /// A client does something.
    Act(usize),
    /// A client's block arrives at a node.
    Arrive { client: usize, block: BlockId, to: NodeId },
    /// A node's answer arrives at a client.
    Answer { client: usize, block: BlockId, from: NodeId, stored: bool },
    /// What a node has in its queue is durable.
    Flushed { at: NodeId, incarnation: u64 },
    /// A node hears what its blocks say.
    Say { to: NodeId, incarnation: u64, command: Command },
    /// A node looks for a newer configuration.
    Follow(NodeId),
    /// Somebody asks for a change.
    Change(Request),
}

/// Disks, clients and the configuration: the owner of a world of [`Drain`]s.
pub struct Blocks {
    random: Random,
    configuration: Configuration,
    topology: Arc<Topology>,
    /// Since when it is so.
    since: Time,
    machines: BTreeMap<NodeId, Machine>,
    clients: Vec<Client>,
    plans: BTreeMap<u64, Plan>,
    planned: u64,
    /// The blocks that were stored, as clients know.
    stored: BTreeSet<BlockId>,
    /// Changes of groups that are under way.
    changing: BTreeSet<(String, u64)>,
    /// Who is removed.
    remove: Vec<(String, Duration)>,
    /// Who does not answer.
    dead: Option<String>,
}

/// The nodes at first.
pub fn topology(nodes: u16) -> Arc<Topology> {
    Arc::new(Topology::new(&file(nodes)).expect("it is well formed"))
}

fn file(nodes: u16) -> ClusterFile {
    let entry = |number| NodeEntry {
        name: format!("{REGION}-{number}"),
        region: REGION.into(),
        pid: None,
        address: format!("{REGION}-{number}:1"),
        groups: vec!["global".into(), REGION.into()],
        draining: None,
    };
    ClusterFile {
        format: CLUSTER_FORMAT,
        cluster: 1,
        nodes: (1..=nodes).map(entry).collect(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    }
}

/// What a block contains.
fn data_of(block: BlockId) -> Bytes {
    block.0.to_be_bytes().to_vec().into()
}

impl Blocks {
    fn new(seed: u64, drawn: &Drawn) -> Blocks {
        let mut configuration = Configuration::default();
        let json = serde_json::to_string(&file(drawn.nodes)).expect("JSON");
        configuration.change(Request::Initialise(json));
        let topology = Arc::new(Topology::new(configuration.file().expect("there")).expect("S1"));
        let mut random = Random::seed_from_u64(seed ^ 0xb10c);
        let machines = topology.node_ids().map(|node| (node, Machine::default())).collect();
        let client = |number| Client::new(number, topology.clone(), &mut random);
        let clients = (0..drawn.clients).map(client).collect();
        let name = |node: usize| topology.nodes[node].name.clone();
        let remove = drawn.remove.iter().map(|(node, at)| (name(*node), *at)).collect();
        Blocks {
            configuration,
            since: Time(0),
            machines,
            clients,
            plans: BTreeMap::new(),
            planned: 0,
            stored: BTreeSet::new(),
            changing: BTreeSet::new(),
            remove,
            dead: drawn.dead.map(|_| name(drawn.remove[0].0)),
            random,
            topology,
        }
    }

    /// Whether all is stored and all who were to go are gone.
    fn is_done(&self) -> bool {
        let gone = |name: &str| {
            let node = self.topology.node_named(name);
            node.is_some_and(|node| self.topology.is_gone(node))
        };
        self.clients.iter().all(Client::is_done) && self.remove.iter().all(|(name, _)| gone(name))
    }

    /// On how many nodes that were not removed a block is, durably.
    fn copies(&self, block: BlockId) -> usize {
        let dead = self.dead.as_ref().and_then(|name| self.topology.node_named(name));
        let there = |node: &NodeId| !self.topology.is_gone(*node) && dead != Some(*node);
        let nodes = self.topology.node_ids().filter(there);
        nodes.filter(|node| self.machines[node].durable.contains(&block)).count()
    }

    fn plan(&mut self, after: Duration, plan: Plan) -> Stimulus<Drain> {
        self.planned += 1;
        self.plans.insert(self.planned, plan);
        Stimulus::Wake { token: self.planned, after }
    }

    /// Mostly short; sometimes long enough for much else to happen.
    fn a_while(&mut self) -> Duration {
        let most = if self.random.random_ratio(1, 12) { 1_500_000 } else { 4_000 };
        Duration::from_micros(self.random.random_range(50..most))
    }

    /// The node of `at` is told something by its blocks, unless it crashes before.
    fn say(&mut self, to: NodeId, after: Duration, command: Command) -> Stimulus<Drain> {
        let incarnation = self.machines[&to].incarnation;
        self.plan(after, Plan::Say { to, incarnation, command })
    }

    /// Something waits to be durable.
    fn queue(&mut self, at: NodeId, queued: Queued) -> Vec<Stimulus<Drain>> {
        let listed = self.random.random_bool(0.5);
        let machine = self.machines.get_mut(&at).expect("there from the start");
        if let (Queued::Put { block, .. }, true) = (&queued, listed) {
            machine.listed.insert(*block);
        }
        machine.queue.push(queued);
        if std::mem::replace(&mut machine.flushing, true) {
            return Vec::new();
        }
        let incarnation = machine.incarnation;
        let after = self.a_while();
        vec![self.plan(after, Plan::Flushed { at, incarnation })]
    }

    fn on_flushed(&mut self, at: NodeId) -> Vec<Stimulus<Drain>> {
        let machine = self.machines.get_mut(&at).expect("there from the start");
        machine.flushing = false;
        let mut told = Vec::new();
        for queued in std::mem::take(&mut machine.queue) {
            if let Queued::Put { block, .. } = queued {
                machine.durable.insert(block);
                machine.listed.insert(block);
            }
            told.push(queued);
        }
        let tell = |queued| match queued {
            Queued::Put { client: Some(client), block, .. } => {
                let after = self.a_while();
                self.plan(after, Plan::Answer { client, block, from: at, stored: true })
            }
            Queued::Put { from, block, client: None } => {
                let stored = Command::Stored { from, block, stored: true };
                self.say(at, Duration::ZERO, stored)
            }
            Queued::Settled(command) => self.say(at, Duration::ZERO, command),
        };
        told.into_iter().map(tell).collect()
    }

    /// A client's block arrives: it is taken as a server does.
    fn on_arrived(&mut self, client: usize, block: BlockId, to: NodeId) -> Vec<Stimulus<Drain>> {
        if self.machines[&to].takes() {
            return self.queue(to, Queued::Put { client: Some(client), from: to, block });
        }
        let after = self.a_while();
        vec![self.plan(after, Plan::Answer { client, block, from: to, stored: false })]
    }

    /// Who is up looks for a newer configuration about once a second; who is gone ends.
    fn on_follow(&mut self, node: NodeId) -> Vec<Stimulus<Drain>> {
        let machine = self.machines.get_mut(&node).expect("there from the start");
        machine.gone |= self.topology.is_gone(node);
        if machine.gone {
            return Vec::new();
        }
        let command = Command::Configured(self.topology.clone());
        let after = MS * self.random.random_range(300..1500);
        let told = self.say(node, MS, command);
        vec![told, self.plan(after, Plan::Follow(node))]
    }

    /// The configuration is asked for a change. Groups follow after a while.
    fn on_change(&mut self, request: Request, now: Time) -> Vec<Stimulus<Drain>> {
        let before = self.topology.version;
        let reply = self.configuration.change(request.clone());
        let mut stimuli = Vec::new();
        match (reply, &request) {
            (Reply::Done { .. }, _) => {}
            (Reply::Refused(_), Request::RemoveNode { .. }) => {
                return vec![self.plan(MS * 200, Plan::Change(request))]; // Groups are changing.
            }
            (Reply::Refused(why), _) => panic!("{request:?}: {why}"),
        }
        let file = self.configuration.file().expect("it was initialised");
        let topology = Topology::new(file).expect("S1");
        if topology.version == before {
            return stimuli;
        }
        (self.topology, self.since) = (Arc::new(topology), now);
        for block in &self.stored {
            let lost = self.copies(*block) == 0;
            assert!(!lost, "durability: {block} is on no node that is left");
        }
        for group in self.topology.clone().groups.iter().filter(|group| group.next.is_some()) {
            let number = group.number + 1;
            if self.changing.insert((group.name.clone(), number)) {
                let request = Request::InForce { group: group.name.clone(), number };
                let after = MS * self.random.random_range(20..1500);
                stimuli.push(self.plan(after, Plan::Change(request)));
            }
        }
        stimuli
    }

    fn describe(&self) -> String {
        let nodes = &self.configuration.file().expect("it was initialised").nodes;
        let going = |node: &&NodeEntry| node.draining.is_some() || node.groups.is_empty();
        let going: Vec<_> = nodes.iter().filter(going).collect();
        let clients: Vec<_> = self.clients.iter().filter(|client| !client.is_done()).collect();
        format!("clients that wait: {clients:?}; nodes that go: {going:?}")
    }
}

impl Owner<Drain> for Blocks {
    fn begin(&mut self) -> Vec<Stimulus<Drain>> {
        let mut stimuli = Vec::new();
        for client in 0..self.clients.len() {
            stimuli.push(self.plan(MS, Plan::Act(client)));
        }
        let nodes: Vec<_> = self.machines.keys().copied().collect();
        for node in nodes {
            let after = MS * self.random.random_range(1..1000);
            stimuli.push(self.plan(after, Plan::Follow(node)));
        }
        let all: BTreeSet<_> = self.topology.nodes.iter().map(|node| node.name.clone()).collect();
        for (name, after) in self.remove.clone() {
            let answers = |name: &&String| Some(*name) != self.dead.as_ref();
            let up = all.iter().filter(answers).cloned().collect();
            let request = Request::RemoveNode { name, up, keeper: None };
            stimuli.push(self.plan(after, Plan::Change(request)));
        }
        stimuli
    }

    fn output(&mut self, at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Drain>> {
        if self.machines[&at].gone {
            return Vec::new();
        }
        let soon = MS * self.random.random_range(0..3);
        let machine = &self.machines[&at];
        match output {
            Output::List { number, after } => {
                let later = |block: &&BlockId| after.is_none_or(|after| **block > after);
                let blocks = machine.listed.iter().filter(later).take(PAGE / 64);
                let names = Command::Names { number, blocks: blocks.copied().collect() };
                vec![self.say(at, soon, names)]
            }
            Output::Which { by, number, mut blocks } => {
                blocks.retain(|block| machine.listed.contains(block));
                self.queue(at, Queued::Settled(Command::Held { by, number, blocks }))
            }
            Output::Read { block } => {
                let data = machine.listed.contains(&block).then(|| data_of(block));
                vec![self.say(at, soon, Command::Data { block, data })]
            }
            Output::Store { from, block, data } => {
                assert_eq!(data, data_of(block), "another block's data");
                self.queue(at, Queued::Put { client: None, from, block })
            }
            Output::Seal => self.queue(at, Queued::Settled(Command::Sealed)),
            Output::Drained { since } => {
                let name = self.topology.node(at).name.clone();
                let after = self.a_while();
                vec![self.plan(after, Plan::Change(Request::Drained { name, since }))]
            }
        }
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Drain>> {
        match self.plans.remove(&token).expect("planned once") {
            Plan::Act(client) => self.act(client, now),
            Plan::Arrive { client, block, to } => self.on_arrived(client, block, to),
            Plan::Answer { client, block, from, stored } => {
                self.on_answer(client, block, (from, stored), now)
            }
            Plan::Flushed { at, incarnation } if self.machines[&at].lives(incarnation) => {
                self.on_flushed(at)
            }
            Plan::Say { to, incarnation, command } if self.machines[&to].lives(incarnation) => {
                vec![Stimulus::Command { to, command, after: Duration::ZERO }]
            }
            Plan::Flushed { .. } | Plan::Say { .. } => Vec::new(),
            Plan::Follow(node) => self.on_follow(node),
            Plan::Change(request) => self.on_change(request, now),
        }
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.machines.get_mut(&at).expect("there from the start").crash();
    }

    fn started(&mut self, at: NodeId, process: &Drain, _now: Time) {
        let machine = self.machines.get_mut(&at).expect("there from the start");
        (machine.up, machine.sealed) = (true, !process.takes_blocks());
    }

    fn check(&mut self, at: NodeId, process: &Drain, _durable: bool) -> Result<(), String> {
        let machine = self.machines.get_mut(&at).expect("there from the start");
        machine.sealed = !process.takes_blocks();
        Ok(())
    }
}
