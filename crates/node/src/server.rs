//! Start, run until told to stop, stop.

use crate::application::{
    Configured, Replies, Requests, Shared, delays_of, names_of, peers_of, shut_out,
};
use crate::blocks::BlockEngine;
use crate::board::Board;
use crate::config::{NodeDir, cluster_path};
use crate::configuration;
use crate::error::ServerError;
use crate::identity;
use crate::keys::{self, KeysOptions, Running};
use crate::reach::{self, Notes};
use crate::service::Service;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::Node;
use meridian_host::drain::keep::Options as CopyOptions;
use meridian_runtime::journal::describe;
use meridian_runtime::{
    Clock, Handle, Lanes, Listen, MemberError, Names, Options, Storage, Worker,
};
use meridian_storage::{Disk, RealDisk};
use meridian_transport::Security;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::LocalSet;

/// Clients that one server serves at most: descriptors are scarce, and each has buffers.
const CLIENTS_MAX: usize = 4096;
/// A log that grew by so many bytes is replaced by a checkpoint: it is read in a second or two.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// What to run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The node's directory, made by [`crate::prepare`].
    pub dir: PathBuf,
    /// The cluster file; by default `cluster.json` beside `dir`.
    pub cluster: Option<PathBuf>,
    /// Without it the node has no part in the keys of its region.
    pub keys: Option<KeysOptions>,
    /// How its connections are secured; by TLS with the certificate of its node.
    pub security: Security,
    /// How fast copies of blocks are looked after.
    pub copies: CopyOptions,
}

/// Runs a node's server until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or the disk fails; see [`ServerError::exit_code`].
pub fn run(options: &ServerOptions) -> Result<(), ServerError> {
    serve::<Node>(options, ServerDisk::default(), terminated())
}

async fn terminated() -> Result<(), ServerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = |kind| {
        signal(kind).map_err(|source| ServerError::System { action: "wait for signals", source })
    };
    let (mut term, mut int) = (wait(SignalKind::terminate())?, wait(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => tracing::info!("SIGTERM: stopping"),
        _ = int.recv() => tracing::info!("SIGINT: stopping"),
    }
    Ok(())
}

/// What a server keeps its log and its blocks on.
pub struct ServerDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// A log that grew by so many bytes is replaced by a checkpoint.
    pub checkpoint_bytes: u64,
}

impl Default for ServerDisk {
    fn default() -> ServerDisk {
        ServerDisk { disk: Arc::new(RealDisk), checkpoint_bytes: CHECKPOINT_BYTES }
    }
}

/// Runs a server of `P`, until `stop` ends.
///
/// # Errors
/// If it cannot start, the disk fails, or `stop` says so.
pub fn serve<P: Service>(
    options: &ServerOptions,
    on: ServerDisk,
    stop: impl Future<Output = Result<(), ServerError>>,
) -> Result<(), ServerError> {
    let dir = NodeDir::open(&options.dir)?;
    let (topology, file, me) = dir.cluster(options.cluster.as_deref())?;
    // Before the log is read: who cannot listen should say so at once.
    let listener = listen(&topology, me)?;
    let (security, names) = (options.security.clone(), Arc::<Names<NodeId>>::default());
    names.set(names_of(&topology));
    let keys_security = security.another_door();
    shut_out(&topology, &security, &keys_security);
    let door = (&listener, (&keys_security, &names));
    let (lanes, keys) = keys::open(options.keys.as_ref(), &dir, &topology, me, door)?;
    let topology = Arc::new(topology);
    let board = Arc::new(match &keys {
        None => Board::new(0),
        Some(keys) if keys.causal() => Board::with_causal(keys.shards()),
        Some(keys) => Board::new(keys.shards()),
    });
    let shared = Arc::new(Shared::new(
        (me, security, keys_security),
        (topology.clone(), names),
        board.clone(),
    ));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| ServerError::System { action: "start the runtime", source })?;
    let stopped = |error| stopped(&dir, error);
    let ended = LocalSet::new().block_on(&runtime, async {
        let disk = on.disk.clone();
        // The last note is taken when the node has ended.
        let process = P::new(topology.clone(), me).with_copies(options.copies);
        let (handle, _notes) = host(&dir, on, process, (listener, lanes), &shared).await?;
        let keys = match keys {
            Some(keys) => Some(keys.start(&disk, &board).await.map_err(stopped)?),
            None => None,
        };
        if !file.configuration.replicas.is_empty() {
            let path = cluster_path(&dir.dir, options.cluster.as_deref());
            let (shared, handle) = (shared.clone(), handle.clone());
            let with = (path, options.security.clone());
            let follow = configuration::follow(shared, handle, keys.clone(), file, with);
            tokio::task::spawn_local(follow);
        }
        tokio::select! {
            biased;
            ended = handle.ended() => ended.map_err(stopped),
            ended = ended(keys.as_ref()) => ended.map_err(stopped),
            asked = stop => {
                close(keys.as_ref()).await;
                let _ = handle.close().await; // How it ended is told below.
                asked.and(handle.ended().await.map_err(stopped))
            }
            why = shared.stops() => {
                close(keys.as_ref()).await;
                let _ = handle.close().await;
                Err(why)
            }
        }
    });
    if let Err(error) = &ended {
        tracing::error!(%error, "stopped");
    }
    ended
}

