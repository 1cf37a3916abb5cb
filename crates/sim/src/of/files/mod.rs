//! Clients that use the file system, and what holds at every moment: the owner of a world of
//! [`Node`]s.
//!
//! Each client does one thing at a time through a session, the same that the embeddable client
//! drives; it writes files through the same write-back. On the way to nodes and back requests are
//! late, repeated and lost, and connections break. Checked is that each update has the outcome that
//! it must have, whichever node answers and how often; that one which was given up takes no effect
//! after a later one; that a client reads what it wrote, at any replica; that no update names a
//! block which is not stored as it should be; that replicas which applied the same are equal.

mod client;
pub mod crowd;
mod handing;
mod holders;
mod model;
pub(crate) mod net;
mod opening;
mod outcomes;
mod posix;
mod reading;
pub mod regions;
mod saving;
pub mod trial;
pub mod words;

use super::{Named, Pins, Setting, Trials, names_of_planted};
use crate::world::{DiskFailure, Owner, Random, Stimulus};
use bytes::Bytes;
pub use client::Tally;
use client::{Client, contents_of};
use handing::Taking;
use holders::{Holders, Plan};
use meridian_cluster::Topology;
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{
    BlockId, ClientId, Effect, Event, GroupId, NodeId, Outbox, Process, Time, mix,
};
use meridian_fs::types::Data;
use meridian_fs::{Answer, FsError, Place, Query, Update};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output, drain, space};
use meridian_session::{Due, Message, Mutation, Session};
use meridian_storage::SimDisk;
use outcomes::Outcomes;
use rand::{RngExt, SeedableRng};
use reading::Reading;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use words::MESSAGES;

