//! What a server tells of itself while it runs: the service manager, and who watches it.
//!
//! On a thread of its own it asks the node as any client does, over the node's own port. So it
//! tells what clients see, also when the node is stuck, and costs one answer a second. All nodes
//! are asked only while somebody looks at the dashboard, once a second for all who do.

use crate::{cluster, status};
use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use meridian_client::{Client, ClientOptions};
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::api::NodeStatus;
use meridian_metrics::{Told, dashboard, http, text};
use meridian_terminal::manager::Manager;
use meridian_transport::{Ends, Security};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often the node is asked.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The same as long as it does not serve: who waits for that should not wait for the next question.
const ASK_SOON: Duration = Duration::from_millis(100);
/// How long the node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is older than some unanswered questions is not told any more.
const TOO_OLD: Duration = Duration::from_secs(5);

/// What the node said last.
#[derive(Debug)]
struct Seen {
    at: Instant,
    topology: Arc<Topology>,
    status: NodeStatus,
    /// Until when the certificates of this server count.
    ends: Ends,
}

impl Seen {
    fn told(&self) -> Told<'_> {
        Told { topology: &self.topology, status: &self.status, ends: self.ends }
    }
}

/// What who asks and who is asked have in common.
struct Watched {
    node: NodeId,
    cluster: PathBuf,
    client: Client,
    security: Security,
    topology: Mutex<Arc<Topology>>,
    last: Mutex<Option<Seen>>,
    told: tokio::sync::Mutex<Reports>,
}

/// What was told of all nodes.
#[derive(Default)]
struct Reports {
    seen: status::Seen,
    last: Option<(Instant, String)>,
}

/// Starts to watch the node of that name, until the process ends. Whoever calls for `metrics` is
/// received as that is secured.
///
/// # Errors
/// If the cluster file cannot be read, or the thread not be started.
pub fn start(
    (name, security): (&str, Security),
    cluster: &Path,
    metrics: Option<(TcpListener, Security)>,
    manager: Option<Manager>,
) -> anyhow::Result<()> {
    let topology = cluster::read(cluster)?.0;
    security.shut_out(topology.revoked.clone()); // The node does so when it has begun, and later.
    let node = topology.node_named(name);
    let node = node.with_context(|| format!("no node {name} in {}", cluster.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = cluster.to_path_buf();
    let watch = async move {
        let watched = match Watched::new(node, security, cluster, topology) {
            Ok(watched) => Arc::new(watched),
            Err(error) => return tracing::error!(%error, "nobody is told how the node is"),
        };
        if let Some(door) = metrics {
            tokio::spawn(serve(door, watched.clone()));
        }
        watched.ask(manager).await;
    };
    let thread = std::thread::Builder::new().name("watch".into());
    thread.spawn(move || runtime.block_on(watch)).context("cannot start a thread")?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    fn new(
        node: NodeId,
        security: Security,
        cluster: PathBuf,
        topology: Topology,
    ) -> anyhow::Result<Watched> {
        let region = &topology.regions[usize::from(topology.node(node).region.0)];
        let options = ClientOptions::new(region.name.clone());
        let options = ClientOptions { security: security.clone(), ..options };
        let client = Client::connect(topology.clone(), &options)?;
        let topology = Mutex::new(Arc::new(topology));
        Ok(Watched {
            node,
            cluster,
            client,
            security,
            topology,
            last: Mutex::default(),
            told: tokio::sync::Mutex::default(),
        })
    }

    /// Asks the node again and again.
    async fn ask(&self, manager: Option<Manager>) {
        let (mut is_ready, mut said) = (false, String::new());
        loop {
            let (serves, sentence) = match self.client.status(self.node, PATIENCE).await {
                Ok(status) => {
                    self.follow(status.configured);
                    let (at, topology) = (Instant::now(), self.topology());
                    let seen = Seen { at, topology, status, ends: self.security.ends() };
                    let told = (seen.told().serves(), seen.told().sentence());
                    *lock(&self.last) = Some(seen);
                    told
                }
                Err(error) => (false, format!("does not answer: {error}")),
            };
            if let Some(manager) = &manager {
                match serves && !is_ready {
                    true => manager.ready(&sentence),
                    false if sentence != said => manager.status(&sentence),
                    false => {}
                }
            }
            (is_ready, said) = (is_ready || serves, sentence);
            sleep(if serves { ASK_AGAIN } else { ASK_SOON }).await;
        }
    }

    /// Nodes that have come have names, which the server has written into the cluster file.
    fn follow(&self, version: u64) {
        if version > self.topology().version
            && let Ok((topology, _)) = cluster::read(&self.cluster)
        {
            self.client.configured(topology.clone());
            *lock(&self.topology) = Arc::new(topology);
        }
    }

    fn topology(&self) -> Arc<Topology> {
        lock(&self.topology).clone()
    }

    fn metrics(&self) -> Response {
        let last = lock(&self.last);
        let seen = last.as_ref().filter(|seen| seen.at.elapsed() < TOO_OLD);
        let body = text::text(seen.map(Seen::told));
        ([(CONTENT_TYPE, text::CONTENT_TYPE), NOT_KEPT], body).into_response()
    }

    fn health(&self) -> Response {
        let last = lock(&self.last);
        let (status, sentence) = match last.as_ref().filter(|seen| seen.at.elapsed() < TOO_OLD) {
            None => (StatusCode::SERVICE_UNAVAILABLE, "does not answer".into()),
            Some(seen) if seen.told().serves() => (StatusCode::OK, seen.told().sentence()),
            Some(seen) => (StatusCode::SERVICE_UNAVAILABLE, seen.told().sentence()),
        };
        (status, [NOT_KEPT], format!("{sentence}\n")).into_response()
    }

    /// What `meridian status --json` tells, but for mounts.
    async fn status(&self) -> Response {
        let mut told = self.told.lock().await;
        told.last.take_if(|(at, _)| at.elapsed() >= ASK_AGAIN);
        if told.last.is_none() {
            let mut report = status::ask_all(&self.client, &self.topology()).await;
            report.see(&mut told.seen);
            match serde_json::to_string(&report) {
                Ok(text) => told.last = Some((Instant::now(), text)),
                Err(error) => {
                    let why = format!("{error}\n");
                    return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
                }
            }
        }
        let text = told.last.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
        ([(CONTENT_TYPE, "application/json"), NOT_KEPT], text).into_response()
    }
}

/// What is told is of now.
const NOT_KEPT: (axum::http::HeaderName, &str) = (CACHE_CONTROL, "no-store");

async fn serve((listener, door): (TcpListener, Security), watched: Arc<Watched>) {
    let page = (CONTENT_SECURITY_POLICY, dashboard::POLICY);
    let (health, all) = (watched.clone(), watched.clone());
    let routes = Router::new()
        .route("/", get(async move || ([page, NOT_KEPT], Html(dashboard::PAGE))))
        .route("/metrics", get(async move || watched.metrics()))
        .route("/healthz", get(async move || health.health()))
        .route("/status.json", get(async move || all.status().await))
        .fallback(async || (StatusCode::NOT_FOUND, http::PATHS));
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => http::serve(listener, door, routes).await,
        Err(error) => tracing::error!(%error, "metrics are not served"),
    }
}
