//! `meridian bench eunomia regions`: stores of three regions, what they answer, and how much later
//! than need be they show what other regions write (Eunomia, section 4.2).
//!
//! | module | what |
//! | --- | --- |
//! | `store` | the protocols, as the bench asks them |
//! | `node` | servers and sessions |
//! | `cluster` | all started, filled, loaded, stopped |

pub mod cluster;
mod node;
pub mod store;

pub use node::Workload;

use crate::harness::Machine;
use crate::harness::draw::Distribution;
use crate::harness::latency::Latency;
use anyhow::ensure;
use clap::Args;
use cluster::{Outcome, Setup};
use meridian_core::RegionId;
use meridian_terminal::{note, output};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;
use store::Protocol;

/// How long the load lasts before it is measured: what was filled is then everywhere.
pub const WARM_UP: Duration = Duration::from_secs(1);

/// How to measure.
#[derive(Debug, Args)]
pub struct RegionsArgs {
    /// The protocols, one after the other
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "eventual,eunomia,gentle-rain,cure"
    )]
    protocol: Vec<Protocol>,
    /// Of hundred operations so many update; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "10",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    updates: Vec<u32>,
    /// How operations spread over the keys
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    distribution: Vec<Distribution>,
    /// How many keys there are
    #[arg(long, default_value_t = KEYS, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    keys: u32,
    /// Bytes of a value
    #[arg(long, default_value_t = VALUE_BYTES,
          value_parser = clap::value_parser!(u32).range(0..=1 << 16))]
    value_bytes: u32,
    /// How many sessions each region has, which ask for one thing at a time
    #[arg(long, default_value_t = SESSIONS,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// How many milliseconds a session waits before it asks again, on average
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    think_ms: u32,
    /// How many partitions each region has
    #[arg(long, default_value_t = PARTITIONS,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    partitions: u16,
    /// How many replicas the service of each region has, with Eunomia
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=7))]
    replicas: u16,
    /// After how many milliseconds GentleRain and Cure find out again what is stable
    #[arg(long, default_value_t = THETA_MS,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    theta_ms: u32,
    /// For how many seconds each is measured
    #[arg(long, default_value_t = 3.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// Print JSON instead of a table, a line for each run
    #[arg(long)]
    json: bool,
}

/// As in the thesis (Eunomia, sections 4 and 4.2), where nothing else is said.
pub const KEYS: u32 = 100_000;
pub const VALUE_BYTES: u32 = 100;
pub const PARTITIONS: u16 = 8;
pub const THETA_MS: u32 = 5;
/// Enough to keep all servers busy.
pub const SESSIONS: u32 = 128;

/// How much later than the way between two regions takes updates were seen.
#[derive(Debug, Serialize)]
pub struct Extra {
    pub from: RegionId,
    pub to: RegionId,
    pub latency: Latency,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct Figures<'a> {
    machine: &'a Machine,
    #[serde(flatten)]
    setup: &'a Setup,
    pub operations_per_second: f64,
    /// Of all processes, sessions among them.
    cpu_us_per_operation: f64,
    pub extra_visibility: Vec<Extra>,
}

impl Figures<'_> {
    pub fn of<'a>(machine: &'a Machine, setup: &'a Setup, outcome: &Outcome) -> Figures<'a> {
        let operations = outcome.operations.max(1) as f64;
        let extra = |(pair, extra_ns): (&(RegionId, RegionId), &_)| Extra {
            from: pair.0,
            to: pair.1,
            latency: Latency::of(extra_ns),
        };
        Figures {
            machine,
            setup,
            operations_per_second: outcome.operations as f64 / outcome.length.as_secs_f64(),
            cpu_us_per_operation: outcome.cpu.as_secs_f64() * 1e6 / operations,
            extra_visibility: outcome.extra_ns.iter().map(extra).collect(),
        }
    }

    /// How much later updates of a region were seen in another.
    pub fn extra(&self, from: u16, to: u16) -> Option<&Latency> {
        let all = &mut self.extra_visibility.iter();
        let found = all.find(|extra| (extra.from.0, extra.to.0) == (from, to));
        found.map(|extra| &extra.latency)
    }

    fn row(&self) -> Vec<String> {
        let Setup { protocol, workload, .. } = self.setup;
        let p95 = |from, to| {
            let extra = self.extra(from, to).map(|extra| output::micros(extra.p95_us));
            extra.unwrap_or_else(|| "-".into())
        };
        vec![
            protocol.title().into(),
            format!("{} %", workload.updates_percent),
            format!("{:?}", workload.distribution).to_lowercase(),
            format!("{:.0}", self.operations_per_second),
            format!("{:.2}", self.cpu_us_per_operation),
            p95(0, 1),
            p95(1, 2),
        ]
    }
}

impl RegionsArgs {
    fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for distribution in &self.distribution {
            for updates_percent in &self.updates {
                setups.extend(self.protocol.iter().map(|protocol| Setup {
                    protocol: *protocol,
                    partitions: self.partitions,
                    replicas: self.replicas,
                    workload: Workload {
                        updates_percent: *updates_percent,
                        distribution: *distribution,
                        keys: self.keys,
                        value_bytes: self.value_bytes,
                        sessions: self.sessions,
                        think: Duration::from_millis(self.think_ms.into()),
                    },
                    theta: Duration::from_millis(self.theta_ms.into()),
                    warm_up: WARM_UP,
                    length: Duration::from_secs_f64(self.seconds),
                }));
            }
        }
        setups
    }
}

/// Runs `meridian bench eunomia regions`.
///
/// # Errors
/// If something cannot be measured.
pub fn run(args: &RegionsArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::look_and_warn();
    let mut rows = Vec::new();
    for setup in args.setups() {
        let outcome = cluster::run(&setup)?;
        ensure!(outcome.operations > 0, "no session was answered");
        let figures = Figures::of(&machine, &setup, &outcome);
        if args.json {
            output::print(&serde_json::to_string(&figures)?)?;
        } else {
            let title = setup.protocol.title();
            note!("{title}: {:.0} operations/s", figures.operations_per_second);
            rows.push(figures.row());
        }
    }
    if !args.json {
        let head = ["protocol", "updates", "keys", "operations/s", "CPU us of each"];
        let extra = ["extra p95, 0 to 1", "1 to 2"];
        output::print(&output::table(&[&head[..], &extra[..]].concat(), rows))?;
        output::print(&machine.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
