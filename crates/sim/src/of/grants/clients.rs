//! Clients, who changes what they may do, and the checks: the owner of a world of [`Node`]s.
//!
//! A node may have any version of the configuration from the one that it has said to be in force
//! ([`Output::InForce`]) to the newest. So of a request that was under way while there were several
//! it is known what must come of it only if all of these grant it, or none.
//!
//! Checked is:
//! - R1: what none of these versions grants is refused, and what all grant is not.
//! - R2: of what is refused nothing is done: what it would have written nobody ever sees.
//! - R3: a walk, and what a watch is told, shows no key that none of these versions grants.
//! - R4: a watch ends only if one of these versions does not grant it.

use super::granted::{Granted, KEYS, PREFIXES, Request};
use super::node::{Command, Following, Node, Output, SHARDS};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply as Changed, Request as Change, Shown};
use meridian_cluster::grants::Grant;
use meridian_cluster::topology::{ClusterFile, DeliveryOrder};
use meridian_core::level::Level;
use meridian_core::{NodeId, Time};
use meridian_hermes::reliable::Configured;
use meridian_keys::Grants;
use meridian_keys::desk::ClientNumber;
use meridian_keys::item::Item;
use meridian_keys::resp::Reply;
use meridian_keys::slots::Shard;
use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// How long a client waits for an answer at most; then it goes elsewhere.
const TIMEOUT: Duration = Duration::from_millis(800);
/// For how long a client watches at most.
const WATCHES: Duration = Duration::from_millis(400);
/// How long a client waits between two requests at most.
const THINK: Duration = Duration::from_millis(15);
/// Once in so many times it goes elsewhere instead, and watches, maybe.
const LEAVES: u32 = 15;
/// How long it takes at most until what a client may do is another.
const CHANGE: Duration = Duration::from_millis(120);
/// So often some node hears how the cluster is configured.
const TELL: Duration = Duration::from_millis(10);
/// Wakes who changes the configuration, and who tells nodes.
const CHANGES: u64 = u64::MAX;
const TELLS: u64 = u64::MAX - 1;
/// The names of clients that get grants.
const GRANTED: [&str; 3] = ["ann", "bob", "cat"];
/// The clients: one of them never has a grant.
const CLIENTS: [&str; 7] = ["ann", "bob", "cat", "root", "ann", "bob", "cat"];
/// So many bits of a connection's number are that of its client.
const CLIENT_BITS: u32 = 8;

/// A version of the configuration.
struct Version {
    following: Following,
    /// Who is not there may do all.
    granted: BTreeMap<&'static str, Granted>,
}

/// A request that is not answered.
struct Call {
    request: Request,
    /// The version that was in force at the node when it was asked.
    since: u64,
}

struct Client {
    name: &'static str,
    /// Where it is connected.
    at: Option<(NodeId, Shard)>,
    number: ClientNumber,
    calls: VecDeque<Call>,
    /// What it watches: the key, or what keys begin with.
    watches: Option<String>,
    cursor: u64,
    /// The last alarm: earlier ones do not count.
    alarm: u64,
    /// Whether it was answered as the last version says, now that all is mended.
    served: bool,
}

/// See the module's documentation.
pub struct Clients {
    /// What happened.
    pub counts: Counts,
    /// Whether nothing changes any more, and clients only see whether they are served.
    pub ends: bool,
    random: Random,
    nodes: BTreeSet<NodeId>,
    configuration: Configuration,
    versions: BTreeMap<u64, Version>,
    in_force: BTreeMap<NodeId, u64>,
    clients: Vec<Client>,
    numbers: u64,
    /// What refused commands would have written.
    refused: BTreeSet<Bytes>,
    /// All that was shown.
    shown: BTreeSet<Bytes>,
    wrong: Option<String>,
}

/// The configuration at first: nobody has a grant.
fn file() -> ClusterFile {
    let mut file = crate::of::files::regions::file(1, DeliveryOrder::Sequential);
    file.insecure_plain_text = false;
    file.configuration.levels.now = Level::KEY_GRANTS;
    file
}

