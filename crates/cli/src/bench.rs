//! `meridian bench fs`: the microbenchmarks of the GlobalFS paper (section 6.2) with plain POSIX
//! calls, so that they run on any directory and compare.

mod child;
mod flatness;
mod history;
mod multicast;
mod paxos;
mod plot;
mod workload;

use crate::output::{self, Row};
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use history::History;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use workload::{Outcome, Worker};

/// More threads than this are refused: each keeps descriptors open.
const THREADS_MAX: u64 = 1024;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Small reads, writes and creations in DIR by many threads
    #[command(after_help = "\
Each thread has a folder of its own below DIR; all of it is removed at the end. The operations are
  read      1 KB after 1 KB of a 10 KB file, from its start again at its end
  write     1 KB after 1 KB at the end of a file, each followed by fdatasync: the paper's write is
            durable when it returns
  create    an empty file, by open(O_CREAT|O_EXCL) and close
  create1k  the same with 1 KB written and fdatasync before the close
A local file system need not make a creation durable, Meridian does: mind that when comparing.
The kernel may answer reads from its cache; --direct opens with O_DIRECT, as the paper does it.

Examples:
  meridian bench fs meridian/us
  meridian bench fs meridian/us --only create --threads 1 --seconds 10
  meridian bench fs /tmp --json")]
    Fs(BenchArgs),
    /// Messages to several groups, over TCP inside this process
    #[command(after_help = "\
All members run in this process and speak over TCP on 127.0.0.1; one client is with each. The latency of
a client's message is the time from sending it to its delivery at the client's own replica. At the end
all replicas of a group must have delivered the same sequence, or the command fails.

Examples:
  meridian bench multicast
  meridian bench multicast --dest 4 --outstanding 64 --protocol primcast-hc
  meridian bench multicast --layout wan-distributed --seconds 20
  meridian bench multicast --rtt g=90,r=5 --cut 2 --seconds 15")]
    Multicast(multicast::MulticastArgs),
    /// Requests to a replicated service, over TCP: each replica a process of its own
    #[command(after_help = "\
The replicas run on 127.0.0.1, each in a process of its own with a directory of its own; the clients are in
this process, each with one request under way, and ask the leader. The service answers 8 bytes. At the end all
replicas must have given the same replies, or the command fails.

Examples:
  meridian bench paxos
  meridian bench paxos --mode crash-stop --clients 1500
  meridian bench paxos --rtt 100 --wnd 20 --clients 1200
  meridian bench paxos figures --out figures")]
    Paxos(paxos::PaxosArgs),
}

/// How to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// An existing directory, in a mount or not
    dir: PathBuf,
    /// How many threads work at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: u64,
    /// For how many seconds each operation is measured
    #[arg(long, default_value_t = 5.0, value_parser = positive_seconds)]
    seconds: f64,
    /// Only these operations, in the order given
    #[arg(long, value_delimiter = ',', value_name = "OP,..")]
    only: Vec<Op>,
    /// Read with O_DIRECT, past the kernel's cache
    #[arg(long)]
    direct: bool,
    /// Print JSON instead of a table; latencies are in microseconds
    #[arg(long)]
    json: bool,
    /// Write each operation as a line of JSON into FILE, for checkers of histories
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// An operation of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// 1 KB after 1 KB of a 10 KB file
    Read,
    /// 1 KB after 1 KB, each with fdatasync
    Write,
    /// Empty files
    Create,
    /// Files of 1 KB, with fdatasync
    Create1k,
}

impl Op {
    const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Create, Op::Create1k];

    fn title(self) -> &'static str {
        match self {
            Op::Read => "read 1 KB",
            Op::Write => "write 1 KB",
            Op::Create => "create",
            Op::Create1k => "create + 1 KB",
        }
    }
}

/// The figures of one operation.
#[derive(Debug, Serialize)]
struct Figures {
    op: Op,
    threads: u64,
    seconds: f64,
    ops: u64,
    errors: u64,
    ops_per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
    first_error: Option<String>,
}

/// Runs `meridian bench`.
pub fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    match command {
        BenchCommand::Fs(args) => run_fs(args),
        BenchCommand::Multicast(args) => multicast::run(args),
        BenchCommand::Paxos(args) => paxos::run(args),
    }
}

