//! Three regions with their servers and sessions, over real connections that are as slow as those
//! of the thesis: started, filled, loaded, stopped. The servers of a region share a thread, and all
//! sessions another one.

use super::node::{Command, Node, Output, Place, Server, Sessions, Workload};
use super::store::{Protocol, Store};
use crate::harness::cpu_time;
use crate::harness::latency::histogram;
use crate::harness::members;
use crate::harness::phases::{self, Phase, Subject};
use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use meridian_baselines::{Cure, Eventual, GentleRain, Partition, regions};
use meridian_core::{RegionId, Time};
use meridian_eunomia::{self as eunomia, Member, Peer, Role, Site, Timestamp, Topology};
use meridian_runtime::{Application, At, Clock, Delay, Handle, Listen, Options};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// How many regions there are (Eunomia, Table 4.1).
pub const REGIONS: u16 = 3;
/// Round trips between two of them, in milliseconds (Table 4.1): Virginia, Oregon and Ireland.
const ROUND_TRIPS_MS: [(u16, u16, u64); 3] = [(0, 1, 80), (0, 2, 80), (1, 2, 160)];
/// How long all keys may take to be written.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether they are.
const LOOK: Duration = Duration::from_millis(20);

/// What is run.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub protocol: Protocol,
    /// Of each region.
    pub partitions: u16,
    /// Of the service of each region, with Eunomia.
    pub replicas: u16,
    #[serde(flatten)]
    pub workload: Workload,
    /// So often GentleRain and Cure find out what is stable.
    pub theta: Duration,
    #[serde(skip)]
    pub warm_up: Duration,
    #[serde(skip)]
    pub length: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub length: Duration,
    /// Answered, of all sessions.
    pub operations: u64,
    /// Of all threads.
    pub cpu: Duration,
    /// Between each two regions: how much later updates of the first were seen in the second than
    /// the way between them takes.
    pub extra_ns: BTreeMap<(RegionId, RegionId), Histogram<u64>>,
}

/// How long the way from a region to another takes.
pub fn one_way(from: RegionId, to: RegionId) -> Duration {
    let pair = (from.0.min(to.0), from.0.max(to.0));
    let known = ROUND_TRIPS_MS.iter().find(|(a, b, _)| (*a, *b) == pair);
    known.map_or(Duration::ZERO, |(_, _, round_trip)| Duration::from_millis(*round_trip) / 2)
}

/// Runs it.
///
/// # Errors
/// If the processes cannot be started, the keys are not written in time, or a process stops.
pub fn run(setup: &Setup) -> anyhow::Result<Outcome> {
    let site = Site { shards: setup.partitions, replicas: setup.replicas };
    let topology = Arc::new(Topology::new(vec![site; usize::from(REGIONS)]));
    match setup.protocol {
        Protocol::Eunomia => run_with(setup, &topology, |me, topology| {
            Member::new(me, topology, eunomia::Options::default())
        }),
        Protocol::Eventual => run_with(setup, &topology, partition::<Eventual>(setup)),
        Protocol::GentleRain => run_with(setup, &topology, partition::<GentleRain>(setup)),
        Protocol::Cure => run_with(setup, &topology, partition::<Cure>(setup)),
    }
}

fn partition<R: regions::Rule>(
    setup: &Setup,
) -> impl Fn(Peer, Arc<Topology>) -> Partition<R> + use<R> {
    let options = regions::Options { theta: setup.theta, ..regions::Options::default() };
    move |me, topology| {
        let Role::Shard(number) = me.role else { unreachable!("partitions are all that there is") };
        Partition::new(me.region, number, topology, options)
    }
}

fn run_with<P: Store>(
    setup: &Setup,
    topology: &Arc<Topology>,
    make: impl Fn(Peer, Arc<Topology>) -> P,
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = runtime.block_on(Cluster::start(setup, topology, make))?;
    let measured = measure(&runtime, &cluster, setup);
    let closed = runtime.block_on(members::close(&cluster.members));
    let outcome = measured?;
    closed?;
    Ok(outcome)
}

