//! The clients, on a thread of their own, and what is measured.

use super::Setup;
use super::cluster::Cluster;
use super::replica::Report;
use crate::harness::cpu_time;
use crate::harness::latency::histogram;
use crate::harness::phases::{self, Phase, Subject};
use anyhow::{Context, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use meridian_runtime::smr::{Client, ClientError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// How often it is looked how far a run is.
pub const LOOK: Duration = Duration::from_millis(20);
/// How long all clients may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

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

/// What the clients and the thread that watches them share.
#[derive(Debug, Default)]
struct Shared {
    connected: AtomicBool,
    measured: AtomicBool,
    /// They ask no more.
    ended: AtomicBool,
    answered: AtomicU64,
}

/// Clients that ask.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<Histogram<u64>>>>,
}

impl Load {
    /// Starts the clients and waits until all are connected.
    pub fn start(setup: &Setup, addresses: Vec<String>) -> anyhow::Result<Load> {
        let shared = Arc::<Shared>::default();
        let (setup, theirs) = (setup.clone(), shared.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            LocalSet::new().block_on(&runtime, ask_all(&setup, &addresses, &theirs))
        });
        let mut load = Load { shared, thread: Some(thread) };
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while !load.shared.connected.load(Ordering::Relaxed) {
            load.ensure_alive()?;
            ensure!(Instant::now() < deadline, "the clients cannot connect");
            std::thread::sleep(LOOK);
        }
        Ok(load)
    }

    /// How many requests were answered.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Fails if a client has ended before the others.
    pub fn ensure_alive(&mut self) -> anyhow::Result<()> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if ended { self.join().map(drop) } else { Ok(()) }
    }

    /// Lets all clients end; latencies of what was measured.
    pub fn end(mut self) -> anyhow::Result<Histogram<u64>> {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<Histogram<u64>> {
        let thread = self.thread.take().context("the clients have ended")?;
        thread.join().expect("clients do not panic")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

/// Lets all clients ask: so many connections, shared by all.
async fn ask_all(
    setup: &Setup,
    addresses: &[String],
    shared: &Arc<Shared>,
) -> anyhow::Result<Histogram<u64>> {
    let mut connecting = JoinSet::new();
    for _ in 0..setup.connections {
        connecting.spawn_local(Client::connect("bench", addresses.to_vec()));
    }
    let mut clients = Vec::new();
    while let Some(client) = connecting.join_next().await {
        clients.push(client?.context("cannot connect")?);
    }
    let others = (clients.len()..setup.clients as usize).map(|at| &clients[at % clients.len()]);
    let others: Vec<Client> = others.cloned().collect();
    clients.extend(others);
    shared.connected.store(true, Ordering::Relaxed);
    let latency_ns = std::rc::Rc::new(std::cell::RefCell::new(histogram()));
    let mut asking = JoinSet::new();
    for client in clients {
        let latency_ns = latency_ns.clone();
        let record = move |ns| latency_ns.borrow_mut().saturating_record(ns);
        asking.spawn_local(ask(client, setup.size, shared.clone(), record));
    }
    while let Some(ended) = asking.join_next().await {
        ended?.context("a client")?;
    }
    let latency_ns = latency_ns.borrow().clone();
    Ok(latency_ns)
}

/// One request after the other.
async fn ask(
    mut client: Client,
    size: u32,
    shared: Arc<Shared>,
    record: impl Fn(u64),
) -> Result<(), ClientError> {
    let payload = Bytes::from(vec![b'r'; size as usize]);
    while !shared.ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        client.execute(payload.clone()).await?;
        shared.answered.fetch_add(1, Ordering::Relaxed);
        if shared.measured.load(Ordering::Relaxed) {
            record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(())
}

/// Runs it; `progress` is told seconds and requests per second, once a second.
///
/// # Errors
/// If a replica or a client fails, or the replicas' replies differ.
pub fn run(setup: &Setup, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
    let cluster = Cluster::start(setup)?;
    let load = Load::start(setup, cluster.processes.addresses())?;
    let mut requests = Requests { cluster, load, before: Snapshot::default(), after: None };
    let lengths = phases::run(&mut requests, setup.warm_up, &[setup.length], progress)?;
    let Requests { cluster, load, before, after } = requests;
    let after = after.context("the run has ended")?;
    let answered = load.answered();
    let latency_ns = load.end()?;
    cluster.close(answered)?;
    let difference = |(after, before): (&Report, &Report)| Report {
        instances: after.instances - before.instances,
        requests: after.requests - before.requests,
        cpu: after.cpu.saturating_sub(before.cpu),
        ..after.clone()
    };
    let replicas: Vec<Report> = after.reports.iter().zip(&before.reports).map(difference).collect();
    let leader = replicas.iter().find(|report| report.leading).context("no replica leads")?;
    Ok(Outcome {
        length: lengths.iter().sum(),
        latency_ns,
        leader: leader.clone(),
        replicas_cpu: replicas.iter().map(|report| report.cpu).sum(),
        clients_cpu: after.clients_cpu.saturating_sub(before.clients_cpu),
    })
}

/// How far all are.
#[derive(Debug, Default)]
struct Snapshot {
    reports: Vec<Report>,
    clients_cpu: Duration,
}

/// The subject: clients and replicas.
struct Requests {
    cluster: Cluster,
    load: Load,
    before: Snapshot,
    after: Option<Snapshot>,
}

impl Requests {
    fn measured(&self, measured: bool) {
        self.load.shared.measured.store(measured, Ordering::Relaxed);
    }
}

impl Subject for Requests {
    fn enter(&mut self, phase: Phase) -> anyhow::Result<()> {
        self.load.ensure_alive()?;
        match phase {
            Phase::WarmUp => {}
            Phase::Measured(_) => {
                let reports = self.cluster.reports()?;
                self.before = Snapshot { reports, clients_cpu: cpu_time() };
                self.measured(true);
            }
            Phase::Ended => {
                self.measured(false);
                let clients_cpu = cpu_time();
                self.after = Some(Snapshot { reports: self.cluster.reports()?, clients_cpu });
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.load.answered()
    }
}
