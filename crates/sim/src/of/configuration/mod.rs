//! Nodes that keep the configuration are removed while it changes, or lost: it is never lost, and
//! never has two histories.
//!
//! The nodes run the real [`ConfigurationReplica`]. Simulated are who asks for changes, how nodes
//! follow the configuration, and the other parts of a node, as far as they report something.

mod asks;
pub mod trial;
pub mod words;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use crate::world::{Owner, Random, Stimulus};
use asks::Ask;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Request, Show, Shown, encode};
use meridian_cluster::levels::Levels;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, Group, NodeEntry};
use meridian_core::level::Level;
use meridian_core::{ClientId, NodeId, Time};
use meridian_host::configuration::{Command, ConfigurationReplica};
use meridian_paxos::{self as paxos, Answer, Consistency};
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trial::Drawn;

/// `meridian sim configuration`.
pub const NAMED: Named = Named {
    name: "configuration",
    about: "Nodes that keep the configuration are removed while it changes, with all kinds of faults",
    help: "\
Each seed is a run of five nodes in simulated time, of which one or three keep the configuration
of their cluster. Two nodes are removed, the first one of those that keep it, while it is changed;
links are cut and reset, nodes crash and start again with the configuration of their first start,
the first node that is removed may be gone for good before. Or there are three regions of one node
each, one is fenced as lost, and one or two nodes come. Then all is mended. Checked are that a
version of the configuration is the same wherever it is known, that no change is lost that was
acknowledged, and at the end that those keep the configuration whom it names, and nobody else.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim configuration --seeds 10000
  meridian sim configuration --seed 137 --trace",
    messages: "a request by its client and the client's number, as 10002.3, or an instance, as 7",
    explained: None,
    settings: &[Setting {
        name: "keepers",
        values: &["1", "3"],
        help: "How many nodes keep the configuration",
    }],
    pin,
    planted: names_of_planted::<trial::Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<trial::Trial>()?.unwrap_or_default();
    let all = [("1", 1), ("3", 3)];
    let keepers = pins.one_of("keepers", &all)?.or(trial.keepers);
    Ok(Box::new(trial::Trial { keepers, ..trial }))
}

const MS: Duration = Duration::from_millis(1);
/// Where all are.
const REGION: &str = "us";
/// How many nodes there are.
const NODES: u16 = 5;
/// How often the round trips are set, one value after the other.
const SETTINGS: u32 = 12;
/// The only pair of regions.
const PAIR: &str = "us-eu";

/// What happens beside the processes, at a time of its own.
enum Plan {
    /// What was asked is asked once more, if there is no answer.
    Ask(usize),
    /// A node asks whether there is a newer configuration.
    Follow(NodeId),
    /// A node is to be removed.
    Remove(String),
    /// What a node that goes holds is on others, if it is still drained.
    Report(String),
    /// A node hears how the cluster is configured.
    Say { to: NodeId, topology: Arc<Topology> },
    /// Something is asked for.
    Begin(Request),
    /// A region is to be declared lost.
    Fence(String),
    /// A node comes to that region.
    Add(String),
}

/// Who asks for changes, and what nodes know: the owner of a world of [`ConfigurationReplica`]s.
pub struct Cluster {
    random: Random,
    plans: BTreeMap<u64, Plan>,
    planned: u64,
    asks: Vec<Ask>,
    /// What nodes ask of others: who asks, by token.
    follows: BTreeMap<u64, NodeId>,
    /// What each node was told last, as its cluster file says.
    told: BTreeMap<NodeId, Arc<Topology>>,
    /// All versions that were seen.
    versions: BTreeMap<u64, ClusterFile>,
    /// The greatest version that somebody was told.
    acknowledged: u64,
    /// How often the round trips were set.
    set: u32,
    /// Changes of groups that are under way.
    changing: BTreeSet<(String, u64)>,
    /// The configuration at first.
    first: ClusterFile,
    /// Who is removed, and when.
    remove: Vec<(String, Duration)>,
    /// Which region is lost, and when that is said.
    fence: Option<(String, Duration)>,
    /// Which regions get a node, and when.
    add: Vec<(String, Duration)>,
    /// Who does not answer.
    dead: Option<NodeId>,
}

