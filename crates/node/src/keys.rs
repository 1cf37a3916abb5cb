//! Keys, on threads of their own, one for each shard and one for the steward: clients speak RESP at
//! a port of their own, the nodes of a region speak with each other at the ports that they have.

mod began;
mod causal;
mod exchange;
mod following;
mod service;
mod steward;

use crate::board::Board;
use crate::config::NodeDir;
use crate::error::ServerError;
use began::{Began, CausalBegan};
pub use began::{Kept, forget, kept};
use bytes::Bytes;
use causal::CausalService;
use exchange::Exchange;
use following::{CausalFollowing, Following};
use meridian_cluster::Topology;
use meridian_core::hello::{Lane, ServiceId};
use meridian_core::{NodeId, Secret, mix};
pub use meridian_hermes::Durability;
use meridian_hermes::Hermes;
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_keys::causal::{Causal, CausalKeys, Regions};
use meridian_keys::desk::{REPLY_MAX, Replica, Seat, options};
use meridian_keys::resp::REQUEST_MAX;
use meridian_keys::slots::{SHARDS_MAX, Shard};
use meridian_keys::{Grants, Keys, Steward};
use meridian_runtime::{
    Clock, Handle, Lanes, Listen, MemberError, Names, Options, Storage, Worker,
};
use meridian_storage::Disk;
use meridian_transport::Security;
use service::Service;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use steward::StewardService;
use tokio::task::JoinSet;

/// When the keys of a region take so many bytes, what could take more is refused.
pub const BYTES_MAX: usize = 1 << 30;

/// So many bytes are kept at most for clients of a node: of requests that are not whole, and of
/// answers that are not taken.
pub const CLIENT_BYTES_MAX: usize = 512 << 20;

/// Each thread may keep so many at least: a request and an answer of the greatest length.
const CLIENT_BYTES_LEAST: usize = 256 << 20;
const _: () = assert!(REQUEST_MAX + REPLY_MAX < CLIENT_BYTES_LEAST);

/// A log without keys that grew by so many bytes is replaced by a checkpoint: it has members.
const CHECKPOINT_BYTES: u64 = 1 << 20;

/// The same of one with keys: a log that is read in a second or two.
const KEYS_CHECKPOINT_BYTES: u64 = 64 << 20;

/// A thread of keys; what it says of itself is on its [`Board`].
type Thread = Handle<Following, NodeId>;

/// The threads of a node's keys.
#[derive(Clone, Debug)]
pub struct Running {
    threads: Vec<Thread>,
    /// Whether there are those of all regions.
    causal: bool,
}

impl Running {
    /// Ends them all.
    ///
    /// # Errors
    /// If one has failed.
    pub async fn close(&self) -> Result<(), MemberError> {
        for thread in &self.threads {
            thread.close().await?;
        }
        Ok(())
    }

    /// The cluster is configured so now, as node `me` knows: the keys follow.
    pub(crate) async fn configured(&self, topology: &Topology, me: NodeId) {
        let following = Following::new(topology, me, self.causal);
        for thread in &self.threads {
            drop(thread.request(following.clone()).await); // If it has stopped, the server ends.
        }
    }

    /// Waits until one of them has ended.
    ///
    /// # Errors
    /// Why it has, if it has failed.
    pub async fn ended(&self) -> Result<(), MemberError> {
        let mut ended = JoinSet::new();
        for thread in self.threads.clone() {
            ended.spawn(async move { thread.ended().await });
        }
        match ended.join_next().await {
            Some(Ok(how)) => how,
            Some(Err(_)) | None => Err(MemberError::Stopped),
        }
    }
}

/// How the replicas of a region know that one of them is gone. All of them together bound how long
/// writes stand still then: the lease must have run out, and the others must have noticed.
pub fn leases() -> reliable::Options {
    let ms = Duration::from_millis;
    reliable::Options {
        lease: ms(120),
        beat: ms(30),
        suspect_after: ms(100),
        ..reliable::Options::default()
    }
}

/// The threads of a node's keys, as members of their groups.
pub struct Members {
    /// The one with the membership.
    pub steward: Options<NodeId>,
    /// One for each shard.
    pub shards: Vec<Options<NodeId>>,
    /// The one with the keys of all regions, if there are such.
    pub causal: Option<CausalMember>,
    /// What clients may do, until the cluster is configured anew.
    pub grants: Arc<Grants>,
}

/// The thread of a node that has the keys of all regions.
pub struct CausalMember {
    /// How it takes part.
    pub options: Options<NodeId>,
    /// Who else does.
    pub regions: Arc<Regions>,
    /// Keys that begin so are causal.
    pub prefix: Bytes,
    /// The number of the cluster: tokens of sessions name it.
    pub cluster: u64,
}

