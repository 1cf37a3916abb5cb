//! Updates and reads: each finds its way to a node that can answer, and again if that one fails.

use crate::cache::Cache;
use crate::connection::{CallError, Connection};
use crate::error::{ClientError, ConnectError};
use crate::random::Random;
use crate::routes::Routes;
use crate::sequences::Sequences;
use meridian_blocks::Ring;
use meridian_core::topology::ClusterFile;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, NodeId, RegionId, Stamp, Topology};
use meridian_fs::types::Timestamp;
use meridian_fs::{Answer, Done, FsError, Operation, Query, Update, Vector};
use meridian_host::api::{Hello, NodeStatus, Refusal, ReplyBody, RequestBody, Who};
use meridian_multicast::{Start, Touches};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
    sequences: Mutex<Sequences>,
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
    fn new(topology: Topology, id: ClientId, region: RegionId, before: Option<&Known>) -> Known {
        let hello = Hello { cluster: topology.cluster, who: Who::Client(id) };
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
/// given up: it may still happen, and is sent in the background until it has.
#[derive(Debug)]
pub struct Prepared {
    client: Client,
    start: Start,
    what: &'static str,
    sent: AtomicBool,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let sequence = self.start.id.sequence;
        let mut sequences = lock(&self.client.inner.sequences);
        if !self.sent.load(Ordering::Relaxed) {
            sequences.end(sequence); // Nobody has heard of it.
        } else if sequences.is_unfinished(sequence) {
            sequences.give_up(sequence);
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                let client = Arc::downgrade(&self.client.inner);
                runtime.spawn(bring_to_an_end(client, self.start.clone(), self.what));
            }
        }
    }
}

/// Sends an update that its caller gave up until it has ended: only then may the nodes forget it.
async fn bring_to_an_end(client: Weak<Inner>, start: Start, what: &'static str) {
    loop {
        tokio::time::sleep(PATIENCE).await;
        let Some(inner) = client.upgrade() else { return };
        let client = Client { inner };
        match client.deliver(&start, what).await {
            Ok(ended) => {
                lock(&client.inner.vector).merge(&ended.vector);
                break lock(&client.inner.sequences).end(start.id.sequence);
            }
            Err(ClientError::Refused(refusal)) => {
                tracing::debug!("{what} has ended: {refusal}");
                break lock(&client.inner.sequences).end(start.id.sequence);
            }
            Err(error) => tracing::debug!("{what} has not ended: {error}"),
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
        let known = Known::new(topology, id, region, None);
        let inner = Inner {
            region,
            timeout: options.timeout,
            id,
            cluster: Mutex::new(Arc::new(known)),
            routes: Mutex::new(Routes::new(region)),
            sequences: Mutex::default(),
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
            let (id, region) = (self.inner.id, self.inner.region);
            *cluster = Arc::new(Known::new(topology, id, region, Some(&cluster)));
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
        self.send(&self.prepare(update, now())).await.map(|(done, _)| done)
    }

    /// Gives `update` a name; `time` is what `stat` will show of it.
    pub fn prepare(&self, update: &Update, time: Timestamp) -> Prepared {
        let dest: Arc<[GroupId]> = update.partitions().into_iter().collect();
        let what = name_of(update);
        let operation = Operation { vector: self.vector(), time, update: update.clone() };
        let payload = postcard::to_stdvec(&operation).expect("plain values encode");
        let (sequence, low) = lock(&self.inner.sequences).begin();
        let id = MessageId { client: self.inner.id, sequence };
        let touches = Touches::keys(update.keys(id));
        let start = Start { low, touches, ..Start::new(id, dest, payload) };
        Prepared { client: self.clone(), start, what, sent: AtomicBool::new(false) }
    }

    /// Sends what was prepared, for the first time or again, and waits for its end. Also gives
    /// its timestamp.
    ///
    /// # Errors
    /// As [`Client::update`]; after all but [`ClientError::Fs`] it may be sent again.
    pub async fn send(&self, prepared: &Prepared) -> Result<(Done, Stamp), ClientError> {
        let start = &prepared.start;
        if lock(&self.inner.sequences).is_full() {
            return Err(ClientError::Unreachable {
                whom: "those who know of earlier updates".into(),
            });
        }
        prepared.sent.store(true, Ordering::Relaxed);
        let ended = self.deliver(start, prepared.what).await?;
        lock(&self.inner.sequences).end(start.id.sequence);
        lock(&self.inner.vector).merge(&ended.vector);
        Ok((ended.result?, ended.ts))
    }

    /// Sends it to a node of each destination and takes the first answer.
    async fn deliver(&self, start: &Start, what: &'static str) -> Result<Ended, ClientError> {
        let deadline = Instant::now() + self.inner.timeout;
        if let [group] = &*start.dest {
            return self.ask_update(*group, start.clone(), what, deadline).await;
        }
        let mut asked = JoinSet::new();
        for group in &*start.dest {
            let (client, group, start) = (self.clone(), *group, start.clone());
            asked.spawn(async move { client.ask_update(group, start, what, deadline).await });
        }
        first_success(asked).await
    }

    async fn ask_update(
        &self,
        group: GroupId,
        start: Start,
        what: &'static str,
        deadline: Instant,
    ) -> Result<Ended, ClientError> {
        let id = start.id;
        let body = RequestBody::Update { group, start };
        match self.ask(group, body, what, deadline).await? {
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
        match self.ask(group, body, "read", Instant::now() + limit).await? {
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
    ) -> Result<ReplyBody, ClientError> {
        let mut patience = self.known().patience;
        let mut anyone_there = false;
        loop {
            let known = self.known();
            let nodes = lock(&self.inner.routes).candidates(
                &known.topology,
                group,
                std::time::Instant::now(),
            );
            for node in nodes {
                let until = deadline.min(Instant::now() + patience);
                let connection = &known.connections[usize::from(node.0)];
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
                self.note_failure(node);
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

    pub(crate) fn note_failure(&self, node: NodeId) {
        lock(&self.inner.routes).failed(node, std::time::Instant::now());
    }

    pub(crate) fn is_avoided(&self, node: NodeId) -> bool {
        lock(&self.inner.routes).is_avoided(node, std::time::Instant::now())
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

fn name_of(update: &Update) -> &'static str {
    match update {
        Update::Create { .. } => "create",
        Update::Link { .. } => "link",
        Update::Unlink { .. } => "unlink",
        Update::Rmdir { .. } => "rmdir",
        Update::Rename { .. } => "rename",
        Update::SetAttributes { .. } => "setattr",
        Update::Write { .. } => "write",
        Update::PunchHole { .. } => "punch hole",
        Update::SetXattr { .. } => "setxattr",
        Update::RemoveXattr { .. } => "removexattr",
        Update::Lock { .. } => "lock",
        Update::Unlock { .. } => "unlock",
        Update::Forget { .. } => "forget",
        Update::Renew { .. } => "renew",
        Update::Expire { .. } => "expire",
        Update::PlaceDirectory { .. } => "place",
    }
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