/// What nodes are told of the configuration.
fn following(configuration: &Configuration, nodes: &BTreeSet<NodeId>) -> Following {
    let Shown(Some(text)) = configuration.show(0) else { panic!("there is one") };
    let (topology, _) = Topology::parse(&text).expect("it is well formed");
    let (version, nodes, may_return) = (topology.version, nodes.clone(), BTreeSet::new());
    let grants = Arc::new(Grants::new(topology.granted_keys()));
    Following { configured: Configured { version, nodes, may_return }, grants }
}

/// Whether a client is refused for what it may do.
fn is_refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(why) if why.starts_with("NOPERM "))
}

/// Whether the node answers nobody now, whatever is asked.
fn is_away(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(why) if why.starts_with("CLUSTERDOWN "))
}

/// The client whose connection or alarm has that number.
fn client_of(number: u64) -> usize {
    usize::try_from(number & ((1 << CLIENT_BITS) - 1)).expect("few bits")
}

impl Clients {
    /// Clients of these nodes.
    pub fn new(random: Random, nodes: BTreeSet<NodeId>) -> Clients {
        let mut configuration = Configuration::default();
        let text = serde_json::to_string(&file()).expect("names and numbers are JSON");
        let begun = configuration.change(Change::Initialise(text));
        assert!(matches!(begun, Changed::Done { .. }), "{begun:?}");
        let following = following(&configuration, &nodes);
        let version = following.configured.version;
        let client = |name: &&'static str| Client {
            name,
            at: None,
            number: 0,
            calls: VecDeque::new(),
            watches: None,
            cursor: 0,
            alarm: 0,
            served: false,
        };
        Clients {
            counts: Counts::default(),
            ends: false,
            random,
            in_force: nodes.iter().map(|node| (*node, version)).collect(),
            nodes,
            configuration,
            versions: [(version, Version { following, granted: BTreeMap::new() })].into(),
            clients: CLIENTS.iter().map(client).collect(),
            numbers: 0,
            refused: BTreeSet::new(),
            shown: BTreeSet::new(),
            wrong: None,
        }
    }

    /// What nodes know of the configuration when they start for the first time.
    pub fn first(&self) -> Following {
        let first = self.versions.first_key_value().expect("there is one");
        first.1.following.clone()
    }

    fn newest(&self) -> u64 {
        *self.versions.last_key_value().expect("there is one").0
    }

    /// Whether all nodes have the last version, and all clients are answered as that says.
    pub fn is_done(&self) -> bool {
        let newest = self.newest();
        self.ends
            && self.in_force.values().all(|version| *version == newest)
            && self.clients.iter().all(|client| client.served)
    }

    /// What is not done.
    pub fn waiting(&self) -> String {
        let unserved = |client: &&Client| !client.served;
        let of = |client: &Client| {
            let lines = client.calls.iter().map(|call| &call.request.line);
            format!("{} at {:?}: {:?}", client.name, client.at, lines.collect::<Vec<_>>())
        };
        let clients: Vec<_> = self.clients.iter().filter(unserved).map(of).collect();
        format!("{clients:?}, newest {}, in force {:?}", self.newest(), self.in_force)
    }

    /// What a client might do in the versions from `since` on.
    fn granted(&self, client: usize, since: u64) -> impl Iterator<Item = &Granted> {
        let name = self.clients[client].name;
        let versions = self.versions.range(since..);
        versions.map(move |(_, version)| version.granted.get(name).unwrap_or(&Granted::All))
    }

    /// What a client may do is another from now on.
    fn change(&mut self) {
        let random = &mut self.random;
        let name = *GRANTED.choose(random).expect("some");
        let read_only = random.random_ratio(1, 4);
        let count = random.random_range(1..3);
        let prefixes: BTreeSet<_> =
            PREFIXES.sample(random, count).map(|prefix| prefix.to_string()).collect();
        let (of, grant) = (name.to_string(), Grant { read_only, ..Grant::default() });
        let (change, now) = match random.random_range(0..8) {
            0 => (Change::Allow { name: of, grant: None }, Granted::All),
            1 => {
                let prefixes = BTreeSet::new();
                let change = Change::Allow { name: of, grant: Some(grant) };
                (change, Granted::Some { prefixes, read_only })
            }
            _ => {
                let change = Change::AllowKeys { name: of, grant, prefixes: prefixes.clone() };
                (change, Granted::Some { prefixes, read_only })
            }
        };
        match self.configuration.change(change) {
            Changed::Done { version, .. } if version > self.newest() => {
                let mut granted = self.versions[&self.newest()].granted.clone();
                granted.insert(name, now);
                let following = following(&self.configuration, &self.nodes);
                self.versions.insert(version, Version { following, granted });
                self.counts.add("changed", 1);
            }
            Changed::Done { .. } => {} // It was so.
            Changed::Refused(_) => {}  // Who may do all has nothing to lose.
        }
    }

    /// Some node hears of some version, mostly the newest.
    fn tell(&mut self) -> Stimulus<Node> {
        let to = *self.nodes.iter().choose(&mut self.random).expect("some");
        let late = self.random.random_ratio(1, 5);
        let version = match late {
            true => self.versions.values().choose(&mut self.random),
            false => self.versions.values().next_back(),
        };
        let following = version.expect("there is one").following.clone();
        Stimulus::Command { to, command: Command::Follow(following), after: MS }
    }

    fn alarm_after(&mut self, client: usize, after: Duration) -> Stimulus<Node> {
        self.numbers += 1;
        let token = self.numbers << CLIENT_BITS | client as u64;
        self.clients[client].alarm = token;
        Stimulus::Wake { token, after }
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_micros()).expect("short");
        Duration::from_micros(self.random.random_range(0..=most))
    }

    fn think(&mut self, client: usize) -> Vec<Stimulus<Node>> {
        let after = self.up_to(THINK);
        vec![self.alarm_after(client, after)]
    }

    /// The client closes its connection, if it has one.
    fn leave(&mut self, client: usize) -> Option<Stimulus<Node>> {
        let it = &mut self.clients[client];
        it.calls.clear();
        it.watches = None;
        let (to, shard) = it.at.take()?;
        // What it has sent comes before.
        let command = Command::Leave { shard, client: it.number };
        Some(Stimulus::Command { to, command, after: MS })
    }

    /// Where the client is connected from now on, and what it says first.
    fn connect(&mut self, client: usize) -> Request {
        self.numbers += 1;
        let number = self.numbers << CLIENT_BITS | client as u64;
        let node = *self.nodes.iter().choose(&mut self.random).expect("some");
        let shard = Shard(self.random.random_range(0..SHARDS));
        let it = &mut self.clients[client];
        (it.at, it.number, it.cursor) = (Some((node, shard)), number, 0);
        Request::of_connection(format!("meridian.client {number}"))
    }

    /// What a client asks for next.
    fn draw(&mut self, client: usize) -> Vec<Request> {
        let is_new = self.clients[client].at.is_none();
        let mut requests: Vec<_> = is_new.then(|| self.connect(client)).into_iter().collect();
        if self.ends {
            requests.push(self.probe(client));
            return requests;
        }
        if is_new && self.random.random_ratio(1, 3) {
            let (request, watched) = Request::watch(&mut self.random);
            self.clients[client].watches = Some(watched);
            return vec![request]; // A watch begins when all is answered.
        }
        for _ in 0..self.random.random_range(1..4) {
            self.numbers += 1;
            let cursor = self.clients[client].cursor;
            requests.push(Request::draw(&mut self.random, self.numbers, cursor));
        }
        requests
    }

    /// A look at a key that the client may use, if there is any.
    fn probe(&self, client: usize) -> Request {
        let granted = self.granted(client, self.newest()).next().expect("the newest");
        let key = KEYS.iter().find(|key| granted.has(key.as_bytes())).unwrap_or(&KEYS[0]);
        Request::reads(format!("get {key}"), vec![*key])
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Node>> {
        let requests = self.draw(client);
        let it = &self.clients[client];
        let (to, shard) = it.at.expect("it is connected");
        let since = self.in_force[&to];
        let lines = requests.iter().map(|request| format!("{}\n", request.line));
        let bytes = Bytes::from(lines.collect::<String>());
        let command = Command::Ask { shard, client: it.number, name: it.name, bytes };
        let after = Duration::from_micros(self.random.random_range(50..500));
        let calls = requests.into_iter().map(|request| Call { request, since });
        self.clients[client].calls.extend(calls);
        let limit = match self.clients[client].watches {
            Some(_) => self.up_to(WATCHES),
            None => TIMEOUT,
        };
        vec![Stimulus::Command { to, command, after }, self.alarm_after(client, limit)]
    }

    /// R2: what is shown was written by no command that was refused.
    fn see(&mut self, reply: &Reply) -> Result<(), String> {
        match reply {
            Reply::Bulk(bytes) => {
                self.shown.insert(bytes.clone());
                match self.refused.contains(bytes) {
                    true => Err(format!("R2: {bytes:?} was refused, and is written")),
                    false => Ok(()),
                }
            }
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => {
                all.iter().try_for_each(|reply| self.see(reply))
            }
            Reply::Map(pairs) => pairs
                .iter()
                .try_for_each(|(key, value)| self.see(key).and_then(|()| self.see(value))),
            Reply::Simple(_) | Reply::Error(_) | Reply::Integer(_) | Reply::Text(_) => Ok(()),
            Reply::Null => Ok(()),
        }
    }

    /// R3: a key that is shown is granted.
    fn check_key(&self, client: usize, since: u64, key: &Reply) -> Result<(), String> {
        let Reply::Bulk(key) = key else { return Err(format!("R3: {key:?} is no key")) };
        let name = self.clients[client].name;
        match self.granted(client, since).any(|granted| granted.has(key)) {
            true => Ok(()),
            false => Err(format!("R3: {name} is shown {key:?}, since version {since}")),
        }
    }

    /// R1, R2 and R3, of the answer to a request.
    fn check_answer(&mut self, client: usize, call: &Call, reply: &Reply) -> Result<(), String> {
        let (Call { request, since }, name) = (call, self.clients[client].name);
        if is_away(reply) {
            self.counts.add("away", 1);
            return Ok(()); // Nothing is told, and nothing done.
        }
        let may: Vec<_> =
            self.granted(client, *since).map(|granted| granted.may(&request.need)).collect();
        let known = match (may.contains(&true), may.contains(&false)) {
            (true, false) => Some(true),
            (false, _) => Some(false),
            (true, true) => None,
        };
        self.counts.add("changed meanwhile", u64::from(known.is_none()));
        if is_refused(reply) {
            if known == Some(true) {
                let line = &request.line;
                return Err(format!("R1: {name} is refused {line:?}, granted since {since}"));
            }
            self.counts.add("refused", 1);
            self.refused.extend(request.values.iter().cloned());
            let shown = request.values.iter().find(|value| self.shown.contains(*value));
            return match shown {
                Some(value) => Err(format!("R2: {value:?} is refused, and was written")),
                None => Ok(()),
            };
        }
        if known == Some(false) {
            let line = &request.line;
            return Err(format!("R1: {name} is not refused {line:?} since {since}: {reply:?}"));
        }
        self.counts.add("carried out", u64::from(!reply.is_error()));
        if let (true, Reply::Array(page)) = (request.walks, reply) {
            let [Reply::Bulk(cursor), Reply::Array(keys)] = &page[..] else {
                return Err(format!("R3: {reply:?} is no page"));
            };
            let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok());
            self.clients[client].cursor = cursor.ok_or("R3: no cursor")?;
            self.counts.add("walked", u64::from(!keys.is_empty()));
            keys.iter().try_for_each(|key| self.check_key(client, *since, key))?;
        }
        Ok(())
    }

    /// A watch is told of a change, or that it ends.
    fn on_told(&mut self, client: usize, at: NodeId, reply: &Reply) -> Result<(), String> {
        let (since, it) = (self.in_force[&at], &self.clients[client]);
        match (&it.watches, reply) {
            (Some(_), Reply::Push(change)) => {
                self.counts.add("told", 1);
                let key = change.get(1).ok_or("R3: no key")?;
                self.check_key(client, since, key)
            }
            (Some(watched), reply) if is_refused(reply) => {
                self.counts.add("watches ended", 1);
                match self.granted(client, since).all(|granted| granted.has(watched.as_bytes())) {
                    true => Err(format!("R4: {} may watch {watched}", it.name)),
                    false => Ok(()),
                }
            }
            (_, reply) if is_away(reply) => Ok(()),
            (_, reply) => Err(format!("R1: {reply:?} to {}, who asked for nothing", it.name)),
        }
    }

    fn on_wrote(
        &mut self,
        (at, client): (NodeId, usize),
        reply: &Reply,
    ) -> Result<Vec<Stimulus<Node>>, String> {
        self.see(reply)?;
        let it = &mut self.clients[client];
        if matches!(reply, Reply::Push(_)) || it.calls.is_empty() {
            self.on_told(client, at, reply)?;
            return Ok(Vec::new());
        }
        let call = it.calls.pop_front().expect("there is one");
        self.check_answer(client, &call, reply)?;
        let newest = self.newest();
        let it = &mut self.clients[client];
        if it.watches.is_some() {
            if reply.is_error() {
                it.watches = None;
                return Ok(self.think(client));
            }
            return Ok(Vec::new()); // It is told of changes until its alarm.
        }
        let is_last = it.calls.is_empty();
        it.served = self.ends && is_last && !is_away(reply) && call.since == newest;
        Ok(match is_last && !it.served {
            true if is_away(reply) => self.go_elsewhere(client),
            true => self.think(client),
            false => Vec::new(),
        })
    }

    fn go_elsewhere(&mut self, client: usize) -> Vec<Stimulus<Node>> {
        let left = self.leave(client);
        left.into_iter().chain(self.think(client)).collect()
    }

    /// R2: whether nothing that was refused is held anywhere.
    ///
    /// # Errors
    /// Something is.
    pub fn judge<'a>(&self, nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        for replica in nodes.flat_map(Node::replicas) {
            let values = replica.entries().filter_map(|(key, _, value, _)| Some((key, value?)));
            for (key, value) in values {
                let item = Item::decode(&value.to_bytes()).map_err(|error| error.to_string())?;
                if self.refused.contains(&item.data) {
                    return Err(format!("R2: {key:?} has {:?}, which was refused", item.data));
                }
            }
        }
        Ok(())
    }
}

