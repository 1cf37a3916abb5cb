//! Nodes of one region that hold blocks are removed while clients store more, and a removal may be
//! taken back; disks damage blocks, or lose them: what was stored is never lost, and at the end
//! each block is on those nodes that should hold it, and on no others.
//!
//! The nodes run the real [`Drain`] with the real log and the real store of blocks on a simulated
//! disk ([`Stores`]), and the real configuration decides. Simulated are the groups whose members
//! change, and clients that learn late of a change.

mod clients;
pub mod trial;
pub mod words;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use crate::stores::{Due, Effect, Stores};
use crate::world::{DiskFailure, Owner, Random, Stimulus};
use bytes::Bytes;
use clients::Client;
use meridian_blocks::desk::{self, Answer, Asker};
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request};
use meridian_cluster::ring::{REPLICAS, Ring};
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{BlockId, NodeId, RegionId, Time, mix};
use meridian_host::ConnectionId;
use meridian_host::api::{ReplyBody, RequestBody};
use meridian_host::drain::{Command, Drain, Output};
use meridian_storage::SimDisk;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
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
a change; the removal of one may be taken back at any moment; links are cut and reset, nodes crash
and start again with an old configuration, one node may be gone for good before it is removed; the
disk of a node damages blocks or loses them as long as each is on two others. Then all is mended.
Checked are that a block which was stored is never lost, that no copy is given up that others are
not there for, at the end that each block can be read at those nodes that should hold it, and is at
no other, and that a node whose removal was taken back takes blocks.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim drain --seeds 10000
  meridian sim drain --seed 137 --trace",
    messages: "a block",
    explained: None,
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
/// How often somebody looks whether copies are where they should be.
const AUDIT: Duration = Duration::from_millis(400);
/// How long disks leave blocks alone: longer than an answer takes.
const HARM_PAUSE: Duration = Duration::from_secs(5);
/// Where all are.
const REGION: &str = "us";

/// What happens to blocks and the configuration, at a time of its own.
enum Plan {
    /// A client does something.
    Act(usize),
    /// A client's request arrives at a node.
    Arrive { client: usize, id: u64, body: RequestBody, to: NodeId },
    /// A node's answer arrives at a client.
    Answer { client: usize, block: BlockId, from: NodeId, stored: bool },
    /// A node goes on with its blocks.
    Blocks(Due),
    /// A node looks for a newer configuration.
    Follow(NodeId),
    /// Somebody asks that a node is removed, or asks again.
    Remove(String),
    /// Somebody takes the removal of a node back.
    Keep(String),
    /// The disk of a node damages blocks, or loses them.
    Harm(Harm),
    /// Somebody looks whether copies are where they should be.
    Audit,
    /// Somebody asks for a change.
    Change(Request),
}

/// What a disk does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Some bits are others.
    Rot,
    /// Some segments are gone when the node starts again.
    Wipe,
}

/// How a node is.
#[derive(Default)]
struct Server {
    /// Its process runs.
    up: bool,
    /// It takes no blocks.
    sealed: bool,
    /// It was removed, and its server has ended.
    gone: bool,
}

/// Stores, clients and the configuration: the owner of a world of [`Drain`]s.
pub struct Blocks {
    random: Random,
    configuration: Configuration,
    topology: Arc<Topology>,
    /// Since when it is so.
    since: Time,
    servers: BTreeMap<NodeId, Server>,
    stores: Stores,
    clients: Vec<Client>,
    plans: BTreeMap<u64, Plan>,
    planned: u64,
    /// The blocks that were stored, as clients know.
    stored: BTreeSet<BlockId>,
    /// Changes of groups that are under way.
    changing: BTreeSet<(String, u64)>,
    /// Who is removed, and when.
    remove: Vec<(String, Duration)>,
    /// Whose removal is taken back, and when.
    keep: Option<(String, Duration)>,
    /// Whose removal was.
    kept: BTreeSet<String>,
    /// Who does not answer, and never will.
    dead: BTreeSet<String>,
    /// Nobody looks after copies but for nodes that go.
    alone: bool,
    /// What disks do with blocks, and when.
    harms: Vec<(Harm, Duration)>,
    /// When a disk did so last.
    harmed: Option<Time>,
    /// How often.
    harm_done: u64,
    /// All was done, and copies were where they should be, when that was looked at last.
    is_kept: bool,
    /// How many copies were given up.
    given_up: u64,
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
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 1,
        nodes: (1..=nodes).map(entry).collect(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    }
}

/// What a block contains: up to some sectors of a disk.
fn data_of(block: BlockId) -> Bytes {
    let name = mix(block.0 as u64);
    let len = 1 + (name % 2500) as usize;
    (0..len).map(|at| mix(name ^ at as u64) as u8).collect::<Vec<_>>().into()
}

