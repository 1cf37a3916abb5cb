//! A service, partitions that update, and whoever hears of it, over real connections: started,
//! loaded, stopped. Each replica of the service has a thread of its own; all others share one.

use super::contender::{Contender, Service};
use super::parts::{ELSEWHERE, HERE, Part};
use crate::harness::cpu_time;
use crate::harness::members;
use crate::harness::phases::{self, Phase, Subject};
use meridian_baselines::sequencer::Sequencer;
use meridian_core::{Endpoint, NodeId};
use meridian_eunomia::{Peer, Role, Site, Topology};
use meridian_runtime::{Application, At, Clock, Handle, Listen, Options};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is run.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub service: Service,
    /// Of the service.
    pub replicas: u16,
    pub partitions: u16,
    /// Updates for which a partition waits at a time, with the sequencer.
    pub clients: u32,
    /// Updates of a partition that may be on their way, with Eunomia.
    pub outstanding: u32,
    /// So many replicas of Eunomia stop, one after the other, each after the same time.
    pub stops: u16,
    #[serde(skip)]
    pub warm_up: Duration,
    #[serde(skip)]
    pub length: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub length: Duration,
    /// Ordered, and the one for whom they are has heard of it.
    pub updates: u64,
    /// Of each replica of the service.
    pub service_cpu: Vec<Duration>,
    /// Of all threads.
    pub cpu: Duration,
}

/// Runs it; `progress` is told seconds and updates per second, once a second.
///
/// # Errors
/// If the processes cannot be started, or one stops.
pub fn run(setup: Setup, progress: impl FnMut(f64, f64)) -> anyhow::Result<Outcome> {
    let Setup { service, replicas, partitions, outstanding, .. } = setup;
    match service {
        Service::Eunomia => {
            let here = Site { shards: partitions, replicas };
            let elsewhere = Site { shards: 1, replicas: 1 };
            let topology = Arc::new(Topology::new(vec![here, elsewhere]));
            let receiver = Peer { region: ELSEWHERE, role: Role::Receiver };
            let others = topology.shards(HERE).chain([receiver]);
            let members: Vec<Peer> = topology.replicas(HERE).chain(others).collect();
            run_with(setup, &members, |me| Part::new(me, &topology, outstanding), progress)
        }
        Service::Sequencer => {
            let members: Vec<NodeId> = (0..replicas + partitions).map(NodeId).collect();
            run_with(setup, &members, |me| Sequencer::new(me, replicas), progress)
        }
    }
}

fn run_with<P: Contender>(
    setup: Setup,
    members: &[P::Peer],
    make: impl Fn(P::Peer) -> P,
    progress: impl FnMut(f64, f64),
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = runtime.block_on(Cluster::start(&setup, members, make))?;
    let mut run = Run { runtime: &runtime, cluster: &cluster, at: Vec::new() };
    let parts = usize::from(setup.stops) + 1;
    let lengths = vec![setup.length / parts as u32; parts];
    let measured = phases::run(&mut run, setup.warm_up, &lengths, progress);
    let at = std::mem::take(&mut run.at);
    let stopped = at.len().saturating_sub(2).min(parts - 1);
    let closed = runtime.block_on(members::close(&cluster.members[stopped..]));
    let length = measured?.iter().sum();
    closed?;
    let [before, .., after] = &at[..] else { unreachable!("a part is measured") };
    let used = before.service.iter().zip(&after.service);
    Ok(Outcome {
        length,
        updates: after.updates - before.updates,
        service_cpu: used.map(|(before, after)| after.saturating_sub(*before)).collect(),
        cpu: after.cpu.saturating_sub(before.cpu),
    })
}

/// How far a run is.
struct Reading {
    updates: u64,
    service: Vec<Duration>,
    cpu: Duration,
}

/// The subject: processes that run.
struct Run<'a, E: Endpoint> {
    runtime: &'a tokio::runtime::Runtime,
    cluster: &'a Cluster<E>,
    /// At the beginning of each part, and at the end.
    at: Vec<Reading>,
}

