//! A cluster in this process, for tests of clients: real connections, real partitions of the tree,
//! and no protocol between them. Updates are applied in the order in which they arrive.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use meridian_client::connection::{decode, encode};
use meridian_client::{Client, ClientOptions};
use meridian_cluster::Topology;
use meridian_cluster::levels::Levels;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, Kept, NodeEntry};
use meridian_core::hello::{Answer, Hello};
use meridian_core::level::Speaks;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, NodeId, Stamp, Time};
use meridian_fs::{
    Answer as Told, Done, Effect, FsError, Operation, Partition, Query, Standing, Timestamp,
    Update, Vector,
};
use meridian_host::api::{NodeStatus, Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::replica::PARKED_MAX;
use meridian_host::space::Room;
use meridian_host::steps::Report;
use meridian_host::update::Payload;
use meridian_multicast::Start;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};

/// So many names of blocks are told at once.
const LISTED: usize = 2;

pub struct Cluster {
    pub topology: Topology,
    pub file: ClusterFile,
    pub shared: Arc<Shared>,
}

pub struct Shared {
    pub world: Mutex<World>,
    pub nodes: Vec<Control>,
    /// A permit for each update that may be applied of those that `gate_holds`, while `gated`.
    pub gate: Semaphore,
    pub gated: AtomicBool,
    /// Writes and unlocks, unless a test says otherwise.
    pub gate_holds: Mutex<fn(&Update) -> bool>,
    /// Those that wait at the gate.
    pub at_gate: watch::Sender<usize>,
    /// Changes of attributes wait, each for a permit of `changes`.
    pub holds_changes: AtomicBool,
    pub changes: Semaphore,
    /// Changes of attributes that wait.
    pub held: watch::Sender<usize>,
    /// Questions for attributes are refused.
    pub hides_attributes: AtomicBool,
    /// Blocks are refused: the disks are full.
    pub is_full: AtomicBool,
    /// Something was applied.
    pub applied: Notify,
    /// How many blocks nodes were told to free, each by each.
    pub discarded: watch::Sender<usize>,
}

/// What tests do to a node.
pub struct Control {
    down: watch::Sender<bool>,
    /// So many answers to updates are lost, and the connection with them.
    pub lose_answers: AtomicUsize,
    pub requests: AtomicUsize,
}

pub struct World {
    pub partitions: BTreeMap<GroupId, Partition>,
    pub outcomes: BTreeMap<MessageId, (Stamp, Result<Done, FsError>)>,
    /// The timestamp of the last message.
    pub last: Stamp,
    pub blocks: Vec<BTreeMap<BlockId, Bytes>>,
    /// Every update that was applied, once.
    pub applied: Vec<Update>,
    /// Writes are refused with this.
    pub refuse_writes: Option<FsError>,
    /// Replicas that lag behind: they answer from these states whoever has seen nothing newer.
    pub lagging: BTreeMap<GroupId, (Stamp, Partition)>,
}

