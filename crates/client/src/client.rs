//! Updates and reads: each finds its way to a node that can answer, and again if that one fails.

use crate::cache::Cache;
use crate::connection::{CallError, Connection};
use crate::error::{ClientError, ConnectError};
use crate::random::Random;
use crate::words::name_of;
use meridian_blocks::Ring;
use meridian_cluster::Topology;
use meridian_cluster::topology::ClusterFile;
use meridian_core::hello::{Caller, Hello, ServiceId};
use meridian_core::{BlockId, ClientId, GroupId, NodeId, RegionId, Stamp, Time};
use meridian_fs::types::Timestamp;
use meridian_fs::{Answer, Done, FsError, Query, Update, Vector};
use meridian_host::api::{NodeStatus, Refusal, ReplyBody, RequestBody};
use meridian_host::update::{Change, Payload};
use meridian_multicast::Start;
use meridian_session::routes::Service;
use meridian_session::{Name, Names, Routes};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// How long one node may take before the same is sent to another: a healthy one answers in
/// milliseconds and some round trips, which are added.
const PATIENCE: Duration = Duration::from_secs(1);
/// What patience grows to while nobody answers, so that an overloaded group is not asked ever more.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// How long to wait when all nodes of a group refused at once.
const PAUSE: Duration = Duration::from_millis(50);
/// How often an update is named anew because the groups had forgotten its session: after the first time its name
/// is younger than what they have forgotten.
const RENAMED_MAX: usize = 4;

/// How an update ended.
struct Ended {
    /// Its timestamp.
    ts: Stamp,
    /// What the client has then seen.
    vector: Vector,
    /// What came of it.
    result: Result<Done, FsError>,
}

/// How a client shall be.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The region that it is in, by name: its nodes are asked first.
    pub region: String,
    /// After how long a call gives up.
    pub timeout: Duration,
    /// How many bytes of blocks it keeps.
    pub cache_bytes: usize,
}

impl ClientOptions {
    /// The defaults, in `region`: 30 s, and 64 MiB.
    pub fn new(region: impl Into<String>) -> ClientOptions {
        let (timeout, cache_bytes) = (Duration::from_secs(30), 64 << 20);
        ClientOptions { region: region.into(), timeout, cache_bytes }
    }
}

/// A client; its copies are the same client.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// What all copies share.
#[derive(Debug)]
pub(crate) struct Inner {
    cluster: Mutex<Arc<Known>>,
    pub(crate) region: RegionId,
    pub(crate) timeout: Duration,
    id: ClientId,
    routes: Mutex<Routes>,
    names: Mutex<Names>,
    begun: Instant,
    vector: Mutex<Vector>,
    random: Random,
    pub(crate) cache: Mutex<Cache>,
}

/// The cluster as it is known now, and what follows from that.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) topology: Arc<Topology>,
    patience: Duration,
    /// By node.
    connections: Vec<Arc<Connection>>,
    /// By region.
    pub(crate) rings: Vec<Ring>,
}

impl Known {
    /// Connections of `before` to nodes that are where they were are used further on.
    fn new(topology: Topology, region: RegionId, before: Option<&Known>) -> Known {
        let hello = Hello::new(&topology.cluster.to_string(), Caller::Client(ServiceId::MAIN));
        let connections = topology.nodes.iter().enumerate().map(|(at, node)| {
            let delay = topology.delay(region, node.region);
            let open = before.and_then(|before| before.connections.get(at));
            match open.filter(|open| open.leads_to(&node.address, delay)) {
                Some(open) => open.clone(),
                None => Arc::new(Connection::new(node.address.clone(), hello.clone(), delay)),
            }
        });
        let connections = connections.collect();
        let count = u16::try_from(topology.regions.len()).unwrap_or(u16::MAX);
        let nodes_in = |region| topology.nodes_in(RegionId(region)).collect::<Vec<_>>();
        let rings = (0..count).map(|region| Ring::new(&nodes_in(region))).collect();
        let farthest = topology.one_way.values().max().copied().unwrap_or_default();
        let (patience, topology) = (PATIENCE + farthest * 6, Arc::new(topology));
        Known { topology, patience, connections, rings }
    }
}

