//! Writes at a steady rate while a part of the demo is away: a primary that is killed, or a region
//! that stands still.
//!
//! The load is open: each write has a time at which it is due, whether those before it have ended
//! or not, and its latency counts from there. So a pause shows in all the writes that fall into it.

use super::workload::{Op, Worker};
use crate::harness::demo::{Demo, Status};
use crate::harness::latency::{HEADS, Latency, histogram};
use crate::harness::plot::{Curve, Labels, latency_over_time};
use crate::harness::{Machine, Scratch, page, positive_seconds, stop_on_signal};
use anyhow::{Context, ensure};
use clap::Args;
use meridian_terminal::note;
use meridian_terminal::output::{self, Row};
use rustix::process::Signal;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that write: so many writes may be in flight at once, those behind them start late.
const THREADS: u64 = 32;
/// How long is written before a primary is killed, in seconds.
const LEAD_SECONDS: f64 = 2.0;
/// Of more writes not each is drawn: the figure stays a small file.
const DOTS_MAX: usize = 1000;

/// How to measure a failover.
#[derive(Debug, Args)]
pub struct FailoverArgs {
    /// How often a primary is killed; its server is started again each time
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// For how many seconds is written after the kill
    #[arg(long, default_value_t = 6.0, value_parser = positive_seconds)]
    seconds: f64,
    #[command(flatten)]
    common: CommonArgs,
}

/// How to measure a cut.
#[derive(Debug, Args)]
pub struct CutArgs {
    /// The region that is cut off: its servers are stopped (SIGSTOP) [default: the last]
    #[arg(long)]
    region: Option<String>,
    /// For how many seconds is written before, during and after the cut, each
    #[arg(long, default_value_t = 10.0, value_parser = positive_seconds)]
    seconds: f64,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// How many writes begin in a second
    #[arg(long, default_value_t = 50.0, value_parser = rate)]
    rate: f64,
    /// Write a figure (SVG) and all latencies (JSON) into DIR, made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of a table; latencies are in microseconds
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.1..=10_000.0).contains(rate));
    rate.ok_or_else(|| "from 0.1 to 10000".into())
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Write {
    /// When it was due, in seconds from the moment that the figure calls 0.
    due_seconds: f64,
    /// From then to its end.
    latency_us: f64,
    failed: bool,
}

impl Write {
    fn end_seconds(&self) -> f64 {
        self.due_seconds + self.latency_us / 1e6
    }
}

/// What is written, and since when.
struct Load<'a> {
    dir: &'a Path,
    rate: f64,
    begin: Instant,
    length: Duration,
    stop: &'a AtomicBool,
}

impl Load<'_> {
    /// Writes for the whole length; `meanwhile` runs on this thread. All writes, by the time at
    /// which they were due.
    fn run(&self, meanwhile: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Vec<Write>> {
        let prepare = |thread| Worker::prepare(Op::Write, false, self.dir, thread, None);
        let workers = (0..THREADS).map(prepare).collect::<anyhow::Result<Vec<_>>>()?;
        let next = AtomicU64::new(0);
        let (mut writes, done) = std::thread::scope(|scope| {
            let running: Vec<_> = workers
                .into_iter()
                .map(|worker| scope.spawn(|| self.write_when_due(worker, &next)))
                .collect();
            let done = meanwhile();
            if done.is_err() {
                next.store(u64::MAX / 2, Ordering::Relaxed); // Nothing more is due.
            }
            let written = running.into_iter().map(|thread| thread.join());
            let written = written.map(|writes| writes.expect("a worker does not panic"));
            (written.flatten().collect::<Vec<Write>>(), done)
        });
        done?;
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        writes.sort_by(|a, b| a.due_seconds.total_cmp(&b.due_seconds));
        Ok(writes)
    }

    fn write_when_due(&self, mut worker: Worker, next: &AtomicU64) -> Vec<Write> {
        let mut writes = Vec::new();
        loop {
            let due_seconds = next.fetch_add(1, Ordering::Relaxed) as f64 / self.rate;
            let ends = due_seconds >= self.length.as_secs_f64();
            if ends || self.stop.load(Ordering::Relaxed) {
                return writes;
            }
            let due = self.begin + Duration::from_secs_f64(due_seconds);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let failed = worker.once().is_err();
            let latency_us = due.elapsed().as_secs_f64() * 1e6;
            writes.push(Write { due_seconds, latency_us, failed });
        }
    }
}