impl Cluster {
    /// Three regions of `per_region` nodes, `rtt_ms` apart.
    pub async fn start(per_region: usize, rtt_ms: u32) -> Cluster {
        let (mut nodes, mut listeners) = (Vec::new(), Vec::new());
        for region in ["us", "eu", "ap"] {
            for number in 1..=per_region {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                nodes.push(NodeEntry {
                    name: format!("{region}-{number}"),
                    region: region.into(),
                    pid: None,
                    address: listener.local_addr().unwrap().to_string(),
                    groups: vec!["global".into(), region.into()],
                    draining: None,
                });
                listeners.push(listener);
            }
        }
        let pairs = ["us-eu", "us-ap", "eu-ap"].map(|pair| (pair.to_string(), rtt_ms));
        let rtt_ms = BTreeMap::from(pairs);
        let levels = Levels::of_new(Speaks::HERE.newest, nodes.iter().map(|node| &node.name));
        let file = ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: 77,
            nodes,
            rtt_ms,
            order: Default::default(),
            configuration: Kept { levels, ..Kept::default() },
        };
        let topology = Topology::new(&file).unwrap();
        let made = Timestamp { seconds: 1_700_000_000, nanos: 0 };
        let partitions = topology
            .group_ids()
            .map(|group| (group, Partition::new(group, topology.region_groups(), made)))
            .collect();
        let shared = Arc::new(Shared {
            world: Mutex::new(World {
                partitions,
                outcomes: BTreeMap::new(),
                blocks: vec![BTreeMap::new(); listeners.len()],
                last: Stamp(0),
                applied: Vec::new(),
                refuse_writes: None,
                lagging: BTreeMap::new(),
            }),
            nodes: listeners.iter().map(|_| Control::new()).collect(),
            gate: Semaphore::new(0),
            gated: AtomicBool::new(false),
            gate_holds: Mutex::new(|update| {
                matches!(update, Update::Write { .. } | Update::Unlock { .. })
            }),
            at_gate: watch::Sender::new(0),
            holds_changes: AtomicBool::new(false),
            changes: Semaphore::new(0),
            held: watch::Sender::new(0),
            hides_attributes: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            applied: Notify::new(),
            discarded: watch::Sender::new(0),
        });
        for (node, listener) in listeners.into_iter().enumerate() {
            tokio::spawn(accept(shared.clone(), topology.clone(), node, listener));
        }
        Cluster { topology, file, shared }
    }

    pub fn client(&self, region: &str) -> Client {
        self.client_with(ClientOptions::new(region))
    }

    pub fn client_with(&self, options: ClientOptions) -> Client {
        Client::connect(self.topology.clone(), &options).unwrap()
    }

    /// A client that gives up early.
    pub fn impatient(&self, region: &str, timeout_ms: u64) -> Client {
        let timeout = Duration::from_millis(timeout_ms);
        self.client_with(ClientOptions { timeout, ..ClientOptions::new(region) })
    }

    pub fn set_down(&self, node: usize, down: bool) {
        self.shared.nodes[node].down.send_replace(down);
    }

    pub fn applied(&self) -> Vec<Update> {
        self.shared.world.lock().unwrap().applied.clone()
    }

    /// Removes all files of `group` that have no name and are open nowhere, as nodes do after a
    /// while. Returns how many without a name are left.
    pub fn reap(&self, group: GroupId) -> usize {
        let mut world = self.shared.world.lock().unwrap();
        world.last = Stamp(world.last.0 + 1);
        let (ts, client) = (world.last, ClientId(u64::MAX));
        let partition = world.partitions.get_mut(&group).unwrap();
        let unused = partition.nameless().filter(|(_, is_held)| !is_held);
        let inodes = unused.map(|(name, _)| name).collect();
        let update = Update::Reap { partition: group, inodes };
        let id = MessageId { client, sequence: ts.0 };
        partition.deliver(id, ts, operation_of(update), &mut Vec::new());
        partition.nameless().count()
    }

    /// The leases of a client run out.
    pub fn expire(&self, client: ClientId) {
        let mut world = self.shared.world.lock().unwrap();
        world.last = Stamp(world.last.0 + 1);
        let ts = world.last;
        for (group, partition) in &mut world.partitions {
            let lease = partition.leases().find(|(of, _)| *of == client);
            let Some((_, renewed)) = lease else { continue };
            let inodes = partition.held_by(client).collect();
            let update = Update::Expire { client, partition: *group, renewed, inodes };
            let id = MessageId { client: ClientId(u64::MAX), sequence: ts.0 };
            partition.deliver(id, ts, operation_of(update), &mut Vec::new());
        }
    }

    /// From now on all replicas lag behind: see [`World::lagging`].
    pub fn lag(&self) {
        let mut world = self.shared.world.lock().unwrap();
        let states = world.partitions.iter().map(|(group, state)| (*group, state.clone()));
        world.lagging = states.map(|(group, state)| (group, (world.last, state))).collect();
    }

    /// The blocks that any node holds.
    pub fn blocks(&self) -> BTreeSet<BlockId> {
        let world = self.shared.world.lock().unwrap();
        world.blocks.iter().flat_map(|held| held.keys().copied()).collect()
    }

    /// Waits until nodes have heard of so many blocks that no update will name them.
    pub async fn discarded(&self, count: usize) {
        let mut discarded = self.shared.discarded.subscribe();
        discarded.wait_for(|discarded| *discarded >= count).await.unwrap();
    }

    pub fn writes(&self) -> usize {
        let is_write = |update: &&Update| matches!(update, Update::Write { .. });
        self.applied().iter().filter(is_write).count()
    }

    pub fn refuse_writes(&self, error: Option<FsError>) {
        self.shared.world.lock().unwrap().refuse_writes = error;
    }

    /// Lets all changes of attributes happen that were held back.
    pub async fn release_changes(&self) {
        let mut held = self.shared.held.subscribe();
        let count = *held.borrow();
        self.shared.changes.add_permits(count);
        held.wait_for(|held| *held == 0).await.unwrap();
    }

    /// Waits until so many updates wait at the gate.
    pub async fn at_gate(&self, count: usize) {
        let mut waiting = self.shared.at_gate.subscribe();
        waiting.wait_for(|waiting| *waiting >= count).await.unwrap();
    }
}

