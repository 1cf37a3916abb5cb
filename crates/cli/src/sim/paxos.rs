//! `meridian sim paxos`.

use super::{Failed, Seeds, Totals, run_all, tell};
use clap::{Args, ValueEnum};
use meridian_paxos::{Mutation, Recovery, Routing};
use meridian_sim::paxos::{Counts, Failure, Report, Trial, planted, run as run_trial};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

/// Told after the help.
pub const HELP: &str = "\
Each seed is a run of three or five replicas in simulated time, with clients as the library's own: the network loses,
repeats and delays messages, links are cut and reset, replicas stop and crash in the midst of what they do, and start
again with what their disks kept in the recovery mode; members are added, removed and replaced. Then all is mended.
Checked are, at all times, that no instance has two decisions, that equal positions have equal states, that no
request is executed twice and no answer changes, that who has stopped answers nothing, and that logs stay short; at
the end, that all is answered and all members are equal, that nothing answered is lost, and that what clients saw is
linearizable.

What is not given is drawn from the seed. A failure says how to see it again.

Examples:
  meridian sim paxos --seeds 100000
  meridian sim paxos --seeds 1000 --mode epoch-ss --replicas 5 --changes true
  meridian sim paxos --seed 137 --trace";

/// How to simulate.
#[derive(Debug, Args)]
pub struct PaxosArgs {
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
    /// What survives a crash: crash-stop (nothing: who has crashed is replaced), full-ss (all: each vote is on disk before it
    /// counts), epoch-ss (how often each replica has started), view-ss (the view)
    #[arg(long)]
    mode: Option<Recovery>,
    /// How many replicas there are at first
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..=7))]
    replicas: Option<u16>,
    /// What followers do with requests
    #[arg(long)]
    routing: Option<RoutingArg>,
    /// Whether the leader answers reads by a lease
    #[arg(long, value_name = "true|false")]
    leases: Option<bool>,
    /// Whether members change
    #[arg(long, value_name = "true|false")]
    changes: Option<bool>,
    /// How many seeds run at a time, if not one on each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
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

/// What followers do with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoutingArg {
    /// They name the leader
    Redirect,
    /// They forward them to the leader
    Forward,
}

fn parse_mutation(name: &str) -> Result<Mutation, String> {
    let found = planted::ALL.into_iter().find(|mutation| format!("{mutation:?}") == name);
    found.ok_or_else(|| format!("one of {:?}", planted::ALL))
}

impl PaxosArgs {
    fn trial(&self) -> Trial {
        let trial = self.plant.map(planted::trial).unwrap_or_default();
        let routing = self.routing.map(|routing| match routing {
            RoutingArg::Redirect => Routing::Redirect,
            RoutingArg::Forward => Routing::Forward,
        });
        Trial {
            recovery: self.mode.or(trial.recovery),
            replicas: self.replicas.or(trial.replicas),
            routing: routing.or(trial.routing),
            leases: self.leases.or(trial.leases),
            changes: self.changes.or(trial.changes),
            trace: self.trace,
            ..trial
        }
    }

    /// What repeats a run with this seed.
    fn command(&self, seed: u64) -> String {
        let mut command = format!("meridian sim paxos --seed {seed}");
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(command, " --{name} {value}");
            }
        };
        add("mode", self.mode.map(|mode| mode.name().into()));
        add("replicas", self.replicas.map(|replicas| replicas.to_string()));
        add("routing", self.routing.map(|routing| format!("{routing:?}").to_lowercase()));
        add("leases", self.leases.map(|leases| leases.to_string()));
        add("changes", self.changes.map(|changes| changes.to_string()));
        add("plant", self.plant.map(|mutation| format!("{mutation:?}")));
        command
    }
}

fn totals(report: &Report) -> Totals {
    let Report { counts, decided, .. } = report;
    let Counts { requests, reads, stale, redirects, forgotten, repeated, .. } = *counts;
    let Counts { changes, crashes, recovered, refused, removed, leaders, snapshots, .. } = *counts;
    let decided = u64::try_from(*decided).unwrap_or(u64::MAX);
    Totals {
        seeds: 1,
        events: report.events,
        counts: BTreeMap::from([
            ("requests", requests),
            ("reads", reads),
            ("stale_reads", stale),
            ("redirects", redirects),
            ("forgotten", forgotten),
            ("repeated", repeated),
            ("instances", decided),
            ("changes", changes),
            ("crashes", crashes),
            ("recovered", recovered),
            ("refused", refused),
            ("removed", removed),
            ("leaders", leaders),
            ("snapshots", snapshots),
        ]),
        simulated_seconds: report.end.0 as f64 / 1e9,
        ..Totals::default()
    }
}

fn run_args(args: &PaxosArgs, seeds: Seeds) -> Totals {
    let trial = args.trial();
    run_all(seeds, |seed| {
        let failed = |failure: Failure| {
            let Failure { violated, drawn, events, at, .. } = failure;
            let mode = drawn.options.recovery.name();
            let violated = format!("{violated}\nmode {mode}");
            let failed = Failed::new(seed, &violated, &[drawn.replicas], args.command(seed));
            Box::new(Failed { event: Some(events), at_ms: Some(at.0 as f64 / 1e6), ..*failed })
        };
        run_trial(seed, &trial).map(|report| totals(&report)).map_err(failed)
    })
}

/// Runs `meridian sim paxos`.
pub fn run(args: &PaxosArgs) -> anyhow::Result<ExitCode> {
    let seeds = Seeds::new(args.seed, args.from, args.seeds, args.threads)?;
    tell(args.trace, args.json, || run_args(args, seeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PaxosArgs,
    }

    fn args(line: &str) -> PaxosArgs {
        Line::parse_from(std::iter::once("sim").chain(line.split_whitespace())).args
    }

    #[test]
    fn the_command_that_repeats_a_run_says_all_that_was_said() {
        let options =
            "--mode epoch-ss --replicas 5 --routing forward --leases true --changes false";
        let first = args(&format!("--seeds 9 {options}"));
        assert_eq!(first.command(7), format!("meridian sim paxos --seed 7 {options}"));
        let again = args(&format!("--seed 7 {options}"));
        assert_eq!(again.command(7), first.command(7));
        assert_eq!(again.trial().recovery, Some(Recovery::EpochSs));
    }

    #[test]
    fn a_planted_bug_ends_the_run_and_is_told() {
        let args = args("--plant SkipsGaps --threads 2");
        let totals = run_args(&args, Seeds { from: 0, end: 200, threads: args.threads });
        let failed = totals.failure.as_ref().expect("it is caught");
        assert!(totals.seeds < 200, "it did not stop");
        assert!(failed.repeat.ends_with(&format!("--seed {} --plant SkipsGaps", failed.seed)));
    }

    #[test]
    fn correct_runs_are_counted() {
        let args = args("--replicas 3");
        let totals = run_args(&args, Seeds { from: 5, end: 8, threads: None });
        assert_eq!(totals.seeds, 3);
        assert!(totals.failure.is_none() && totals.counts["requests"] > 0);
    }
}