fn measure(
    runtime: &tokio::runtime::Runtime,
    cluster: &Cluster,
    setup: &Setup,
) -> anyhow::Result<Outcome> {
    runtime.block_on(cluster.fill())?;
    let mut run = Run { runtime, cluster, at: Vec::new() };
    let lengths = phases::run(&mut run, setup.warm_up, &[setup.length], |_, _| ())?;
    let [before, after] = &run.at[..] else { unreachable!("one part is measured") };
    Ok(Outcome {
        length: lengths.iter().sum(),
        operations: after.0 - before.0,
        cpu: after.1.saturating_sub(before.1),
        extra_ns: runtime.block_on(cluster.extra_ns())?,
    })
}

/// The subject: regions that run.
struct Run<'a> {
    runtime: &'a tokio::runtime::Runtime,
    cluster: &'a Cluster,
    /// At the beginning and the end: operations, processor time.
    at: Vec<(u64, Duration)>,
}

impl Subject for Run<'_> {
    fn enter(&mut self, phase: Phase) -> anyhow::Result<()> {
        let measures = matches!(phase, Phase::Measured(_));
        self.cluster.control.measures.store(measures, Ordering::Relaxed);
        match phase {
            Phase::WarmUp => self.runtime.block_on(self.cluster.ask_sessions(|| Ask::Load)),
            Phase::Measured(_) | Phase::Ended => {
                self.at.push((self.completed(), cpu_time()));
                Ok(())
            }
        }
    }

    fn completed(&self) -> u64 {
        self.cluster.control.answered.load(Ordering::Relaxed)
    }
}

/// What all processes share.
#[derive(Debug, Default)]
struct Control {
    /// How many regions have written their part of the keys.
    filled: AtomicU64,
    answered: AtomicU64,
    measures: AtomicBool,
}

/// What a process is asked.
enum Ask {
    Fill,
    Load,
    /// How much later than the way takes updates of each region were seen here.
    Extra(oneshot::Sender<BTreeMap<RegionId, Histogram<u64>>>),
}

/// What runs on each process: it counts, and measures what is seen.
struct Meter {
    region: RegionId,
    control: Arc<Control>,
    extra_ns: BTreeMap<RegionId, Histogram<u64>>,
}

impl Meter {
    fn on_visible(&mut self, now: Time, origin: RegionId, ts: Timestamp) {
        if self.control.measures.load(Ordering::Relaxed) {
            let extra = now.since(Time(ts.0)).saturating_sub(one_way(origin, self.region));
            let extra_ns = u64::try_from(extra.as_nanos()).unwrap_or(u64::MAX);
            self.extra_ns.entry(origin).or_insert_with(histogram).saturating_record(extra_ns);
        }
    }
}

impl<P: Store> Application<Node<P>> for Meter {
    type Request = Ask;

    fn on_request(&mut self, at: &mut At<'_, Node<P>>, ask: Ask) {
        match ask {
            Ask::Fill => at.command(Command::Fill),
            Ask::Load => at.command(Command::Load),
            // Whoever has asked may be gone.
            Ask::Extra(answer) => drop(answer.send(std::mem::take(&mut self.extra_ns))),
        }
    }

    fn on_output(&mut self, at: &mut At<'_, Node<P>>, output: Output) {
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        match output {
            Output::Filled => count(&self.control.filled),
            Output::Answered => count(&self.control.answered),
            Output::Visible { origin, ts } => self.on_visible(at.time(), origin, ts),
        }
    }
}

/// All processes; the first are those of the sessions.
struct Cluster {
    control: Arc<Control>,
    members: Vec<Handle<Ask, Place>>,
}

impl Cluster {
    async fn start<P: Store>(
        setup: &Setup,
        topology: &Arc<Topology>,
        make: impl Fn(Peer, Arc<Topology>) -> P,
    ) -> anyhow::Result<Cluster> {
        let servers = P::members(topology).into_iter().map(Place::Server);
        let places: Vec<Place> = topology.regions().map(Place::Sessions).chain(servers).collect();
        let (addresses, sockets) = members::sockets(&places)?;
        let workers = members::workers(usize::from(REGIONS) + 1)?;
        let (clock, control) = (Clock::start(), Arc::new(Control::default()));
        let mut cluster = Cluster { control, members: Vec::new() };
        for (place, socket) in places.iter().zip(sockets) {
            let known = addresses.iter().filter(|(other, _)| speak(*place, **other));
            let known = known.map(|(other, address)| (*other, address.clone())).collect();
            let delay = |other: &Place| {
                let one_way = one_way(place.region(), other.region());
                (*other, Delay { one_way, jitter_percent: 0.0 })
            };
            let options = Options {
                listen: Listen::Socket(socket),
                delays: places.iter().map(delay).collect(),
                clock,
                ..Options::new("bench", *place, "", known)
            };
            let region = place.region();
            let (node, worker) = match *place {
                Place::Sessions(region) => {
                    let sessions = Sessions::new(region, topology, setup.workload.clone());
                    (Node::Sessions(sessions), 0)
                }
                Place::Server(peer) => {
                    let process = make(peer, topology.clone());
                    (Node::Server(Server { region, process }), 1 + usize::from(region.0))
                }
            };
            let control = cluster.control.clone();
            let meter = Meter { region, control, extra_ns: BTreeMap::new() };
            cluster.members.push(workers[worker].host(options, node, meter).await?);
        }
        Ok(cluster)
    }

