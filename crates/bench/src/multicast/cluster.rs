//! A cluster inside this process, over real connections: started, loaded, looked at, stopped.

use super::client::{Ask, Client, Control, MEASURED, Part, Phase, Report, Ways};
use super::layout::Distances;
use crate::dissemination::DisseminationArg;
use crate::harness::cost::Threads;
use crate::harness::cpu_time;
use crate::harness::members;
use crate::harness::phases::{self, Subject};
use anyhow::{Context, bail, ensure};
use meridian_baselines::skeen::{Skeen, Variant};
use meridian_baselines::{FastCast, WhiteBox};
use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{
    ClockSource, Groups, Limits, Options as PrimCastOptions, Order, Output, PrimCast, Role,
};
use meridian_runtime::{Clock, Handle, Listen, Networked, Options};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// How long the members may take to connect and to deliver a first message, beside the round trips.
const MEET_TIMEOUT: Duration = Duration::from_secs(30);
/// How long what is in flight at the end may take, beside what it took before.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The clients cannot be brought up by a snapshot, so all is kept for a member that gets less of
/// the processors than the others: in a run of seconds that is not too much.
const KEPT: Limits = Limits { bytes: 8 << 30, entries: 1 << 26, exceptions: 1024 };
/// How often it is looked whether all is delivered.
const LOOK: Duration = Duration::from_millis(20);

/// A protocol that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// PrimCast with logical clocks
    Primcast,
    /// PrimCast with hybrid clocks
    PrimcastHc,
    /// PrimCast with the linearizable order and hybrid clocks, as nodes run it
    Linearizable,
    /// The same with logical clocks
    LinearizableLogical,
    /// White-Box
    WhiteBox,
    /// FastCast, as published
    Fastcast,
    /// FastCast with fewer rounds of consensus than published: one moves the clock for many
    /// messages
    FastcastLean,
    /// Skeen's algorithm; for one replica in each group
    Skeen,
}

impl Protocol {
    /// Those of the thesis's figures.
    pub const OF_THE_THESIS: [Protocol; 4] =
        [Protocol::Primcast, Protocol::PrimcastHc, Protocol::WhiteBox, Protocol::Fastcast];

    /// Whether it is PrimCast, in whatever order and with whatever clocks.
    pub fn is_primcast(self) -> bool {
        matches!(
            self,
            Protocol::Primcast
                | Protocol::PrimcastHc
                | Protocol::Linearizable
                | Protocol::LinearizableLogical
        )
    }