impl Blocks {
    fn new(seed: u64, drawn: &Drawn) -> Blocks {
        let mut configuration = Configuration::default();
        let json = serde_json::to_string(&file(drawn.nodes)).expect("JSON");
        configuration.change(Request::Initialise(json));
        let topology = Arc::new(Topology::new(configuration.file().expect("there")).expect("S1"));
        let mut random = Random::seed_from_u64(seed ^ 0xb10c);
        let servers = topology.node_ids().map(|node| (node, Server::default())).collect();
        let client = |number| Client::new(number, topology.clone(), &mut random);
        let clients = (0..drawn.clients).map(client).collect();
        let name = |node: usize| topology.nodes[node].name.clone();
        let remove = drawn.remove.iter().map(|(node, at)| (name(*node), *at)).collect();
        Blocks {
            configuration,
            since: Time(0),
            servers,
            stores: Stores::new(seed, drawn.in_store),
            clients,
            plans: BTreeMap::new(),
            planned: 0,
            stored: BTreeSet::new(),
            changing: BTreeSet::new(),
            remove,
            keep: drawn.keep.map(|(node, at)| (name(node), at)),
            kept: BTreeSet::new(),
            dead: drawn.dead.map(|_| name(drawn.remove[0].0)).into_iter().collect(),
            alone: drawn.alone,
            harms: drawn.harms.clone(),
            harmed: None,
            harm_done: 0,
            is_kept: false,
            given_up: 0,
            random,
            topology,
        }
    }

    fn was_removed(&self, name: &str) -> bool {
        let node = self.topology.node_named(name);
        node.is_some_and(|node| self.topology.is_gone(node))
    }

    /// Whether all is stored, all who were to go are gone, and all who stay take blocks.
    fn is_done(&self) -> bool {
        let gone = |name: &String| self.was_removed(name);
        let stays = |name: &String| {
            let node = self.topology.node_named(name);
            node.is_some_and(|node| self.servers[&node].up && !self.servers[&node].sealed)
        };
        let names = self.remove.iter().map(|(name, _)| name);
        let mut goes = names.filter(|name| !self.kept.contains(*name)).chain(&self.dead);
        let mut kept = self.kept.difference(&self.dead);
        let harmed = self.harm_done == self.harms.len() as u64;
        self.clients.iter().all(Client::is_done) && goes.all(gone) && kept.all(stays) && harmed
    }

    /// What is not as it should be with the copies of blocks.
    fn unkept(&self) -> Vec<(NodeId, BlockId)> {
        let nodes: Vec<_> = self.topology.nodes_in(RegionId(0)).collect();
        let ring = Ring::new(&nodes);
        let lacks = |at: NodeId, block| {
            self.stores.is_sound(at, block) != ring.holders(block).contains(&at)
        };
        let all = nodes.into_iter().flat_map(|at| self.stored.iter().map(move |of| (at, *of)));
        all.filter(|(at, block)| lacks(*at, *block)).collect()
    }

    /// A disk damages blocks or loses them, if all blocks are on two nodes just now. What a client
    /// is being told of may be on fewer for a while: that is over before the next time. Who is gone
    /// for good takes its disk along, perhaps a moment after: that has to be made good before.
    fn on_harm(&mut self, harm: Harm, now: Time) -> Vec<Stimulus<Drain>> {
        let early = self.harmed.is_some_and(|last| now.since(last) < HARM_PAUSE)
            || !self.dead.iter().all(|name| self.was_removed(name));
        let staying: Vec<_> = self.topology.nodes_in(RegionId(0)).collect();
        let up = |node: &NodeId| self.servers[node].up && self.stores.blocks(*node).is_some();
        let sound = |block: &BlockId| {
            let sound = |node: &&NodeId| self.stores.is_sound(**node, *block);
            staying.iter().filter(sound).count() >= REPLICAS
        };
        if early || !staying.iter().all(up) || !self.stored.iter().all(sound) {
            return vec![self.plan(MS * 300, Plan::Harm(harm))];
        }
        let Some(at) = staying.into_iter().choose(&mut self.random) else { return Vec::new() };
        (self.harmed, self.harm_done, self.is_kept) = (Some(now), self.harm_done + 1, false);
        match harm {
            Harm::Rot => {
                let times = self.random.random_range(1..30);
                (0..times).for_each(|_| self.stores.rot(at));
                Vec::new()
            }
            Harm::Wipe => {
                self.stores.wipe(at);
                vec![Stimulus::Stop(at)]
            }
        }
    }

