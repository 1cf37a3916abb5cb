//! The clients, and what is measured.

use super::cluster::Cluster;
use super::replica::Report;
use crate::bench::cpu_time;
use anyhow::Context;
use bytes::Bytes;
use hdrhistogram::Histogram;
use meridian_paxos::Recovery;
use meridian_runtime::smr::{Client, ClientError};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

/// How often it is looked how far a run is.
pub const LOOK: Duration = Duration::from_millis(50);
/// Longer latencies count as this: ten minutes.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// What is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub mode: Recovery,
    pub clients: u32,
    pub connections: u32,
    /// Bytes of each request.
    pub size: u32,
    pub replicas: u16,
    pub bsz: u32,
    pub wnd: u64,
    pub delta_b: Duration,
    pub rtt: Duration,
    #[serde(skip)]
    pub warm_up: Duration,
    #[serde(skip)]
    pub length: Duration,
    #[serde(skip)]
    pub dir: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub length: Duration,
    /// Of requests that were answered in the measured time.
    pub latency_ns: Histogram<u64>,
    /// What the leader did in that time.
    pub leader: Report,
    /// What the replicas' processes used, and this one.
    pub replicas_cpu: Duration,
    pub clients_cpu: Duration,
}

/// What the clients share.
pub struct Shared {
    measured: Cell<bool>,
    /// They ask no more.
    pub ended: Cell<bool>,
    pub answered: Cell<u64>,
    latency_ns: RefCell<Histogram<u64>>,
}

impl Shared {
    pub fn new() -> anyhow::Result<Rc<Shared>> {
        Ok(Rc::new(Shared {
            measured: Cell::new(false),
            ended: Cell::new(false),
            answered: Cell::new(0),
            latency_ns: RefCell::new(Histogram::new_with_max(LATENCY_MAX_NS, 3)?),
        }))
    }
}

/// Runs it; `progress` is told seconds and requests per second, once a second.
pub fn run(setup: &Setup, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
    let cluster = Cluster::start(setup)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let measured = local.block_on(&runtime, measure(setup, cluster, progress));
    let (cluster, outcome, answered) = measured?;
    cluster.close(answered)?;
    Ok(outcome)
}

async fn measure(
    setup: &Setup,
    cluster: Cluster,
    mut progress: impl FnMut(f64, f64),
) -> anyhow::Result<(Cluster, Outcome, u64)> {
    let shared = Shared::new()?;
    let mut clients = ask_all(setup, &cluster.addresses(), &shared).await?;
    sleep(setup.warm_up).await;
    let (cluster, before) = reports(cluster).await?;
    let (cpu, begin) = (cpu_time(), Instant::now());
    shared.measured.set(true);
    let mut shown = shared.answered.get();
    while begin.elapsed() < setup.length {
        let left = setup.length - begin.elapsed().min(setup.length);
        sleep(left.min(Duration::from_secs(1))).await;
        let answered = shared.answered.get();
        progress(begin.elapsed().as_secs_f64(), (answered - shown) as f64);
        shown = answered;
    }
    shared.measured.set(false);
    let length = begin.elapsed();
    let clients_cpu = cpu_time().saturating_sub(cpu);
    let (cluster, after) = reports(cluster).await?;
    shared.ended.set(true);
    while let Some(ended) = clients.join_next().await {
        ended?.context("a client")?;
    }
    let difference = |(after, before): (&Report, &Report)| Report {
        instances: after.instances - before.instances,
        requests: after.requests - before.requests,
        cpu: after.cpu.saturating_sub(before.cpu),
        ..after.clone()
    };
    let replicas: Vec<Report> = after.iter().zip(&before).map(difference).collect();
    let leader = replicas.iter().find(|report| report.leading).context("no replica leads")?;
    let outcome = Outcome {
        length,
        latency_ns: shared.latency_ns.borrow().clone(),
        leader: leader.clone(),
        replicas_cpu: replicas.iter().map(|report| report.cpu).sum(),
        clients_cpu,
    };
    Ok((cluster, outcome, shared.answered.get()))
}

/// How far all replicas are; the clients go on meanwhile.
async fn reports(mut cluster: Cluster) -> anyhow::Result<(Cluster, Vec<Report>)> {
    let asked = tokio::task::spawn_blocking(move || {
        let reports = cluster.reports();
        (cluster, reports)
    });
    let (cluster, reports) = asked.await?;
    Ok((cluster, reports?.into_iter().flatten().collect()))
}

/// Starts the clients: so many connections, shared by all.
pub async fn ask_all(
    setup: &Setup,
    addresses: &[String],
    shared: &Rc<Shared>,
) -> anyhow::Result<JoinSet<Result<(), ClientError>>> {
    let mut connecting = JoinSet::new();
    for _ in 0..setup.connections {
        connecting.spawn_local(Client::connect("bench", addresses.to_vec()));
    }
    let mut clients = Vec::new();
    while let Some(client) = connecting.join_next().await {
        clients.push(client?.context("cannot connect")?);
    }
    let others =
        (clients.len()..setup.clients as usize).map(|at| clients[at % clients.len()].clone());
    let others: Vec<Client> = others.collect();
    clients.extend(others);
    let mut asking = JoinSet::new();
    for client in clients {
        asking.spawn_local(ask(client, setup.size, shared.clone()));
    }
    Ok(asking)
}

/// One request after the other.
async fn ask(mut client: Client, size: u32, shared: Rc<Shared>) -> Result<(), ClientError> {
    let payload = Bytes::from(vec![b'r'; size as usize]);
    while !shared.ended.get() {
        let begin = Instant::now();
        client.execute(payload.clone()).await?;
        shared.answered.set(shared.answered.get() + 1);
        if shared.measured.get() {
            let latency = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            shared.latency_ns.borrow_mut().saturating_record(latency);
        }
    }
    Ok(())
}
