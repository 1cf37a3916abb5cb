//! Updates and reads of a client, as futures: what is sent to whom, and again, is decided by its
//! [`meridian_session::Session`].

use crate::cache::Cache;
use crate::connection::CallError;
use crate::driver::{Caller, Driver, Known};
use crate::error::{ClientError, ConnectError};
use crate::fetches::Fetches;
use crate::options::ClientOptions;
use crate::plan::{Asked, Plan};
use crate::random::Random;
use crate::timeline::Slowest;
use crate::times::Record;
use crate::words::strange;
use meridian_cluster::Topology;
use meridian_cluster::topology::ClusterFile;
use meridian_core::{BlockId, ClientId, GroupId, NodeId, Stamp, Time};
use meridian_fs::types::Timestamp;
use meridian_fs::{Answer, Done, Durability, FsError, Ino, Place, Query, Under, Update, Vector};
use meridian_host::api::{NodeStatus, ReplyBody, RequestBody};
use meridian_host::space::Room;
use meridian_host::update::Change;
use meridian_session::room::room_for;
use meridian_session::{BlockNames, Command, Moment, Output};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

/// How long a node may take to say how much room its disk has, and for how long that counts.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

/// How often an update is told the quota that it counts against: again if others move it.
const QUOTAS_SAID: usize = 4;
/// Of so many inodes it is remembered against whose quotas they count; some MiB.
const QUOTAS_KNOWN: usize = 1 << 16;
/// How long who ends waits until all that it kept is released.
const LET_GO_LIMIT: Duration = Duration::from_secs(1);

/// A client; its copies are the same client.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// What all copies share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) driver: Arc<Driver>,
    pub(crate) timeout: Duration,
    on_cut: Duration,
    keep_looks: bool,
    durability: Durability,
    cluster_file: Option<PathBuf>,
    id: ClientId,
    root: Place,
    random: Random,
    block_names: Mutex<BlockNames>,
    pub(crate) cache: Mutex<Cache>,
    /// What is about to be there.
    pub(crate) fetches: Fetches,
    /// Against whose quotas inodes count, as far as was said.
    quotas: Mutex<HashMap<Place, Place>>,
    /// How long what it asked for took.
    pub(crate) times: Record,
    /// Which updates took longest.
    pub(crate) slowest: Slowest,
    /// What it has asked for, if it only plans.
    pub(crate) plan: Plan,
    /// What nodes have said of their disks, and when.
    rooms: Mutex<Option<(Instant, Rooms)>>,
}

/// How much room the disks of nodes have.
type Rooms = BTreeMap<NodeId, Room>;

/// An update that keeps its name however often it is sent, until it has ended. Dropped before that,
/// it is given up: it may still happen, but not after a later one that touches the same and was
/// acknowledged.
#[derive(Debug)]
pub struct Prepared {
    caller: Caller,
    under: Option<Under>,
    /// Until it is sent for the first time.
    change: Mutex<Option<Change>>,
    what: &'static str,
    /// Who orders it.
    groups: Vec<GroupId>,
}

