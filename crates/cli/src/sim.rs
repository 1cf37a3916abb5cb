//! `meridian sim`: the simulator of `meridian-sim` with as many seeds as one likes.
//!
//! A seed is a whole run of a cluster in one thread: who sends what, which messages are late, who crashes
//! in the midst of what. The seeds are independent, so each processor runs its own.

mod paxos;

use crate::output;
use crate::speakers::SpeakersArg;
use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use meridian_multicast::{Options, Speakers};
use meridian_sim::Entry;
use meridian_sim::search::{Ran, Short};
use meridian_sim::trial::{ClockSource, Failure, Mutation, Order, Report, Trial, run as run_trial};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Processes of a run at most: more say nothing new, slowly.
const PROCESSES_MAX: u64 = 60;

/// How often progress is shown: on a terminal, and in a log.
const PROGRESS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(20)];

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Atomic multicast, with all kinds of faults
    #[command(after_help = "\
Each seed is a run of some groups of processes in simulated time: clients multicast, links are slow, cut and
reset, processes crash and start again from what their disks kept, clocks differ and jump. Then all is
mended. Checked are integrity, prefix order, global total order, genuineness, timestamps and safe
timestamps at all times; agreement, validity and that everything is delivered, at the end.

With --short a seed is a run without faults of a handful of messages, in the linearizable order if no other
is given. It takes a fraction of a millisecond, so that what is rare is found.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim multicast --seeds 100000
  meridian sim multicast --short --seeds 100000
  meridian sim multicast --seeds 1000 --groups 2 --replicas 5 --clock hybrid
  meridian sim multicast --seed 137 --trace")]
    Multicast(MulticastArgs),
    /// State machine replication, with all kinds of faults
    #[command(after_help = paxos::HELP)]
    Paxos(paxos::PaxosArgs),
}

/// How to simulate.
#[derive(Debug, Args)]
pub struct MulticastArgs {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000, conflicts_with = "seed",
        value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "S", conflicts_with = "seed")]
    from: u64,
    /// Run this seed only
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The order of deliveries
    #[arg(long)]
    order: Option<OrderArg>,
    /// Where timestamps come from
    #[arg(long)]
    clock: Option<ClockArg>,
    /// Who of each group speaks with other groups
    #[arg(long)]
    speakers: Option<SpeakersArg>,
    /// How many groups there are
    #[arg(long, value_name = "G", requires = "replicas",
        value_parser = clap::value_parser!(u16).range(1..))]
    groups: Option<u16>,
    /// How many processes each group has
    #[arg(long, value_name = "R", requires = "groups",
        value_parser = clap::value_parser!(u16).range(1..))]
    replicas: Option<u16>,
    /// How many seeds run at a time, if not one on each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Short runs without faults
    #[arg(long)]
    short: bool,
    /// Print all events of the seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Plant a bug that must be found
    #[arg(long, hide = true, value_parser = parse_mutation)]
    plant: Option<Mutation>,
}

/// The order of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    /// Acyclic over all processes
    Sequential,
    /// As it happened in real time, too
    Linearizable,
}

/// Where timestamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClockArg {
    /// They count
    Logical,
    /// Microseconds of a clock, or more
    Hybrid,
}

fn parse_mutation(name: &str) -> Result<Mutation, String> {
    let mut all = meridian_sim::planted::ALL.to_vec();
    all.extend(meridian_sim::planted::OF_ORDER);
    let found = all.iter().copied().find(|mutation| format!("{mutation:?}") == name);
    found.ok_or_else(|| format!("one of {all:?}"))
}

impl MulticastArgs {
    fn order(&self) -> Option<Order> {
        self.order.map(|order| match order {
            OrderArg::Sequential => Order::Sequential,
            OrderArg::Linearizable => Order::Linearizable,
        })
    }

    fn clock(&self) -> Option<ClockSource> {
        self.clock.map(|clock| match clock {
            ClockArg::Logical => ClockSource::Logical,
            ClockArg::Hybrid => ClockSource::Hybrid,
        })
    }

