//! `meridian bench kv`: keys replicated by Hermes, CRAQ and ZAB (Hermes, sections 5 and 6), over
//! TCP inside this process.
//!
//! | module | what |
//! | --- | --- |
//! | `contender` | the protocols, as the bench sees them |
//! | `cluster` | replicas started, filled, loaded, compared, stopped |
//! | `clients` | the clients of a replica, and what they measure |
//! | `figures` | the paper's figures |
//! | `local` | reads of one core, without any network |
//! | `redis`, `resp` | servers beside `redis-server` |

mod clients;
mod cluster;
mod contender;
mod figures;
mod local;
mod redis;
mod resp;

use crate::harness::Machine;
use crate::harness::draw::Distribution;
use crate::harness::latency::{HEADS, Latency, histogram};
use anyhow::ensure;
use clap::{Args, Subcommand};
use cluster::{Outcome, Setup};
use contender::Protocol;
use meridian_terminal::note;
use meridian_terminal::output;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// So much of a run is warming up: a fifth of it, at most this.
const WARM_UP_MAX: Duration = Duration::from_secs(1);

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Measure and draw what Figures 5 to 8 of the Hermes paper show, as SVG; 11 min
    #[command(after_help = "\
Five replicas that share this machine, 64 clients each, 8-byte keys and 32-byte values. 5a and 5b:
throughput over the ratio of writes, uniform and Zipfian. 6a: latency over throughput with 5 %
writes. 6b and 6c: latency of reads and writes over the ratio of writes; they come with 5a and 5b.
7: 3, 5 and 7 replicas. 8: writes of 32 to 1024 bytes. What is measured is written beside it:
figure-5a.jsonl and so on.

Examples:
  meridian bench kv figures --out figures --quick
  meridian bench kv figures --out figures --only 5a,6a")]
    Figures(figures::FiguresArgs),
    /// Reads of one core from a replica of Hermes in its own process, without any network; 3 s
    #[command(after_help = "\
The replica holds all keys and is its only member. Requests are drawn beforehand, and lie one after
the other as they come from a socket. As a server does it, the clock is asked after the memory was
read, once for some reads, whether the lease still holds. The time is that of the processor.

Examples:
  meridian bench kv local
  meridian bench kv local --keys 1000000 --distribution zipfian")]
    Local(local::LocalArgs),
    /// Servers beside `redis-server`: GETs of one each, and SETs on three each; 1 min
    #[command(after_help = "\
Redis must be installed (apt-get install redis-server redis-tools); servers are started on free
ports and stopped at the end. Meridian runs as a demo of one region, which needs /dev/fuse.

GETs are asked by `redis-benchmark -P 16`, the same of both. Then SETs that are on three servers:
of Redis with `WAIT 2` behind each, and behind a batch (whose SETs are answered before); Meridian
answers a SET when all have it. Its connections spread over its nodes, those of Redis have one
primary.

Examples:
  meridian bench kv redis
  meridian bench kv redis --pipeline 1 --writers 32 --json")]
    Redis(redis::RedisArgs),
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct KvArgs {
    #[command(subcommand)]
    command: Option<KvCommand>,
    /// The protocols, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hermes,craq,zab")]
    protocol: Vec<Protocol>,
    /// How many of hundred requests write; several are measured one after the other
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "5",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    writes: Vec<u32>,
    /// How many replicas there are
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=7))]
    replicas: u16,
    /// How requests spread over the keys
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// How many keys there are, of 8 bytes; all are written first
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// Bytes of a value
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    value: u32,
    /// How many clients each replica has
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How many requests a client asks at once; again when all are answered
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pipeline: u32,
    /// For how many seconds each is measured
    #[arg(long, default_value_t = 3.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// How many threads the replicas share; if not given, each has its own. With fewer it is not
    /// known what the busiest replica uses
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Print JSON instead of a table, a line for each run; latencies are in microseconds
    #[arg(long)]
    json: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    machine: &'a Machine,
    #[serde(flatten)]
    setup: &'a Setup,
    requests_per_second: f64,
    all: Latency,
    reads: Latency,
    writes: Latency,
    /// Of hundred reads, how many the memory of the replica asked did not answer at once.
    asked_percent: f64,
    /// Of all threads: what bounds the throughput of replicas that share processors.
    cpu_us_per_request: f64,
    /// Of the replica that used the most, with its clients: what bounds the throughput of replicas
    /// with a machine each. Unknown where replicas share threads.
    busiest_us_per_request: Option<f64>,
    bytes_per_request: f64,
    requests_per_frame: f64,
}

