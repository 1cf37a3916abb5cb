//! `meridian bench paxos`: throughput and latency of state machine replication over TCP, each replica a process of
//! its own (report, section 9).
//!
//! | module | what |
//! | --- | --- |
//! | `replica` | one replica, in a process of its own |
//! | `cluster` | those processes |
//! | `load` | the clients, in this process |
//! | `figures` | the report's Figures 13 and 14 |

mod cluster;
mod figures;
mod load;
mod replica;

use super::{Room, cpu_time};
use crate::output;
use anyhow::ensure;
use clap::{Args, Subcommand};
use cluster::Cluster;
use hdrhistogram::Histogram;
use load::Load;
use meridian_paxos::Recovery;
use replica::{Setup, Tally};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The bytes that a request takes in a batch beside its own.
const HEADER_LEN: f64 = meridian_paxos::batch::REQUEST_HEADER_LEN as f64;

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum PaxosCommand {
    /// Measure and draw what Figures 13 and 14 of the report show, as SVG
    Figures(figures::FiguresArgs),
    /// One replica, which the bench starts
    #[command(hide = true)]
    Replica,
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PaxosArgs {
    #[command(subcommand)]
    command: Option<PaxosCommand>,
    /// How many clients ask, each one request at a time
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How many connections they share
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Bytes of each request; replies have 8
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: u32,
    /// How many replicas
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: u16,
    /// What survives a crash: crash-stop, full-ss, epoch-ss or view-ss
    #[arg(long, default_value = "crash-stop", value_parser = mode)]
    mode: Recovery,
    /// BSZ: how long a batch gets, in bytes
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    bsz: u32,
    /// WND: how many instances are under way at most
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=64))]
    wnd: u64,
    /// How long a batch waits to get full, in milliseconds
    #[arg(long, default_value_t = 0.0, value_name = "MS", value_parser = millis)]
    delta_b: f64,
    /// For how many seconds it is measured
    #[arg(long, default_value_t = 5.0, value_parser = super::positive_seconds)]
    seconds: f64,
    /// The round trip between any two replicas, in milliseconds
    #[arg(long, default_value_t = 0.0, value_name = "MS", value_parser = millis)]
    rtt: f64,
    /// Where the replicas' data is: in a directory of its own in DIR, which is removed at the end
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Print JSON instead of a table; latencies are in microseconds
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<Recovery, String> {
    let mode = Recovery::ALL.into_iter().find(|mode| mode.name() == text);
    mode.ok_or_else(|| format!("one of {}", Recovery::ALL.map(Recovery::name).join(", ")))
}

fn millis(text: &str) -> Result<f64, String> {
    let millis = text.parse::<f64>().ok().filter(|millis| (0.0..=10_000.0).contains(millis));
    millis.ok_or_else(|| "from 0 to 10000".into())
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    mode: &'static str,
    replicas: u16,
    clients: u32,
    connections: u32,
    size: u32,
    bsz: u32,
    wnd: u64,
    delta_b_ms: f64,
    rtt_ms: f64,
    seconds: f64,
    requests: u64,
    requests_per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
    instances_per_second: f64,
    requests_per_batch: f64,
    /// On average, with what names the requests in it.
    batch_bytes: f64,
    /// Instances under way at the leader, on average.
    window: f64,
    /// Of all replicas and clients.
    cpu_us_per_request: f64,
    /// Of the leader.
    leader_cpu_us_per_request: f64,
}

