//! Replicas of keys inside this process, over real connections: started, filled, loaded, compared,
//! stopped.

use super::clients::{Ask, Clients, Control, Phase, Report};
use super::contender::{Contender, Protocol, hermes};
use crate::harness::cost::Threads;
use crate::harness::cpu_time;
use crate::harness::draw::Distribution;
use crate::harness::latency::histogram;
use crate::harness::members;
use crate::harness::phases::{self, Subject};
use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use meridian_baselines::{Craq, Zab};
use meridian_core::NodeId;
use meridian_hermes::Acks;
use meridian_runtime::{Clock, Handle, Listen, Options};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// How long the replicas may take to connect and to write all keys, and to answer what is under way
/// at the end.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether all is answered.
const LOOK: Duration = Duration::from_millis(20);

/// What is run.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub protocol: Protocol,
    pub replicas: u16,
    pub writes_percent: u32,
    pub distribution: Distribution,
    pub keys: u32,
    pub value_bytes: u32,
    /// Of each replica.
    pub clients: u32,
    /// So many requests a client asks at once, and again when all are answered.
    pub pipeline: u32,
    pub threads: u16,
    #[serde(skip)]
    pub warm_up: Duration,
    #[serde(skip)]
    pub length: Duration,
}

impl Setup {
    /// Whether no two replicas share a thread.
    fn has_threads_for_all(&self) -> bool {
        self.threads >= self.replicas
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub length: Duration,
    pub reads_ns: Histogram<u64>,
    pub writes_ns: Histogram<u64>,
    /// Reads that the memory of the replica asked did not answer at once.
    pub asked: u64,
    /// Of all threads.
    pub cpu: Duration,
    /// Of the thread that used the most, if each replica has one of its own: of the busiest
    /// replica, with its clients.
    pub busiest: Option<Duration>,
    /// By all replicas.
    pub frames: u64,
    pub bytes: u64,
}

/// Runs it; `progress` is told seconds and requests per second, once a second.
///
/// # Errors
/// If the replicas do not answer, or hold different values at the end.
pub fn run(setup: Setup, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
    match setup.protocol {
        Protocol::Hermes => run_with(setup, |me, _| hermes(me, Acks::Coordinator), progress),
        Protocol::HermesO3 => run_with(setup, |me, _| hermes(me, Acks::All), progress),
        Protocol::Craq => run_with(setup, Craq::new, progress),
        Protocol::Zab => run_with(setup, Zab::new, progress),
    }
}

fn run_with<P: Contender>(
    setup: Setup,
    make: impl Fn(NodeId, &[NodeId]) -> P,
    progress: impl FnMut(f64, f64),
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = runtime.block_on(Cluster::start(Arc::new(setup), make))?;
    let run = Run { runtime: &runtime, cluster: &cluster, before: None, after: None };
    let measured = run.measure(progress);
    let closed = runtime.block_on(members::close(&cluster.members));
    let outcome = measured?;
    closed?;
    Ok(outcome)
}

/// What was used so far.
#[derive(Clone, Default)]
struct Used {
    /// Of the process, just before and just after its threads were read: no thread's share of the
    /// time between two readings exceeds the later of the second less the earlier of the first.
    cpu: (Duration, Duration),
    threads: Threads,
    frames: u64,
    bytes: u64,
}

/// The subject: replicas that run.
struct Run<'a> {
    runtime: &'a tokio::runtime::Runtime,
    cluster: &'a Cluster,
    before: Option<Used>,
    after: Option<Used>,
}

impl Run<'_> {
    fn measure(mut self, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
        let Run { runtime, cluster, .. } = self;
        runtime.block_on(cluster.fill())?;
        let (warm_up, length) = (cluster.setup.warm_up, cluster.setup.length);
        let lengths = phases::run(&mut self, warm_up, &[length], progress)?;
        let (before, after) = (self.before.unwrap_or_default(), self.after.unwrap_or_default());
        let busiest = after.threads.busiest_since(&before.threads);
        let reports = runtime.block_on(cluster.even())?;
        let [mut reads_ns, mut writes_ns] = std::array::from_fn(|_| histogram());
        for report in &reports {
            reads_ns += &report.reads_ns;
            writes_ns += &report.writes_ns;
        }
        Ok(Outcome {
            length: lengths.iter().sum(),
            reads_ns,
            writes_ns,
            asked: reports.iter().map(|report| report.asked).sum(),
            cpu: after.cpu.1.saturating_sub(before.cpu.0),
            busiest: cluster.setup.has_threads_for_all().then_some(busiest),
            frames: after.frames - before.frames,
            bytes: after.bytes - before.bytes,
        })
    }
}