    fn sizes(&self) -> Option<Vec<u16>> {
        let sizes = self.groups.zip(self.replicas);
        sizes.map(|(groups, size)| vec![size; usize::from(groups)])
    }

    fn short(&self) -> Short {
        let order = self.order().unwrap_or(Order::Linearizable);
        let clock = self.clock().unwrap_or_default();
        let speakers = self.speakers.map(Speakers::from).unwrap_or_default();
        let options = Options { order, clock, speakers };
        let short = Short::new(self.sizes(), options, self.plant.unwrap_or(Mutation::Correct));
        if self.trace { short.traced() } else { short }
    }

    fn trial(&self) -> Trial {
        let planted = self.plant.map(meridian_sim::planted::trial);
        let trial = planted.unwrap_or_default();
        let (order, clock) = (self.order(), self.clock());
        Trial {
            order: order.or(trial.order),
            clock: clock.or(trial.clock),
            speakers: self.speakers.map(Speakers::from).or(trial.speakers),
            sizes: self.sizes().or(trial.sizes),
            trace: self.trace,
            ..trial
        }
    }

    /// What repeats a run with this seed.
    fn command(&self, seed: u64) -> String {
        let mut command = format!("meridian sim multicast --seed {seed}");
        if self.short {
            command += " --short";
        }
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(command, " --{name} {value}");
            }
        };
        let name = |value: &str| value.to_lowercase();
        add("order", self.order.map(|order| name(&format!("{order:?}"))));
        add("clock", self.clock.map(|clock| name(&format!("{clock:?}"))));
        add("speakers", self.speakers.map(|speakers| name(&format!("{speakers:?}"))));
        add("groups", self.groups.map(|groups| groups.to_string()));
        add("replicas", self.replicas.map(|replicas| replicas.to_string()));
        add("plant", self.plant.map(|mutation| format!("{mutation:?}")));
        command
    }
}

/// All that happened.
#[derive(Debug, Default, Serialize)]
struct Totals {
    seeds: u64,
    events: u64,
    /// How often what happened.
    #[serde(flatten)]
    counts: BTreeMap<&'static str, u64>,
    simulated_seconds: f64,
    seconds: f64,
    failure: Option<Failed>,
}

/// A failure, for people and programs.
#[derive(Debug, Serialize)]
struct Failed {
    seed: u64,
    /// The name of what does not hold.
    property: String,
    what: String,
    /// Which event it was, and when; not of short runs.
    event: Option<u64>,
    at_ms: Option<f64>,
    /// How many processes each group has.
    groups: Vec<u16>,
    repeat: String,
}

/// What is told of a run in one line, of what is counted.
const SHOWN: [&str; 5] = ["messages", "deliveries", "requests", "reads", "crashes"];

impl Totals {
    fn of_trial(report: &Report) -> Totals {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Totals {
            seeds: 1,
            events: report.events,
            counts: BTreeMap::from([
                ("messages", count(report.messages)),
                ("deliveries", report.deliveries),
                ("crashes", count(report.crashes)),
                ("snapshots", count(report.installs)),
            ]),
            simulated_seconds: report.end.0 as f64 / 1e9,
            ..Totals::default()
        }
    }

    fn of_short(ran: &Ran) -> Totals {
        let count = |wanted: fn(&Entry) -> bool| {
            let entries = ran.history.entries.iter();
            u64::try_from(entries.filter(|entry| wanted(entry)).count()).unwrap_or(u64::MAX)
        };
        Totals {
            seeds: 1,
            events: ran.events,
            counts: BTreeMap::from([
                ("messages", count(|entry| matches!(entry, Entry::Multicast { .. }))),
                ("deliveries", count(|entry| matches!(entry, Entry::Deliver { .. }))),
                ("crashes", 0),
                ("snapshots", 0),
            ]),
            simulated_seconds: ran.took.as_secs_f64(),
            ..Totals::default()
        }
    }

    fn add(&mut self, other: &Totals) {
        self.seeds += other.seeds;
        self.events += other.events;
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.simulated_seconds += other.simulated_seconds;
    }