/// Runs one of the replicas of a region's keys: one of those that they began with, or another,
/// which some of these tell what it must know. How they are stands on `board`.
///
/// # Errors
/// As [`Worker::host`].
pub async fn host(
    members: Members,
    replicas: &BTreeSet<NodeId>,
    durability: Durability,
    seed: u64,
    board: &Arc<Board>,
) -> Result<Running, MemberError> {
    let Members { steward, shards, causal, grants } = members;
    let (count, me) = (shards.len(), steward.me);
    let has_causal = causal.is_some();
    let threads_count = count + usize::from(has_causal);
    let (exchange, clock) = (Arc::new(Exchange::new(threads_count)), Clock::start());
    let prefix = causal.as_ref().map(|causal| causal.prefix.clone());
    let options = || meridian_hermes::Options { durability, ..options() };
    let mut threads = Vec::new();
    for (number, member) in shards.into_iter().enumerate() {
        let shard = Shard(u8::try_from(number).expect("SHARDS_MAX"));
        let replica = Replica::new(me, options(), mix(seed.wrapping_add(number as u64)));
        let process = Keys::new(replica.with_secret(secret()));
        let seat = Seat { shard, shards: count };
        let keys = (prefix.clone(), grants.clone());
        let service = Service::new(seat, keys, exchange.clone(), board.clone());
        let worker = Worker::start(&format!("keys-{number}"))?;
        // Leases are told from thread to thread: all have the same clock.
        threads.push(worker.host(Options { clock, ..member }, process, service).await?);
    }
    if let Some(CausalMember { options: member, regions, cluster, .. }) = causal {
        let shard = Seat { shard: Shard(0), shards: count }.causal();
        let replica = Hermes::new(me, options(), mix(seed.wrapping_add(count as u64)));
        let replica = replica.with_secret(secret());
        let process = CausalKeys::new(Causal::new(replica, regions, causal::options()));
        let service = CausalService::new((shard, cluster), exchange.clone(), board.clone());
        let worker = Worker::start("keys-causal")?;
        threads.push(worker.host(Options { clock, ..member }, process, service).await?);
    }
    // The last: it can do nothing before the shards have read their logs (K1).
    let membership = ReliableMembership::new(me, replicas, leases(), seed);
    let process = Steward::new(membership, threads_count);
    let worker = Worker::start("keys-steward")?;
    let steward = Options { clock, ..steward };
    let service = StewardService::new((me, clock.now()), exchange, board.clone());
    threads.push(worker.host(steward, process, service).await?);
    Ok(Running { threads, causal: has_causal })
}

/// What nobody else knows, drawn at each start: clients cannot choose keys that share a hash.
fn secret() -> Secret {
    let draw = || RandomState::new().build_hasher().finish();
    Secret([draw(), draw()])
}

/// What the threads of keys need, before they run.
pub(crate) struct Opened {
    members: Members,
    replicas: BTreeSet<NodeId>,
    durability: Durability,
    /// As the configuration was when they were opened, and which node this is.
    topology: Topology,
    me: NodeId,
}

/// What is wanted of a node's keys.
#[derive(Clone, Debug)]
pub struct KeysOptions {
    /// Where clients call.
    pub address: String,
    /// In so many shards the keys are, at all nodes of the region; None: as they were at the first
    /// start, or else as many as the machine has cores, within reason.
    pub shards: Option<usize>,
    /// Where they are kept; None: as at the last start, or in memory.
    pub durability: Option<Durability>,
    /// Keys that begin so are of all regions; empty: none are. None: as at the first start with
    /// causal keys, or else none.
    pub causal: Option<String>,
    /// With these nodes of the region they begin, if they have not; None: with those that are left
    /// of the ones that the cluster was made with.
    pub first: Option<BTreeSet<String>>,
}

/// How connections are secured, and what the nodes are called in their certificates.
pub(crate) type Secured<'a> = (&'a Security, &'a Arc<Names<NodeId>>);

