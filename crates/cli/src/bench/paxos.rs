//! `meridian bench paxos`: throughput and latency of a replicated service over TCP (report, section 9): each replica
//! is a process of its own, the clients are in this one.
//!
//! | module | what |
//! | --- | --- |
//! | `replica` | a replica's process |
//! | `cluster` | the processes of all replicas |
//! | `load` | clients, and what is measured |
//! | `endure` | very many requests, with replicas that are slow, dead and away |
//! | `figures` | the report's Figures 13 and 14 |

mod cluster;
mod endure;
mod figures;
mod load;
mod replica;

use crate::output;
use anyhow::ensure;
use clap::{Args, Subcommand};
use load::{Outcome, Setup};
use meridian_paxos::{ALPHA, Recovery};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// So much of a run is warming up: a tenth of it, at most this.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum PaxosCommand {
    /// Measure and draw what Figures 13 and 14 of the report show, as SVG: throughput, latency, batches and instances
    /// under way over BSZ and WND, near and with a round trip of 100 ms
    Figures(figures::FiguresArgs),
    /// Very many requests at five replicas, of which one dies, one is away for half of them, and one is slow: memory,
    /// disk, and the return of the one that was away
    #[command(after_help = "\
Each replica is a process of its own. One stands still every other 200 ms. One is killed (SIGKILL) after an eighth of the
requests, for good; one after a quarter, and is started again after three quarters, on the directory that it had. The
others have cut their logs by then, so it gets a snapshot. At the end all that are up must have given the same replies.

The command fails if they have not, if the one that was away does not return, if nothing is answered for a minute, or, in
runs of 500000 requests or more, if memory or disk of a replica are not flat (see `meridian bench multicast endure --help`).

Examples:
  meridian bench paxos endure
  meridian bench paxos endure --requests 10000000 --mode epoch-ss")]
    Endure(endure::EndureArgs),
    /// One replica, started by the others
    #[command(hide = true)]
    Replica,
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PaxosArgs {
    #[command(subcommand)]
    command: Option<PaxosCommand>,
    /// What survives a crash: crash-stop (nothing is kept), full-ss (each vote is on disk before it counts), epoch-ss (one
    /// write for each start), view-ss (one for each view)
    #[arg(long, default_value = "full-ss")]
    mode: Recovery,
    /// How many clients ask, each one request at a time
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How many connections they share [default: one for each client, at most 1000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Bytes of each request; replies have 8
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: u32,
    /// How many replicas there are
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: u16,
    /// BSZ: how long a batch gets, in bytes
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    bsz: u32,
    /// WND: how many instances are under way at most
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=ALPHA))]
    wnd: u64,
    /// How long a batch waits to get full, in milliseconds
    #[arg(long, default_value_t = 0.0, value_parser = milliseconds)]
    delta_b: f64,
    /// Round trip between replicas, in milliseconds; the clients are near the leader
    #[arg(long, default_value_t = 0.0, value_parser = milliseconds)]
    rtt: f64,
    /// For how many seconds it is measured
    #[arg(long, default_value_t = 5.0, value_parser = super::positive_seconds)]
    seconds: f64,
    /// Where the replicas' directories are made, and removed at the end: on the disk that is to be measured
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table; latencies are in microseconds
    #[arg(long)]
    json: bool,
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=10_000.0).contains(&ms) => Ok(ms),
        _ => Err("from 0 to 10000".into()),
    }
}

impl PaxosArgs {
    fn setup(&self) -> Setup {
        let (length, rtt) =
            (Duration::from_secs_f64(self.seconds), Duration::from_secs_f64(self.rtt / 1e3));
        Setup {
            mode: self.mode,
            clients: self.clients,
            connections: self.connections.unwrap_or(1000).min(self.clients),
            size: self.size,
            replicas: self.replicas,
            bsz: self.bsz,
            wnd: self.wnd,
            delta_b: Duration::from_secs_f64(self.delta_b / 1e3),
            rtt,
            warm_up: (length / 10).min(WARM_UP_MAX) + rtt * 3,
            length,
            dir: self.dir.clone(),
        }
    }
}

/// The figures of a run, as in the report's section 9.1.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    setup: &'a Setup,
    requests_per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
    instances_per_second: f64,
    /// Requests in a batch, on average.
    batch: f64,
    /// Instances under way at the leader, on average.
    window: f64,
    /// From proposal to decision, on average: instances under way by instances per second.
    instance_us: f64,
    /// Of all replicas' processes, for each request; and of the leader's.
    replicas_cpu_us_per_request: f64,
    leader_cpu_us_per_request: f64,
    /// Of the clients' process.
    clients_cpu_us_per_request: f64,
}

impl Figures<'_> {
    fn of<'a>(setup: &'a Setup, outcome: &Outcome) -> Figures<'a> {
        let seconds = outcome.length.as_secs_f64();
        let requests = outcome.latency_ns.len() as f64;
        let us = |quantile| outcome.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        let leader = &outcome.leader;
        let instances_per_second = leader.instances as f64 / seconds;
        let per_request = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests.max(1.0);
        Figures {
            setup,
            requests_per_second: requests / seconds,
            mean_us: outcome.latency_ns.mean() / 1e3,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            max_us: outcome.latency_ns.max() as f64 / 1e3,
            instances_per_second,
            batch: leader.requests as f64 / leader.instances.max(1) as f64,
            window: leader.under_way,
            instance_us: leader.under_way / instances_per_second.max(1e-9) * 1e6,
            replicas_cpu_us_per_request: per_request(outcome.replicas_cpu),
            leader_cpu_us_per_request: per_request(leader.cpu),
            clients_cpu_us_per_request: per_request(outcome.clients_cpu),
        }
    }
}

/// Runs `meridian bench paxos`.
pub fn run(args: &PaxosArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(PaxosCommand::Figures(args)) => return figures::run(args),
        Some(PaxosCommand::Endure(args)) => return endure::run(args),
        Some(PaxosCommand::Replica) => return replica::run(),
        None => {}
    }
    let (setup, json) = (args.setup(), args.json);
    let outcome = load::run(&setup, |seconds, requests| {
        if !json {
            note!("{seconds:>4.0} s  {requests:.0} requests/s");
        }
    })?;
    let figures = Figures::of(&setup, &outcome);
    if json {
        output::print(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        print(&figures)?;
    }
    ensure!(!outcome.latency_ns.is_empty(), "no request was answered");
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &Figures<'_>) -> anyhow::Result<()> {
    let head = ["requests/s", "mean", "p50", "p95", "p99", "max"];
    let latencies =
        [figures.mean_us, figures.p50_us, figures.p95_us, figures.p99_us, figures.max_us];
    let mut row = vec![format!("{:.0}", figures.requests_per_second)];
    row.extend(latencies.map(output::micros));
    output::print(&output::table(&head, [row]))?;
    output::print(&format!(
        "{:.0} instances/s, {:.1} requests in each, {:.1} under way, {} from proposal to decision",
        figures.instances_per_second,
        figures.batch,
        figures.window,
        output::micros(figures.instance_us)
    ))?;
    output::print(&format!(
        "CPU for each request: {:.1} us of the leader, {:.1} of all replicas, {:.1} of the clients",
        figures.leader_cpu_us_per_request,
        figures.replicas_cpu_us_per_request,
        figures.clients_cpu_us_per_request
    ))
}
