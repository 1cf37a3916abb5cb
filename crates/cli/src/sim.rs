//! `meridian sim`: the simulator of `meridian-sim` with as many seeds as one likes.
//!
//! A seed is a whole run of a cluster in one thread: who sends what, which messages are late, who
//! crashes in the midst of what. The seeds are independent, so each processor runs its own. The
//! protocols and their options come from the simulator's table.

use crate::output;
use anyhow::{anyhow, bail};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use meridian_core::Time;
use meridian_sim::of::{Named, Pins, Setting, TABLE, Trials};
use meridian_sim::trace::Filter;
use meridian_sim::{Detail, Failure, Report};
use meridian_terminal::note;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often progress is shown: on a terminal, and in a log.
const PROGRESS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(20)];

/// What is told of a run in one line, of what is counted.
const SHOWN: [&str; 6] = ["messages", "deliveries", "requests", "updates", "reads", "crashes"];

/// Beside the subjects.
const EXPLAIN: &str = "explain";

const EXPLAIN_HELP: &str = "\
Names of messages are in the trace of the seed. Options that pin something of the run have to be the
same.";

/// Which seeds to run, and how.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000, conflicts_with = "seed",
        value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "S", conflicts_with = "seed")]
    first: u64,
    /// Run this seed only
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How many seeds run at a time, if not one on each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Print a line for each event of the seed
    #[arg(long, requires = "seed")]
    trace: bool,
    #[command(flatten)]
    told: ToldArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Plant a bug that must be found
    #[arg(long, hide = true, value_name = "BUG")]
    plant: Option<String>,
}

/// Which events a trace tells.
#[derive(Debug, Args)]
pub struct ToldArgs {
    /// Only those about this message, as a trace names it
    #[arg(long, requires = "trace", value_name = "ID")]
    message: Option<String>,
    /// Only those at this process, or between it and another
    #[arg(long, requires = "trace", value_name = "NAME")]
    process: Option<String>,
    /// Only those from this moment on, in milliseconds, as a trace tells them
    #[arg(long, requires = "trace", value_name = "MS", value_parser = moment)]
    from: Option<Time>,
    /// Only those up to this moment
    #[arg(long, requires = "trace", value_name = "MS", value_parser = moment)]
    until: Option<Time>,
}

impl ToldArgs {
    fn filter(&self) -> Filter {
        let ToldArgs { message, process, from, until } = self;
        let all = Filter::default();
        let (from, until) = (from.unwrap_or(all.from), until.unwrap_or(all.until));
        Filter { message: message.clone(), process: process.clone(), from, until }
    }
}

/// A time of the world in milliseconds, which may have a fraction.
fn moment(text: &str) -> Result<Time, String> {
    let ms = text.trim_end_matches("ms").trim().parse::<f64>().ok();
    let ms = ms.filter(|ms| (0.0..1e12).contains(ms));
    // To the nearest microsecond: a trace tells no more.
    let time = ms.map(|ms| Time((ms * 1e3).round() as u64 * 1000));
    time.ok_or_else(|| "it is a number of milliseconds, as 812.345".into())
}

/// What to simulate.
#[derive(Debug)]
pub struct Simulation {
    subject: &'static Named,
    pins: Pins,
}

/// What is done with it.
#[derive(Debug)]
pub enum SimCommand {
    /// Run seeds.
    Run(Simulation, Box<RunArgs>),
    /// Tell why a message came where and when it did.
    Explain {
        /// In a run of this.
        of: Simulation,
        /// With this seed.
        seed: u64,
        /// The name of the message.
        message: String,
    },
}

fn command_of(subject: &Named) -> Command {
    let plant = |arg: Arg| arg.value_parser(planted(subject));
    let settings = subject.settings.iter().map(argument);
    let command = RunArgs::augment_args(Command::new(subject.name).args(settings));
    let message = format!("Only those about this, as a trace names it: {}", subject.messages);
    let message = |arg: Arg| arg.help(message);
    let command = command.mut_arg("plant", plant).mut_arg("message", message);
    // After those of the arguments, which have words of their own.
    command.about(subject.about).after_help(subject.help)
}

