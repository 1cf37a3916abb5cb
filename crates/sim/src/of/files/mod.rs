//! Clients that use the file system, and what holds at every moment: the owner of a world of
//! [`Node`]s.
//!
//! Each client does one thing at a time, and sends it to other nodes when it hears nothing. Checked
//! is that each update has the outcome that it must have, whichever node answers and how often;
//! that a client reads what it wrote, at any replica; that replicas which applied the same are
//! equal.

mod model;
pub mod regions;
pub mod trial;

use super::{Named, Pins, Setting, Trials, names_of_planted};

use crate::world::Random;
use crate::world::{Owner, Stimulus};
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Time};
use meridian_fs::{Answer, Done, FsError, Place, Query, Timestamp, Vector};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output, sessions};
use meridian_multicast::Start;
use model::{Action, File, Model};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim files`.
pub const NAMED: Named = Named {
    name: "files",
    about: "Whole nodes with files, with all kinds of faults",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients create, write, link, rename and remove
files, and read them at any replica; links are slow, cut and reset, nodes crash and start again from what their
disks kept. Then all is mended. Checked are that each update has one outcome, the right one, that clients read
what they wrote, that replicas which applied the same are equal at all times; at the end, that the tree is
whole and all that was answered is there.

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

/// How long a client waits before it asks other nodes.
const TIMEOUT: Duration = Duration::from_millis(700);

/// What a client waits for.
enum Waits {
    Update { start: Box<Start>, action: Action },
    Name { query: Query, found: Option<Place> },
    Attributes { query: Query, file: File },
}

struct Client {
    id: ClientId,
    model: Model,
    vector: Vector,
    sequence: u64,
    request: u64,
    waits: Option<Waits>,
    sent: Time,
    left: u64,
}

/// The clients and the watchers.
pub struct FilesWorkload {
    /// Updates answered, and reads.
    pub answered: (u64, u64),
    topology: Arc<Topology>,
    random: Random,
    clients: Vec<Client>,
    outcomes: BTreeMap<MessageId, Result<Done, FsError>>,
    /// By group and set of messages applied.
    hashes: BTreeMap<(GroupId, u64), u64>,
    checks: u64,
}

impl FilesWorkload {
    /// So many clients, each of which does so many things.
    pub fn new(seed: u64, topology: Arc<Topology>, clients: u64, things: u64) -> Self {
        let groups: Vec<_> = topology.group_ids().collect();
        let client = |client| Client {
            id: ClientId(client),
            model: Model::new(client, groups.clone()),
            vector: Vector::default(),
            sequence: 0,
            request: 0,
            waits: None,
            sent: Time(0),
            left: things,
        };
        FilesWorkload {
            answered: (0, 0),
            random: Random::seed_from_u64(seed ^ 0xf11e),
            clients: (0..clients).map(client).collect(),
            topology,
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
        self.topology = topology;
    }

    /// Whether all clients have done all they had to do.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.left == 0 && client.waits.is_none())
    }

    /// What the clients wait for, in words.
    pub fn waiting(&self) -> String {
        let of = |client: &Client| match &client.waits {
            None => None,
            Some(Waits::Update { start, action }) => Some(format!("{}: {action:?}", start.id)),
            Some(Waits::Name { query, .. } | Waits::Attributes { query, .. }) => {
                Some(format!("{:?}: {query:?} {:?}", client.id, client.vector))
            }
        };
        self.clients.iter().filter_map(of).collect::<Vec<_>>().join("\n")
    }

    /// All that the clients were told to be there: a directory, a name in it, what it leads to.
    pub fn entries(&self) -> impl Iterator<Item = (Place, Bytes, Place)> + '_ {
        self.clients.iter().flat_map(|client| client.model.entries())
    }

    fn start_something(&mut self, at: usize, now: Time) {
        let client = &mut self.clients[at];
        client.left -= 1;
        client.request += 1;
        let waits = match self.random.random_range(0..10) {
            0..6 => client.model.choose(&mut self.random).map(|action| {
                client.sequence += 1;
                Waits::Update { start: Box::new(client.start_of(&action, now)), action }
            }),
            6..8 => client.model.any_file(&mut self.random).map(|file| Waits::Attributes {
                query: Query::Attributes { inode: file.place },
                file,
            }),
            _ => client.model.any_name(&mut self.random).map(|(parent, name, found)| Waits::Name {
                query: Query::Lookup { parent, name },
                found,
            }),
        };
        self.clients[at].waits = waits;
    }

    /// Sends what the client waits for to nodes at random.
    fn send(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let client = &mut self.clients[at];
        client.sent = now;
        let bodies: Vec<(GroupId, RequestBody)> = match &client.waits {
            None => Vec::new(),
            Some(Waits::Update { start, .. }) => {
                let body = |group| RequestBody::Update { group, start: (**start).clone() };
                start.dest.iter().map(|group| (*group, body(*group))).collect()
            }
            Some(Waits::Name { query, .. } | Waits::Attributes { query, .. }) => {
                let vector = client.vector.clone();
                vec![(query.partition(), RequestBody::Read { vector, query: query.clone() })]
            }
        };
        let (client, id) = (client.id.0, client.request);
        let mut stimuli = Vec::new();
        for (group, body) in bodies {
            let members = &self.topology.group(group).members;
            let to = *members.choose(&mut self.random).expect("groups have members");
            let connection = ConnectionId(client << 16 | u64::from(to.0));
            let command = Command::Request { connection, request: Request { id, body } };
            let after = Duration::from_micros(self.random.random_range(50..3000));
            if self.random.random_ratio(1, 10) {
                let after = after + Duration::from_millis(self.random.random_range(0..1500));
                stimuli.push(Stimulus::Command { to, command: command.clone(), after });
            }
            stimuli.push(Stimulus::Command { to, command, after });
        }
        stimuli
    }

    fn on_updated(
        &mut self,
        at: usize,
        id: MessageId,
        vector: &Vector,
        result: Result<Done, FsError>,
    ) {
        let first = self.outcomes.entry(id).or_insert_with(|| result.clone());
        let same = match (&*first, &result) {
            // Each partition tells the attributes that it has.
            (Ok(_), Ok(_)) => true,
            (first, again) => first == again,
        };
        assert!(same, "{id} had the outcome {first:?}, and now {result:?}");
        let client = &mut self.clients[at];
        let Some(Waits::Update { start, .. }) = &client.waits else { return };
        if start.id != id {
            return;
        }
        let Some(Waits::Update { action, .. }) = client.waits.take() else { unreachable!() };
        self.answered.0 += 1;
        client.vector.merge(vector);
        let expected = client.model.expected(&action);
        match (result, expected) {
            (Ok(done), Ok(())) => client.model.apply(action, &done),
            (Err(error), Err(expected)) if error == expected => {}
            (Err(_), _) if matches!(action, Action::Shared { .. }) => {}
            (result, expected) => panic!("{id} {action:?}: {result:?}, expected {expected:?}"),
        }
    }

    fn on_answer(&mut self, at: usize, vector: &Vector, result: Result<Answer, FsError>) {
        let client = &mut self.clients[at];
        let Some(waits) = client.waits.take() else { return };
        match (waits, result) {
            (waits @ Waits::Update { .. }, _) => {
                client.waits = Some(waits);
                return;
            }
            (Waits::Name { found: None, .. }, Err(FsError::NotFound)) => {}
            (Waits::Name { found: Some(place), .. }, Ok(Answer::Entry { entry, .. })) => {
                assert_eq!(entry.place, place, "a name leads elsewhere");
            }
            (Waits::Attributes { file, .. }, Ok(Answer::Attributes(attributes))) => {
                let told = (attributes.size, attributes.nlink);
                assert_eq!(told, (file.size, file.nlink), "an old state of {:?}", file.place);
            }
            (Waits::Name { query, found }, result) => {
                panic!("{:?}: {query:?} answered {result:?}, expected {found:?}", client.id);
            }
            (Waits::Attributes { query, .. }, result) => {
                panic!("{:?}: {query:?} answered {result:?}", client.id);
            }
        }
        self.answered.1 += 1;
        client.vector.merge(vector);
    }
}

impl Client {
    fn start_of(&self, action: &Action, now: Time) -> Start {
        let update = self.model.update(action);
        let dest: Vec<_> = update.partitions().into_iter().collect();
        let client = sessions::name(self.id.0 << 32, &dest);
        let id = MessageId { client, sequence: self.sequence };
        let seconds = i64::try_from(now.0 / 1_000_000_000).expect("no world lasts so long");
        let time = Timestamp { seconds, nanos: 0 };
        let payload = Payload::new(self.vector.clone(), time, update);
        payload.into_start(id, self.sequence, &dest)
    }
}

impl Owner<Node> for FilesWorkload {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let wake = |client| Stimulus::Wake { token: client, after: Duration::ZERO };
        (0..self.clients.len() as u64).map(wake).collect()
    }

    fn output(&mut self, _at: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let Output::Reply { connection, reply: Reply { id, body } } = output else {
            return Vec::new();
        };
        let at = usize::try_from(connection.0 >> 16).expect("an index");
        if self.random.random_ratio(1, 20) {
            return Vec::new(); // The answer is lost.
        }
        let current = self.clients[at].request == id;
        match body {
            ReplyBody::Updated { id, vector, result, .. } => {
                self.on_updated(at, id, &vector, result);
            }
            ReplyBody::Answer { vector, result } if current => self.on_answer(at, &vector, result),
            // An old answer; or the client asks again when it has waited.
            ReplyBody::Answer { .. } | ReplyBody::Refused(_) => {}
            ReplyBody::Stored
            | ReplyBody::Block(_)
            | ReplyBody::Blocks(_)
            | ReplyBody::Status(_) => {
                panic!("nobody asked for {body:?}")
            }
        }
        let client = &mut self.clients[at];
        if client.waits.is_none() && client.left > 0 && current {
            // It may go on at once.
            self.start_something(at, now);
            return self.send(at, now);
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Node>> {
        let at = usize::try_from(token).expect("an index");
        let client = &self.clients[at];
        let mut stimuli = Vec::new();
        if client.waits.is_some() {
            if now.since(client.sent) > TIMEOUT {
                stimuli = self.send(at, now);
            }
        } else if client.left > 0 {
            self.start_something(at, now);
            stimuli = self.send(at, now);
        } else {
            return stimuli;
        }
        let after = Duration::from_millis(self.random.random_range(10..200));
        stimuli.push(Stimulus::Wake { token, after });
        stimuli
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