/// The configuration at first: kept by so many of the nodes.
pub fn file(keepers: usize) -> ClusterFile {
    let entry = |region: &str, number| NodeEntry {
        name: format!("{region}-{number}"),
        region: region.into(),
        pid: None,
        address: format!("{region}-{number}:1"),
        groups: vec!["global".into(), region.into()],
        draining: None,
    };
    let mut nodes: Vec<_> = (1..=NODES).map(|number| entry(REGION, number)).collect();
    let replicas = nodes.iter().take(keepers).map(|node| node.name.clone()).collect();
    nodes.push(entry("eu", 1)); // It is far away, and does nothing.
    let mut file = ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 1,
        nodes,
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    };
    (file.configuration.version, file.configuration.replicas) = (1, replicas);
    file
}

/// The same of three regions with one node each, which all keep it.
pub fn regions() -> ClusterFile {
    let mut all = file(0);
    all.nodes.truncate(3);
    for (node, region) in all.nodes.iter_mut().zip([REGION, "eu", "ap"]) {
        (node.name, node.address) = (format!("{region}-1"), format!("{region}-1:1"));
        (node.region, node.groups) = (region.into(), vec!["global".into(), region.into()]);
    }
    let kept = &mut all.configuration;
    kept.replicas = all.nodes.iter().map(|node| node.name.clone()).collect();
    kept.levels = Levels::of_new(Level::SEATS, kept.replicas.iter());
    all
}

impl Cluster {
    fn new(seed: u64, drawn: &Drawn) -> Cluster {
        let first = drawn.first();
        let topology = Arc::new(Topology::new(&first).expect("it is well formed"));
        let nodes = (0..NODES).map(NodeId);
        let name = |node: usize| first.nodes[node].name.clone();
        let region = |node: usize| first.nodes[node].region.clone();
        let remove = drawn.remove.iter().map(|(node, at)| (name(*node), *at)).collect();
        let fence = drawn.lost.as_ref().map(|lost| (region(lost.node), lost.fenced));
        let add = drawn.lost.iter().flat_map(|lost| &lost.add);
        let add = add.map(|(node, at)| (region(*node), *at)).collect();
        Cluster {
            random: Random::seed_from_u64(seed ^ 0xc0f1),
            plans: BTreeMap::new(),
            planned: 0,
            asks: Vec::new(),
            follows: BTreeMap::new(),
            told: nodes.map(|node| (node, topology.clone())).collect(),
            versions: BTreeMap::new(),
            acknowledged: 0,
            set: 0,
            changing: BTreeSet::new(),
            first,
            remove,
            fence,
            add,
            dead: drawn.dies().map(|(node, _)| node),
        }
    }

    fn plan(&mut self, after: Duration, plan: Plan) -> Stimulus<ConfigurationReplica> {
        self.planned += 1;
        self.plans.insert(self.planned, plan);
        Stimulus::Wake { token: self.planned, after }
    }

    /// Mostly short; sometimes long enough for much else to happen.
    fn a_while(&mut self) -> Duration {
        let most = if self.random.random_ratio(1, 12) { 1_500_000 } else { 4_000 };
        Duration::from_micros(self.random.random_range(50..most))
    }

    /// The newest version that was seen anywhere.
    fn newest(&self) -> Option<&ClusterFile> {
        self.versions.last_key_value().map(|(_, file)| file)
    }

    /// One of the nodes that keep the configuration, as far as `node` knows.
    fn keeper_for(&mut self, node: NodeId) -> NodeId {
        let keeping = &self.told[&node].keeping;
        let all = keeping.replicas.union(&keeping.replaced);
        *all.choose(&mut self.random).expect("somebody keeps it")
    }

    /// A node asks another for what is newer than it knows. If that does not answer it asks any
    /// node, which names those that keep the configuration as it knows.
    fn on_follow(&mut self, node: NodeId) -> Vec<Stimulus<ConfigurationReplica>> {
        let any = NodeId(self.random.random_range(0..NODES));
        let knows = if self.random.random_ratio(1, 4) { any } else { node };
        let (to, token) = (self.keeper_for(knows), self.planned + 1);
        self.follows.insert(token, node);
        let again = MS * self.random.random_range(300..1500);
        let again = self.plan(again, Plan::Follow(node));
        let question = encode(&Show { since: self.told[&node].version });
        let read = paxos::Command::Read { token, question, consistency: Consistency::Stale };
        let after = self.a_while();
        vec![again, Stimulus::Command { to, command: Command::Service(read), after }]
    }