    /// Of several failures the one with the lowest seed is told.
    fn fail(&mut self, failed: Failed) {
        self.seeds += 1;
        if self.failure.as_ref().is_none_or(|other| failed.seed < other.seed) {
            self.failure = Some(failed);
        }
    }
}

impl Failed {
    fn new(seed: u64, violated: &str, groups: &[u16], repeat: String) -> Box<Failed> {
        let (property, what) = violated.split_once(": ").unwrap_or(("", violated));
        let (property, what, groups) = (property.into(), what.into(), groups.to_vec());
        Box::new(Failed { seed, property, what, event: None, at_ms: None, groups, repeat })
    }
}

/// Which seeds to run, and how.
#[derive(Clone, Copy, Debug)]
struct Seeds {
    from: u64,
    end: u64,
    /// So many at a time, if not one on each processor.
    threads: Option<u64>,
}

impl Seeds {
    fn new(one: Option<u64>, from: u64, count: u64, threads: Option<u64>) -> anyhow::Result<Seeds> {
        let (from, count) = one.map_or((from, count), |seed| (seed, 1));
        let Some(end) = from.checked_add(count) else {
            bail!("there are no seeds beyond {}", u64::MAX)
        };
        Ok(Seeds { from, end, threads })
    }
}

/// Runs `meridian sim`.
pub fn run(command: &SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Multicast(args) => run_multicast(args),
        SimCommand::Paxos(args) => paxos::run(args),
    }
}

fn run_multicast(args: &MulticastArgs) -> anyhow::Result<ExitCode> {
    let processes = u64::from(args.groups.unwrap_or(1)) * u64::from(args.replicas.unwrap_or(1));
    if processes > PROCESSES_MAX {
        bail!("{processes} processes are too many: at most {PROCESSES_MAX}");
    }
    let seeds = Seeds::new(args.seed, args.from, args.seeds, args.threads)?;
    tell(args.trace, args.json, || run_args(args, seeds))
}