    /// What it is called in figures.
    pub fn title(self) -> &'static str {
        match self {
            Protocol::Primcast => "PrimCast",
            Protocol::PrimcastHc => "PrimCast HC",
            Protocol::Linearizable => "Linearizable",
            Protocol::LinearizableLogical => "Linearizable, logical",
            Protocol::WhiteBox => "White-Box",
            Protocol::Fastcast => "FastCast",
            Protocol::FastcastLean => "FastCast, lean",
            Protocol::Skeen => "Skeen",
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub protocol: Protocol,
    pub groups: u16,
    pub replicas: u16,
    pub dest: u16,
    pub payload: usize,
    pub outstanding: u64,
    pub warm_up: Duration,
    pub length: Duration,
    pub distances: Distances,
    pub cut: Option<u16>,
    pub dissemination: DisseminationArg,
    pub threads: usize,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The measured parts and their lengths: one, or three with a cut.
    pub parts: Vec<(Duration, Part)>,
    /// Of all threads, in the measured parts.
    pub cpu: Duration,
    /// Of the thread that used the most.
    pub busiest: Duration,
    /// In the measured parts, by all members.
    pub frames: u64,
    pub bytes: u64,
    /// Messages that the groups delivered, those not measured among them.
    pub delivered: u64,
}

/// Runs it; `progress` is told seconds and messages per second, once a second.
pub fn run(setup: Setup, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
    let dissemination = setup.dissemination.into();
    let primcast = |order, clock| {
        move |me, groups: &Groups| {
            let process = PrimCast::new(me, groups.clone());
            let options = PrimCastOptions { order, clock, dissemination, ..Default::default() };
            process.with_options(options).with_limits(KEPT)
        }
    };
    let ways: Ways<PrimCast> = Ways {
        leads: |process| process.role() == Role::Primary,
        refused: |output| match output {
            Output::Refused { id, .. } => Some(*id),
            _ => None,
        },
    };
    match setup.protocol {
        Protocol::Primcast => {
            let make = primcast(Order::Sequential, ClockSource::Logical);
            run_with(setup, make, ways, progress)
        }
        Protocol::PrimcastHc => {
            let make = primcast(Order::Sequential, ClockSource::Hybrid);
            run_with(setup, make, ways, progress)
        }
        Protocol::Linearizable => {
            let make = primcast(Order::Linearizable, ClockSource::Hybrid);
            run_with(setup, make, ways, progress)
        }
        Protocol::LinearizableLogical => {
            let make = primcast(Order::Linearizable, ClockSource::Logical);
            run_with(setup, make, ways, progress)
        }
        Protocol::WhiteBox => {
            let ways = Ways { leads: WhiteBox::leads, refused: |_| None };
            run_with(setup, |me, groups| WhiteBox::new(me, groups.clone()), ways, progress)
        }
        Protocol::Fastcast => {
            let ways = Ways { leads: FastCast::leads, refused: |_| None };
            run_with(setup, |me, groups| FastCast::new(me, groups.clone()), ways, progress)
        }
        Protocol::FastcastLean => {
            let ways = Ways { leads: FastCast::leads, refused: |_| None };
            let make = |me, groups: &Groups| FastCast::new(me, groups.clone()).lean();
            run_with(setup, make, ways, progress)
        }
        Protocol::Skeen => {
            ensure!(setup.replicas == 1, "Skeen's algorithm is for groups of one: --replicas 1");
            let make = |me, groups: &Groups| Skeen::new(me, groups.clone(), Variant::Plain);
            run_with(setup, make, Ways { leads: |_| true, refused: |_| None }, progress)
        }
    }
}

fn run_with<P: Networked + meridian_multicast::Protocol + Send>(
    setup: Setup,
    make: impl Fn(ProcessId, &Groups) -> P,
    ways: Ways<P>,
    progress: impl FnMut(f64, f64),
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = runtime.block_on(Cluster::start(Arc::new(setup), make, ways))?;
    let run = Run { runtime: &runtime, cluster: &cluster, before: None, after: None };
    let measured = run.measure(progress);
    let closed = runtime.block_on(members::close(&cluster.members));
    let outcome = measured?;
    closed?;
    Ok(outcome)
}

/// What threads and members have used so far.
#[derive(Default)]
struct Used {
    /// Of the process, just before and just after its threads were read: no thread's share of the
    /// time between two readings exceeds the later of the second less the earlier of the first.
    cpu: (Duration, Duration),
    threads: Threads,
    frames: u64,
    bytes: u64,
}

/// The subject: a cluster that runs.
struct Run<'a> {
    runtime: &'a tokio::runtime::Runtime,
    cluster: &'a Cluster,
    before: Option<Used>,
    after: Option<Used>,
}

impl Run<'_> {
    fn measure(mut self, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
        let Run { runtime, cluster, .. } = self;
        runtime.block_on(cluster.meet())?;
        let (warm_up, length) = (cluster.setup.warm_up, cluster.setup.length);
        let parts = match cluster.setup.cut {
            Some(_) => vec![length / 3; MEASURED],
            None => vec![length],
        };
        let lengths = phases::run(&mut self, warm_up, &parts, progress)?;
        let (before, after) = (self.before.unwrap_or_default(), self.after.unwrap_or_default());
        let reports = runtime.block_on(cluster.drain())?;
        let delivered = check(&reports)?;
        let mut parts: [Part; MEASURED] = std::array::from_fn(|_| Part::new());
        for report in &reports {
            parts.iter_mut().zip(&report.parts).for_each(|(sum, part)| sum.merge(part));
        }
        Ok(Outcome {
            parts: lengths.into_iter().zip(parts).collect(),
            cpu: after.cpu.1.saturating_sub(before.cpu.0),
            busiest: after.threads.busiest_since(&before.threads),
            frames: after.frames - before.frames,
            bytes: after.bytes - before.bytes,
            delivered,
        })
    }
}

