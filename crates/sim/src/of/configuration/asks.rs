//! Who asks for changes of the configuration: each as a client of its own, until it is answered.

use super::{Cluster, MS, PAIR, Plan, SETTINGS, client_of};
use crate::world::Stimulus;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Reply, Request, encode};
use meridian_core::{ClientId, NodeId};
use meridian_host::configuration::{Command, ConfigurationReplica};
use meridian_paxos::{self as paxos, Answer};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};

/// A change that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    request: Request,
    reply: Option<Reply>,
}

impl Ask {
    pub fn is_done(&self) -> bool {
        self.reply.is_some()
    }
}

impl Cluster {
    /// Asks for a change.
    pub(super) fn ask(&mut self, request: Request) -> Vec<Stimulus<ConfigurationReplica>> {
        self.asks.push(Ask { request, reply: None });
        self.ask_again(self.asks.len() - 1)
    }

    /// Sends it once more, to any node that keeps the configuration as some node knows.
    pub(super) fn ask_again(&mut self, at: usize) -> Vec<Stimulus<ConfigurationReplica>> {
        if self.asks[at].is_done() {
            return Vec::new();
        }
        let knows = NodeId(self.random.random_range(0..super::NODES));
        let (to, after) = (self.keeper_for(knows), self.a_while());
        let request = encode(&self.asks[at].request);
        let command = Command::Service(paxos::Command::execute(client_of(at), 1, request));
        let again = MS * self.random.random_range(300..1500);
        let again = self.plan(again, Plan::Ask(at));
        vec![again, Stimulus::Command { to, command, after }]
    }

    pub(super) fn on_reply(
        &mut self,
        client: ClientId,
        answer: Answer,
    ) -> Vec<Stimulus<ConfigurationReplica>> {
        let at = (client.0 >> 16) as usize - 1;
        let (Answer::Done(bytes), false) = (answer, self.asks[at].is_done()) else {
            return Vec::new();
        };
        let reply: Reply = postcard::from_bytes(&bytes).expect("of this version");
        self.asks[at].reply = Some(reply.clone());
        match reply {
            Reply::Done { version, added } => self.on_done(at, (version, added)),
            Reply::Refused(why) => self.on_refused(at, &why),
        }
    }

    fn on_done(
        &mut self,
        at: usize,
        (version, added): (u64, Option<String>),
    ) -> Vec<Stimulus<ConfigurationReplica>> {
        self.acknowledged = self.acknowledged.max(version);
        let mut stimuli = match self.asks[at].request.clone() {
            Request::Initialise(_) => vec![self.set_next()],
            Request::SetRtt(_) => {
                self.set += 1;
                if self.set < SETTINGS { vec![self.set_next()] } else { Vec::new() }
            }
            Request::RemoveNode { name, .. } | Request::Drained { name, .. } => {
                let after = MS * self.random.random_range(200..1500);
                vec![self.plan(after, Plan::Report(name))]
            }
            Request::AddNode { .. } => {
                let name = added.expect("a node that is added has a name");
                let after = MS * self.random.random_range(20..2000);
                vec![self.plan(after, Plan::Begin(Request::Up { name }))]
            }
            Request::AddRegion { .. }
            | Request::RemoveRegion { .. }
            | Request::CloseRegion { .. }
            | Request::FenceRegion { .. }
            | Request::Word { .. }
            | Request::Up { .. }
            | Request::KeepNode { .. }
            | Request::Keeps { .. }
            | Request::SetAddress { .. }
            | Request::InForce { .. }
            | Request::Speaks { .. }
            | Request::LevelAtMost(_)
            | Request::Allow { .. }
            | Request::AllowKeys { .. }
            | Request::Revoke { .. } => Vec::new(),
        };
        let newest = self.newest().cloned();
        stimuli.extend(newest.into_iter().flat_map(|file| self.on_version(&file)));
        stimuli
    }

    /// The next setting of the round trips; their order shows whether one was lost.
    fn set_next(&mut self) -> Stimulus<ConfigurationReplica> {
        let rtt_ms = BTreeMap::from([(PAIR.to_string(), self.set + 1)]);
        let after = MS * self.random.random_range(1..2000);
        self.plan(after, Plan::Begin(Request::SetRtt(rtt_ms)))
    }