    /// A node gives copies up: enough others have them, unless a disk has lost them just now.
    fn check_given_up(&mut self, at: NodeId, blocks: &[BlockId], now: Time) {
        self.given_up += blocks.len() as u64;
        if self.harmed.is_some_and(|last| now.since(last) < HARM_PAUSE) {
            return;
        }
        for block in blocks {
            let left = self.topology.node_ids().filter(|node| !self.topology.is_gone(*node));
            let others = left.filter(|node| *node != at && self.stores.holds(*node, *block));
            let others = others.count();
            assert!(others >= REPLICAS, "given up: {block} at {at}, and {others} others have it");
        }
    }

    /// On how many nodes that were not removed a block is, durably.
    fn copies(&self, block: BlockId) -> usize {
        let left = |node: &NodeId| {
            !self.topology.is_gone(*node) && !self.dead.contains(&self.topology.node(*node).name)
        };
        let nodes = self.topology.node_ids().filter(left);
        nodes.filter(|node| self.stores.holds(*node, block)).count()
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

    /// Carries out what comes of blocks.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Stimulus<Drain>> {
        let mut stimuli = Vec::new();
        for effect in effects {
            if let Effect::Tell(to, answer) = &effect
                && let Some(command) = desk::damage(answer)
            {
                stimuli.push(Stimulus::Command { to: *to, command, after: Duration::ZERO });
            }
            stimuli.push(match effect {
                Effect::Later(after, due) => self.plan(after, Plan::Blocks(due)),
                Effect::Stop(node) => Stimulus::Stop(node),
                Effect::Tell(to, Answer::Node(command)) => {
                    Stimulus::Command { to, command, after: Duration::ZERO }
                }
                Effect::Tell(_, Answer::Space(_)) => continue, // Nothing is freed here.
                Effect::Tell(from, Answer::Client(connection, reply)) => {
                    let stored = match reply.body {
                        ReplyBody::Stored => true,
                        ReplyBody::Refused(_) => false,
                        _ => continue, // Of a read, which was checked.
                    };
                    let (client, block) = (connection.0 as usize, BlockId(reply.id.into()));
                    let after = self.a_while();
                    self.plan(after, Plan::Answer { client, block, from, stored })
                }
            });
        }
        stimuli
    }

    /// A client's request arrives.
    fn on_arrived(
        &mut self,
        (client, id): (usize, u64),
        body: RequestBody,
        to: NodeId,
    ) -> Vec<Stimulus<Drain>> {
        let server = &self.servers[&to];
        if !server.up || server.gone {
            let (block, after) = (BlockId(id.into()), self.a_while());
            return vec![self.plan(after, Plan::Answer { client, block, from: to, stored: false })];
        }
        let by = Asker { connection: ConnectionId(client as u64), id };
        let effects = self.stores.on_client(to, !server.sealed, by, body);
        self.carry_out(effects.expect("all are of blocks"))
    }

    /// Who is up looks for a newer configuration about once a second; who is gone ends.
    fn on_follow(&mut self, node: NodeId) -> Vec<Stimulus<Drain>> {
        let server = self.servers.get_mut(&node).expect("there from the start");
        server.gone |= self.topology.is_gone(node);
        if server.gone {
            return Vec::new();
        }
        let command = Command::Configured(self.topology.clone());
        let after = MS * self.random.random_range(300..1500);
        let told = Stimulus::Command { to: node, command, after: MS };
        vec![told, self.plan(after, Plan::Follow(node))]
    }

    /// A node is to be removed: whoever asks says who answers. Asked again until it goes.
    fn on_remove(&mut self, name: String, now: Time) -> Vec<Stimulus<Drain>> {
        let node = self.topology.node_named(&name).expect("it was there");
        if self.topology.node(node).leaves {
            return Vec::new();
        }
        let names = self.topology.nodes.iter().map(|node| &node.name);
        let up = names.filter(|name| !self.dead.contains(*name)).cloned().collect();
        self.on_change(Request::RemoveNode { name, up, keeper: None, reason: None }, now)
    }

    /// A removal is taken back, if it was accepted and the node has not left.
    fn on_keep(&mut self, name: String, now: Time) -> Vec<Stimulus<Drain>> {
        let node = self.topology.node(self.topology.node_named(&name).expect("it was there"));
        if node.leaves || self.dead.contains(&name) {
            return Vec::new();
        }
        match &node.draining {
            None => return vec![self.plan(MS * 50, Plan::Keep(name))],
            Some(draining) if draining.for_good => return Vec::new(), // It would be refused.
            Some(_) => {}
        }
        self.kept.insert(name.clone());
        self.on_change(Request::KeepNode { name }, now)
    }