impl Subject for Run<'_> {
    fn enter(&mut self, phase: phases::Phase) -> anyhow::Result<()> {
        let Run { runtime, cluster, .. } = self;
        match phase {
            phases::Phase::WarmUp => {
                cluster.control.set(Phase::WarmUp);
                runtime.block_on(cluster.ask_all(|| Ask::Begin))?;
            }
            phases::Phase::Measured(part) => {
                if part == 0 {
                    self.before = Some(cluster.used()?);
                } else {
                    let cut = cluster.setup.cut.filter(|_| part == 1).map(GroupId);
                    runtime.block_on(cluster.cut(cut.into_iter().collect()))?;
                }
                cluster.control.set([Phase::Before, Phase::During, Phase::After][part]);
            }
            phases::Phase::Ended => {
                cluster.control.set(Phase::Drain);
                self.after = Some(cluster.used()?);
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.cluster.measured()
    }
}

/// All members with their clients.
struct Cluster {
    setup: Arc<Setup>,
    control: Arc<Control>,
    members: Vec<Handle<Ask>>,
}

impl Cluster {
    async fn start<P: Networked + meridian_multicast::Protocol + Send>(
        setup: Arc<Setup>,
        make: impl Fn(ProcessId, &Groups) -> P,
        ways: Ways<P>,
    ) -> anyhow::Result<Cluster> {
        let ids: Vec<ProcessId> = (0..setup.groups * setup.replicas)
            .map(|node| ProcessId { group: GroupId(node / setup.replicas), node: NodeId(node) })
            .collect();
        let mut groups: BTreeMap<GroupId, Vec<NodeId>> = BTreeMap::new();
        for id in &ids {
            groups.entry(id.group).or_default().push(id.node);
        }
        let (addresses, sockets) = members::sockets(&ids)?;
        let groups: Groups = Arc::new(groups);
        let control = Arc::new(Control::new(ids.len()));
        let workers = members::workers(setup.threads)?;
        // One for all, so that latencies between members can be told.
        let clock = Clock::start();
        let mut cluster = Cluster { setup: setup.clone(), control, members: Vec::new() };
        let place = |id: &ProcessId| (id.group.0, id.node.0 % setup.replicas);
        for (number, (id, socket)) in ids.iter().zip(sockets).enumerate() {
            let delays = ids.iter().map(|to| (*to, setup.distances.delay(place(id), place(to))));
            let options = Options {
                listen: Listen::Socket(socket),
                delays: delays.collect(),
                clock,
                ..Options::new("bench", *id, "", addresses.clone())
            };
            let control = cluster.control.clone();
            let client = Client::new(setup.clone(), control, number, *id, ways);
            let worker = &workers[number % workers.len()];
            cluster.members.push(worker.host(options, make(*id, &groups), client).await?);
        }
        Ok(cluster)
    }

    fn used(&self) -> anyhow::Result<Used> {
        let (frames, bytes) = (self.frames(), self.bytes());
        let before = cpu_time();
        let threads = Threads::look()?;
        Ok(Used { cpu: (before, cpu_time()), threads, frames, bytes })
    }

    /// Waits until every client has had a message of its own that all groups delivered.
    async fn meet(&self) -> anyhow::Result<()> {
        self.ask_all(|| Ask::Meet).await?;
        let deadline = Instant::now() + MEET_TIMEOUT + self.setup.distances.longest() * 10;
        while self.completed() < self.members.len() as u64 {
            if Instant::now() > deadline {
                bail!("only {} of {} first messages arrived", self.completed(), self.members.len());
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until all that was sent is delivered everywhere, or nothing more is.
    async fn drain(&self) -> anyhow::Result<Vec<Report>> {
        let deadline = Instant::now() + DRAIN_TIMEOUT + self.setup.distances.longest() * 10;
        loop {
            let reports = self.reports().await?;
            let pending: u64 = reports.iter().map(|report| report.pending).sum();
            let even = reports.iter().all(|report| {
                reports.iter().all(|other| {
                    other.me.group != report.me.group || other.delivered == report.delivered
                })
            });
            if pending == 0 && even {
                return Ok(reports);
            }
            if Instant::now() > deadline {
                let counts: Vec<String> = reports
                    .iter()
                    .map(|report| format!("{} {}", report.me, report.delivered))
                    .collect();
                bail!(
                    "{pending} messages are not delivered everywhere though nothing is in their way ({})",
                    counts.join(", ")
                );
            }
            sleep(LOOK).await;
        }
    }

    async fn reports(&self) -> anyhow::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for member in &self.members {
            let (answer, report) = oneshot::channel();
            member.request(Ask::Report(answer)).await?;
            reports.push(report.await.context("a member has stopped")?);
        }
        Ok(reports)
    }

    async fn ask_all(&self, ask: impl Fn() -> Ask) -> anyhow::Result<()> {
        for member in &self.members {
            member.request(ask()).await?;
        }
        Ok(())
    }

    async fn cut(&self, groups: BTreeSet<GroupId>) -> anyhow::Result<()> {
        for member in &self.members {
            member.cut(groups.clone()).await?;
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.control.completed.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Of all clients but those of a group that is cut off.
    fn measured(&self) -> u64 {
        let counts = self.members.iter().zip(&self.control.completed);
        let counts = counts.filter(|(member, _)| Some(member.me().group.0) != self.setup.cut);
        counts.map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }

    fn frames(&self) -> u64 {
        let frames = self.members.iter().map(|m| m.counters().frames.load(Ordering::Relaxed));
        frames.sum()
    }

    fn bytes(&self) -> u64 {
        self.members.iter().map(|m| m.counters().bytes.load(Ordering::Relaxed)).sum()
    }
}

/// Whether all replicas of each group have delivered the same, and not nothing; tells how much,
/// over the groups.
fn check(reports: &[Report]) -> anyhow::Result<u64> {
    let mut groups: BTreeMap<GroupId, &Report> = BTreeMap::new();
    for report in reports {
        let first = groups.entry(report.me.group).or_insert(report);
        ensure!(
            (first.delivered, first.hash) == (report.delivered, report.hash),
            "{} and {} have delivered different sequences ({} and {} messages): a bug",
            first.me,
            report.me,
            first.delivered,
            report.delivered
        );
    }
    let total = groups.values().map(|report| report.delivered).sum();
    ensure!(groups.values().all(|report| report.delivered > 0), "a group has delivered nothing");
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: u16, delivered: u64, hash: u64) -> Report {
        let me = ProcessId { group: GroupId(0), node: NodeId(node) };
        Report { me, pending: 0, delivered, hash, parts: std::array::from_fn(|_| Part::new()) }
    }

    #[test]
    fn replicas_that_differ_or_deliver_nothing_fail_the_run() {
        assert_eq!(check(&[report(0, 3, 9), report(1, 3, 9)]).unwrap(), 3);
        let differ = check(&[report(0, 3, 9), report(1, 3, 8)]).unwrap_err().to_string();
        assert!(differ.contains("g0/n1"), "{differ}");
        assert!(check(&[report(0, 3, 9), report(1, 2, 9)]).is_err());
        assert!(check(&[report(0, 0, 0)]).is_err());
    }

    #[test]
    fn a_small_cluster_delivers_the_same_everywhere() {
        let setup = Setup {
            protocol: Protocol::Primcast,
            groups: 2,
            replicas: 3,
            dest: 2,
            payload: 32,
            outstanding: 2,
            warm_up: Duration::ZERO,
            length: Duration::from_millis(300),
            distances: Distances::default(),
            cut: None,
            dissemination: DisseminationArg::AllToAll,
            threads: 1,
        };
        let outcome = run(setup, |_, _| ()).unwrap();
        let (_, part) = &outcome.parts[0];
        assert!(!part.client_ns.is_empty() && outcome.delivered >= part.client_ns.len());
        assert!(outcome.busiest > Duration::ZERO);
        assert!(outcome.busiest <= outcome.cpu, "{:?} of {:?}", outcome.busiest, outcome.cpu);
        // Each message reaches six replicas, two of them leaders.
        assert!(part.follower_ns.len() > part.leader_ns.len());
    }
}
