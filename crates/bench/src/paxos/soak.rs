//! `meridian bench paxos soak`: very many requests at five replicas, of which one dies for good,
//! one is away for half of them, and one is slow.

use super::Setup;
use super::cluster::Cluster;
use super::load::Load;
use super::replica::{Counting, Report, Request, Setup as Replica};
use crate::harness::processes::Processes;
use crate::harness::soak::{self, How, Plan, Subject};
use crate::harness::stop_on_signal;
use anyhow::{Context, ensure};
use clap::Args;
use meridian_paxos::Recovery;
use meridian_terminal::output;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const REPLICAS: u16 = 5;

/// How to test.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// How many requests are answered, in all
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(10_000..=1_000_000_000))]
    requests: u64,
    /// What survives a crash; who is away must be able to come back, so not crash-stop
    #[arg(long, default_value = "full-ss")]
    mode: Recovery,
    /// How many clients ask, each one request at a time
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Bytes of each request
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: u32,
    /// Where the replicas' directories are made, and removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    mode: Recovery,
    #[serde(flatten)]
    soak: &'a soak::Report,
}

/// Runs `meridian bench paxos soak`.
///
/// # Errors
/// If replies differ, a replica does not return, or memory or disk are not flat.
pub fn run(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    ensure!(args.mode != Recovery::CrashStop, "--mode crash-stop: nobody comes back in that mode");
    let stop = stop_on_signal()?;
    let setup = Setup {
        mode: args.mode,
        clients: args.clients,
        connections: args.clients.min(16),
        size: args.size,
        replicas: REPLICAS,
        bsz: 64 << 10,
        wnd: 10,
        delta_b: Duration::ZERO,
        rtt: Duration::ZERO,
        warm_up: Duration::ZERO,
        length: Duration::ZERO,
        dir: args.dir.clone(),
    };
    let mut cluster = Cluster::start(&setup)?;
    let leader = cluster.reports()?.iter().position(|report| report.leading);
    let leader = leader.context("no replica leads")? as u16;
    let mut others = (0..REPLICAS).filter(|node| *node != leader);
    let mut other = || others.next().context("five are enough");
    let (slow, dead, away) = (other()?, other()?, other()?);
    let plan = Plan {
        operations: args.requests,
        away,
        how: How::Killed,
        gone_at: 0.25,
        back_at: 0.75,
        dead: Some((dead, 0.125)),
        slow: Some(slow),
        quiet: args.json,
    };
    let load = Load::start(&setup, cluster.processes.addresses())?;
    let mut requests = Requests { cluster, load, back: None, asked: false, report: None };
    let soak = soak::run(&mut requests, plan, &stop)?;
    let Requests { cluster, load, .. } = requests;
    load.end()?;
    cluster.close(args.requests)?;
    if args.json {
        let outcome = Outcome { mode: args.mode, soak: &soak };
        output::print(&serde_json::to_string_pretty(&outcome)?)?;
    } else {
        soak.print(Requests::UNIT)?;
    }
    soak.ensure_flat()?;
    Ok(ExitCode::SUCCESS)
}

/// The subject: clients that ask replicas.
struct Requests {
    cluster: Cluster,
    load: Load,
    /// How many requests were answered when the replica that was away was started again.
    back: Option<u64>,
    /// What that replica says since, and whether it was asked.
    asked: bool,
    report: Option<Report>,
}

impl Subject for Requests {
    type Program = Counting;
    const UNIT: &'static str = "requests";
    const STALLED: Duration = Duration::from_secs(60);

    fn processes(&mut self) -> &mut Processes<Counting> {
        &mut self.cluster.processes
    }

    /// Replicas speak only when they are asked.
    fn hear(&mut self, until: Instant) -> anyhow::Result<()> {
        self.load.ensure_alive()?;
        let until = until.min(Instant::now() + super::load::LOOK);
        if let Some((_, report)) = self.cluster.processes.next(until)? {
            (self.report, self.asked) = (Some(report), false);
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.load.answered()
    }

    fn progress(&self) -> u64 {
        self.load.answered()
    }

    fn executed_by_others(&self, _away: u16) -> u64 {
        self.load.answered()
    }

    /// What a replica keeps is on its disk.
    fn take_log_bytes(&mut self, _node: u16) -> u64 {
        0
    }

    fn setup_after_kill(&mut self, node: u16) -> Replica {
        self.cluster.processes.setup(node).clone()
    }

    fn on_back(&mut self, _node: u16) -> anyhow::Result<()> {
        self.back = Some(self.load.answered());
        Ok(())
    }

    /// It has executed what was answered when it was started again.
    fn has_returned(&mut self, node: u16) -> anyhow::Result<bool> {
        if !self.asked {
            self.asked = true;
            self.cluster.processes.request(node, Request)?;
        }
        let missed = self.back.unwrap_or_default();
        let report = self.report.as_ref();
        Ok(report.is_some_and(|report| report.active && report.requests >= missed))
    }

    fn is_over(&self) -> bool {
        !self.asked
    }
}