/// What reads the name of a planted bug.
fn planted(subject: &Named) -> impl Fn(&str) -> Result<String, String> + Clone + 'static + use<> {
    let planted = (subject.planted)();
    move |name: &str| {
        let known = planted.iter().any(|planted| planted == name);
        known.then(|| name.to_string()).ok_or_else(|| format!("there are {planted:?}"))
    }
}

/// `meridian sim explain SUBJECT SEED MESSAGE`.
fn explain_command() -> Command {
    let of = |subject: &'static Named| {
        let seed = Arg::new("seed").required(true).value_name("SEED").help("The seed of the run");
        let seed = seed.value_parser(clap::value_parser!(u64));
        let message = Arg::new("message").required(true).value_name("MESSAGE");
        let message = message.help("The name of the message, as a trace has it");
        let plant = Arg::new("plant").long("plant").hide(true).value_parser(planted(subject));
        let settings = subject.settings.iter().map(argument);
        let command = Command::new(subject.name).about(subject.about);
        let command = command.args([seed, message, plant]).args(settings);
        Some(command.after_help(subject.explained?))
    };
    Command::new(EXPLAIN)
        .about("Tell why a message came where and when it did")
        .after_help(EXPLAIN_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(TABLE.into_iter().filter_map(of))
}

/// Values in capitals are only names of values.
fn argument(setting: &Setting) -> Arg {
    let arg = Arg::new(setting.name).long(setting.name).help(setting.help);
    match setting.values {
        [] => arg.action(ArgAction::SetTrue),
        [name] => arg.value_name(*name),
        values => arg.value_parser(values.to_vec()),
    }
}

impl FromArgMatches for SimCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::raw(ErrorKind::MissingSubcommand, "what is simulated?\n");
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        if name != EXPLAIN {
            let run = RunArgs::from_arg_matches(matches)?;
            let of = Simulation::read(name, matches, run.plant.clone())?;
            return Ok(SimCommand::Run(of, Box::new(run)));
        }
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let planted = matches.get_one::<String>("plant").cloned();
        let of = Simulation::read(name, matches, planted)?;
        let seed = *matches.get_one("seed").ok_or_else(missing)?;
        let message = matches.get_one::<String>("message").ok_or_else(missing)?.clone();
        Ok(SimCommand::Explain { of, seed, message })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for SimCommand {
    fn augment_subcommands(command: Command) -> Command {
        let command = command.subcommand_required(true).arg_required_else_help(true);
        command.subcommands(TABLE.into_iter().map(command_of)).subcommand(explain_command())
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        name == EXPLAIN || TABLE.iter().any(|subject| subject.name == name)
    }
}

impl RunArgs {
    fn seeds(&self) -> anyhow::Result<Seeds> {
        let RunArgs { seeds, first, seed, threads, .. } = *self;
        let (from, count) = seed.map_or((first, seeds), |seed| (seed, 1));
        let Some(end) = from.checked_add(count) else {
            bail!("there are no seeds beyond {}", u64::MAX)
        };
        Ok(Seeds { from, end, threads })
    }
}

impl Simulation {
    /// What is pinned on a line.
    fn read(
        name: &str,
        matches: &ArgMatches,
        planted: Option<String>,
    ) -> Result<Self, clap::Error> {
        let unknown = || clap::Error::raw(ErrorKind::InvalidSubcommand, format!("{name}?\n"));
        let subject = TABLE.into_iter().find(|subject| subject.name == name).ok_or_else(unknown)?;
        let value = |setting: &Setting| match setting.values {
            [] => matches.get_flag(setting.name).then(String::new),
            _ => matches.get_one::<String>(setting.name).cloned(),
        };
        let values = subject.settings.iter();
        let values = values.filter_map(|setting| Some((setting.name, value(setting)?))).collect();
        Ok(Simulation { subject, pins: Pins { values, planted } })
    }

    fn trials(&self) -> anyhow::Result<Box<dyn Trials>> {
        (self.subject.pin)(&self.pins).map_err(|what| anyhow!(what))
    }