/// `meridian sim files`.
pub const NAMED: Named = Named {
    name: "files",
    about: "Whole nodes with files, with all kinds of faults",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients create, write, link, rename
and remove files, read them at any replica, and give up at times; links are slow, cut and reset,
nodes crash and start again from what their disks kept, and a disk may damage blocks. Then all is
mended. Checked are that each update has one outcome, the right one, that none which was given up
happens after a later one, that clients read what they wrote and what those had seen whose tokens
they took over, that lists of access rights are inherited, capabilities go with changes, whiteouts
are left and files without a name get one or go, that no update names a block which is not stored,
that replicas which applied the same are equal at all times; at the end, that the tree is whole and
all that was answered is there.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim files --seeds 10000
  meridian sim files --seeds 1000 --nodes 1 --order linearizable
  meridian sim files --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
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

/// What a wake-up is for: the lowest bits of its token. Those above are the number of a client, or
/// of something planned.
const GO_ON: u64 = 0;
const DUE: u64 = 1;
const PLANNED: u64 = 2;
const KINDS: u32 = 2;

fn token(number: u64, kind: u64) -> u64 {
    number << KINDS | kind
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
    holders: Holders,
    calm: bool,
    /// Since when clients know that a node is to go.
    going: BTreeMap<NodeId, Time>,
    /// Since when a block is being stored.
    stored_since: BTreeMap<BlockId, Time>,
    outcomes: Outcomes,
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
            holders: Holders::new(seed),
            calm: false,
            going: BTreeMap::new(),
            stored_since: BTreeMap::new(),
            outcomes: Outcomes::default(),
            hashes: BTreeMap::new(),
            checks: 0,
        }
    }

    /// Nothing is lost or repeated on the way between clients and nodes.
    pub fn calmly(mut self) -> Self {
        self.calm = true;
        self
    }

    /// The disk of one node rots.
    pub fn rots(&mut self, node: NodeId) {
        self.holders.rotten = Some(node);
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

    /// Clients use the directory of that region from now on, too.
    pub fn use_also(&mut self, group: GroupId) {
        self.clients.iter_mut().for_each(|client| client.model.learn(group));
    }

    /// Each client is to do so many things more.
    pub fn go_on(&mut self, things: u64) -> Vec<Stimulus<Node>> {
        self.clients.iter_mut().for_each(|client| client.left += things);
        self.begin()
    }

    /// Whether all clients have done all they had to do.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(Client::is_done)
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
        self.outcomes.sessions()
    }

    /// How many messages were refused: cancelled, or perhaps repeats.
    pub fn refused(&self) -> usize {
        self.outcomes.refused()
    }

    /// A node that is drained, or helps to, asks something of its blocks.
    pub fn on_drain(&mut self, at: NodeId, output: drain::Output) -> Vec<Stimulus<Node>> {
        self.holders.on_drain(at, output)
    }

    /// Blocks that some node has freed.
    pub fn freed(&self) -> &BTreeSet<BlockId> {
        self.holders.freed()
    }

    /// The blocks that a node holds, if it is up.
    pub fn held(&self, at: NodeId) -> Vec<BlockId> {
        self.holders.held(at)
    }

    /// Whether a node that is up can read a block.
    pub fn is_sound(&self, at: NodeId, block: BlockId) -> bool {
        self.holders.is_sound(at, block)
    }

    /// A node frees blocks, or asks which it holds.
    pub fn on_space(&mut self, at: NodeId, output: space::Output) -> Vec<Stimulus<Node>> {
        self.holders.on_space(at, output)
    }

    /// What was written and acknowledged is there, once clients are done: `read` asks a replica.
    ///
    /// # Errors
    /// What is not there.
    pub fn check_contents(
        &self,
        read: impl Fn(&Query) -> Result<Answer, FsError>,
    ) -> Result<(), String> {
        for (place, should) in self.clients.iter().flat_map(|client| client.model.saved_files()) {
            let answer =
                read(&contents_of(place)).map_err(|error| format!("{place:?}: {error}"))?;
            let mut reading = Reading::of(answer);
            while let Some(part) = reading.next() {
                let (from, len) = (part.start as usize, part.len as usize);
                let Some(block) = self.holders.surviving(part.block) else {
                    return Err(format!("durability: {part:?} of {place:?} is on no node"));
                };
                reading.on_part(&block.slice(from..from + len));
            }
            reading.compare(should).map_err(|what| format!("{what}, of {place:?}"))?;
        }
        Ok(())
    }

    /// What was made of files beyond names and bytes is there: as
    /// [`FilesWorkload::check_contents`].
    ///
    /// # Errors
    /// What is not as it must be.
    pub fn check_facts(
        &self,
        read: impl Fn(&Query) -> Result<Answer, FsError>,
    ) -> Result<(), String> {
        for client in &self.clients {
            client.posix.check(&read)?;
            client.model.set_files().try_for_each(|(place, shown)| shown.check(place, &read))?;
        }
        Ok(())
    }

    /// All sessions hear the news.
    fn hear(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for news in std::mem::take(&mut self.news) {
            if let News::Configured(topology) = &news {
                let stays = |node: &NodeId| {
                    topology.nodes_in(topology.node(*node).region).any(|other| other == *node)
                };
                for node in topology.node_ids().filter(|node| !stays(node)) {
                    self.going.entry(node).or_insert(now);
                }
            }
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
                        match self.send(at, to, request, now) {
                            Some(sent) => stimuli.extend(sent),
                            None => events.push_back(Event::Restarted(to)),
                        }
                    }
                    Effect::Output(output) => {
                        let (random, tally) = (&mut self.random, &mut self.tally);
                        let client = &mut self.clients[at];
                        let mut commands = client.on_output(output, now, random, tally);
                        for other in std::mem::take(&mut client.thanks) {
                            self.clients[other].hands_over = false;
                        }
                        let client = &mut self.clients[at];
                        if client.is_idle() && client.left > 0 {
                            commands.extend(client.start(now, random));
                        }
                        events.extend(commands.into_iter().map(Event::Command));
                    }
                    Effect::Timer { at: due, timer: Due } => {
                        let after = due.since(now);
                        stimuli.push(Stimulus::Wake { token: token(at as u64, DUE), after });
                    }
                    other => panic!("a session does not {other:?}"),
                }
            }
        }
        self.clients[at].session.check_invariants();
        stimuli
    }

    /// At times a client hands another what it has seen, and waits until that one has looked.
    fn hand_over(&mut self, from: usize, now: Time) -> Option<Vec<Stimulus<Node>>> {
        let to = self.random.random_range(0..self.clients.len());
        let free = to != from && self.clients[to].taking.is_none();
        if !free || !self.random.random_ratio(1, 8) {
            return None;
        }
        let client = &mut self.clients[from];
        let shown = client.any_look(&mut self.random)?;
        client.left -= 1;
        client.hands_over = true;
        let taking = Taking::new(from, client.session.vector().clone(), shown);
        let command = self.clients[to].take(taking, now, &mut self.random);
        Some(self.step(to, now, [Event::Command(command)].into()))
    }

    /// What a request becomes on its way; nothing if the connection breaks.
    fn send(
        &mut self,
        at: usize,
        to: NodeId,
        request: Request,
        now: Time,
    ) -> Option<Vec<Stimulus<Node>>> {
        self.check_request(to, &request.body, now);
        let (random, rough) = (&mut self.random, !self.calm);
        if random.random_ratio(1, 12) && rough {
            return None;
        }
        if let RequestBody::PutBlock { .. } | RequestBody::GetBlock { .. } = request.body {
            let after = Duration::from_micros(random.random_range(50..3000));
            let arrives = Plan::Arrive { client: at, to, request };
            return Some(vec![self.holders.plan(after, arrives)]);
        }
        let connection = ConnectionId((at as u64) << 16 | u64::from(to.0));
        let command = Command::Request { connection, request };
        let after = Duration::from_micros(random.random_range(50..3000));
        let mut stimuli = Vec::new();
        if random.random_ratio(1, 10) && rough {
            let after = after + Duration::from_millis(random.random_range(0..1500));
            stimuli.push(Stimulus::Command { to, command: command.clone(), after });
        }
        stimuli.push(Stimulus::Command { to, command, after });
        Some(stimuli)
    }

    /// A client asks a node for what it may ask: no update names a block that is not stored as it
    /// should be, and no block is given to a node that its client knew to go.
    fn check_request(&mut self, to: NodeId, body: &RequestBody, now: Time) {
        match body {
            RequestBody::Update { start, .. } => {
                self.outcomes.ask(start.id);
                let payload = Payload::read(start).expect("a session writes it");
                let update = payload.change.map(|change| change.update);
                let (inode, pieces) = match update {
                    Some(Update::Write { inode, pieces, .. }) => (inode, pieces),
                    Some(Update::Settle { inode, pieces, .. }) => (inode, pieces),
                    _ => return,
                };
                for piece in pieces {
                    let Data::Block { block, .. } = piece.extent.data else { continue };
                    let stored = self.holders.is_stored(&self.topology, inode.partition, block);
                    assert!(stored, "placement: an update names {block}, which is not stored");
                }
            }
            RequestBody::PutBlock { block, .. } => {
                let since = *self.stored_since.entry(*block).or_insert(now);
                let knew = self.going.get(&to).is_some_and(|going| *going < since);
                assert!(!knew, "placement: {block} is given to {to:?}, which is to go");
            }
            _ => {}
        }
    }

    /// What was planned with a request for a block happens.
    fn on_planned(&mut self, plan: Plan, now: Time) -> Vec<Stimulus<Node>> {
        match plan {
            Plan::Arrive { client, to, request } => self.holders.on_arrived(client, to, request),
            Plan::Blocks(due) => self.holders.on_due(due),
            Plan::Answer { client, from, reply } => {
                let event = match reply {
                    Some(reply) => self.on_way_back(from, reply),
                    None => Some(Event::Restarted(from)),
                };
                let Some(event) = event else { return Vec::new() };
                self.step(client, now, [event].into())
            }
        }
    }

    /// What becomes of a reply: it may be lost, and its connection with it.
    fn on_way_back(&mut self, from: NodeId, reply: Reply) -> Option<Event<Session>> {
        match self.random.random_range(0..40) {
            0 if !self.calm => None,
            1 if !self.calm => Some(Event::Restarted(from)),
            _ => Some(Event::Message { from, message: Message::Reply(reply) }),
        }
    }

    /// Each message has one outcome, whoever tells it.
    fn watch(&mut self, body: &ReplyBody) {
        match body {
            ReplyBody::Updated { id, result, .. } => self.outcomes.tell(*id, result),
            ReplyBody::Answer { .. } | ReplyBody::Discarded | ReplyBody::Refused(_) => {}
            ReplyBody::AnswerAlong { .. }
            | ReplyBody::UpdatedAlong(_)
            | ReplyBody::Recalled { .. }
            | ReplyBody::Stored
            | ReplyBody::Block(_)
            | ReplyBody::Blocks(_)
            | ReplyBody::Snapshot(_)
            | ReplyBody::Steps(_)
            | ReplyBody::Status(_) => panic!("nobody asked for {body:?}"),
        }
    }
}

