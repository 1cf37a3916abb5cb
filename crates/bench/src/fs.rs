//! `meridian bench fs`: the microbenchmarks of the GlobalFS paper (section 6.2) with plain POSIX
//! calls, so that they run on any directory and compare.
//!
//! | module | what |
//! | --- | --- |
//! | `workload` | what one thread does |
//! | `measure` | one operation by many threads: latencies and costs |
//! | `against` | two builds compared |
//! | `outage` | writes while a primary is killed or a region is cut off |
//! | `demo` | a demo of its own to measure |
//! | `history` | what was done, for checkers |

mod against;
mod history;
mod measure;
mod outage;
mod workload;

use crate::harness::demo::{Demo, Watched};
use crate::harness::{Machine, Scratch, positive_seconds, stop_on_signal};
use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use history::History;
use measure::{Load, measure};
use meridian_terminal::{note, output};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use workload::Op;

/// More threads than this are refused: each keeps descriptors open.
const THREADS_MAX: u64 = 1024;

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Kill the primary of a region again and again, and tell when writes go on: about a minute
    #[command(after_help = "\
A demo of its own is started. 32 threads write 1 KB with fdatasync at a steady rate in its first
region; a write's latency counts from the time at which it was due. After two seconds the server
that leads the region's group is killed (SIGKILL), and started again when the round is over.
Writes go on when the first that was due after the kill has ended.

Examples:
  meridian bench fs failover
  meridian bench fs failover --rounds 9 --out figures")]
    Failover(outage::FailoverArgs),
    /// Cut a region off, and compare writes in another with those before: about half a minute
    #[command(after_help = "\
A demo of its own is started. 32 threads write 1 KB with fdatasync at a steady rate in its first
region. All servers of another region are stopped (SIGSTOP) for the middle third of the time: they
answer nothing, and their connections stay.

Examples:
  meridian bench fs cut
  meridian bench fs cut --region eu --seconds 30 --out figures")]
    Cut(outage::CutArgs),
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct FsArgs {
    #[command(subcommand)]
    command: Option<FsCommand>,
    /// An existing directory, in a mount or not [default: the first region of a demo of its own, of
    /// which it also tells what each operation costs]
    dir: Option<PathBuf>,
    /// How many threads work at once; each number is measured
    #[arg(long, value_delimiter = ',', value_name = "N,..", default_value = "16",
          value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: Vec<u64>,
    /// For how many seconds each operation is measured
    #[arg(long, default_value_t = 5.0, value_parser = positive_seconds)]
    seconds: f64,
    /// Only these operations, in the order given
    #[arg(long, value_delimiter = ',', value_name = "OP,..")]
    only: Vec<Op>,
    /// Read with O_DIRECT, past the kernel's cache
    #[arg(long)]
    direct: bool,
    /// With DIR: tell also what these processes and all that they have started use, such as the
    /// demo's
    #[arg(long, value_delimiter = ',', value_name = "PID,..", requires = "dir")]
    pids: Vec<u32>,
    /// Compare with another build: each in demos of its own, in turns
    #[arg(long, value_name = "BINARY", conflicts_with_all = ["dir", "history"])]
    against: Option<PathBuf>,
    /// How many turns each of the two builds has
    #[arg(long, default_value_t = 3, requires = "against", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON instead of tables; latencies are in microseconds
    #[arg(long)]
    json: bool,
    /// Write each operation as a line of JSON into FILE, for checkers of histories
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

impl FsArgs {
    fn loads(&self) -> Vec<Load> {
        let ops = if self.only.is_empty() { Op::ALL.to_vec() } else { self.only.clone() };
        let length = Duration::from_secs_f64(self.seconds);
        let load = |op, threads| Load { op, threads, length, direct: self.direct };
        let of_op = |op: Op| self.threads.iter().map(move |threads| load(op, *threads));
        ops.into_iter().flat_map(of_op).collect()
    }
}

/// Runs `meridian bench fs`.
///
/// # Errors
/// If the directory cannot be used, or a demo does not start or stop.
pub fn run(args: &FsArgs) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.against) {
        (Some(FsCommand::Failover(args)), _) => return outage::failover(args),
        (Some(FsCommand::Cut(args)), _) => return outage::cut(args),
        (None, Some(other)) => {
            ensure!(other.is_file(), "{} is not a program", other.display());
            let stop = stop_on_signal()?;
            against::run(&args.loads(), other, args.rounds, args.json, &stop)?;
            return Ok(ExitCode::SUCCESS);
        }
        (None, None) => {}
    }
    match &args.dir {
        Some(dir) if !dir.is_dir() => {
            bail!("{} is not a directory: name an existing one", dir.display())
        }
        Some(dir) => run_in(args, dir.clone(), &Watched::with_children(&args.pids)),
        None => {
            let scratch = Scratch::make(&std::env::temp_dir())?;
            let demo = Demo::start(&std::env::current_exe()?, &scratch.path, &[])?;
            let dir = demo.mount.join(demo.status()?.first_region()?);
            let code = run_in(args, dir, &Watched::with_children(&[demo.pid()]))?;
            demo.stop()?;
            scratch.remove()?;
            Ok(code)
        }
    }
}

fn run_in(args: &FsArgs, dir: PathBuf, watched: &Watched) -> anyhow::Result<ExitCode> {
    let machine = Machine::look_and_warn();
    let history = args.history.as_deref().map(History::create).transpose()?.map(Arc::new);
    let stop = stop_on_signal()?;
    let scratch = Scratch::make(&dir)?;
    let mut all = Vec::new();
    for load in args.loads() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if !args.json {
            note!("{}, {} threads, {} s ...", load.op.title(), load.threads, args.seconds);
        }
        all.push(measure(load, &scratch.path, history.as_ref(), watched, &stop)?);
    }
    if let Some(history) = history {
        history.finish()?;
    }
    scratch.remove()?;
    if args.json {
        let report = serde_json::json!({"machine": machine, "operations": all});
        output::print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        measure::print(&all)?;
        output::print(&machine.to_string())?;
    }
    let failed = all.iter().any(|figures| figures.errors > 0) || stop.load(Ordering::Relaxed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