    /// What repeats a run with this seed.
    fn command(&self, seed: u64) -> String {
        let mut command = format!("meridian sim {} --seed {seed}", self.subject.name);
        for setting in self.subject.settings {
            match self.pins.values.get(setting.name).map(String::as_str) {
                Some("") => command += &format!(" --{}", setting.name),
                Some(value) => command += &format!(" --{} {value}", setting.name),
                None => {}
            }
        }
        if let Some(bug) = &self.pins.planted {
            command += &format!(" --plant {bug}");
        }
        command
    }

    fn run_seeds(&self, seeds: Seeds, trace: Option<Filter>) -> anyhow::Result<Totals> {
        let trials = self.trials()?;
        let detail = Detail { trace, ..Detail::default() };
        Ok(run_all(seeds, |seed| match trials.run(seed, detail.clone()) {
            Ok(report) => Ok(Totals::of(report)),
            Err(failure) => Err(Box::new(Failed::new(failure, self.command(seed)))),
        }))
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
    /// Which event it was, and when; 0 in short runs.
    event: u64,
    at_ms: f64,
    /// What was drawn.
    drawn: String,
    repeat: String,
}

impl Totals {
    fn of(report: Report<String>) -> Totals {
        Totals {
            seeds: 1,
            events: report.events,
            counts: report.counts.0,
            simulated_seconds: report.end.0 as f64 / 1e9,
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
    fn new(failure: Failure<String>, repeat: String) -> Failed {
        let Failure { seed, drawn, violated, events, at } = failure;
        let (property, what) = violated.split_once(": ").unwrap_or(("", &violated));
        let (property, what) = (property.into(), what.into());
        let at_ms = at.0 as f64 / 1e6;
        Failed { seed, property, what, event: events, at_ms, drawn: *drawn, repeat }
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

/// Runs `meridian sim`.
pub fn run(command: &SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Run(of, run) => run_many(of, run),
        SimCommand::Explain { of, seed, message } => {
            std::panic::set_hook(Box::new(|_| {}));
            let told = of.trials()?.explain(*seed, message).map_err(|what| anyhow!(what))?;
            output::print(&told)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_many(of: &Simulation, run: &RunArgs) -> anyhow::Result<ExitCode> {
    let seeds = run.seeds()?;
    if !run.trace {
        // An assertion that fails is a result, told at the end.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let start = Instant::now();
    let mut totals = of.run_seeds(seeds, run.trace.then(|| run.told.filter()))?;
    totals.seconds = start.elapsed().as_secs_f64();
    if run.json {
        output::print(&serde_json::to_string_pretty(&totals)?)?;
    } else {
        output::print(&describe(&totals))?;
    }
    Ok(if totals.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
            let Failed { seed, property, what, event, at_ms, drawn, repeat } = failed;
            let _ = write!(
                text,
                "\n\nviolated: {property}\n{what}\nseed {seed}, event {event}, at {at_ms:.3} ms; {drawn}\n\
                 repeat with: {repeat}  (--trace prints all events)"
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
        #[command(subcommand)]
        command: SimCommand,
    }

    fn command(line: &str) -> (Simulation, Box<RunArgs>) {
        let line = std::iter::once("sim").chain(line.split_whitespace());
        match Line::parse_from(line).command {
            SimCommand::Run(of, run) => (of, run),
            SimCommand::Explain { .. } => panic!("it explains"),
        }
    }

    fn run_seeds((of, run): &(Simulation, Box<RunArgs>), from: u64, end: u64) -> Totals {
        of.run_seeds(Seeds { from, end, threads: run.threads }, None).unwrap()
    }

    #[test]
    fn a_trace_is_of_one_seed_and_a_filter_of_a_trace() {
        let line = "multicast --seed 7 --trace --message 3.7 --process g0/n1 --from 8.5";
        let (_, run) = command(&format!("{line} --until 812.345ms"));
        let (message, process) = (Some("3.7".into()), Some("g0/n1".into()));
        let (from, until) = (Time(8_500_000), Time(812_345_000));
        assert_eq!(run.told.filter(), Filter { message, process, from, until });
        assert_eq!(command("files --first 9").1.seeds().unwrap().from, 9);
        for line in ["multicast --trace", "multicast --seed 7 --message 3.7", "files --from 1"] {
            assert!(Line::try_parse_from(format!("sim {line}").split_whitespace()).is_err());
        }
        assert!(moment("soon").is_err() && moment("-1").is_err());
    }

    #[test]
    fn who_asks_why_names_a_run_and_a_message() {
        let line = "sim explain multicast 5 1.2 --groups 2 --replicas 3 --plant NoOrder";
        let Line { command } = Line::parse_from(line.split_whitespace());
        let SimCommand::Explain { of, seed: 5, message } = command else { panic!("{command:?}") };
        assert_eq!(message, "1.2");
        let repeat = "meridian sim multicast --seed 5 --groups 2 --replicas 3 --plant NoOrder";
        assert_eq!(of.command(5), repeat);
        assert!(Line::try_parse_from("sim explain files 5 1.2".split_whitespace()).is_err());
        assert!(Line::try_parse_from("sim explain paxos 5 1.2".split_whitespace()).is_ok());
    }

    #[test]
    fn help_says_what_a_message_is_and_what_is_told_of_it() {
        for subject in TABLE {
            let help = command_of(subject).render_help().to_string();
            let words: Vec<_> = help.split_whitespace().collect();
            let message: Vec<_> = subject.messages.split_whitespace().collect();
            assert!(words.windows(message.len()).any(|words| words == message), "{help}");
        }
        let explained = explain_command();
        let names = explained.get_subcommands().map(|subject| subject.get_name().to_string());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["multicast", "paxos", "hermes", "eunomia", "causal"]
        );
    }

    #[test]
    fn the_command_that_repeats_a_run_says_all_that_was_said() {
        for options in [
            "multicast --order linearizable --clock hybrid --groups 2 --replicas 3",
            "paxos --mode epoch-ss --replicas 5 --routing forward --leases true --changes false",
            "files --nodes 1 --order linearizable",
        ] {
            let (name, options) = options.split_once(' ').unwrap();
            let first = command(&format!("{name} --seeds 9 {options}"));
            let repeat = format!("{name} --seed 7 {options}");
            assert_eq!(first.0.command(7), format!("meridian sim {repeat}"));
            assert_eq!(command(&repeat).0.pins, first.0.pins);
            assert!(first.0.trials().is_ok());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["multicast --groups 2", "paxos --replicas 9", "files --nodes 0"] {
            assert!(command(line).0.trials().is_err(), "{line}");
        }
        for line in ["sim nothing", "sim paxos --mode odd", "sim files --plant Odd"] {
            assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_planted_bug_ends_the_run_and_is_told() {
        for (name, bug) in [("multicast", "NoOrder"), ("paxos", "SkipsGaps")] {
            let planted = command(&format!("{name} --plant {bug} --threads 2"));
            let totals = run_seeds(&planted, 0, 200);
            let failed = totals.failure.as_ref().expect("it is caught");
            assert!(totals.seeds < 200, "it did not stop");
            assert!(failed.repeat.ends_with(&format!("--seed {} --plant {bug}", failed.seed)));
            assert!(describe(&totals).contains("violated: "));
        }
    }

    #[test]
    fn short_runs_find_what_ignores_links_and_say_how_to_see_it_again() {
        let first = command("multicast --short --groups 4 --replicas 1 --plant IgnoresLinks");
        let totals = run_seeds(&first, 0, 20_000);
        let failed = totals.failure.as_ref().expect("it is caught");
        assert_eq!(failed.property, "order in real time");
        let again = command(failed.repeat.strip_prefix("meridian sim ").expect("so it begins"));
        assert!(run_seeds(&again, failed.seed, failed.seed + 1).failure.is_some());
        let correct = command("multicast --short");
        assert!(run_seeds(&correct, failed.seed, failed.seed + 1).failure.is_none());
    }

    #[test]
    fn correct_runs_are_counted() {
        for (line, what) in [
            ("multicast --groups 1 --replicas 3", "messages"),
            ("paxos --replicas 3", "requests"),
            ("files --nodes 1", "updates"),
        ] {
            let totals = run_seeds(&command(line), 5, 8);
            assert_eq!(totals.seeds, 3);
            assert!(totals.failure.is_none() && totals.counts[what] > 0, "{line}");
        }
    }
}
