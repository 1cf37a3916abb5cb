//! Clients that use the file system, and what holds at every moment: the owner of a world of
//! [`Node`]s.
//!
//! Each client does one thing at a time through a session, the same that the embeddable client
//! drives. On the way to nodes and back requests are late, repeated and lost, and connections
//! break. Checked is that each update has the outcome that it must have, whichever node answers and
//! how often; that one which was given up takes no effect after a later one; that a client reads
//! what it wrote, at any replica; that replicas which applied the same are equal.

mod client;
mod model;
pub mod regions;
pub mod trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use client::Client;
pub use client::Tally;
use meridian_cluster::Topology;
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, Time, mix,
};
use meridian_fs::{Done, FsError, Place};
use meridian_host::api::{Reply, ReplyBody, Request};
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_session::{Due, Message, Mutation, Session};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim files`.
pub const NAMED: Named = Named {
    name: "files",
    about: "Whole nodes with files, with all kinds of faults",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients create, write, link, rename
and remove files, read them at any replica, and give up at times; links are slow, cut and reset,
nodes crash and start again from what their disks kept. Then all is mended. Checked are that each
update has one outcome, the right one, that none which was given up happens after a later one, that
clients read what they wrote, that replicas which applied the same are equal at all times; at the
end, that the tree is whole and all that was answered is there.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim files --seeds 10000
  meridian sim files --seeds 1000 --nodes 1 --order linearizable
  meridian sim files --seed 137 --trace",
    settings: &[
        Setting { name: "nodes", values: &["N"], help: "How many nodes each region has" },
        Setting {
            name: "order",
            values: &["sequential", "linearizable"],
            help: "The order of messages",
        },
    ],
    pin,
    planted: names_of_planted::<trial::Trial>,
};

/// More nodes in a region say nothing new.
const NODES_MAX: usize = 7;

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    let trial = pins.planted::<trial::Trial>()?.unwrap_or_default();
    let orders =
        [("sequential", DeliveryOrder::Sequential), ("linearizable", DeliveryOrder::Linearizable)];
    let nodes = pins.get::<usize>("nodes")?;
    if nodes.is_some_and(|nodes| !(1..=NODES_MAX).contains(&nodes)) {
        return Err(format!("there are 1 to {NODES_MAX} nodes in a region"));
    }
    let order = pins.one_of("order", &orders)?.or(trial.order);
    Ok(Box::new(trial::Trial { nodes: nodes.or(trial.nodes), order, ..trial }))
}

/// What a wake-up is for: the lowest bits of its token.
const GO_ON: u64 = 0;
const DUE: u64 = 1;

fn token(client: usize, kind: u64) -> u64 {
    (client as u64) << 1 | kind
}

/// What the sessions are to hear of as soon as something happens.
#[derive(Clone, Debug)]
enum News {
    /// The connections to a node are lost.
    Lost(NodeId),
    Configured(Arc<Topology>),
}

/// The clients and the watchers.
pub struct FilesWorkload {
    /// What the clients have done.
    pub tally: Tally,
    topology: Arc<Topology>,
    random: Random,
    clients: Vec<Client>,
    news: Vec<News>,
    outcomes: BTreeMap<MessageId, Result<Done, FsError>>,
    /// By group and set of messages applied.
    hashes: BTreeMap<(GroupId, u64), u64>,
    checks: u64,
}

impl FilesWorkload {
    /// So many clients, each of which does so many things.
    pub fn new(seed: u64, topology: Arc<Topology>, clients: u64, things: u64) -> Self {
        FilesWorkload::with_mutation(seed, topology, clients, things, Mutation::Correct)
    }

    /// The same with a bug planted in their sessions.
    #[doc(hidden)]
    pub fn with_mutation(
        seed: u64,
        topology: Arc<Topology>,
        clients: u64,
        things: u64,
        mutation: Mutation,
    ) -> Self {
        let client = |number| {
            let mut client = Client::new(number, &topology, mix(seed) ^ number, mutation);
            client.left = things;
            client
        };
        FilesWorkload {
            tally: Tally::default(),
            random: Random::seed_from_u64(seed ^ 0xf11e),
            clients: (0..clients).map(client).collect(),
            topology,
            news: Vec::new(),
            outcomes: BTreeMap::new(),
            hashes: BTreeMap::new(),
            checks: 0,
        }
    }

    /// The nodes that the clients ask.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The clients ask these nodes from now on.
    pub fn configured(&mut self, topology: Arc<Topology>) {
        self.topology = topology.clone();
        self.news.push(News::Configured(topology));
    }

    /// Each client is to do so many things more.
    pub fn go_on(&mut self, things: u64) -> Vec<Stimulus<Node>> {
        self.clients.iter_mut().for_each(|client| client.left += things);
        self.begin()
    }

    /// Whether all clients have done all they had to do.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.left == 0 && client.is_idle())
    }

    /// What the clients wait for, in words.
    pub fn waiting(&self) -> String {
        let all = self.clients.iter().enumerate();
        let of = |(at, client): (usize, &Client)| Some(format!("{at}: {}", client.waiting()?));
        all.filter_map(of).collect::<Vec<_>>().join("\n")
    }

    /// All that the clients were told to be there: a directory, a name in it, what it leads to.
    pub fn entries(&self) -> impl Iterator<Item = (Place, Bytes, Place)> + '_ {
        self.clients.iter().flat_map(|client| client.model.entries())
    }

    /// The names of the sessions whose updates were answered.
    pub fn sessions(&self) -> BTreeSet<ClientId> {
        self.outcomes.keys().map(|id| id.client).collect()
    }

    /// How many messages were refused: cancelled, or perhaps repeats.
    pub fn refused(&self) -> usize {
        let refused = |outcome: &&Result<Done, FsError>| **outcome == Err(FsError::Expired);
        self.outcomes.values().filter(refused).count()
    }

    /// All sessions hear the news.
    fn hear(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for news in std::mem::take(&mut self.news) {
            for at in 0..self.clients.len() {
                let event = match &news {
                    News::Lost(node) => Event::Restarted(*node),
                    News::Configured(topology) => {
                        Event::Command(meridian_session::Command::Configured(topology.clone()))
                    }
                };
                stimuli.extend(self.step(at, now, [event].into()));
            }
        }
        stimuli
    }

    /// Steps a session with these events, and with what follows from them at once.
    fn step(
        &mut self,
        at: usize,
        now: Time,
        mut events: VecDeque<Event<Session>>,
    ) -> Vec<Stimulus<Node>> {
        let (mut out, mut stimuli) = (Outbox::new(), Vec::new());
        while let Some(event) = events.pop_front() {
            self.clients[at].session.step(now, event, &mut out);
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, message: Message::Request(request) } => {
                        match self.send(at, to, request) {
                            Some(sent) => stimuli.extend(sent),
                            None => events.push_back(Event::Restarted(to)),
                        }
                    }
                    Effect::Output(output) => {
                        let (random, tally) = (&mut self.random, &mut self.tally);
                        let client = &mut self.clients[at];
                        let mut commands = client.on_output(output, now, random, tally);
                        if client.is_idle() && client.left > 0 {
                            commands.extend(client.start(now, random));
                        }
                        events.extend(commands.into_iter().map(Event::Command));
                    }
                    Effect::Timer { at: due, timer: Due } => {
                        let after = due.since(now);
                        stimuli.push(Stimulus::Wake { token: token(at, DUE), after });
                    }
                    other => panic!("a session does not {other:?}"),
                }
            }
        }
        self.clients[at].session.check_invariants();
        stimuli
    }

    /// What a request becomes on its way; nothing if the connection breaks.
    fn send(&mut self, at: usize, to: NodeId, request: Request) -> Option<Vec<Stimulus<Node>>> {
        let random = &mut self.random;
        if random.random_ratio(1, 12) {
            return None;
        }
        let connection = ConnectionId((at as u64) << 16 | u64::from(to.0));
        let command = Command::Request { connection, request };
        let after = Duration::from_micros(random.random_range(50..3000));
        let mut stimuli = Vec::new();
        if random.random_ratio(1, 10) {
            let after = after + Duration::from_millis(random.random_range(0..1500));
            stimuli.push(Stimulus::Command { to, command: command.clone(), after });
        }
        stimuli.push(Stimulus::Command { to, command, after });
        Some(stimuli)
    }

    /// Each message has one outcome, whoever tells it.
    fn watch(&mut self, body: &ReplyBody) {
        match body {
            ReplyBody::Updated { id, result, .. } => {
                let first = self.outcomes.entry(*id).or_insert_with(|| result.clone());
                let same = match (&*first, result) {
                    // Each partition tells the attributes that it has.
                    (Ok(_), Ok(_)) => true,
                    (first, again) => first == again,
                };
                assert!(same, "{id} had the outcome {first:?}, and now {result:?}");
            }
            ReplyBody::Answer { .. } | ReplyBody::Refused(_) => {}
            ReplyBody::Stored
            | ReplyBody::Block(_)
            | ReplyBody::Blocks(_)
            | ReplyBody::Status(_) => panic!("nobody asked for {body:?}"),
        }
    }
}

impl Owner<Node> for FilesWorkload {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let wake = |client| Stimulus::Wake { token: token(client, GO_ON), after: Duration::ZERO };
        (0..self.clients.len()).map(wake).collect()
    }

    fn output(&mut self, from: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let Output::Reply { connection, reply } = output else { return stimuli };
        let at = usize::try_from(connection.0 >> 16).expect("an index");
        if at >= self.clients.len() {
            return stimuli; // To somebody else.
        }
        self.watch(&reply.body);
        let message = Message::Reply(Reply { id: reply.id, body: reply.body });
        let event = match self.random.random_range(0..40) {
            0 => return stimuli, // It is lost.
            1 => Event::Restarted(from),
            _ => Event::Message { from, message },
        };
        stimuli.extend(self.step(at, now, [event].into()));
        stimuli
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let at = usize::try_from(token >> 1).expect("an index");
        if token & 1 == DUE {
            stimuli.extend(self.step(at, now, [Event::Timer(Due)].into()));
            return stimuli;
        }
        let client = &mut self.clients[at];
        if client.is_idle() && client.left > 0 {
            let commands = client.start(now, &mut self.random);
            let events = commands.into_iter().map(Event::Command).collect();
            stimuli.extend(self.step(at, now, events));
        }
        if self.clients[at].left > 0 {
            let after = Duration::from_millis(self.random.random_range(10..200));
            stimuli.push(Stimulus::Wake { token, after });
        }
        stimuli
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.news.push(News::Lost(at));
    }

    fn check(&mut self, at: NodeId, node: &Node, durable: bool) -> Result<(), String> {
        self.checks += 1;
        if self.checks.is_multiple_of(64) {
            node.check_invariants();
        }
        if !durable {
            return Ok(()); // It may still lose what made it so.
        }
        for group in self.topology.groups_of(at) {
            let partition = node.replica(group).expect("its node has it").partition();
            if self.checks.is_multiple_of(256) {
                partition.check_invariants();
            }
            let (set, hash) = (partition.decided(), partition.state_hash());
            let first = *self.hashes.entry((group, set)).or_insert(hash);
            if first != hash {
                let applied = partition.applied();
                return Err(format!("another state of {group:?} after the same {applied:?}"));
            }
        }
        Ok(())
    }
}