/// Runs `meridian bench paxos`.
pub fn run(args: &PaxosArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(PaxosCommand::Figures(args)) => return figures::run(args),
        Some(PaxosCommand::Replica) => return replica::run(),
        None => {}
    }
    let outcome = measure(args)?;
    if args.json {
        output::print(&serde_json::to_string_pretty(&outcome)?)?;
    } else {
        print(&outcome)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts replicas and clients, and measures.
fn measure(args: &PaxosArgs) -> anyhow::Result<Outcome> {
    ensure!(
        args.connections <= args.clients,
        "--connections {} for {} clients",
        args.connections,
        args.clients
    );
    let room = Room::make(&args.dir)?;
    let on_disk = args.mode != Recovery::CrashStop;
    let setups = (0..args.replicas).map(|node| Setup {
        node,
        recovery: args.mode,
        dir: on_disk.then(|| room.path.join(node.to_string())),
        window: args.wnd,
        batch_bytes: args.bsz as usize,
        batch_delay: Duration::from_secs_f64(args.delta_b / 1000.0),
        request_bytes: args.size as usize,
        one_way: Duration::from_secs_f64(args.rtt / 2000.0),
    });
    let mut cluster = Cluster::start(setups.collect())?;
    let addresses = cluster.addresses.clone();
    let load = Load {
        clients: args.clients as usize,
        connections: args.connections as usize,
        size: args.size as usize,
    };
    let length = Duration::from_secs_f64(args.seconds);
    // The report leaves out the first tenth (section 9).
    let warm_up = (length / 9).max(Duration::from_millis(500))
        + 10 * Duration::from_secs_f64(args.rtt / 1000.0);
    let mut looks = Vec::new();
    let (latency_ns, took) = load::run(&addresses, load, (warm_up, length), || {
        looks.push((cluster.tallies()?, cpu_time()));
        Ok(())
    })?;
    cluster.close()?;
    room.remove()?;
    let (before, after) = (&looks[0], &looks[1]);
    outcome(args, &latency_ns, took, (&before.0, &after.0), after.1.saturating_sub(before.1))
}

fn outcome(
    args: &PaxosArgs,
    latency_ns: &Histogram<u64>,
    took: Duration,
    (before, after): (&[Tally], &[Tally]),
    own_cpu: Duration,
) -> anyhow::Result<Outcome> {
    let requests = latency_ns.len();
    ensure!(requests > 0, "nothing was answered while it was measured");
    let leader = after.iter().position(|tally| tally.leading);
    let leader = leader.ok_or_else(|| anyhow::anyhow!("no replica leads"))?;
    let (begin, end) = (&before[leader], &after[leader]);
    let instances = (end.instances - begin.instances).max(1) as f64;
    let requests_per_batch = (end.requests - begin.requests) as f64 / instances;
    let looks = (end.looks - begin.looks).max(1) as f64;
    let cpu = |node: usize| after[node].cpu.saturating_sub(before[node].cpu).as_secs_f64();
    let all: f64 = (0..after.len()).map(cpu).sum::<f64>() + own_cpu.as_secs_f64();
    let us = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
    let seconds = took.as_secs_f64();
    Ok(Outcome {
        mode: args.mode.name(),
        replicas: args.replicas,
        clients: args.clients,
        connections: args.connections,
        size: args.size,
        bsz: args.bsz,
        wnd: args.wnd,
        delta_b_ms: args.delta_b,
        rtt_ms: args.rtt,
        seconds,
        requests,
        requests_per_second: requests as f64 / seconds,
        mean_us: latency_ns.mean() / 1000.0,
        p50_us: us(0.5),
        p95_us: us(0.95),
        p99_us: us(0.99),
        max_us: latency_ns.max() as f64 / 1000.0,
        instances_per_second: instances / seconds,
        requests_per_batch,
        batch_bytes: requests_per_batch * (f64::from(args.size) + HEADER_LEN),
        window: (end.under_way - begin.under_way) as f64 / looks,
        cpu_us_per_request: all * 1e6 / requests as f64,
        leader_cpu_us_per_request: cpu(leader) * 1e6 / requests as f64,
    })
}

fn print(outcome: &Outcome) -> anyhow::Result<()> {
    let head = ["mode", "requests/s", "mean", "p50", "p95", "p99", "max"];
    let row = vec![
        outcome.mode.into(),
        format!("{:.0}", outcome.requests_per_second),
        output::micros(outcome.mean_us),
        output::micros(outcome.p50_us),
        output::micros(outcome.p95_us),
        output::micros(outcome.p99_us),
        output::micros(outcome.max_us),
    ];
    output::print(&output::table(&head, [row]))?;
    output::print(&format!(
        "{:.0} instances/s with {:.0} requests each, {:.1} under way; {:.1} us of CPU for each request, {:.1} at the \
         leader",
        outcome.instances_per_second,
        outcome.requests_per_batch,
        outcome.window,
        outcome.cpu_us_per_request,
        outcome.leader_cpu_us_per_request
    ))
}