impl<E: Endpoint> Subject for Run<'_, E> {
    fn enter(&mut self, phase: Phase) -> anyhow::Result<()> {
        match phase {
            Phase::WarmUp => self.runtime.block_on(self.cluster.load())?,
            Phase::Measured(0) | Phase::Ended => self.at.push(self.cluster.read()),
            Phase::Measured(part) => {
                self.at.push(self.cluster.read());
                self.runtime.block_on(self.cluster.members[part - 1].close())?;
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.cluster.updates.load(Ordering::Relaxed)
    }
}

/// A process is to put load on the service.
struct Load;

/// What runs on each process: it counts what was ordered, and notes what its thread has used.
struct Meter {
    clients: u32,
    updates: Arc<AtomicU64>,
    /// In nanoseconds.
    used: Option<Arc<AtomicU64>>,
}

impl<P: Contender> Application<P> for Meter {
    type Request = Load;

    fn on_request(&mut self, at: &mut At<'_, P>, _: Load) {
        P::begin(self.clients).into_iter().for_each(|command| at.command(command));
    }

    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output) {
        let (updates, next) = P::ordered(output);
        self.updates.fetch_add(updates, Ordering::Relaxed);
        next.into_iter().for_each(|command| at.command(command));
    }

    fn on_batch(&mut self, _: &mut At<'_, P>) {
        if let Some(used) = &self.used {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let nanos = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
            used.store(nanos, Ordering::Relaxed);
        }
    }
}

/// All processes.
struct Cluster<E: Endpoint> {
    members: Vec<Handle<Load, E>>,
    updates: Arc<AtomicU64>,
    used: Vec<Arc<AtomicU64>>,
    replicas: usize,
}

impl<E: Endpoint> Cluster<E> {
    /// The first of `members` are the replicas of the service.
    async fn start<P: Contender<Peer = E>>(
        setup: &Setup,
        members: &[E],
        make: impl Fn(E) -> P,
    ) -> anyhow::Result<Cluster<E>> {
        let replicas = usize::from(setup.replicas);
        let (addresses, sockets) = members::sockets(members)?;
        let workers = members::workers(replicas + 1)?;
        let clock = Clock::start();
        let updates = Arc::new(AtomicU64::new(0));
        let used: Vec<_> = (0..replicas).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let mut cluster = Cluster { members: Vec::new(), updates, used, replicas };
        for ((at, member), socket) in members.iter().enumerate().zip(sockets) {
            // Partitions speak with the service only, and so does the receiver.
            let near = |other: usize| at < replicas || other < replicas;
            let known =
                members.iter().enumerate().filter(|(other, _)| near(*other) || *other == at);
            let known = known.map(|(_, other)| (*other, addresses[other].clone())).collect();
            let listen = Listen::Socket(socket);
            let options = Options { listen, clock, ..Options::new("bench", *member, "", known) };
            let (updates, used) = (cluster.updates.clone(), cluster.used.get(at).cloned());
            let meter = Meter { clients: setup.clients, updates, used };
            let worker = &workers[at.min(replicas)];
            cluster.members.push(worker.host(options, make(*member), meter).await?);
        }
        Ok(cluster)
    }

    async fn load(&self) -> anyhow::Result<()> {
        for member in &self.members[self.replicas..] {
            member.request(Load).await?;
        }
        Ok(())
    }

    fn read(&self) -> Reading {
        let nanos = |used: &Arc<AtomicU64>| Duration::from_nanos(used.load(Ordering::Relaxed));
        Reading {
            updates: self.updates.load(Ordering::Relaxed),
            service: self.used.iter().map(nanos).collect(),
            cpu: cpu_time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_services_order_updates_with_one_replica_and_with_three() {
        for service in [Service::Eunomia, Service::Sequencer] {
            for replicas in [1, 3] {
                let setup = Setup {
                    service,
                    replicas,
                    partitions: 4,
                    clients: 2,
                    outstanding: 100,
                    stops: 0,
                    warm_up: Duration::from_millis(200),
                    length: Duration::from_millis(300),
                };
                let outcome = run(setup, |_, _| ()).unwrap();
                assert!(outcome.updates > 100, "{service:?}, {replicas}: {outcome:?}");
                let used = outcome.service_cpu.iter().filter(|cpu| !cpu.is_zero()).count();
                assert_eq!(used, usize::from(replicas), "{service:?}: {outcome:?}");
            }
        }
    }

    /// Eunomia, Figure 4.4: the next replica takes over, whichever stops.
    #[test]
    fn the_service_goes_on_while_a_replica_is_left() {
        let setup = Setup {
            service: Service::Eunomia,
            replicas: 3,
            partitions: 4,
            clients: 1,
            outstanding: 100,
            stops: 2,
            warm_up: Duration::from_millis(200),
            length: Duration::from_millis(6000),
        };
        let mut ordered = Vec::new();
        let outcome = run(setup, |_, updates| ordered.push(updates)).unwrap();
        assert!(outcome.updates > 100, "{outcome:?}");
        let last = ordered.last().copied().unwrap_or_default();
        assert!(last > 100.0, "a second after the second stop: {ordered:?}");
    }
}