/// Runs, and tells what came of it.
fn tell(trace: bool, json: bool, run: impl FnOnce() -> Totals) -> anyhow::Result<ExitCode> {
    if !trace {
        // An assertion that fails is a result, told at the end.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let start = Instant::now();
    let mut totals = run();
    totals.seconds = start.elapsed().as_secs_f64();
    if json {
        output::print(&serde_json::to_string_pretty(&totals)?)?;
    } else {
        output::print(&describe(&totals))?;
    }
    Ok(if totals.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run_args(args: &MulticastArgs, seeds: Seeds) -> Totals {
    let (trial, short) = (args.trial(), args.short.then(|| args.short()));
    run_all(seeds, |seed| match &short {
        Some(short) => {
            let (sizes, ran) = short.run(seed);
            let failed = |violated: String| Failed::new(seed, &violated, sizes, args.command(seed));
            ran.map(|ran| Totals::of_short(&ran)).map_err(failed)
        }
        None => {
            let failed = |failure: Failure| {
                let Failure { violated, drawn, events, at, .. } = failure;
                let failed = Failed::new(seed, &violated, &drawn.sizes, args.command(seed));
                Box::new(Failed { event: Some(events), at_ms: Some(at.0 as f64 / 1e6), ..*failed })
            };
            run_trial(seed, &trial).map(|report| Totals::of_trial(&report)).map_err(failed)
        }
    })
}

/// Runs seeds on all processors until one fails.
fn run_all(seeds: Seeds, one: impl Fn(u64) -> Result<Totals, Box<Failed>> + Sync) -> Totals {
    let Seeds { from, end, threads } = seeds;
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let threads = threads.unwrap_or(processors).min(end - from).max(1);
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let totals = Mutex::new(Totals::default());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let result = one(seed);
            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(of_one) => totals.add(&of_one),
                Err(failed) => {
                    stop.store(true, Ordering::Relaxed);
                    totals.fail(*failed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let begun = Instant::now();
        let terminal = stderr().is_terminal();
        let mut shown = begun;
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::park_timeout(Duration::from_millis(20));
            if shown.elapsed() >= PROGRESS[usize::from(!terminal)] {
                shown = Instant::now();
                let done = totals.lock().unwrap_or_else(PoisonError::into_inner).seeds;
                show_progress(done, end - from, begun.elapsed(), terminal);
            }
        }
        if terminal && shown > begun {
            eprint!("\r\x1b[K");
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn show_progress(done: u64, of: u64, elapsed: Duration, terminal: bool) {
    let rate = done as f64 / elapsed.as_secs_f64();
    let left = (of.saturating_sub(done)) as f64 / rate.max(0.001);
    let text = format!("{done} of {of} seeds, {rate:.0} a second, {left:.0} s left");
    if terminal {
        eprint!("\r\x1b[K{text}");
    } else {
        note!("{text}");
    }
}

fn describe(totals: &Totals) -> String {
    let mut text = format!(
        "{} seeds in {:.1} s: {:.0} simulated minutes",
        totals.seeds,
        totals.seconds,
        totals.simulated_seconds / 60.0,
    );
    for what in SHOWN {
        if let Some(count) = totals.counts.get(what) {
            let _ = write!(text, ", {count} {what}");
        }
    }
    match &totals.failure {
        None => text += "\nall properties hold",
        Some(failed) => {
            let Failed { seed, property, what, event, at_ms, groups, repeat } = failed;
            let _ = write!(text, "\n\nviolated: {property}\n{what}\nseed {seed}");
            if let (Some(event), Some(at_ms)) = (event, at_ms) {
                let _ = write!(text, ", event {event}, at {at_ms:.3} ms");
            }
            let _ = write!(
                text,
                ", groups of {groups:?}\nrepeat with: {repeat}  (--trace prints all events)"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MulticastArgs,
    }

    fn args(line: &str) -> MulticastArgs {
        Line::parse_from(std::iter::once("sim").chain(line.split_whitespace())).args
    }

    fn run_seeds(args: &MulticastArgs, from: u64, end: u64) -> Totals {
        run_args(args, Seeds { from, end, threads: args.threads })
    }

    #[test]
    fn the_command_that_repeats_a_run_says_all_that_was_said() {
        let first = args("--seeds 9 --order linearizable --clock hybrid --groups 2 --replicas 3");
        let command = "--seed 7 --order linearizable --clock hybrid --groups 2 --replicas 3";
        assert_eq!(first.command(7), format!("meridian sim multicast {command}"));
        let again = args(command);
        assert_eq!(again.command(7), first.command(7));
        assert_eq!(again.trial().sizes, Some(vec![3, 3]));
    }

    #[test]
    fn a_planted_bug_ends_the_run_and_is_told() {
        let args = args("--plant NoOrder --threads 2");
        let totals = run_seeds(&args, 0, 200);
        let failed = totals.failure.as_ref().expect("it is caught");
        assert!(totals.seeds < 200, "it did not stop");
        assert!(failed.repeat.ends_with(&format!("--seed {} --plant NoOrder", failed.seed)));
        assert!(describe(&totals).contains("violated: "));
    }

    #[test]
    fn short_runs_find_what_ignores_links_and_say_how_to_see_it_again() {
        let first = args("--short --groups 4 --replicas 1 --plant IgnoresLinks");
        let totals = run_seeds(&first, 0, 20_000);
        let failed = totals.failure.as_ref().expect("it is caught");
        assert_eq!(failed.property, "order in real time");
        let again =
            args(failed.repeat.strip_prefix("meridian sim multicast ").expect("so it begins"));
        assert!(run_seeds(&again, failed.seed, failed.seed + 1).failure.is_some());
        let correct = args("--short");
        assert!(run_seeds(&correct, failed.seed, failed.seed + 1).failure.is_none());
    }

    #[test]
    fn correct_runs_are_counted() {
        let totals = run_seeds(&args("--groups 1 --replicas 3"), 5, 8);
        assert_eq!(totals.seeds, 3);
        assert!(totals.failure.is_none() && totals.counts["messages"] > 0);
    }
}