/// An update with a name, which may be sent again until it has ended. Dropped before that, it is
/// given up: it may still happen, but not after a later one that touches the same and was acknowledged.
#[derive(Debug)]
pub struct Prepared {
    client: Client,
    start: Start,
    name: Name,
    /// What it touches.
    keys: BTreeSet<u64>,
    what: &'static str,
    /// How often a node was asked.
    asked: Arc<AtomicUsize>,
    ended: AtomicBool,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let (inner, dest) = (&self.client.inner, &self.start.dest);
        let mut names = lock(&inner.names);
        if self.ended.load(Ordering::Relaxed) {
            // Its name has ended.
        } else if self.asked.load(Ordering::Relaxed) == 0 {
            names.forget(dest, self.start.id); // Nobody has heard of it.
        } else {
            let keys = std::mem::take(&mut self.keys);
            names.give_up(dest, self.start.id, keys, inner.random.number());
        }
    }
}

impl Client {
    /// A client of the cluster that the `cluster.json` at `path` describes.
    ///
    /// # Errors
    /// If the file cannot be used, or has no such region.
    pub fn open(path: &Path, options: &ClientOptions) -> Result<Client, ConnectError> {
        let json = std::fs::read_to_string(path)
            .map_err(|source| ConnectError::Read { path: path.into(), source })?;
        let (topology, _) = Topology::parse(&json)
            .map_err(|source| ConnectError::Topology { path: path.into(), source })?;
        Client::connect(topology, options)
    }

    /// A client of the cluster that `file` describes.
    ///
    /// # Errors
    /// If it contradicts itself, or has no such region.
    pub fn of_file(file: &ClusterFile, options: &ClientOptions) -> Result<Client, ConnectError> {
        let topology = Topology::new(file)
            .map_err(|source| ConnectError::Topology { path: "cluster.json".into(), source })?;
        Client::connect(topology, options)
    }