/// Sleeps until a moment of the load.
fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// One kill of a primary.
#[derive(Debug, Serialize)]
struct Failover {
    killed: String,
    /// From the kill to the end of the first write that was due after it.
    pause_seconds: f64,
    errors: usize,
    writes: Vec<Write>,
}

/// When the first of the writes that were due after the moment 0 ended well.
fn pause(writes: &[Write]) -> Option<f64> {
    let after = writes.iter().filter(|write| write.due_seconds >= 0.0 && !write.failed);
    after.map(Write::end_seconds).min_by(f64::total_cmp)
}

/// Runs `meridian bench fs failover`.
pub fn failover(args: &FailoverArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let machine = Machine::look_and_warn();
    let scratch = Scratch::make(&std::env::temp_dir())?;
    let mut demo = Demo::start(&std::env::current_exe()?, &scratch.path, &[])?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let failover = kill_primary(args, &mut demo, &stop)?;
        if !args.common.json {
            let Failover { killed, pause_seconds, .. } = &failover;
            let (nth, all) = (round + 1, args.rounds);
            note!("{nth} of {all}: {killed} was killed; writes went on after {pause_seconds:.2} s");
        }
        rounds.push(failover);
    }
    demo.stop()?;
    scratch.remove()?;
    rounds.sort_by(|a, b| a.pause_seconds.total_cmp(&b.pause_seconds));
    print_failovers(&args.common, &machine, &rounds)?;
    Ok(ExitCode::SUCCESS)
}

fn kill_primary(
    args: &FailoverArgs,
    demo: &mut Demo,
    stop: &AtomicBool,
) -> anyhow::Result<Failover> {
    let status = demo.wait_well()?;
    let region = status.first_region()?;
    let primary = status.primary_of(region)?;
    let folder = Scratch::make(&demo.mount.join(region))?;
    let load = Load {
        dir: &folder.path,
        rate: args.common.rate,
        begin: Instant::now(),
        length: Duration::from_secs_f64(LEAD_SECONDS + args.seconds),
        stop,
    };
    let mut killed_at = LEAD_SECONDS;
    let mut writes = load.run(|| {
        sleep_until(load.begin + Duration::from_secs_f64(LEAD_SECONDS));
        killed_at = load.begin.elapsed().as_secs_f64();
        primary.signal(Signal::KILL)
    })?;
    writes.iter_mut().for_each(|write| write.due_seconds -= killed_at);
    demo.start_again(&primary.node)?;
    demo.wait_well()?;
    folder.remove()?;
    Ok(Failover {
        killed: primary.node.clone(),
        pause_seconds: pause(&writes).context("no write ended well after the kill")?,
        errors: writes.iter().filter(|write| write.failed).count(),
        writes,
    })
}

