//! `meridian bench paxos`: throughput and latency of a replicated service over TCP (report, section
//! 9): each replica is a process of its own, the clients are in this one.
//!
//! | module | what |
//! | --- | --- |
//! | `replica` | a replica's process |
//! | `cluster` | the processes of all replicas |
//! | `load` | clients, and what is measured |
//! | `soak` | very many requests, with replicas that are slow, dead and away |
//! | `figures` | the report's Figures 13 and 14 |

mod cluster;
mod figures;
mod load;
mod replica;
mod soak;

use crate::harness::Machine;
use crate::harness::latency::{HEADS, Latency};
use anyhow::ensure;
use clap::{Args, Subcommand};
use load::Outcome;
use meridian_paxos::{ALPHA, Recovery};
use meridian_terminal::note;
use meridian_terminal::output;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// So much of a run is warming up: a tenth of it, at most this.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum PaxosCommand {
    /// Measure and draw what Figures 13 and 14 of the report show, as SVG: throughput, latency,
    /// batches and instances in flight over BSZ and WND, near and with a round trip of 100 ms
    Figures(figures::FiguresArgs),
    /// Very many requests at five replicas, of which one dies, one is away for half of them, and
    /// one is slow: memory, disk, and the return of the one that was away
    #[command(after_help = "\
Each replica is a process of its own. One stands still every other 200 ms. One is killed (SIGKILL)
after an eighth of the requests, for good; one after a quarter, and is started again after three
quarters, on the directory that it had. The others have cut their logs by then, so it gets a
snapshot. At the end all that are up must have given the same replies.

The command fails if they have not, if the one that was away does not return, if nothing is
answered for a minute, or, in runs of 500000 requests or more, if memory or disk of a replica are
not flat (see `meridian bench multicast soak --help`).

Examples:
  meridian bench paxos soak
  meridian bench paxos soak --requests 10000000 --mode epoch-ss")]
    #[command(alias = "endure")]
    Soak(soak::SoakArgs),
    /// One replica, started by the others
    #[command(hide = true)]
    Replica,
}

/// What is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    mode: Recovery,
    clients: u32,
    connections: u32,
    /// Bytes of each request.
    size: u32,
    replicas: u16,
    bsz: u32,
    wnd: u64,
    delta_b: Duration,
    rtt: Duration,
    #[serde(skip)]
    warm_up: Duration,
    #[serde(skip)]
    length: Duration,
    #[serde(skip)]
    dir: Option<PathBuf>,
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PaxosArgs {
    #[command(subcommand)]
    command: Option<PaxosCommand>,
    /// What survives a crash: crash-stop (nothing is kept), full-ss (each vote is on disk before it
    /// counts), epoch-ss (one write for each start), view-ss (one for each view)
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
    #[arg(long, default_value_t = 64 << 10,
          value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    bsz: u32,
    /// WND: how many instances are in flight at most
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=ALPHA))]
    wnd: u64,
    /// How long a batch waits to get full, in milliseconds
    #[arg(long, default_value_t = 0.0, value_parser = milliseconds)]
    delta_b: f64,
    /// Round trip between replicas, in milliseconds; the clients are near the leader
    #[arg(long, default_value_t = 0.0, value_parser = milliseconds)]
    rtt: f64,
    /// For how many seconds it is measured
    #[arg(long, default_value_t = 5.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// Where the replicas' directories are made, and removed at the end: on the disk that is to be
    /// measured
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
    machine: &'a Machine,
    requests_per_second: f64,
    #[serde(flatten)]
    latency: Latency,
    instances_per_second: f64,
    /// Requests in a batch, on average.
    batch: f64,
    /// Instances in flight at the leader, on average.
    window: f64,
    /// From proposal to decision, on average: instances in flight by instances per second.
    instance_us: f64,
    /// Of all replicas' processes, for each request; and of the leader's.
    replicas_cpu_us_per_request: f64,
    leader_cpu_us_per_request: f64,
    /// Of the clients' process.
    clients_cpu_us_per_request: f64,
}

impl Figures<'_> {
    fn of<'a>(machine: &'a Machine, setup: &'a Setup, outcome: &Outcome) -> Figures<'a> {
        let seconds = outcome.length.as_secs_f64();
        let requests = outcome.latency_ns.len() as f64;
        let leader = &outcome.leader;
        let instances_per_second = leader.instances as f64 / seconds;
        let per_request = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests.max(1.0);
        Figures {
            setup,
            machine,
            requests_per_second: requests / seconds,
            latency: Latency::of(&outcome.latency_ns),
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
        Some(PaxosCommand::Soak(args)) => return soak::run(args),
        Some(PaxosCommand::Replica) => return replica::run(),
        None => {}
    }
    let (setup, json) = (args.setup(), args.json);
    let machine = Machine::look_and_warn();
    let outcome = load::run(&setup, |seconds, requests| {
        if !json {
            note!("{seconds:>4.0} s  {requests:.0} requests/s");
        }
    })?;
    let figures = Figures::of(&machine, &setup, &outcome);
    if json {
        output::print(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        print(&figures)?;
    }
    ensure!(!outcome.latency_ns.is_empty(), "no request was answered");
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &Figures<'_>) -> anyhow::Result<()> {
    let mut head = vec!["requests/s"];
    head.extend(HEADS);
    let mut row = vec![format!("{:.0}", figures.requests_per_second)];
    row.extend(figures.latency.cells());
    output::print(&output::table(&head, [row]))?;
    output::print(&format!(
        "{:.0} instances/s, {:.1} requests in each, {:.1} in flight, {} from proposal to decision",
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
    ))?;
    output::print(&figures.machine.to_string())
}