impl Figures<'_> {
    fn of<'a>(machine: &'a Machine, setup: &'a Setup, outcome: &Outcome) -> Figures<'a> {
        let mut all = histogram();
        all += &outcome.reads_ns;
        all += &outcome.writes_ns;
        let requests = all.len().max(1) as f64;
        Figures {
            machine,
            setup,
            requests_per_second: all.len() as f64 / outcome.length.as_secs_f64(),
            all: Latency::of(&all),
            reads: Latency::of(&outcome.reads_ns),
            writes: Latency::of(&outcome.writes_ns),
            asked_percent: outcome.asked as f64 * 100.0 / outcome.reads_ns.len().max(1) as f64,
            cpu_us_per_request: outcome.cpu.as_secs_f64() * 1e6 / requests,
            busiest_us_per_request: outcome.busiest.map(|cpu| cpu.as_secs_f64() * 1e6 / requests),
            bytes_per_request: outcome.bytes as f64 / requests,
            requests_per_frame: requests / outcome.frames.max(1) as f64,
        }
    }

    fn row(&self) -> Vec<String> {
        let Figures { setup, .. } = self;
        let mut row = vec![
            setup.protocol.title().to_string(),
            format!("{} %", setup.writes_percent),
            format!("{:.0}", self.requests_per_second),
        ];
        row.extend(self.all.cells());
        row.push(output::micros(self.reads.p99_us));
        row.push(output::micros(self.writes.p99_us));
        row.push(format!("{:.2}", self.cpu_us_per_request));
        row.push(self.busiest_us_per_request.map_or("-".into(), |busiest| format!("{busiest:.2}")));
        row
    }
}

impl KvArgs {
    fn setups(&self) -> Vec<Setup> {
        let length = Duration::from_secs_f64(self.seconds);
        let setup = |(writes_percent, protocol): (u32, Protocol)| Setup {
            protocol,
            replicas: self.replicas,
            writes_percent,
            distribution: self.distribution,
            keys: self.keys,
            value_bytes: self.value,
            clients: self.clients,
            pipeline: self.pipeline,
            threads: self.threads.unwrap_or(self.replicas),
            warm_up: (length / 5).min(WARM_UP_MAX),
            length,
        };
        let each =
            |writes: &u32| self.protocol.iter().map(|protocol| (*writes, *protocol)).collect();
        let pairs: Vec<Vec<(u32, Protocol)>> = self.writes.iter().map(each).collect();
        pairs.concat().into_iter().map(setup).collect()
    }
}

/// Runs `meridian bench kv`.
///
/// # Errors
/// If something cannot be measured, or replicas contradict each other.
pub fn run(args: &KvArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(KvCommand::Figures(args)) => return figures::run(args),
        Some(KvCommand::Local(args)) => return local::run(args),
        Some(KvCommand::Redis(args)) => return redis::run(args),
        None => {}
    }
    let machine = Machine::look_and_warn();
    let mut rows = Vec::new();
    for setup in args.setups() {
        let outcome = cluster::run(setup.clone(), |_, _| ())?;
        let figures = Figures::of(&machine, &setup, &outcome);
        ensure!(figures.all.count > 0, "no request was answered");
        if args.json {
            output::print(&serde_json::to_string(&figures)?)?;
        } else {
            let (title, writes) = (setup.protocol.title(), setup.writes_percent);
            note!("{title}, {writes} % writes: {:.0} requests/s", figures.requests_per_second);
            rows.push(figures.row());
        }
    }
    if !args.json {
        let mut head = vec!["protocol", "writes", "requests/s"];
        head.extend(HEADS);
        head.extend(["p99 of reads", "of writes", "CPU us/request", "busiest replica"]);
        output::print(&output::table(&head, rows))?;
        output::print(&machine.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