    /// What a node asked is answered.
    fn on_read(&mut self, token: u64, answer: &Answer) -> Vec<Stimulus<ConfigurationReplica>> {
        let (Some(to), Answer::Done(bytes)) = (self.follows.remove(&token), answer) else {
            return Vec::new();
        };
        let Shown(text) = postcard::from_bytes(bytes).expect("of this version");
        let Some(text) = text else { return Vec::new() };
        let file = ClusterFile::read(&text).expect("it was written by this program");
        let topology = Topology::new(&file).expect("S1");
        let after = self.a_while();
        vec![self.plan(after, Plan::Say { to, topology: Arc::new(topology) })]
    }

    fn on_say(
        &mut self,
        to: NodeId,
        topology: Arc<Topology>,
    ) -> Vec<Stimulus<ConfigurationReplica>> {
        if topology.version > self.told[&to].version {
            self.told.insert(to, topology.clone());
        }
        let command = Command::Configured(topology);
        vec![Stimulus::Command { to, command, after: Duration::ZERO }]
    }

    /// There is a version that nobody has seen: what follows from it.
    fn on_version(&mut self, file: &ClusterFile) -> Vec<Stimulus<ConfigurationReplica>> {
        let topology = Topology::new(file).expect("S1");
        let mut stimuli = Vec::new();
        let changing = topology.groups.iter().filter(|of| of.next.is_some());
        let changing = changing.filter(|group| group.waits_for.is_none());
        let changing = changing.map(|group| (group.name.clone(), group.number + 1));
        let lost = topology.open_fence().map(|of| (topology.group_name(of.group), of.number));
        for (group, number) in changing.chain(lost) {
            if self.changing.insert((group.clone(), number)) {
                let request = Request::InForce { group, number };
                let after = MS * self.random.random_range(20..1500);
                stimuli.push(self.plan(after, Plan::Begin(request)));
            }
        }
        stimuli
    }

    /// The level never falls, and rises no higher than what all nodes speak that have not left.
    fn check_level(&self, file: &ClusterFile) -> Result<(), String> {
        let topology = Topology::new(file).expect("S1");
        let levels = &file.configuration.levels;
        let present = topology.present().map(|node| topology.node(node).name.as_str());
        let lowest = levels.of_all(present);
        let before = self.versions.range(..file.configuration.version).next_back();
        let before = before.map_or(Level::FIRST, |(_, file)| file.configuration.levels.now);
        match levels.now < before || levels.now > before.max(lowest) {
            true => Err(format!("levels: {levels:?} after {before:?}")),
            false => Ok(()),
        }
    }

    /// S8: those that keep the configuration are a majority of those that are to keep it.
    fn check_seats(file: &ClusterFile) -> Result<(), String> {
        let topology = Topology::new(file).expect("S1");
        let (lost, seats) = (topology.lost_seats().count(), topology.keeping.replicas.len());
        match 2 * lost < seats {
            true => Ok(()),
            false => Err(format!("seats: {lost} of {seats} are those of lost nodes")),
        }
    }

    /// Whether all nodes that were to come have, no group changes, and the fence stands.
    fn is_settled(&self, topology: &Topology) -> bool {
        let is_so = |group: &Group| group.next.is_none() && group.waits_for.is_none();
        topology.nodes.len() == self.first.nodes.len() + self.add.len()
            && topology.groups.iter().all(is_so)
            && topology.open_fence().is_none()
            && topology.lost().len() == usize::from(self.fence.is_some())
    }