/// Waits until a thread of keys has ended; for ever if there is none.
async fn ended(keys: Option<&Running>) -> Result<(), MemberError> {
    match keys {
        Some(keys) => keys.ended().await,
        None => std::future::pending().await,
    }
}

/// Ends the threads of keys; nothing of how they do is to be kept.
async fn close(keys: Option<&Running>) {
    if let Some(keys) = keys {
        let _ = keys.close().await;
    }
}

/// Starts the node's process, with its sockets and its log, on a thread of its own, and notes of
/// how far its blocks go.
async fn host<P: Service>(
    dir: &NodeDir,
    on: ServerDisk,
    process: P,
    door: (TcpListener, Lanes),
    shared: &Arc<Shared>,
) -> Result<(Handle<Configured, NodeId>, Notes), ServerError> {
    let (topology, me) = (shared.topology(), shared.me);
    let (listener, lanes) = door;
    let ServerDisk { disk, checkpoint_bytes } = on;
    identity::check(&*disk, dir)?;
    let incarnation = dir.next_incarnation()?;
    let replies = Arc::new(Replies::default());
    let left = replies.clone();
    let tell = Arc::new(move |answer| left.leave(answer));
    let blocks = BlockEngine::open(disk.clone(), &dir.dir.join("blocks"), tell)
        .map_err(|error| ServerError::Blocks(describe(&error)))?;
    reach::check(&*disk, dir, blocks.found())?;
    let path = dir.dir.join("wal");
    let options = Options {
        security: shared.security.clone(),
        names: shared.names.clone(),
        peers: peers_of(&topology, me),
        delays: delays_of(&topology, me),
        listen: Listen::Socket(listener),
        lanes,
        storage: Storage::Log { path, incarnation, checkpoint_bytes },
        disk: disk.clone(),
        clock: Clock::start(),
        clients_max: CLIENTS_MAX,
        ..Options::new(topology.cluster.to_string(), me, "", Default::default())
    };
    let (node, address) = (&dir.file.node, &topology.node(me).address);
    let kept = blocks.blocks().clone();
    let requests = Requests::new(shared.clone(), blocks, replies);
    let worker = Worker::start("node").map_err(|error| stopped(dir, error))?;
    let hosted = worker.host(options, process, requests).await;
    let handle = hosted.map_err(|error| stopped(dir, error))?;
    identity::note(&*disk, dir)?;
    tracing::info!(node, incarnation, address, "started");
    Ok((handle, Notes::start(disk, dir, kept)?))
}

/// Why the server ends, when its member has. After a bug it ends at once: what is durable is safe.
pub(crate) fn stopped(dir: &NodeDir, error: MemberError) -> ServerError {
    let system = |why: String| ServerError::System {
        action: "run the node",
        source: std::io::Error::other(why),
    };
    match error {
        MemberError::Log(why) => ServerError::Log(why),
        MemberError::Record { dir, number, why } => ServerError::Record { dir, number, why },
        MemberError::Forgot(why) => {
            ServerError::Forgot { path: dir.dir.join("wal"), why, node: dir.file.node.clone() }
        }
        MemberError::Halted(why) => ServerError::Blocks(why),
        MemberError::Address { .. } | MemberError::Options(_) | MemberError::Thread(_) => {
            system(error.to_string())
        }
        MemberError::Stopped => {
            tracing::error!("a bug has shown itself: the node stops rather than go on");
            std::process::abort();
        }
    }
}

fn listen(topology: &Topology, me: NodeId) -> Result<TcpListener, ServerError> {
    let node = topology.node(me);
    TcpListener::bind(&node.address).map_err(|source| ServerError::Address {
        address: node.address.clone(),
        node: node.name.clone(),
        source,
    })
}
