//! How nodes are, and how far from here.

use meridian_client::Client;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::api::NodeStatus;
use meridian_session::forecast::Measured;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often each node is asked: the first time opens a connection, and the fastest counts.
const TIMES: usize = 5;
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks all nodes how they are, and takes the time. Those that do not answer are left out.
pub async fn measure(client: &Client, topology: &Topology) -> Measured {
    let mut asked = JoinSet::new();
    for node in topology.present() {
        asked.spawn(ask(client.clone(), node));
    }
    let mut answers = Vec::new();
    while let Some(answer) = asked.join_next().await {
        answers.extend(answer.ok().flatten());
    }
    Measured::of(&answers)
}

async fn ask(client: Client, node: NodeId) -> Option<(NodeStatus, Duration)> {
    let mut best: Option<(NodeStatus, Duration)> = None;
    for _ in 0..TIMES {
        let begun = Instant::now();
        let status = client.status(node, PATIENCE).await.ok()?;
        let took = begun.elapsed();
        let took = best.as_ref().map_or(took, |(_, fastest)| took.min(*fastest));
        best = Some((status, took));
    }
    best
}