/// Rounds come by the length of their pauses.
fn print_failovers(
    args: &CommonArgs,
    machine: &Machine,
    rounds: &[Failover],
) -> anyhow::Result<()> {
    let median = &rounds[rounds.len() / 2];
    let report = serde_json::json!({
        "machine": machine,
        "rate": args.rate,
        "median_pause_seconds": median.pause_seconds,
        "rounds": rounds,
    });
    if let Some(dir) = &args.out {
        let labels = Labels {
            title: "Writes of 1 KB with fdatasync while their primary is killed",
            x: "time at which the write was due (s)",
            y: "latency (ms)",
            caption: &caption(machine, median.writes.len()),
        };
        let curve = Curve { name: median.killed.clone(), points: dots(&median.writes) };
        draw(dir, "failover", &labels, &[curve], &[(0.0, "kill -9")], &report)?;
    }
    if args.json {
        return output::print(&serde_json::to_string_pretty(&report)?);
    }
    let rows = rounds.iter().map(|round| -> Row {
        vec![
            round.killed.clone(),
            output::micros(round.pause_seconds * 1e6),
            round.writes.len().to_string(),
            round.errors.to_string(),
        ]
    });
    output::print(&output::table(&["killed", "writes go on after", "writes", "errors"], rows))?;
    let pause = output::micros(median.pause_seconds * 1e6);
    output::print(&format!("median {pause}; {machine}"))
}

/// One part of a run with a cut.
#[derive(Debug, Serialize)]
struct Part {
    part: &'static str,
    errors: usize,
    #[serde(flatten)]
    latency: Latency,
}

impl Part {
    /// Of the writes that were due in this span of seconds.
    fn of(part: &'static str, writes: &[Write], span: std::ops::Range<f64>) -> Part {
        let mut latency_ns = histogram();
        let here = || writes.iter().filter(|write| span.contains(&write.due_seconds));
        for write in here().filter(|write| !write.failed) {
            latency_ns.saturating_record((write.latency_us * 1e3) as u64);
        }
        let errors = here().filter(|write| write.failed).count();
        Part { part, errors, latency: Latency::of(&latency_ns) }
    }
}

/// Lets the servers of a region go on when it is dropped, also after an error.
struct Cut<'a> {
    status: &'a Status,
    region: &'a str,
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        for node in self.status.nodes_of(self.region) {
            let _ = node.signal(Signal::CONT); // It has ended.
        }
    }
}

/// Runs `meridian bench fs cut`.
pub fn cut(args: &CutArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let machine = Machine::look_and_warn();
    let scratch = Scratch::make(&std::env::temp_dir())?;
    let demo = Demo::start(&std::env::current_exe()?, &scratch.path, &[])?;
    let status = demo.wait_well()?;
    let near = status.first_region()?;
    let last = status.nodes.last().context("the demo has no nodes")?;
    let far = args.region.as_deref().unwrap_or(&last.region);
    ensure!(far != near, "--region {far}: the writes are there, name another");
    ensure!(!status.nodes_of(far).is_empty(), "--region {far}: there is none");
    let folder = Scratch::make(&demo.mount.join(near))?;
    let (length, rate) = (args.seconds, args.common.rate);
    let at = |parts: f64| Duration::from_secs_f64(length * parts);
    let begin = Instant::now();
    let load = Load { dir: &folder.path, rate, begin, length: at(3.0), stop: &stop };
    let say = |text: &str| {
        if !args.common.json {
            note!("{:>4.0} s  {text}", begin.elapsed().as_secs_f64());
        }
    };
    let writes = load.run(|| {
        sleep_until(begin + at(1.0));
        let cut = Cut { status: &status, region: far };
        status.nodes_of(far).iter().try_for_each(|node| node.signal(Signal::STOP))?;
        say(&format!("{far} is cut off"));
        sleep_until(begin + at(2.0));
        drop(cut);
        say(&format!("{far} is back"));
        Ok(())
    })?;
    demo.wait_well()?;
    folder.remove()?;
    demo.stop()?;
    scratch.remove()?;
    let parts = [("before", 0.0), ("during", 1.0), ("after", 2.0)]
        .map(|(part, from)| Part::of(part, &writes, length * from..length * (from + 1.0)));
    print_cut(&args.common, &machine, far, &parts, &writes, length)?;
    Ok(ExitCode::SUCCESS)
}