impl Owner<Node> for FilesWorkload {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let wake = |client| Stimulus::Wake { token: token(client, GO_ON), after: Duration::ZERO };
        (0..self.clients.len() as u64).map(wake).collect()
    }

    fn output(&mut self, from: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let (connection, reply) = match output {
            Output::Reply { connection, reply } => (connection, reply),
            Output::Space(output) => {
                stimuli.extend(self.on_space(from, output));
                return stimuli;
            }
            Output::Drain(output) => {
                stimuli.extend(self.on_drain(from, output));
                return stimuli;
            }
            Output::InForce { .. } | Output::Configuration(_) => return stimuli,
        };
        let at = usize::try_from(connection.0 >> 16).expect("an index");
        if at >= self.clients.len() {
            return stimuli; // To somebody else.
        }
        self.watch(&reply.body);
        let Some(event) = self.on_way_back(from, reply) else { return stimuli };
        stimuli.extend(self.step(at, now, [event].into()));
        stimuli
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let (number, kind) = (token >> KINDS, token & ((1 << KINDS) - 1));
        if kind == PLANNED {
            let plan = self.holders.planned(number);
            stimuli.extend(self.on_planned(plan, now));
            return stimuli;
        }
        let at = usize::try_from(number).expect("an index");
        if kind == DUE {
            stimuli.extend(self.step(at, now, [Event::Timer(Due)].into()));
            return stimuli;
        }
        if self.clients[at].is_idle() && self.clients[at].left > 0 {
            let handed = self.hand_over(at, now);
            stimuli.extend(handed.unwrap_or_else(|| {
                let commands = self.clients[at].start(now, &mut self.random);
                self.step(at, now, commands.into_iter().map(Event::Command).collect())
            }));
        }
        let commands = self.clients[at].open(now, &mut self.random, self.calm);
        if !commands.is_empty() {
            let events = commands.into_iter().map(Event::Command).collect();
            stimuli.extend(self.step(at, now, events));
        }
        if !self.clients[at].is_done() {
            let after = Duration::from_millis(self.random.random_range(10..200));
            stimuli.push(Stimulus::Wake { token, after });
        }
        stimuli
    }

    fn mount(&mut self, at: NodeId, disk: &SimDisk, altered: bool) -> Result<(), DiskFailure> {
        self.holders.mount(at, disk, altered)
    }

    /// A block is on two nodes of a region: one may lose it.
    fn may_lose_disk(&self) -> bool {
        self.holders.altered().is_empty()
    }

    fn started(&mut self, at: NodeId, node: &Node, _now: Time) {
        self.holders.started(at, node.drain().takes_blocks());
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.holders.crashed(at);
        self.news.push(News::Lost(at));
    }

    fn check(&mut self, at: NodeId, node: &Node, durable: bool) -> Result<(), String> {
        self.holders.takes_blocks(at, node.drain().takes_blocks());
        self.checks += 1;
        if self.checks.is_multiple_of(64) {
            node.check_invariants();
        }
        if !durable {
            return Ok(()); // It may still lose what made it so.
        }
        for group in self.topology.groups_of(at) {
            // It may not have heard yet that it comes into a group that others leave to it.
            let Some(partition) = node.replica(group).map(|replica| replica.partition()) else {
                continue;
            };
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