impl Subject for Run<'_> {
    fn enter(&mut self, phase: phases::Phase) -> anyhow::Result<()> {
        let Run { runtime, cluster, .. } = self;
        match phase {
            phases::Phase::WarmUp => {
                cluster.control.set(Phase::WarmUp);
                runtime.block_on(cluster.ask_all(|| Ask::Load))?;
            }
            phases::Phase::Measured(_) => {
                self.before = Some(cluster.used()?);
                cluster.control.set(Phase::Measured);
            }
            phases::Phase::Ended => {
                cluster.control.set(Phase::Drain);
                self.after = Some(cluster.used()?);
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        let completed = self.cluster.control.completed.iter();
        completed.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// All replicas with their clients.
struct Cluster {
    setup: Arc<Setup>,
    control: Arc<Control>,
    members: Vec<Handle<Ask, NodeId>>,
}

impl Cluster {
    async fn start<P: Contender>(
        setup: Arc<Setup>,
        make: impl Fn(NodeId, &[NodeId]) -> P,
    ) -> anyhow::Result<Cluster> {
        let nodes: Vec<NodeId> = (0..setup.replicas).map(NodeId).collect();
        let (addresses, sockets) = members::sockets(&nodes)?;
        let control = Arc::new(Control::new(setup.replicas));
        let workers = members::workers(usize::from(setup.threads))?;
        let clock = Clock::start();
        let mut cluster = Cluster { setup: setup.clone(), control, members: Vec::new() };
        for (node, socket) in nodes.iter().zip(sockets) {
            let listen = Listen::Socket(socket);
            let options =
                Options { listen, clock, ..Options::new("bench", *node, "", addresses.clone()) };
            let clients = Clients::new(setup.clone(), cluster.control.clone(), *node);
            let worker = &workers[usize::from(node.0) % workers.len()];
            cluster.members.push(worker.host(options, make(*node, &nodes), clients).await?);
        }
        Ok(cluster)
    }

    fn used(&self) -> anyhow::Result<Used> {
        let sum = |of: fn(&meridian_runtime::Counters) -> u64| {
            self.members.iter().map(|member| of(member.counters())).sum()
        };
        let before = cpu_time();
        let threads = Threads::look()?;
        Ok(Used {
            cpu: (before, cpu_time()),
            threads,
            frames: sum(|counters| counters.frames.load(Ordering::Relaxed)),
            bytes: sum(|counters| counters.bytes.load(Ordering::Relaxed)),
        })
    }

    /// Writes all keys, and waits until all replicas have them.
    async fn fill(&self) -> anyhow::Result<()> {
        self.ask_all(|| Ask::Begin).await?;
        self.ask_all(|| Ask::Fill).await?;
        self.even().await.context("while the keys were written")?;
        Ok(())
    }

    /// Waits until all that was asked is answered and all replicas hold the same.
    async fn even(&self) -> anyhow::Result<Vec<Report>> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let reports = self.reports().await?;
            if let Some(why) = reports.iter().find_map(|report| report.refused.as_deref()) {
                bail!("a request was not answered: {why}");
            }
            let pending: u64 = reports.iter().map(|report| report.pending).sum();
            let first = reports.first().context("there are replicas")?.digest;
            if pending == 0 && reports.iter().all(|report| report.digest == first) {
                return Ok(reports);
            }
            ensure!(
                Instant::now() < deadline,
                "{pending} requests are not answered; or the replicas hold different values, a bug"
            );
            sleep(LOOK).await;
        }
    }

    async fn reports(&self) -> anyhow::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for member in &self.members {
            let (answer, report) = oneshot::channel();
            member.request(Ask::Report(answer)).await?;
            reports.push(report.await.context("a replica has stopped")?);
        }
        Ok(reports)
    }

    async fn ask_all(&self, ask: impl Fn() -> Ask) -> anyhow::Result<()> {
        for member in &self.members {
            member.request(ask()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cluster_answers_reads_and_writes_with_each_protocol() {
        let all = [Protocol::Hermes, Protocol::HermesO3, Protocol::Craq, Protocol::Zab];
        for (protocol, threads) in all.into_iter().zip([1, 2, 3, 3]) {
            let setup = Setup {
                protocol,
                replicas: 3,
                writes_percent: 50,
                distribution: Distribution::Zipfian,
                keys: 50,
                value_bytes: 8,
                clients: 4,
                pipeline: 2,
                threads,
                warm_up: Duration::ZERO,
                length: Duration::from_millis(200),
            };
            let outcome = run(setup, |_, _| ()).unwrap();
            let (reads, writes) = (outcome.reads_ns.len(), outcome.writes_ns.len());
            assert!(reads > 100 && writes > 100, "{protocol:?}: {reads} reads, {writes} writes");
            assert!(outcome.frames > 0 && outcome.cpu > Duration::ZERO);
            assert_eq!(outcome.busiest.is_some(), threads == 3, "known of threads of their own");
            let within = |busiest| busiest > Duration::ZERO && busiest <= outcome.cpu;
            assert!(outcome.busiest.is_none_or(within), "{:?}", outcome.busiest);
            let asks = protocol != Protocol::Zab;
            assert_eq!(outcome.asked > 0, asks, "{protocol:?}: some keys are written just then");
        }
    }
}