    /// The configuration is asked for a change. Groups follow after a while.
    fn on_change(&mut self, request: Request, now: Time) -> Vec<Stimulus<Drain>> {
        let before = self.topology.version;
        let reply = self.configuration.change(request.clone());
        let mut stimuli = Vec::new();
        match (reply, &request) {
            (Reply::Done { .. }, _) => {}
            (Reply::Refused(_), Request::RemoveNode { name, .. }) => {
                let again = Plan::Remove(name.clone());
                return vec![self.plan(MS * 200, again)]; // Groups are changing.
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
        let unkept = self.unkept();
        format!("copies: {unkept:?}; clients that wait: {clients:?}; nodes that go: {going:?}")
    }
}

impl Owner<Drain> for Blocks {
    fn begin(&mut self) -> Vec<Stimulus<Drain>> {
        let mut stimuli = Vec::new();
        for client in 0..self.clients.len() {
            stimuli.push(self.plan(MS, Plan::Act(client)));
        }
        let nodes: Vec<_> = self.servers.keys().copied().collect();
        for node in nodes {
            let after = MS * self.random.random_range(1..1000);
            stimuli.push(self.plan(after, Plan::Follow(node)));
        }
        for (name, after) in self.remove.clone() {
            stimuli.push(self.plan(after, Plan::Remove(name)));
        }
        if let Some((name, after)) = self.keep.clone() {
            stimuli.push(self.plan(after, Plan::Keep(name)));
        }
        stimuli.push(self.plan(AUDIT, Plan::Audit));
        for (harm, after) in self.harms.clone() {
            stimuli.push(self.plan(after, Plan::Harm(harm)));
        }
        stimuli
    }

    fn output(&mut self, at: NodeId, output: Output, now: Time) -> Vec<Stimulus<Drain>> {
        if self.servers[&at].gone {
            return Vec::new();
        }
        match &output {
            Output::Drained { since } => {
                let (name, since) = (self.topology.node(at).name.clone(), *since);
                let after = self.a_while();
                return vec![self.plan(after, Plan::Change(Request::Drained { name, since }))];
            }
            Output::Live { number, after, limit } => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                let blocks = self.stored.range((from, Bound::Unbounded)).take(*limit).copied();
                let command = Command::Live { number: *number, blocks: blocks.collect() };
                return vec![Stimulus::Command { to: at, command, after: Duration::ZERO }];
            }
            Output::GiveUp(blocks) => self.check_given_up(at, &blocks.clone(), now),
            _ => {}
        }
        let effects = self.stores.on_drain(at, output).expect("of blocks");
        self.carry_out(effects)
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Drain>> {
        match self.plans.remove(&token).expect("planned once") {
            Plan::Act(client) => self.act(client, now),
            Plan::Arrive { client, id, body, to } => self.on_arrived((client, id), body, to),
            Plan::Answer { client, block, from, stored } => {
                self.on_answer(client, block, (from, stored), now)
            }
            Plan::Blocks(due) => {
                let effects = self.stores.on_due(due);
                self.carry_out(effects)
            }
            Plan::Follow(node) => self.on_follow(node),
            Plan::Remove(name) => self.on_remove(name, now),
            Plan::Keep(name) => self.on_keep(name, now),
            Plan::Harm(harm) => self.on_harm(harm, now),
            Plan::Audit => {
                self.is_kept = self.is_done() && (self.alone || self.unkept().is_empty());
                vec![self.plan(AUDIT, Plan::Audit)]
            }
            Plan::Change(request) => self.on_change(request, now),
        }
    }

    fn mount(&mut self, at: NodeId, disk: &SimDisk, altered: bool) -> Result<(), DiskFailure> {
        self.stores.mount(at, disk, altered)
    }

    /// What is on two disks outlives one of them.
    fn may_lose_disk(&self) -> bool {
        self.dead.is_empty() && self.stores.altered().is_empty()
    }

    /// The way out, as the server says: the node is removed.
    fn refused(&mut self, at: NodeId, _now: Time) -> Vec<Stimulus<Drain>> {
        let name = self.topology.node(at).name.clone();
        self.dead.insert(name.clone());
        vec![self.plan(MS * 300, Plan::Remove(name))]
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.stores.crash(at);
        self.servers.get_mut(&at).expect("there from the start").up = false;
    }

    fn started(&mut self, at: NodeId, process: &Drain, _now: Time) {
        let server = self.servers.get_mut(&at).expect("there from the start");
        (server.up, server.sealed) = (true, !process.takes_blocks());
    }

    fn check(&mut self, at: NodeId, process: &Drain, _durable: bool) -> Result<(), String> {
        let server = self.servers.get_mut(&at).expect("there from the start");
        server.sealed = !process.takes_blocks();
        Ok(())
    }
}