/// Listens at the address and opens a lane at the node's port for the steward and each shard, if
/// the node is to serve keys.
///
/// # Errors
/// If it cannot listen, or its directory cannot be used.
pub(crate) fn open(
    wanted: Option<&KeysOptions>,
    dir: &NodeDir,
    topology: &Topology,
    me: NodeId,
    (listener, (security, names)): (&TcpListener, Secured<'_>),
) -> Result<(Lanes, Option<Opened>), ServerError> {
    let mut lanes = Lanes::default();
    let Some(wanted) = wanted else {
        lanes.explain("this node was started without --keys".into());
        return Ok((lanes, None));
    };
    let unable = |source| ServerError::Address {
        address: wanted.address.clone(),
        node: dir.file.node.clone(),
        source,
    };
    let plain = TcpListener::bind(&wanted.address).map_err(unable)?;
    let port = listener.local_addr().map_err(unable)?;
    let began = began::begin(dir, topology, me, wanted)?;
    let replicas: BTreeSet<_> =
        began.replicas.iter().filter_map(|name| topology.node_named(name)).collect();
    if !replicas.contains(&me) {
        tracing::info!(others = ?began.replicas, "comes to the keys that others have begun");
    }
    let Began { shards, durability, causal, .. } = began;
    let Following { peers, grants, .. } = Following::new(topology, me, false);
    let incarnation = dir.next_incarnation()?;
    let mut member = |lane, log: PathBuf, checkpoint_bytes| {
        let storage = Storage::Log { path: log, incarnation, checkpoint_bytes };
        let listen = Listen::Lane(lanes.open(lane, port));
        let cluster = topology.cluster.to_string();
        let (security, names) = (security.clone(), names.clone());
        let options = Options::new(cluster, me, "", peers.clone());
        Options { listen, storage, security, names, ..options }
    };
    let lane_of_steward = match &causal {
        None => lane(STEWARD, shards),
        Some(causal) => lane_of_causal(causal, &format!("the steward of {shards} shards")),
    };
    let steward = member(lane_of_steward, log_of_steward(&dir.dir), CHECKPOINT_BYTES);
    let checkpoint_bytes = match durability {
        Durability::Memory => CHECKPOINT_BYTES,
        Durability::Disk => KEYS_CHECKPOINT_BYTES,
    };
    let mut members = Members { steward, shards: vec![], causal: None, grants };
    for shard in 0..shards {
        let member = member(lane(shard, shards), log_of(&dir.dir, shard), checkpoint_bytes);
        // All these threads take clients: who has nothing to do is first.
        let plain = vec![(ServiceId::KEYS, plain.try_clone().map_err(unable)?)];
        let plain_bytes_max = (CLIENT_BYTES_MAX / shards).max(CLIENT_BYTES_LEAST);
        members.shards.push(Options { plain, plain_bytes_max, ..member });
    }
    let mut why = format!("the keys of this node are in {shards} shards, see its keys.json");
    if let Some(causal) = &causal {
        let path = log_of_causal(&dir.dir);
        let storage = Storage::Log { path, incarnation, checkpoint_bytes };
        let lane = lanes.open(lane_of_causal(causal, "keys"), port);
        let listen = Listen::Lane(lane);
        let member = causal_member(causal, topology, me);
        let (security, names) = (security.clone(), names.clone());
        let options = Options { listen, storage, security, names, ..member.options };
        members.causal = Some(CausalMember { options, ..member });
        let CausalBegan { prefix, regions } = causal;
        why += &format!("; of all regions, first {regions:?}, are keys that begin with {prefix:?}");
    }
    lanes.explain(why);
    let topology = topology.clone();
    Ok((lanes, Some(Opened { members, replicas, durability, topology, me })))
}

/// In the number of a lane, the steward stands where shards have their numbers.
const STEWARD: usize = 0xff;
const _: () = assert!(SHARDS_MAX < STEWARD);

/// The thread of a shard, or of the steward, as the node's port knows it: other than that of a node
/// which has its keys in more shards or fewer.
fn lane(thread: usize, shards: usize) -> Lane {
    Lane(u16::try_from(shards << 8 | thread).expect("SHARDS_MAX"))
}

/// The thread of the causal keys, and the steward where there are such: others for who has another
/// prefix or other regions in mind, or no causal keys, and would be waited for in vain. They are
/// none of those of [`lane`].
fn lane_of_causal(causal: &CausalBegan, of: &str) -> Lane {
    let digest = causal.digest(of);
    Lane(0x8000 | ((digest >> 16 ^ digest) & 0x7fff) as u16)
}
const _: () = assert!(SHARDS_MAX < 0x80);

/// How a node takes part in the keys of all regions.
fn causal_member(causal: &CausalBegan, topology: &Topology, me: NodeId) -> CausalMember {
    let CausalFollowing { regions, peers, delays } = CausalFollowing::new(topology, me);
    let cluster = topology.cluster;
    let options = Options { delays, ..Options::new(cluster.to_string(), me, "", peers) };
    CausalMember { options, regions, prefix: Bytes::from(causal.prefix.clone()), cluster }
}

fn log_of_causal(dir: &Path) -> PathBuf {
    dir.join("keys-causal")
}

fn log_of(dir: &Path, shard: usize) -> PathBuf {
    dir.join(format!("keys-{shard}"))
}

fn log_of_steward(dir: &Path) -> PathBuf {
    dir.join("keys-steward")
}

impl Opened {
    /// In so many shards the keys are.
    pub(crate) fn shards(&self) -> usize {
        self.members.shards.len()
    }

    /// The regions that have causal keys in common, if there are such.
    pub(crate) fn causal(&self) -> bool {
        self.members.causal.is_some()
    }

    /// Runs them.
    pub(crate) async fn start(
        self,
        disk: &Arc<dyn Disk>,
        board: &Arc<Board>,
    ) -> Result<Running, MemberError> {
        let Opened { members, replicas, durability, topology, me } = self;
        let seed = mix(Clock::start().now().0 ^ u64::from(std::process::id()) << 32);
        let on_disk = |member| Options { disk: disk.clone(), ..member };
        let shards = members.shards.into_iter().map(on_disk).collect();
        let causal = members
            .causal
            .map(|causal| CausalMember { options: on_disk(causal.options), ..causal });
        let (steward, grants) = (on_disk(members.steward), members.grants);
        let members = Members { steward, shards, causal, grants };
        let running = host(members, &replicas, durability, seed, board).await?;
        running.configured(&topology, me).await;
        Ok(running)
    }
}