    /// Whether all that was to be done is, and all nodes know.
    fn is_done(&self) -> bool {
        let gone = |topology: &Topology, name: &str| {
            topology.node_named(name).is_some_and(|node| topology.is_gone(node))
        };
        let Some(newest) = self.newest() else { return false };
        let topology = Topology::new(newest).expect("S1");
        let version = newest.configuration.version;
        let is_gone =
            |node: NodeId| usize::from(node.0) < topology.nodes.len() && topology.is_gone(node);
        let knows = |(node, told): (&NodeId, &Arc<Topology>)| {
            told.version == version || is_gone(*node) || Some(*node) == self.dead
        };
        self.set == SETTINGS
            && self.is_settled(&topology)
            && self.asks.iter().all(Ask::is_done)
            && self.remove.iter().all(|(name, _)| gone(&topology, name))
            && self.told.iter().all(knows)
    }

    fn describe(&self) -> String {
        let waiting: Vec<_> = self.asks.iter().filter(|ask| !ask.is_done()).collect();
        let kept = self.newest().map(|file| &file.configuration);
        format!("waits for {waiting:?}; {} of {SETTINGS} set; {kept:?}", self.set)
    }
}

impl Owner<ConfigurationReplica> for Cluster {
    fn begin(&mut self) -> Vec<Stimulus<ConfigurationReplica>> {
        let first = self.first.clone();
        let text = serde_json::to_string(&first).expect("JSON");
        let mut stimuli = self.ask(Request::Initialise(text));
        for node in self.told.keys().copied().collect::<Vec<_>>() {
            let after = MS * self.random.random_range(1..1000);
            stimuli.push(self.plan(after, Plan::Follow(node)));
        }
        // The nodes are upgraded while the rest goes on.
        for node in &first.nodes {
            let after = MS * self.random.random_range(1..6000);
            let newest = Level(first.configuration.levels.now.0 + self.random.random_range(1..3));
            let speaks = Request::Speaks { name: node.name.clone(), newest };
            stimuli.push(self.plan(after, Plan::Begin(speaks)));
        }
        for (name, after) in self.remove.clone() {
            stimuli.push(self.plan(after, Plan::Remove(name)));
        }
        if let Some((region, after)) = self.fence.clone() {
            stimuli.push(self.plan(after, Plan::Fence(region)));
        }
        for (region, after) in self.add.clone() {
            stimuli.push(self.plan(after, Plan::Add(region)));
        }
        stimuli
    }

    fn output(
        &mut self,
        _at: NodeId,
        output: paxos::Output,
        _now: Time,
    ) -> Vec<Stimulus<ConfigurationReplica>> {
        match output {
            paxos::Output::Reply { client, answer, .. } => self.on_reply(client, answer),
            paxos::Output::Read { token, answer } => self.on_read(token, &answer),
            paxos::Output::Connected { .. }
            | paxos::Output::Members(_)
            | paxos::Output::View { .. }
            | paxos::Output::Recovered
            | paxos::Output::Stopped(_) => Vec::new(),
        }
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<ConfigurationReplica>> {
        match self.plans.remove(&token).expect("planned once") {
            Plan::Ask(at) => self.ask_again(at),
            Plan::Follow(node) => self.on_follow(node),
            Plan::Remove(name) => self.remove(name),
            Plan::Report(name) => self.report(name),
            Plan::Say { to, topology } => self.on_say(to, topology),
            Plan::Begin(request) => self.ask(request),
            Plan::Fence(region) => self.fence_region(region),
            Plan::Add(region) => self.add_to(region),
        }
    }

    fn leads(&self, process: &ConfigurationReplica) -> bool {
        process.paxos().is_some_and(paxos::Paxos::is_leading)
    }

    fn check(
        &mut self,
        at: NodeId,
        process: &ConfigurationReplica,
        _durable: bool,
    ) -> Result<(), String> {
        let file = process.paxos().and_then(|paxos| paxos.service().file());
        let Some(file) = file else { return Ok(()) };
        let version = file.configuration.version;
        match self.versions.get(&version) {
            None => {
                self.check_level(file)?;
                Cluster::check_seats(file)?;
                self.versions.insert(version, file.clone());
            }
            Some(known) if known == file => {}
            Some(known) => {
                return Err(format!(
                    "agreement: version {version} at {at} is {file:?}, elsewhere {known:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Names the client of a request; no replica gives such a name.
fn client_of(ask: usize) -> ClientId {
    ClientId((ask as u64 + 1) << 16 | 0xffff)
}
