//! All replicas, and what they must agree on.

use super::replica::{Counting, Report, Request, Setup as Replica};
use super::{Setup, load};
use crate::harness::Scratch;
use crate::harness::processes::Processes;
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};

/// How long replicas may take to elect a leader, and to become equal at the end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All replicas.
pub struct Cluster {
    pub processes: Processes<Counting>,
    scratch: Scratch,
}

impl Cluster {
    /// Starts the replicas and waits until one leads.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    pub fn start(setup: &Setup) -> anyhow::Result<Cluster> {
        let scratch = Scratch::make(&setup.dir.clone().unwrap_or_else(std::env::temp_dir))?;
        let replica = Replica {
            mode: setup.mode,
            bsz: setup.bsz,
            wnd: setup.wnd,
            delta_b: setup.delta_b,
            one_way: setup.rtt / 2,
        };
        let replicas = vec![replica; setup.replicas.into()];
        let processes = Processes::start(replicas, &scratch, false)?;
        let mut cluster = Cluster { processes, scratch };
        cluster.until("no replica leads", |reports| reports.iter().any(|report| report.leading))?;
        Ok(cluster)
    }

    /// How far all are that are up, by node.
    pub fn reports(&mut self) -> anyhow::Result<Vec<Report>> {
        let nodes = 0..self.processes.len();
        let reports = nodes.map(|node| self.processes.call(node, Request));
        Ok(reports.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn until(
        &mut self,
        otherwise: &str,
        is: impl Fn(&[Report]) -> bool,
    ) -> anyhow::Result<Vec<Report>> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let reports = self.reports()?;
            if is(&reports) {
                return Ok(reports);
            }
            ensure!(Instant::now() < deadline, "{otherwise}: {reports:?}");
            std::thread::sleep(load::LOOK);
        }
    }

    /// Waits until all that are up have executed equally much, at least `requests`, with equal
    /// replies; closes them.
    pub fn close(mut self, requests: u64) -> anyhow::Result<()> {
        let reports = self.until("the replicas do not become equal", |reports| {
            let all = reports.first().map_or(0, |first| first.requests);
            all >= requests && reports.iter().all(|report| report.requests == all)
        })?;
        let first = reports.first().context("no replica is up")?.digest;
        ensure!(
            reports.iter().all(|report| report.digest == first),
            "the replicas have given different replies, a bug: {reports:?}"
        );
        self.processes.close()?;
        self.scratch.remove()
    }
}
