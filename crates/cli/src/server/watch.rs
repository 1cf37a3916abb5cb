//! What a server tells of itself while it runs: the service manager, and who watches it.
//!
//! On a thread of its own it asks the node as any client does, over the node's own port. So it
//! tells what clients see, also when the node is stuck, and costs one answer a second.

use crate::cluster;
use anyhow::Context;
use meridian_client::{Client, ClientOptions};
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::api::NodeStatus;
use meridian_metrics::http::Answer;
use meridian_metrics::{Told, http, text};
use meridian_terminal::manager::Manager;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
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
}

impl Seen {
    fn told(&self) -> Told<'_> {
        Told { topology: &self.topology, status: &self.status }
    }
}

/// Filled by who asks, read by who is asked.
type Last = Arc<Mutex<Option<Seen>>>;

/// Starts to watch the node of that name, until the process ends.
///
/// # Errors
/// If the cluster file cannot be read, or the thread not be started.
pub fn start(
    name: &str,
    cluster: &Path,
    metrics: Option<TcpListener>,
    manager: Option<Manager>,
) -> anyhow::Result<()> {
    let topology = cluster::read(cluster)?.0;
    let node = topology.node_named(name);
    let node = node.with_context(|| format!("no node {name} in {}", cluster.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = cluster.to_path_buf();
    let watch = async move {
        let last = Last::default();
        if let Some(listener) = metrics {
            tokio::spawn(serve(listener, last.clone()));
        }
        if let Err(error) =
            (Own { node, cluster, topology: Arc::new(topology) }).ask(&last, manager).await
        {
            tracing::error!(%error, "nobody is told how the node is");
        }
    };
    let thread = std::thread::Builder::new().name("watch".into());
    thread.spawn(move || runtime.block_on(watch)).context("cannot start a thread")?;
    Ok(())
}

/// The node of this process, as a client of it.
struct Own {
    node: NodeId,
    cluster: PathBuf,
    topology: Arc<Topology>,
}

impl Own {
    /// Asks it again and again.
    async fn ask(&mut self, last: &Last, manager: Option<Manager>) -> anyhow::Result<()> {
        let region = &self.topology.regions[usize::from(self.topology.node(self.node).region.0)];
        let options = ClientOptions::new(region.name.clone());
        let client = Client::connect((*self.topology).clone(), &options)?;
        let (mut is_ready, mut said) = (false, String::new());
        loop {
            let (serves, sentence) = match client.status(self.node, PATIENCE).await {
                Ok(status) => {
                    self.follow(&client, status.configured);
                    let (at, topology) = (Instant::now(), self.topology.clone());
                    let seen = Seen { at, topology, status };
                    let told = (seen.told().serves(), seen.told().sentence());
                    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
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
    fn follow(&mut self, client: &Client, version: u64) {
        if version > self.topology.version
            && let Ok((topology, _)) = cluster::read(&self.cluster)
        {
            client.configured(topology.clone());
            self.topology = Arc::new(topology);
        }
    }
}

async fn serve(listener: TcpListener, last: Last) {
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => {
            http::serve(listener, move |path| {
                let answer = answer(&last, &path);
                async { answer }
            })
            .await
        }
        Err(error) => tracing::error!(%error, "metrics are not served"),
    }
}

fn answer(last: &Last, path: &str) -> Option<Answer> {
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = last.as_ref().filter(|seen| seen.at.elapsed() < TOO_OLD);
    match path {
        "/metrics" => {
            let body = text::text(seen.map(Seen::told));
            Some(Answer { status: 200, kind: text::CONTENT_TYPE, body })
        }
        "/healthz" => Some(match seen {
            None => Answer::line(503, "does not answer"),
            Some(seen) if seen.told().serves() => Answer::line(200, &seen.told().sentence()),
            Some(seen) => Answer::line(503, &seen.told().sentence()),
        }),
        _ => None,
    }
}
