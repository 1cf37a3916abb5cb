//! Start, run until told to stop, stop.

use crate::client;
use crate::config::NodeDir;
use crate::configuration;
use crate::driver::Driver;
use crate::error::ServerError;
use crate::journal::{Blocks, Journal};
use crate::peer;
use crate::service::Service;
use crate::shared::Shared;
use crate::storage;
use meridian_core::{NodeId, Topology};
use meridian_host::Node;
use meridian_host::api::{Hello, Who};
use meridian_runtime::wire::{FrameReader, WireError};
use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

/// Connections that one server holds open at most: descriptors are scarce, and each has buffers.
const CONNECTIONS_MAX: usize = 4096;

/// What to run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The node's directory, made by [`crate::prepare`].
    pub dir: PathBuf,
    /// The cluster file; by default `cluster.json` beside `dir`.
    pub cluster: Option<PathBuf>,
}

/// Runs a node's server until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or the disk fails; see [`ServerError::exit_code`].
pub fn run(options: &ServerOptions) -> Result<(), ServerError> {
    serve::<Node>(options, storage::open, terminated())
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

pub use meridian_runtime::journal::Wake;

/// Takes a record found in the log, with its number.
pub type Replay<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), ServerError>;

/// What a server keeps on disk, opened.
pub struct Storage {
    /// Where records go.
    pub journal: Box<dyn Journal>,
    /// Where blocks are.
    pub blocks: Blocks,
}

/// Runs a server of `P` on what `open` opens, until `stop` ends.
///
/// # Errors
/// If it cannot start, the disk fails, or `stop` says so.
pub fn serve<P: Service>(
    options: &ServerOptions,
    open: impl FnOnce(&Path, Wake, Replay) -> Result<Storage, ServerError>,
    stop: impl Future<Output = Result<(), ServerError>>,
) -> Result<(), ServerError> {
    let dir = NodeDir::open(&options.dir)?;
    let (topology, file, me) = dir.cluster(options.cluster.as_deref())?;
    // Before the log is read: who cannot listen should say so at once.
    let listener = listen(&topology, me)?;
    let incarnation = dir.next_incarnation()?;
    let topology = Arc::new(topology);
    let mut process = P::new(topology.clone(), me);
    let notify = Arc::new(Notify::new());
    let waker = notify.clone();
    let wake: Wake = Arc::new(move || waker.notify_one());
    let mut records = 0;
    let storage = open(&dir.dir, wake, &mut |number, body| {
        records += 1;
        let record = postcard::from_bytes(body).map_err(|e| ServerError::Record {
            dir: dir.dir.clone(),
            number,
            why: e.to_string(),
        })?;
        process.replay(record);
        Ok(())
    })?;
    let node = &dir.file.node;
    tracing::info!(node, incarnation, records, address = topology.node(me).address, "started");
    let system = |action| move |source| ServerError::System { action, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("start the runtime"))?;
    let ended = LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::from_std(listener).map_err(system("use the socket"))?;
        let Storage { journal, blocks } = storage;
        let keeper = configuration::keep(&dir.dir, &file, &topology, me).await?;
        let at = dir.dir.clone();
        let shared = Rc::new(Shared::new(at, topology, me, incarnation, blocks, notify));
        spawn(accept(shared.clone(), listener));
        spawn(call_all(shared.clone()));
        if !file.configuration.replicas.is_empty() {
            spawn(configuration::follow(shared.clone(), file, keeper));
        }
        let driver = Driver::new(process, shared.clone(), journal)?.run();
        let stopping = shared.clone();
        let stopper = async move {
            let shared = stopping;
            let stopped = stop.await;
            shared.stopping.set(true);
            shared.wake.notify_one();
            // The driver ends now; only what went wrong here is news.
            match stopped {
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        let ended = tokio::select! {
            biased;
            ended = driver => ended,
            error = stopper => Err(error),
        };
        let removed = shared.topology().is_gone(me);
        ended.and(if removed { Err(ServerError::Removed(shared.name_of(me))) } else { Ok(()) })
    });
    if let Err(error) = &ended {
        tracing::error!(%error, "stopped");
    }
    ended
}

/// Calls each peer that is this node's to call, as soon as it is known.
async fn call_all<P: Service>(shared: Rc<Shared<P>>) {
    loop {
        for node in shared.fresh.take() {
            spawn(peer::call(shared.clone(), node));
        }
        shared.has_fresh.notified().await;
    }
}

fn listen(topology: &Topology, me: NodeId) -> Result<std::net::TcpListener, ServerError> {
    let node = topology.node(me);
    let listen = || {
        let listener = std::net::TcpListener::bind(&node.address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| ServerError::Address {
        address: node.address.clone(),
        node: node.name.clone(),
        source,
    })
}

/// Runs a task beside the others. If one panics a bug has shown itself, and the server stops rather
/// than go on without it: what is durable is safe.
fn spawn(task: impl Future<Output = ()> + 'static) {
    struct Fuse;
    impl Drop for Fuse {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    tokio::task::spawn_local(async move {
        let _fuse = Fuse;
        task.await;
    });
}

/// Takes connections for as long as the server runs.
async fn accept<P: Service>(shared: Rc<Shared<P>>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) if shared.open.get() < CONNECTIONS_MAX => {
                spawn(greet(shared.clone(), stream, from.ip()));
            }
            Ok((_, from)) => tracing::warn!(%from, "too many connections: closed"),
            Err(error) => {
                // For example too many open files: that passes, and must not spin meanwhile.
                tracing::warn!(%error, "cannot take connections");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Counts an open connection.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<usize>) -> Counted<'a> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn greet<P: Service>(shared: Rc<Shared<P>>, stream: TcpStream, from: IpAddr) {
    let _counted = Counted::new(&shared.open);
    match serve_connection(&shared, stream, from).await {
        Ok(()) => (),
        Err(error @ (WireError::Frame(_) | WireError::Refused(_))) => shared.on_bad(from, &error),
        Err(error @ (WireError::Link(_) | WireError::Io(_) | WireError::Closed)) => {
            tracing::debug!(%from, why = %error, "connection ended");
        }
    }
}

async fn serve_connection<P: Service>(
    shared: &Shared<P>,
    stream: TcpStream,
    from: IpAddr,
) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    let hello = timeout(peer::HELLO_TIMEOUT, reader.next()).await;
    let Ok(hello) = hello else { return Err(WireError::Refused("no hello".into())) };
    let Hello { cluster, who } = hello?;
    if cluster != shared.topology().cluster {
        return Err(WireError::Refused(format!("someone of cluster {cluster}")));
    }
    match who {
        Who::Node { node, .. } => peer::answer(shared, node, (reader, writer, from)).await,
        Who::Client(_) => match client::serve(shared, reader, writer).await? {},
    }
}