fn run_fs(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if !args.dir.is_dir() {
        bail!("{} is not a directory: name an existing one", args.dir.display());
    }
    let history = args.history.as_deref().map(History::create).transpose()?.map(Arc::new);
    let stop = stop_on_signal()?;
    let room = Room::make(&args.dir)?;
    let ops = if args.only.is_empty() { Op::ALL.to_vec() } else { args.only.clone() };
    let mut all = Vec::new();
    for op in ops {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if !args.json {
            note!("{} ...", op.title());
        }
        all.push(measure(args, op, &room.path, history.as_ref(), &stop)?);
    }
    if let Some(history) = history {
        history.finish()?;
    }
    room.remove()?;
    print(args, &all)?;
    let failed = all.iter().any(|figures| figures.errors > 0) || stop.load(Ordering::Relaxed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("more than 0 and at most 86400".into()),
    }
}

/// The folder below DIR that holds everything; removed also when a measurement fails.
struct Room {
    path: PathBuf,
    kept: bool,
}

impl Room {
    fn make(dir: &Path) -> anyhow::Result<Room> {
        let path = dir.join(format!("meridian-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Room { path, kept: true })
    }

    fn remove(mut self) -> anyhow::Result<()> {
        self.kept = false;
        std::fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}: remove it by hand", self.path.display()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.kept {
            let _ = std::fs::remove_dir_all(&self.path); // An error is on its way already.
        }
    }
}

/// A flag that SIGINT and SIGTERM raise, so that an interrupted run cleans up, too.
fn stop_on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        crate::signals::Signals::listen()?
    };
    std::thread::spawn(move || {
        runtime.block_on(signals.next());
        raised.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

/// What all threads of this process have used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Lets all threads do `op` for the time that was asked for.
fn measure(
    args: &BenchArgs,
    op: Op,
    room: &Path,
    history: Option<&Arc<History>>,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Figures> {
    let mut workers = Vec::new();
    for thread in 0..args.threads {
        workers.push(Worker::prepare(op, args.direct, room, thread, history.cloned())?);
    }
    let length = Duration::from_secs_f64(args.seconds);
    let begin = Instant::now();
    let outcomes: Vec<(Outcome, Worker)> = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .map(|mut worker| scope.spawn(|| (worker.work(begin + length, stop), worker)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let mut total = Outcome::new();
    std::thread::scope(|scope| {
        for (outcome, worker) in outcomes {
            total.merge(&outcome);
            scope.spawn(move || worker.clean_up());
        }
    });
    Ok(figures(op, args.threads, seconds, total))
}

fn figures(op: Op, threads: u64, seconds: f64, total: Outcome) -> Figures {
    let latency: &Histogram<u64> = &total.latency_ns;
    let us = |ns: u64| ns as f64 / 1000.0;
    Figures {
        op,
        threads,
        seconds,
        ops: latency.len(),
        errors: total.errors,
        ops_per_second: latency.len() as f64 / seconds,
        mean_us: latency.mean() / 1000.0,
        p50_us: us(latency.value_at_quantile(0.5)),
        p95_us: us(latency.value_at_quantile(0.95)),
        p99_us: us(latency.value_at_quantile(0.99)),
        max_us: us(latency.max()),
        first_error: total.first_error,
    }
}

fn print(args: &BenchArgs, all: &[Figures]) -> anyhow::Result<()> {
    if args.json {
        return output::print(&serde_json::to_string_pretty(all)?);
    }
    let head = ["operation", "ops", "ops/s", "mean", "p50", "p95", "p99", "max", "errors"];
    let rows = all.iter().map(|f| -> Row {
        vec![
            f.op.title().into(),
            f.ops.to_string(),
            format!("{:.0}", f.ops_per_second),
            output::micros(f.mean_us),
            output::micros(f.p50_us),
            output::micros(f.p95_us),
            output::micros(f.p99_us),
            output::micros(f.max_us),
            f.errors.to_string(),
        ]
    });
    output::print(&output::table(&head, rows))?;
    for f in all {
        if let Some(error) = &f.first_error {
            note!("{}: {} errors, the first: {error}", f.op.title(), f.errors);
        }
    }
    Ok(())
}