    /// Writes all keys.
    async fn fill(&self) -> anyhow::Result<()> {
        self.ask_sessions(|| Ask::Fill).await?;
        let deadline = Instant::now() + TIMEOUT;
        while self.control.filled.load(Ordering::Relaxed) < u64::from(REGIONS) {
            ensure!(Instant::now() < deadline, "the keys were not written within {TIMEOUT:?}");
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn ask_sessions(&self, ask: impl Fn() -> Ask) -> anyhow::Result<()> {
        for member in &self.members[..usize::from(REGIONS)] {
            member.request(ask()).await?;
        }
        Ok(())
    }

    async fn extra_ns(&self) -> anyhow::Result<BTreeMap<(RegionId, RegionId), Histogram<u64>>> {
        let mut all: BTreeMap<(RegionId, RegionId), Histogram<u64>> = BTreeMap::new();
        for member in &self.members {
            let (answer, extra_ns) = oneshot::channel();
            member.request(Ask::Extra(answer)).await?;
            let extra_ns = extra_ns.await.context("a process has stopped")?;
            for (origin, extra_ns) in extra_ns {
                let pair = (origin, member.me().region());
                *all.entry(pair).or_insert_with(histogram) += extra_ns;
            }
        }
        Ok(all)
    }
}

/// Whether two places have anything to say to each other, or are the same.
fn speak(a: Place, b: Place) -> bool {
    let here = a.region() == b.region();
    let (Place::Server(a), Place::Server(b)) = (a, b) else {
        let shard = |place| matches!(place, Place::Server(Peer { role: Role::Shard(_), .. }));
        return (here && (shard(a) || shard(b))) || a == b;
    };
    match (a.role, b.role) {
        (Role::Shard(a), Role::Shard(b)) => here || a == b,
        (Role::Shard(_), _) | (_, Role::Shard(_)) => here,
        (Role::Replica(_), Role::Receiver) | (Role::Receiver, Role::Replica(_)) => !here,
        (Role::Replica(_), Role::Replica(_)) | (Role::Receiver, Role::Receiver) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::draw::Distribution;

    /// An update of the nearest region waits for the one that is farthest away with GentleRain
    /// alone (Eunomia, section 3.4.2.1).
    #[test]
    fn each_store_answers_and_shows_what_other_regions_write() {
        for protocol in Protocol::ALL {
            let setup = Setup {
                protocol,
                partitions: 2,
                replicas: 1,
                workload: Workload {
                    updates_percent: 50,
                    distribution: Distribution::Zipfian,
                    keys: 100,
                    value_bytes: 10,
                    sessions: 4,
                    think: Duration::from_millis(2),
                },
                theta: Duration::from_millis(5),
                warm_up: Duration::from_millis(400),
                length: Duration::from_millis(400),
            };
            let Outcome { operations, extra_ns, .. } = run(&setup).unwrap();
            assert!(operations > 100, "{protocol:?}: {operations} operations");
            assert_eq!(extra_ns.len(), 6, "{protocol:?}: between each two regions");
            assert!(extra_ns.values().all(|extra_ns| extra_ns.len() > 10), "{protocol:?}");
            let near = &extra_ns[&(RegionId(0), RegionId(1))];
            let waits = near.min() > 30_000_000;
            assert_eq!(waits, protocol == Protocol::GentleRain, "{protocol:?}: {} ns", near.min());
        }
    }
}