    fn on_refused(&mut self, at: usize, why: &str) -> Vec<Stimulus<ConfigurationReplica>> {
        match self.asks[at].request.clone() {
            // Groups are changing, or who was to keep the configuration goes itself.
            Request::RemoveNode { name, .. } => vec![self.plan(MS * 500, Plan::Remove(name))],
            Request::FenceRegion { region, .. } => vec![self.plan(MS * 500, Plan::Fence(region))],
            Request::AddNode { region, .. } => vec![self.plan(MS * 500, Plan::Add(region))],
            request @ Request::Speaks { .. } if why.contains("no configuration yet") => {
                vec![self.plan(MS * 500, Plan::Begin(request))]
            }
            // The others speak more, and the level has risen without it.
            Request::Speaks { name, .. } if self.is_gone(&name) => Vec::new(),
            request => panic!("history: {request:?} is refused: {why}"),
        }
    }

    fn is_gone(&self, name: &str) -> bool {
        let topology = self.newest().map(|file| Topology::new(file).expect("S1"));
        let node = topology.as_ref().and_then(|topology| topology.node_named(name));
        topology.zip(node).is_some_and(|(topology, node)| topology.is_gone(node))
    }

    /// The nodes that answer.
    fn up(&self, topology: &Topology) -> BTreeSet<String> {
        let answer = topology.present().filter(|node| Some(*node) != self.dead);
        answer.map(|node| topology.node(node).name.clone()).collect()
    }

    /// A region is declared lost, as a command does that.
    pub(super) fn fence_region(&mut self, region: String) -> Vec<Stimulus<ConfigurationReplica>> {
        let Some(file) = self.newest() else {
            return vec![self.plan(MS * 500, Plan::Fence(region))];
        };
        let up = self.up(&Topology::new(file).expect("S1"));
        self.ask(Request::FenceRegion { region, up, keyless: true, now_ms: 1 })
    }

    /// A node comes to a region, as a command has it come.
    pub(super) fn add_to(&mut self, region: String) -> Vec<Stimulus<ConfigurationReplica>> {
        let Some(file) = self.newest() else {
            return vec![self.plan(MS * 500, Plan::Add(region))];
        };
        let up = self.up(&Topology::new(file).expect("S1"));
        let address = format!("{region}-{}", self.planned);
        self.ask(Request::AddNode { region, name: None, address, up })
    }

    /// A node is to be removed, as a command does that.
    pub(super) fn remove(&mut self, name: String) -> Vec<Stimulus<ConfigurationReplica>> {
        let Some(file) = self.newest().cloned() else {
            return vec![self.plan(MS * 500, Plan::Remove(name))];
        };
        let topology = Topology::new(&file).expect("S1");
        let answers = |id: &NodeId| Some(*id) != self.dead;
        let up = self.up(&topology);
        let keeps = |id: &NodeId| topology.keeping.goes_on(*id);
        let free = |id: &NodeId| answers(id) && !keeps(id) && topology.node(*id).name != name;
        let name_of = |id: NodeId| topology.node(id).name.clone();
        let stays = |id: &NodeId| topology.node(*id).draining.is_none();
        let keeper = topology.staying_in(meridian_core::RegionId(0)).filter(stays).find(free);
        let keeper = keeper.filter(|_| file.configuration.replicas.contains(&name)).map(name_of);
        self.ask(Request::RemoveNode { name, up, keeper, reason: None })
    }

    /// The node that goes, or those that stay if it is down, have given away what it holds.
    pub(super) fn report(&mut self, name: String) -> Vec<Stimulus<ConfigurationReplica>> {
        let Some(file) = self.newest().cloned() else { return Vec::new() };
        let topology = Topology::new(&file).expect("S1");
        let Some(id) = topology.node_named(&name) else { return Vec::new() };
        let Some(draining) = topology.node(id).draining.clone() else { return Vec::new() };
        let since = draining.since;
        if !draining.down {
            return self.ask(Request::Drained { name, since });
        }
        let staying: Vec<_> = topology.staying_in(meridian_core::RegionId(0)).collect();
        let mut stimuli = vec![self.plan(MS * 1000, Plan::Report(name))];
        for node in staying {
            let name = topology.node(node).name.clone();
            stimuli.extend(self.ask(Request::Drained { name, since }));
        }
        stimuli
    }
}