impl Owner<Node> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let changes = Stimulus::Wake { token: CHANGES, after: CHANGE };
        let tells = Stimulus::Wake { token: TELLS, after: TELL };
        let clients = 0..self.clients.len();
        clients.flat_map(|client| self.think(client)).chain([changes, tells]).collect()
    }

    fn output(&mut self, at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Node>> {
        match output {
            Output::InForce(version) => {
                self.in_force.insert(at, version);
                Vec::new()
            }
            Output::Wrote { client: number, reply } => {
                let client = client_of(number);
                let it = self.clients.get(client);
                if it.is_none_or(|it| it.number != number || it.at.is_none()) {
                    return Vec::new(); // It has closed that connection.
                }
                match self.on_wrote((at, client), &reply) {
                    Ok(stimuli) => stimuli,
                    Err(why) => {
                        self.wrong.get_or_insert(why);
                        Vec::new()
                    }
                }
            }
            Output::Ended(number) => {
                let client = client_of(number);
                if self.clients.get(client).is_none_or(|it| it.number != number) {
                    return Vec::new();
                }
                self.go_elsewhere(client)
            }
        }
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Node>> {
        if token == TELLS {
            return vec![self.tell(), Stimulus::Wake { token, after: TELL }];
        }
        if token == CHANGES {
            if self.ends {
                return Vec::new();
            }
            self.change();
            return vec![Stimulus::Wake { token, after: self.up_to(CHANGE) }];
        }
        let client = client_of(token);
        let it = &self.clients[client];
        if it.alarm != token || it.served {
            return Vec::new();
        }
        if it.calls.is_empty() && it.watches.is_none() {
            let goes = self.random.random_ratio(1, LEAVES) && !self.ends;
            return if goes { self.go_elsewhere(client) } else { self.begin_one(client) };
        }
        self.counts.add("unanswered", u64::from(!self.clients[client].calls.is_empty()));
        self.go_elsewhere(client)
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.counts.add("crashes", 1);
        for client in 0..self.clients.len() {
            if self.clients[client].at.is_some_and(|(node, _)| node == at) {
                drop(self.leave(client)); // The node is gone; its alarm will come.
            }
        }
    }

    fn leads(&self, process: &Node) -> bool {
        process.membership().is_leading()
    }

    fn check(&mut self, _at: NodeId, _process: &Node, _durable: bool) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}