impl Prepared {
    /// Under which locks it counts.
    pub(crate) fn under(&self) -> Option<Under> {
        self.under
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
        let known = topology.region_names();
        let region = topology.region_named(&options.region);
        let Some(region) = region.filter(|_| known.contains(&&*options.region)) else {
            return Err(ConnectError::Region {
                name: options.region.clone(),
                known: known.join(", "),
            });
        };
        let random = Random::new().map_err(ConnectError::Random)?;
        let driver = Driver::new(topology, region, options.security.clone(), random.number());
        driver.command(Command::OnCut(options.on_cut));
        let inner = Inner {
            driver,
            timeout: options.timeout,
            on_cut: options.on_cut,
            // The kernel knows that directory by another number than who recalls what is kept.
            keep_looks: options.keep_looks && options.root == Place::ROOT,
            durability: options.durability,
            cluster_file: options.cluster_file.clone(),
            id: random.client(),
            root: options.root,
            random,
            block_names: Mutex::default(),
            cache: Mutex::new(Cache::new(options.cache_bytes)),
            fetches: Fetches::default(),
            quotas: Mutex::default(),
            times: Record::default(),
            slowest: Slowest::default(),
            plan: Plan::new(options.plans),
            rooms: Mutex::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// Its name.
    pub fn id(&self) -> ClientId {
        self.inner.id
    }

    /// See [`ClientOptions::root`].
    pub fn root(&self) -> Place {
        self.inner.root
    }

    /// The region that it is in, by name.
    pub fn region(&self) -> String {
        let (known, region) = (self.known(), self.inner.driver.region());
        known.topology.regions[usize::from(region.0)].name.clone()
    }

    /// The cluster, as it is known now.
    pub fn topology(&self) -> Arc<Topology> {
        self.known().topology.clone()
    }

    /// The cluster is configured so now: nodes and regions come and go. What is not newer, or
    /// of another cluster, changes nothing.
    pub fn configured(&self, topology: Topology) {
        self.inner.driver.configured(topology);
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        self.inner.driver.known()
    }

    /// After how long its calls give up.
    pub fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// What it has seen.
    pub fn vector(&self) -> Vector {
        self.inner.driver.vector()
    }

    /// The time of its session.
    pub(crate) fn time(&self) -> Time {
        self.inner.driver.time()
    }

    /// A new name for a block of a file in `partition`.
    pub fn new_block(&self, partition: GroupId) -> BlockId {
        let random = self.inner.random.number();
        lock(&self.inner.block_names).name(partition, now_ms(), random)
    }

    /// A number that nobody else draws.
    pub(crate) fn random(&self) -> u64 {
        self.inner.random.number()
    }

    /// The tree has refused a block that was named before `horizon_ms`.
    pub(crate) fn block_refused(&self, horizon_ms: u64) {
        lock(&self.inner.block_names).refused(horizon_ms, now_ms());
    }

    /// Whether nobody answers for a group.
    pub(crate) fn is_cut(&self, group: GroupId) -> bool {
        self.inner.driver.is_cut(group)
    }

    /// The groups that are cut off from it, and for how long nobody has answered for each.
    pub fn cut_off(&self) -> Vec<(GroupId, Duration)> {
        let cut_for = |group| Some((group, self.inner.driver.cut_for(group)?));
        self.topology().group_ids().filter_map(cut_for).collect()
    }

    /// For how long calls wait for a group that is cut off: see [`ClientOptions::on_cut`].
    pub fn on_cut(&self) -> Duration {
        self.inner.on_cut
    }

    /// Tells people of what goes on later; not if it is known that the group is cut off.
    pub(crate) fn warn(&self, group: GroupId, what: &str, error: &ClientError) {
        match self.is_cut(group) {
            true => tracing::debug!("{what}: {error}"),
            false => tracing::warn!("{what}: {error}"),
        }
    }

    /// How often a node has answered for a group.
    pub(crate) fn heard(&self, group: GroupId) -> u64 {
        self.inner.driver.heard(group)
    }

    /// The cluster file that commands in a mount over it use.
    pub fn cluster_file(&self) -> Option<&Path> {
        self.inner.cluster_file.as_deref()
    }

    /// Whether a mount over it is to keep looks.
    pub fn is_to_keep_looks(&self) -> bool {
        self.inner.keep_looks
    }

    /// When what programs do is durable.
    pub fn durability(&self) -> Durability {
        self.inner.durability
    }

    /// From now on it answers looks from what it may keep by itself.
    pub fn keep_looks(&self) {
        self.inner.driver.keep(None);
    }

    /// As [`Client::keep_looks`], for one who keeps what it is answered beside the client, as
    /// [`Client::rest`] allows. It must drop what comes here and then say [`Client::let_go`],
    /// without waiting for any call: others wait for it.
    pub fn keep_looks_with(&self) -> UnboundedReceiver<Vec<(GroupId, Ino)>> {
        let (elsewhere, recalls) = unbounded_channel();
        self.inner.driver.keep(Some(elsewhere));
        recalls
    }

    /// From now on it keeps nothing, nor does anybody beside it. Waits until others know, but not
    /// for long: who is out of reach learns by time.
    pub async fn keep_nothing(&self) {
        self.inner.driver.command(Command::KeepNothing);
        let begun = Instant::now();
        while self.inner.driver.is_letting_go() && begun.elapsed() < LET_GO_LIMIT {
            tokio::time::sleep(LET_GO_LIMIT / 200).await;
        }
    }

    /// Nothing is kept any more of what was recalled.
    pub fn let_go(&self, gone: Vec<(GroupId, Ino)>) {
        self.inner.driver.command(Command::LetGo(gone));
    }

    /// Now: to be asked before a look, for [`Client::rest`].
    pub fn moment(&self) -> Moment {
        self.inner.driver.moment()
    }

    /// For how long what a look that began at that moment has shown of all these inodes may be
    /// kept: not at all if one of them was not held then, or if anything was lost since.
    pub fn rest(&self, moment: Moment, inodes: &[Ino]) -> Duration {
        self.inner.driver.rest(moment, inodes)
    }

    /// What drives its session.
    pub(crate) fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// How many looks it has answered from what it keeps.
    pub fn hits(&self) -> u64 {
        self.inner.driver.hits()
    }

    /// How many inodes it was given to hold in steps that ask for many, as who lists a directory
    /// does.
    pub fn swept(&self) -> u64 {
        self.inner.driver.swept()
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
        self.apply_under(update, None).await
    }

    /// As [`Client::apply`], if the locks under which it is done have not been lost.
    pub(crate) async fn apply_under(
        &self,
        update: &Update,
        under: Option<Under>,
    ) -> Result<(Done, Stamp), ClientError> {
        let (time, mut said) = (now(), Vec::new());
        for _ in 0..QUOTAS_SAID {
            match self.send(&self.prepare_with(update, time, under, &said)).await {
                Err(ClientError::Fs(FsError::UnnamedQuota { quota })) => {
                    let here = |of: &Place| of.partition == quota.partition;
                    let of = update.changes_quotas_of().into_iter().flatten().filter(here);
                    of.for_each(|of| self.counts_against(of, quota));
                    said.push(quota);
                }
                Ok((done, ts)) => {
                    self.learn_quota(update, &done);
                    return Ok((done, ts));
                }
                other => return other,
            }
        }
        self.send(&self.prepare_with(update, time, under, &said)).await
    }

    /// What is made counts against the quota of its directory.
    fn learn_quota(&self, update: &Update, done: &Done) {
        let (Update::Create { parent, .. }, Done::Attributes(made)) = (update, done) else {
            return;
        };
        let quota = lock(&self.inner.quotas).get(parent).copied();
        quota.into_iter().for_each(|quota| self.counts_against(made.place, quota));
    }

    pub(crate) fn has_quota(&self, of: Place) -> bool {
        lock(&self.inner.quotas).contains_key(&of)
    }

    /// An inode counts against this quota, as was said.
    pub(crate) fn counts_against(&self, of: Place, quota: Place) {
        let mut quotas = lock(&self.inner.quotas);
        if quotas.len() >= QUOTAS_KNOWN {
            quotas.clear();
        }
        quotas.insert(of, quota);
    }

    /// Prepares `update` to be sent, perhaps more than once, under one name; `time` is what `stat`
    /// will show of it.
    pub fn prepare(&self, update: &Update, time: Timestamp) -> Prepared {
        self.prepare_under(update, time, None)
    }

    /// As [`Client::prepare`], if the locks under which it is done have not been lost.
    pub(crate) fn prepare_under(
        &self,
        update: &Update,
        time: Timestamp,
        under: Option<Under>,
    ) -> Prepared {
        self.prepare_with(update, time, under, &[])
    }

    /// As [`Client::prepare_under`]; it also counts against these quotas.
    fn prepare_with(
        &self,
        update: &Update,
        time: Timestamp,
        under: Option<Under>,
        said: &[Place],
    ) -> Prepared {
        let mut quotas = said.to_vec();
        for of in update.changes_quotas_of().into_iter().flatten() {
            let known = lock(&self.inner.quotas).get(&of).copied();
            quotas.extend(known.filter(|quota| !said.contains(quota)));
        }
        quotas.sort();
        quotas.dedup();
        let change = Change { time, quotas, update: update.clone(), under };
        let (caller, what) = (self.inner.driver.caller(), update.name());
        let groups = update.partitions().into_iter().collect();
        Prepared { caller, under, change: Mutex::new(Some(change)), what, groups }
    }

    /// Sends what was prepared, for the first time or again, and waits for its end. Also gives
    /// its timestamp.
    ///
    /// # Errors
    /// As [`Client::update`]; after all but [`ClientError::Fs`] it may be sent again.
    pub async fn send(&self, prepared: &Prepared) -> Result<(Done, Stamp), ClientError> {
        let Prepared { caller, change, what, groups, .. } = prepared;
        if self.inner.plan.is_on() {
            let change = lock(change).take();
            change.into_iter().for_each(|of| self.inner.plan.note(Asked::Update(of.update)));
            return Err(ClientError::NotSent);
        }
        let begun = Instant::now();
        let deadline = self.inner.driver.deadline(self.inner.timeout);
        let call = caller.call();
        let first = lock(change).take();
        let output = match (first, caller.left()) {
            (Some(change), _) => caller.ask(Command::Update { call, change, deadline }).await,
            // Whoever sent it before did not wait for the end.
            (None, Some(output)) => output,
            (None, None) => caller.ask(Command::Again { call, deadline }).await,
        };
        let failed = !matches!(output, Output::Updated { .. });
        let took = begun.elapsed();
        self.inner.times.add(what, groups, took, failed);
        match output {
            Output::Updated { id, ts, result, .. } => {
                self.inner.slowest.note(what, groups, took, id);
                Ok((result?, ts))
            }
            output => Err(self.unexpected(what, output)),
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
        self.inner.plan.note(Asked::Look(query.partition()));
        let caller = self.inner.driver.caller();
        let (call, deadline) = (caller.call(), self.inner.driver.deadline(limit));
        let (group, begun) = (query.partition(), Instant::now());
        let output = caller.ask(Command::Read { call, query, deadline }).await;
        let failed = !matches!(output, Output::Answered { .. });
        self.inner.times.add("read", &[group], begun.elapsed(), failed);
        match output {
            Output::Answered { seen, result, .. } => Ok((result?, seen)),
            output => Err(self.unexpected("read", output)),
        }
    }

    /// How `node` is.
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub async fn status(&self, node: NodeId, limit: Duration) -> Result<NodeStatus, ClientError> {
        match self.call(node, RequestBody::Status, limit).await? {
            ReplyBody::Status(status) => Ok(*status),
            other => Err(strange(&other)),
        }
    }

    /// Until when the certificate counts that `node` showed when it was called last, in seconds
    /// since 1970; nothing if it was not called, or speaks plain text.
    pub fn shown_until(&self, node: NodeId) -> Option<u64> {
        self.known().connections.get(usize::from(node.0))?.shown_until()
    }

    /// Has `node` read all blocks that it should hold; how it is before that.
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub async fn scrub(&self, node: NodeId, limit: Duration) -> Result<NodeStatus, ClientError> {
        match self.call(node, RequestBody::Scrub, limit).await? {
            ReplyBody::Status(status) => Ok(*status),
            other => Err(strange(&other)),
        }
    }

    /// How many bytes can still be written to `partition`. Nodes that take longer than a second to
    /// answer count as full; what was said within the last second is not asked again.
    pub async fn room(&self, partition: GroupId) -> u64 {
        let topology = self.topology();
        let known = lock(&self.inner.rooms).clone();
        if let Some((_, rooms)) = known.filter(|(at, _)| at.elapsed() < ROOM_LIMIT) {
            return room_for(&topology, partition, &rooms);
        }
        let mut asked = JoinSet::new();
        for node in topology.present() {
            let client = self.clone();
            asked.spawn(async move { (node, client.status(node, ROOM_LIMIT).await) });
        }
        let mut rooms = Rooms::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok((node, Ok(status))) = answer {
                rooms.extend(status.room.map(|room| (node, room)));
            }
        }
        let room = room_for(&topology, partition, &rooms);
        *lock(&self.inner.rooms) = Some((Instant::now(), rooms));
        room
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
            Ok(Err(error @ (CallError::TooLong | CallError::Full))) => {
                Err(ClientError::Protocol(error.to_string()))
            }
            Err(_) => Err(ClientError::Timeout { what: format!("node {}", whom()) }),
        }
    }
}

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: since.subsec_nanos() }
}

/// The wall clock in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