    /// A client of the cluster with that topology. Connections are opened when they are needed.
    ///
    /// # Errors
    /// If there is no such region.
    pub fn connect(topology: Topology, options: &ClientOptions) -> Result<Client, ConnectError> {
        let Some(region) = topology.region_named(&options.region) else {
            let known: Vec<_> = topology.regions.iter().map(|region| &*region.name).collect();
            return Err(ConnectError::Region {
                name: options.region.clone(),
                known: known.join(", "),
            });
        };
        let random = Random::new().map_err(ConnectError::Random)?;
        let id = random.client();
        let known = Known::new(topology, region, None);
        let inner = Inner {
            region,
            timeout: options.timeout,
            id,
            cluster: Mutex::new(Arc::new(known)),
            routes: Mutex::new(Routes::new(region)),
            names: Mutex::default(),
            begun: Instant::now(),
            vector: Mutex::default(),
            random,
            cache: Mutex::new(Cache::new(options.cache_bytes)),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// Its name.
    pub fn id(&self) -> ClientId {
        self.inner.id
    }

    /// The cluster, as it is known now.
    pub fn topology(&self) -> Arc<Topology> {
        self.known().topology.clone()
    }

    /// The cluster is configured so now: regions and groups are as before, nodes come and go. Calls that are under way
    /// end as they began. What is not newer, or of another cluster, changes nothing.
    pub fn configured(&self, topology: Topology) {
        let mut cluster = lock(&self.inner.cluster);
        let newer = topology.version > cluster.topology.version;
        if newer && topology.cluster == cluster.topology.cluster {
            let region = self.inner.region;
            *cluster = Arc::new(Known::new(topology, region, Some(&cluster)));
        }
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        lock(&self.inner.cluster).clone()
    }

    /// After how long its calls give up.
    pub fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// What it has seen.
    pub fn vector(&self) -> Vector {
        lock(&self.inner.vector).clone()
    }

    /// A new name for a block.
    pub fn new_block(&self) -> BlockId {
        self.inner.random.block()
    }

    /// Does `update` now.
    ///
    /// # Errors
    /// [`ClientError::Fs`] if the tree refuses; [`ClientError::Timeout`] or
    /// [`ClientError::Unreachable`] if nobody answers in time: it may still happen.
    pub async fn update(&self, update: &Update) -> Result<Done, ClientError> {
        self.apply(update).await.map(|(done, _)| done)
    }

    /// As [`Client::update`]; also gives the timestamp.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn apply(&self, update: &Update) -> Result<(Done, Stamp), ClientError> {
        for _ in 0..RENAMED_MAX {
            let prepared = self.prepare(update, now());
            match self.send(&prepared).await {
                // Its first copy is refused, and there is no other.
                Err(ClientError::Fs(FsError::Expired)) if prepared.was_sent_once() => {}
                ended => return ended,
            }
        }
        Err(FsError::Expired.into())
    }

    /// Gives `update` a name; `time` is what `stat` will show of it.
    pub fn prepare(&self, update: &Update, time: Timestamp) -> Prepared {
        let dest: Vec<GroupId> = update.partitions().into_iter().collect();
        let random = self.inner.random.number();
        let name = lock(&self.inner.names).begin(&dest, random, |id| update.keys(id));
        let change = Some(Change { time, update: update.clone() });
        let payload = Payload { vector: self.vector(), cancels: name.cancels.clone(), change };
        let start = payload.into_start(name.id, name.low, &dest);
        Prepared {
            client: self.clone(),
            start,
            keys: update.keys(name.id),
            name,
            what: name_of(update),
            asked: Arc::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Sends what was prepared, for the first time or again, and waits for its end. Also gives
    /// its timestamp.
    ///
    /// # Errors
    /// As [`Client::update`]; after all but [`ClientError::Fs`] it may be sent again.
    pub async fn send(&self, prepared: &Prepared) -> Result<(Done, Stamp), ClientError> {
        let Prepared { start, name, .. } = prepared;
        let deadline = Instant::now() + self.inner.timeout;
        if prepared.asked.load(Ordering::Relaxed) == 0 {
            self.cancel_before(prepared, deadline).await?;
        }
        let ended = self.deliver(prepared, deadline).await?;
        prepared.ended.store(true, Ordering::Relaxed);
        let (mut names, mut vector) = (lock(&self.inner.names), lock(&self.inner.vector));
        vector.merge(&ended.vector);
        if matches!(ended.result, Err(FsError::Expired)) {
            // What is named from now on is younger than what any of the groups has forgotten.
            start.dest.iter().for_each(|group| vector.raise(*group, ended.ts));
            names.renew(&start.dest, self.inner.random.number());
        } else {
            names.end(&start.dest, name);
        }
        Ok((ended.result?, ended.ts))
    }

    /// Sends what must be delivered before the update: messages that cancel what was given up and touches the same.
    async fn cancel_before(
        &self,
        prepared: &Prepared,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        loop {
            let (dest, name) = {
                let mut names = lock(&self.inner.names);
                let Some(dest) = names.to_cancel_before(&prepared.start.dest, &prepared.keys)
                else {
                    return Ok(());
                };
                let name = names.cancel(&dest, &prepared.keys, self.inner.random.number());
                (dest, name)
            };
            let cancels = name.cancels.clone();
            let payload = Payload { vector: self.vector(), cancels, change: None };
            let start = payload.into_start(name.id, name.low, &dest);
            let mut asked = self.ask_groups(&start, prepared.what, deadline, &Arc::default());
            let mut result = Ok(());
            while let Some(ended) = asked.join_next().await {
                let ended = ended.map_err(|error| ClientError::Protocol(error.to_string()));
                result = result.and(ended.flatten().map(drop));
            }
            let mut names = lock(&self.inner.names);
            match result {
                Ok(()) => names.end(&dest, &name),
                Err(_) => names.forget(&dest, name.id),
            }
            drop(names);
            result?;
        }
    }

    /// Sends it to a node of each destination and takes the first answer.
    async fn deliver(&self, prepared: &Prepared, deadline: Instant) -> Result<Ended, ClientError> {
        let Prepared { start, what, asked, .. } = prepared;
        if let [group] = *start.dest {
            return self.ask_update(group, start.clone(), what, deadline, asked).await;
        }
        first_success(self.ask_groups(start, what, deadline, asked)).await
    }

    fn ask_groups(
        &self,
        start: &Start,
        what: &'static str,
        deadline: Instant,
        asked: &Arc<AtomicUsize>,
    ) -> JoinSet<Result<Ended, ClientError>> {
        let mut all = JoinSet::new();
        for group in start.dest.iter().copied() {
            let (client, start, asked) = (self.clone(), start.clone(), asked.clone());
            all.spawn(async move { client.ask_update(group, start, what, deadline, &asked).await });
        }
        all
    }

    async fn ask_update(
        &self,
        group: GroupId,
        start: Start,
        what: &'static str,
        deadline: Instant,
        asked: &AtomicUsize,
    ) -> Result<Ended, ClientError> {
        let id = start.id;
        let body = RequestBody::Update { group, start };
        match self.ask(group, body, what, deadline, Some(asked)).await? {
            ReplyBody::Updated { id: of, ts, vector, result } if of == id => {
                Ok(Ended { ts, vector, result })
            }
            other => Err(strange(&other)),
        }
    }

    /// Asks `query` of the nearest replica that answers.
    ///
    /// # Errors
    /// [`ClientError::Fs`] if the tree refuses; [`ClientError::Timeout`] or
    /// [`ClientError::Unreachable`] if nobody answers in time.
    pub async fn read(&self, query: Query) -> Result<Answer, ClientError> {
        self.read_within(query, self.inner.timeout).await.map(|(answer, _)| answer)
    }

    /// As [`Client::read`], but gives up after `limit`; also tells up to which timestamp of the
    /// partition the answer knows all that concerns it, at least: what this client had seen of the
    /// partition when it asked.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read_within(
        &self,
        query: Query,
        limit: Duration,
    ) -> Result<(Answer, Stamp), ClientError> {
        let group = query.partition();
        let seen = self.vector();
        let asked = seen.get(group);
        let body = RequestBody::Read { vector: seen, query };
        match self.ask(group, body, "read", Instant::now() + limit, None).await? {
            ReplyBody::Answer { vector, result } => {
                lock(&self.inner.vector).merge(&vector);
                Ok((result?, asked))
            }
            other => Err(strange(&other)),
        }
    }

    /// How `node` is.
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub async fn status(&self, node: NodeId, limit: Duration) -> Result<NodeStatus, ClientError> {
        match self.call(node, RequestBody::Status, limit).await? {
            ReplyBody::Status(status) => Ok(status),
            other => Err(strange(&other)),
        }
    }

    /// Asks one node once.
    pub(crate) async fn call(
        &self,
        node: NodeId,
        body: RequestBody,
        limit: Duration,
    ) -> Result<ReplyBody, ClientError> {
        let known = self.known();
        let connection = &known.connections[usize::from(node.0)];
        let whom = || known.topology.node(node).name.clone();
        match tokio::time::timeout(limit, connection.call(body)).await {
            Ok(Ok(ReplyBody::Refused(refusal))) => Err(ClientError::Refused(refusal)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(CallError::Broken(_))) => Err(ClientError::Unreachable { whom: whom() }),
            Ok(Err(error @ CallError::TooLong)) => Err(ClientError::Protocol(error.to_string())),
            Err(_) => Err(ClientError::Timeout { what: format!("node {}", whom()) }),
        }
    }

    /// Asks the nodes of `group`, the best first, until one answers.
    async fn ask(
        &self,
        group: GroupId,
        body: RequestBody,
        what: &str,
        deadline: Instant,
        asked: Option<&AtomicUsize>,
    ) -> Result<ReplyBody, ClientError> {
        let mut patience = self.known().patience;
        let mut anyone_there = false;
        loop {
            let known = self.known();
            let nodes = lock(&self.inner.routes).candidates(&known.topology, group, self.time());
            for node in nodes {
                let until = deadline.min(Instant::now() + patience);
                let connection = &known.connections[usize::from(node.0)];
                asked.inspect(|asked| _ = asked.fetch_add(1, Ordering::Relaxed));
                match timeout_at(until, connection.call(body.clone())).await {
                    Ok(Ok(ReplyBody::Refused(refusal @ Refusal::Bad(_)))) => {
                        return Err(ClientError::Refused(refusal));
                    }
                    Ok(Ok(ReplyBody::Refused(Refusal::OutOfReach(far)))) => {
                        let whom = format!("group {}", known.topology.group_name(far));
                        tracing::warn!("{what}: node {} cannot reach {whom}", node.0);
                        return Err(ClientError::OutOfReach { whom });
                    }
                    Ok(Ok(ReplyBody::Refused(refusal))) => {
                        tracing::debug!("{what}: node {} refuses: {refusal}", node.0);
                        anyone_there = true;
                    }
                    Ok(Ok(reply)) => {
                        lock(&self.inner.routes).answered(group, node);
                        return Ok(reply);
                    }
                    Ok(Err(CallError::TooLong)) => {
                        return Err(ClientError::Protocol(format!("{what}: request too long")));
                    }
                    Ok(Err(CallError::Broken(reason))) => tracing::debug!("{what}: {reason}"),
                    Err(_) => {
                        anyone_there = true;
                        patience = (patience * 3 / 2).min(PATIENCE_MAX.max(known.patience));
                    }
                }
                self.note_failure(Service::Group(group), node);
                if Instant::now() >= deadline {
                    return Err(self.out_of_time(group, what, anyone_there));
                }
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + PAUSE)).await;
            if Instant::now() >= deadline {
                return Err(self.out_of_time(group, what, anyone_there));
            }
        }
    }

    fn out_of_time(&self, group: GroupId, what: &str, anyone_there: bool) -> ClientError {
        let name = self.topology().group_name(group);
        if anyone_there {
            ClientError::Timeout { what: format!("{what} in group {name}") }
        } else {
            ClientError::Unreachable { whom: format!("any node of group {name}") }
        }
    }

    fn time(&self) -> Time {
        let nanos = self.inner.begun.elapsed().as_nanos();
        Time(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(crate) fn note_failure(&self, service: Service, node: NodeId) {
        lock(&self.inner.routes).failed(service, node, self.time());
    }

    pub(crate) fn is_avoided(&self, service: Service, node: NodeId) -> bool {
        lock(&self.inner.routes).is_avoided(service, node, self.time())
    }
}

impl Prepared {
    /// Whether each group was asked at most once for it.
    fn was_sent_once(&self) -> bool {
        self.asked.load(Ordering::Relaxed) <= self.start.dest.len()
    }
}

/// The first that succeeds, or the last failure; at once the failure of all, if one group is told that
/// another, without which none can decide, is out of reach.
async fn first_success<T: 'static>(
    mut asked: JoinSet<Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let mut failure = ClientError::Protocol("an update for no partition".into());
    while let Some(ended) = asked.join_next().await {
        match ended {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error @ ClientError::OutOfReach { .. })) => return Err(error),
            Ok(Err(error)) => failure = error,
            Err(error) => failure = ClientError::Protocol(error.to_string()),
        }
    }
    Err(failure)
}

pub(crate) fn strange(reply: &ReplyBody) -> ClientError {
    let kind = match reply {
        ReplyBody::Updated { .. } => "Updated",
        ReplyBody::Answer { .. } => "Answer",
        ReplyBody::Stored => "Stored",
        ReplyBody::Block(_) => "Block",
        ReplyBody::Blocks(_) => "Blocks",
        ReplyBody::Status(_) => "Status",
        ReplyBody::Refused(_) => "Refused",
    };
    ClientError::Protocol(format!("a reply that answers something else: {kind}"))
}

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: since.subsec_nanos() }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