/// An update that nobody waits for.
fn operation_of(update: Update) -> Operation {
    let (vector, time, quotas) = (Vector::default(), Timestamp::default(), Vec::new());
    Operation {
        vector,
        time,
        quotas,
        update,
        by: ClientId(0),
        keeps: false,
        under: None,
        rights: None,
    }
}

impl Control {
    fn new() -> Control {
        Control {
            down: watch::Sender::new(false),
            lose_answers: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        }
    }
}

async fn accept(shared: Arc<Shared>, topology: Topology, node: usize, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        if !*shared.nodes[node].down.borrow() {
            let (shared, topology) = (shared.clone(), topology.clone());
            tokio::spawn(async move {
                let mut down = shared.nodes[node].down.subscribe();
                tokio::select! {
                    _ = down.wait_for(|down| *down) => {}
                    () = serve(&shared, &topology, node, stream) => {}
                }
            });
        }
    }
}

async fn serve(shared: &Arc<Shared>, topology: &Topology, node: usize, stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let (replies, mut to_send) = tokio::sync::mpsc::unbounded_channel::<Option<Reply>>();
    let mut bytes = BytesMut::new();
    encode(&mut bytes, &Answer::<NodeId>::Client).unwrap();
    let write = async {
        loop {
            if writer.write_all(&bytes.split()).await.is_err() {
                return;
            }
            match to_send.recv().await {
                Some(Some(reply)) => encode(&mut bytes, &reply).unwrap(),
                _ => return, // The connection is to be lost.
            }
        }
    };
    let read = async {
        let (mut bytes, mut greeted) = (BytesMut::new(), false);
        loop {
            while !greeted {
                match decode::<Hello<NodeId>>(&mut bytes).unwrap() {
                    Some(hello) => {
                        assert_eq!(hello.cluster, topology.cluster.to_string());
                        greeted = true;
                    }
                    None => {
                        if reader.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                }
            }
            while let Some(request) = decode::<Request>(&mut bytes).unwrap() {
                let (shared, replies) = (shared.clone(), replies.clone());
                let topology = topology.clone();
                tokio::spawn(async move {
                    shared.nodes[node].requests.fetch_add(1, Ordering::Relaxed);
                    let is_update = matches!(request.body, RequestBody::Update { .. });
                    let body = answer(&shared, &topology, node, request.body).await;
                    let lose = &shared.nodes[node].lose_answers;
                    let less = |left: usize| left.checked_sub(1);
                    let lost = is_update
                        && lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
                    let _ = replies.send((!lost).then_some(Reply { id: request.id, body }));
                });
            }
            if reader.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}

async fn update(
    shared: &Shared,
    topology: &Topology,
    id: NodeId,
    group: GroupId,
    start: Start,
) -> ReplyBody {
    if !topology.group(group).members.contains(&id) {
        return ReplyBody::Refused(Refusal::NoReplica(group));
    }
    let mut payload = Payload::read(&start).unwrap();
    let cancels = std::mem::take(&mut payload.cancels);
    payload.keeps = false; // Nobody is recalled here, so nobody is given anything.
    let operation = payload.into_operation();
    let update = operation.as_ref().map(|operation| &operation.update);
    let held = update.is_some_and(*shared.gate_holds.lock().unwrap());
    if held && shared.gated.load(Ordering::Relaxed) {
        shared.at_gate.send_modify(|waiting| *waiting += 1);
        shared.gate.acquire().await.unwrap().forget();
    }
    let changes = matches!(update, Some(Update::SetAttributes { .. }));
    if changes && shared.holds_changes.load(Ordering::Relaxed) {
        shared.held.send_modify(|held| *held += 1);
        shared.changes.acquire().await.unwrap().forget();
    }
    let mut world = shared.world.lock().unwrap();
    if changes {
        shared.held.send_modify(|held| *held = held.saturating_sub(1));
    }
    for cancelled in cancels {
        let refused = (world.last, Err(FsError::Expired));
        world.outcomes.entry(cancelled).or_insert(refused);
    }
    let (ts, result) = match operation {
        Some(operation) if matches!(operation.update, Update::Caps { .. }) => {
            (world.last, Ok(Done::Granted(Vec::new())))
        }
        Some(operation) => world.apply(&start, operation),
        None => (world.last, Err(FsError::Invalid)),
    };
    shared.applied.notify_waiters();
    let mut vector = world.partitions[&group].vector().clone();
    vector.raise(group, ts);
    let (recalled, and) = (Vec::new(), Vec::new());
    ReplyBody::Updated { id: start.id, ts, vector, recalled, and, result }
}

/// A question for a lock stays as long as the lock is waited for, but not for ever.
async fn park(shared: &Shared, query: &Query) {
    if !matches!(query, Query::Awaited { .. }) {
        return;
    }
    let until_answered = async {
        loop {
            let mut applied = std::pin::pin!(shared.applied.notified());
            applied.as_mut().enable();
            let now = shared.world.lock().unwrap().partitions[&query.partition()].read(query);
            if !matches!(now, Ok(Told::Awaited(stand)) if stand.lock == Standing::Waits) {
                return;
            }
            applied.await;
        }
    };
    let _ = tokio::time::timeout(PARKED_MAX, until_answered).await;
}

/// A node frees blocks that no update will name.
fn discard(shared: &Shared, node: usize, blocks: &[BlockId]) -> ReplyBody {
    let mut world = shared.world.lock().unwrap();
    for block in blocks {
        let named = |of: &Partition| of.names_blocks().any(|named| named == *block);
        assert!(!world.partitions.values().any(named), "{block} is named");
        world.blocks[node].remove(block);
        shared.discarded.send_modify(|discarded| *discarded += 1);
    }
    ReplyBody::Discarded
}

fn status(id: NodeId) -> NodeStatus {
    NodeStatus {
        node: id,
        pid: 1,
        uptime_ms: 1,
        replicas: Vec::new(),
        blocks: (0, 0),
        block_disk_bytes: 0,
        room: Some(Room { writable: 1 << 40, ..Room::default() }),
        full: false,
        to_free: 0,
        to_drain: None,
        copies: Default::default(),
        causal: None,
        bad_frames: 0,
        unauthorized: 0,
        clients: 0,
        connected: Vec::new(),
        round_trips_us: Vec::new(),
        flush_us: None,
        configured: 0,
        keeper: None,
        keys: Vec::new(),
    }
}

async fn answer(shared: &Shared, topology: &Topology, node: usize, body: RequestBody) -> ReplyBody {
    let id = NodeId(node as u16);
    match body {
        RequestBody::Update { group, start } | RequestBody::UpdateAlong { group, start, .. } => {
            update(shared, topology, id, group, start).await
        }
        RequestBody::Recalls { .. } => ReplyBody::Refused(Refusal::Overloaded),
        RequestBody::Read { vector, query, .. } | RequestBody::ReadAlong { vector, query, .. } => {
            let group = query.partition();
            if !topology.group(group).members.contains(&id) {
                return ReplyBody::Refused(Refusal::NoReplica(group));
            }
            park(shared, &query).await;
            let hides = shared.hides_attributes.load(Ordering::Relaxed);
            if hides && matches!(query, Query::Attributes { .. }) {
                return ReplyBody::Refused(Refusal::Overloaded);
            }
            let world = shared.world.lock().unwrap();
            let seen = vector.get(group);
            assert!(seen <= world.last, "nobody saw the future");
            let partition = match world.lagging.get(&group) {
                Some((until, partition)) if seen <= *until => partition,
                _ => &world.partitions[&group],
            };
            let result = partition.read(&query);
            let (vector, recalled) = (partition.vector().clone(), Vec::new());
            ReplyBody::Answer { vector, recalled, whole: true, result }
        }
        RequestBody::PutBlock { block, data } => {
            if shared.is_full.load(Ordering::Relaxed) {
                return ReplyBody::Refused(Refusal::Disk("full".into()));
            }
            shared.world.lock().unwrap().blocks[node].insert(block, data);
            ReplyBody::Stored
        }
        RequestBody::GetBlock { block, offset, len } => {
            let world = shared.world.lock().unwrap();
            match world.blocks[node].get(&block) {
                Some(data) => {
                    let end = data.len().min((offset + len) as usize);
                    ReplyBody::Block(data.slice(offset as usize..end))
                }
                None => ReplyBody::Refused(Refusal::NoBlock(block)),
            }
        }
        RequestBody::Discard { blocks } => discard(shared, node, &blocks),
        RequestBody::ListBlocks { after } => {
            let world = shared.world.lock().unwrap();
            let names = world.blocks[node].keys().filter(|name| Some(**name) > after);
            ReplyBody::Blocks(names.take(LISTED).copied().collect())
        }
        RequestBody::Snapshot { .. } => {
            ReplyBody::Snapshot(meridian_host::api::SnapshotStand::Unknown)
        }
        RequestBody::Status | RequestBody::Scrub => ReplyBody::Status(Box::new(status(id))),
        RequestBody::Steps { .. } => {
            ReplyBody::Steps(Report { now: Time(0), since: None, steps: Vec::new() })
        }
    }
}

impl World {
    fn apply(&mut self, start: &Start, operation: Operation) -> (Stamp, Result<Done, FsError>) {
        if let Some(outcome) = self.outcomes.get(&start.id) {
            return outcome.clone();
        }
        self.last = Stamp(self.last.0 + 1);
        let ts = self.last;
        let is_write = matches!(operation.update, Update::Write { .. });
        if let Some(error) = self.refuse_writes.filter(|_| is_write) {
            self.outcomes.insert(start.id, (ts, Err(error)));
            return (ts, Err(error));
        }
        self.applied.push(operation.update.clone());
        let mut effects = Vec::new();
        for group in &*start.dest {
            let mut out = Vec::new();
            let partition = self.partitions.get_mut(group).unwrap();
            partition.deliver(start.id, ts, operation.clone(), &mut out);
            effects.extend(out.into_iter().map(|effect| (*group, effect)));
        }
        let mut outcome = None;
        while let Some((from, effect)) = effects.pop() {
            match effect {
                Effect::Vote { to, id, vote } => {
                    for group in to {
                        let mut out = Vec::new();
                        let partition = self.partitions.get_mut(&group).unwrap();
                        partition.vote(id, from, vote.clone(), &mut out);
                        effects.extend(out.into_iter().map(|effect| (group, effect)));
                    }
                }
                Effect::Done { id, result, .. } => {
                    assert_eq!(id, start.id, "nothing else waits");
                    outcome = Some(result);
                }
                Effect::Recalled(_) | Effect::LetGo => {}
                // Freed at once, without the grace that real nodes give to readers.
                Effect::Released(blocks) => {
                    let all = self.blocks.iter_mut();
                    all.for_each(|held| held.retain(|block, _| !blocks.contains(block)));
                }
            }
        }
        let outcome = (ts, outcome.expect("all have voted"));
        self.outcomes.insert(start.id, outcome.clone());
        outcome
    }
}