fn print_cut(
    args: &CommonArgs,
    machine: &Machine,
    region: &str,
    parts: &[Part],
    writes: &[Write],
    length: f64,
) -> anyhow::Result<()> {
    let report = serde_json::json!({
        "machine": machine,
        "rate": args.rate,
        "region": region,
        "parts": parts,
        "writes": writes,
    });
    if let Some(dir) = &args.out {
        let labels = Labels {
            title: &format!("Local writes of 1 KB with fdatasync while region {region} is cut off"),
            x: "time at which the write was due (s)",
            y: "latency (ms)",
            caption: &caption(machine, writes.len()),
        };
        let curve = Curve { name: "writes".into(), points: dots(writes) };
        let moments = [(length, "cut off"), (2.0 * length, "back")];
        draw(dir, "cut", &labels, &[curve], &moments, &report)?;
    }
    if args.json {
        return output::print(&serde_json::to_string_pretty(&report)?);
    }
    let mut head = vec!["", "writes"];
    head.extend(HEADS.iter().chain(&["errors"]));
    let rows = parts.iter().map(|part| -> Row {
        let mut row = vec![part.part.to_string(), part.latency.count.to_string()];
        row.extend(part.latency.cells());
        row.push(part.errors.to_string());
        row
    });
    output::print(&output::table(&head, rows))?;
    output::print(&format!("region {region} was cut off; {machine}"))
}

/// Which writes of so many are drawn: each, or each so manieth.
fn step(count: usize) -> usize {
    count.div_ceil(DOTS_MAX).max(1)
}

fn dots(writes: &[Write]) -> Vec<(f64, f64)> {
    let well = writes.iter().filter(|write| !write.failed).step_by(step(writes.len()));
    well.map(|write| (write.due_seconds, write.latency_us / 1e3)).collect()
}

fn caption(machine: &Machine, count: usize) -> String {
    match step(count) {
        1 => format!("{machine}; {count} writes"),
        step => format!("{machine}; 1 of {step} of {count} writes is drawn"),
    }
}

fn draw(
    dir: &Path,
    name: &str,
    labels: &Labels<'_>,
    curves: &[Curve],
    moments: &[(f64, &str)],
    report: &serde_json::Value,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    latency_over_time(&dir.join(format!("{name}.svg")), labels, curves, moments)?;
    let raw = dir.join(format!("{name}.json"));
    let text = serde_json::to_string(report)?;
    std::fs::write(&raw, text).with_context(|| format!("cannot write {}", raw.display()))?;
    page::write_page(dir)?;
    note!("figure and latencies are in {}: {name}.svg, {name}.pdf, {name}.json", dir.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(due_seconds: f64, latency_us: f64, failed: bool) -> Write {
        Write { due_seconds, latency_us, failed }
    }

    #[test]
    fn a_pause_ends_with_the_first_write_that_was_due_after_the_kill_and_ended_well() {
        let before = write(-0.1, 200_000.0, false); // Ends after the kill, but was on its way.
        let failed = write(0.1, 300_000.0, true);
        let [slow, first] = [write(0.2, 2_000_000.0, false), write(1.5, 100_000.0, false)];
        assert_eq!(pause(&[before, failed, slow, first]), Some(1.6));
        assert_eq!(pause(&[before, failed]), None);
    }

    #[test]
    fn writes_begin_when_they_are_due_and_none_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let (stop, begin) = (AtomicBool::new(false), Instant::now());
        let length = Duration::from_millis(200);
        let load = Load { dir: dir.path(), rate: 500.0, begin, length, stop: &stop };
        let writes = load.run(|| Ok(())).unwrap();
        let due: Vec<u64> = writes.iter().map(|w| (w.due_seconds * 500.0).round() as u64).collect();
        assert_eq!(due, (0..100).collect::<Vec<_>>());
        assert!(writes.iter().all(|write| !write.failed && write.latency_us > 0.0));
        let of = |range| Part::of("", &writes, range).latency.count;
        assert_eq!((of(0.0..0.1), of(0.1..0.2)), (50, 50));
    }
}
